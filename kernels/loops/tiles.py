"""The run of one tile of a step in a group, by the executor and in profiles."""

from __future__ import annotations

from engine.kernels.vocabulary.kernel import Intrinsic, inline, off

invoke3 = Intrinsic("invoke", (3,))


@inline
def run_tile(step, tile, tid):
    """Run one tile of a step, with the argument words of thread `tid`.

    step: a `STEP`, or a `TIMED`, which names the same things alike.
    """
    tiles, given = step.tiles, step.arguments
    own = off(tiles.own, tid * tiles.stride)
    for k in range(tiles.pointers):
        move = off(tiles.moves, k)
        own[k] = given[k] + tid * move.thread + tile * move.tile
    if tiles.numbered != 0:
        invoke3(step.kernel, own, tile, tiles.count)
    else:
        invoke3(step.kernel, own, 0, 1)
