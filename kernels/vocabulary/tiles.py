"""Words of a row of tiles: what the loops of `vector_ir/slide_dots.py` walk.

A tile has a few outputs of line 0 and, if `two`, of line 1.  "From ... to ..." are distances: in
elements of x and w, or in columns of x.  Kernels set the words on their stack, where they become
registers.
"""

from __future__ import annotations

from engine.plan.words import Words

TILES = Words(
    "tiles",
    channels="channels",
    tiles="tiles along the lines",
    first="the first pixel of the first tile, which may be -1",
    outs="pixels of a line",
    col="the column of x that tap 0 of the first tile sees",
    size="columns of x",
    col_tile="columns from tile to tile",
    col_pixel="columns from pixel to pixel",
    col_tap="columns from tap to tap",
    taps_d="taps along the depth",
    x_depth="from one of these to the next in x",
    w_depth="from one of these to the next in w",
    only0_begin="the first row that line 0 alone sees",
    only0_end="the row after these",
    both_begin="the first row that both lines see, which is loaded once for both",
    both_end="the row after these",
    only1_begin="the first row that line 1 alone sees",
    only1_end="the row after these",
    x_row="from row to row in x",
    w_row="from row to row in w",
    taps_w="taps in a row",
    w_tap="from one of these to the next in w",
    x_tap="from column to column in x by taps",
    x_pixel="from column to column in x by pixels",
    x_tile="from column to column in x by tiles",
    y_pixel="from pixel to pixel in y",
    taps="taps of a window",
    two="whether line 1 is wanted",
    ahead="tiles between one that is computed and one whose memory is asked for",
    # Where the tiles begin, in elements; the loops get pointers.
    x_line="the row of x that row 0 is",
    w_line="the weights of the first tap along the depth",
    k0="the tap along the height by which line 0 sees row 0",
    k1="the tap along the height by which line 1 sees row 0",
    y_line0="line 0 of y",
    y_line1="line 1 of y",
    x_at="what tap 0 of the first tile sees in x",
    w_at="the weights of the first tap of a row",
    w0_at="from these to the weights that line 0 gives to row 0",
    w1_at="from these to the weights that line 1 gives to row 0",
    y0_at="the first pixel of line 0 in y",
    y1_at="the first pixel of line 1 in y",
)
