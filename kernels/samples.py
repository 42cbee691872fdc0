"""How calls of kernels are cut into samples: what `Tiling` says of rows, of whole images.

A kernel that reads the neighbours of a pixel cannot be cut into rows, for a tile of them would need
those of its neighbours.  The images of a batch have nothing to do with each other, though.  The
call for one of them is the same kernel with pointers that have moved to the image and with numbers
of one image in the place of all, in a thread of its own:

    conv(rows=100352)(x, w, y)    cut into 8 samples    conv(rows=12544)(x + i X, w, y + i Y)

What sums over the images, as gradients of weights do, adds to sums of its thread, or makes a part
for each sample.  The parts are added up in order.  Kernels that walk rows without a look at their
neighbours are cut as their templates say, because a sample is as many rows as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.kernels.ops.conv.convolution import CONV_WORDS
from engine.kernels.ops.conv.depthwise import DEPTHWISE_WORDS
from engine.kernels.ops.conv.few_channels import FEW_DW_WORDS, FEW_WORDS
from engine.kernels.ops.conv.patches import JOB
from engine.kernels.ops.conv.weight_gradient import ALWAYS, DW_WORDS
from engine.kernels.ops.conv.winograd import IMAGE, TILES, WINOGRAD_WORDS
from engine.kernels.ops.pool.pool_kernels import MAX_GRAD_WORDS, MAX_WORDS, MEAN_WORDS
from engine.kernels.registry import templates
from engine.kernels.vocabulary.kernel import Numbers
from engine.kernels.vocabulary.tiling import Tiling
from engine.runtime.plan import KernelSpec
from engine.runtime.words import Words


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a kernel.

    items: bytes of an element behind each pointer.  sizes: bytes behind each pointer.
    """

    spec: KernelSpec
    numbers: Numbers
    items: Sequence[int]
    sizes: Sequence[int]

    def words(self, layout: Words) -> dict[str, Any]:
        """The numbers by their names."""
        return layout.unpack(self.numbers)

    def tiling(self, images: int, steps: Mapping[int, int], **more: Any) -> Tiling | None:
        """The tiling of some images; steps: elements from image to image, by pointer."""
        found = tuple([item * steps.get(at, 0) for at, item in enumerate(self.items)])
        return Tiling(images, found, **more) if images > 1 else None


def sample_tiling(
    spec: KernelSpec, numbers: Numbers, items: Sequence[int], sizes: Sequence[int]
) -> Tiling | None:
    """How a call is cut into samples, or into rows of which each sample has as many.

    items, sizes: bytes of an element and of all that each of its pointers points to; 0 for the
    null pointer.

    Returns None if it is not cut.
    """
    rule = SAMPLES.get(spec.template)
    if rule is not None:
        return rule(_Call(spec, numbers, items, sizes))
    rows = templates()[spec.template].tiling
    return None if rows is None else rows(spec.params, numbers)


# --- jobs


def _images(job: dict[str, Any]) -> int:
    """The images of a job, 0 if it has no pixels."""
    pixels = math.prod(job["out"])
    return int(job["rows"]) // pixels if pixels else 0


def _read(job: dict[str, Any]) -> int:
    """Elements of an image that a job reads."""
    return int(math.prod(job["size"]) * job["ldx"])


def _written(job: dict[str, Any]) -> int:
    """Elements from image to image of those that a job of `conv` writes."""
    return int(job["y_step"][0] if job["scatter"] else math.prod(job["out"]) * job["ldy"])


def _alone(at: int) -> dict[int, int]:
    """The numbers of a job that begins there, for a thread alone."""
    return {at + JOB.place("mt"): 1, at + JOB.place("nt"): 1}


# --- kernels


def _conv(call: _Call) -> Tiling | None:
    words, first = call.words(CONV_WORDS), CONV_WORDS.place("jobs")
    places = [first + n * JOB.size for n in range(words["count"])]
    jobs = [JOB.unpack(call.numbers[at : at + JOB.size]) for at in places]
    found = {(_images(q), _read(q), _written(q)) for q in jobs}
    if len(found) != 1:  # there are no pixels of some residue
        return None
    ((images, x, y),) = found
    fixed = {place: one for at in places for place, one in _alone(at).items()}
    rows = tuple(at + JOB.place("rows") for at in places)
    return call.tiling(images, {0: x, 2: y}, counts=rows, fixed=fixed)


def _conv_dw(call: _Call) -> Tiling | None:
    words, at = call.words(DW_WORDS), DW_WORDS.place("job")
    if not words["has_w"] or words["has_b"] or words["adds_w"]:
        return None
    job = JOB.unpack(call.numbers[at : at + JOB.size])
    rows = at + JOB.place("rows")
    return call.tiling(
        _images(job),
        {0: _read(job), 1: math.prod(job["out"]) * words["co"]},
        counts=(rows,),
        fixed={**_alone(at), DW_WORDS.place("adds_w"): ALWAYS},
        sums=(2, call.items[2] * words["co"] * job["columns"]),
        clears={**_alone(at), rows: 0, DW_WORDS.place("co"): None},
    )


def _window(layout: Words, filters: str) -> Callable[[_Call], Tiling | None]:
    """The rule of kernels of one job; filters: the word of the channels of y if x has others."""

    def rule(call: _Call) -> Tiling | None:
        words, at = call.words(layout), layout.place("job")
        job = JOB.unpack(call.numbers[at : at + JOB.size])
        y = math.prod(job["out"]) * (words[filters] if filters else job["ldx"])
        rows = (at + JOB.place("rows"),)
        return call.tiling(_images(job), {0: _read(job), 2: y}, counts=rows)

    return rule


def _parts(layout: Words, filters: str) -> Callable[[_Call], Tiling | None]:
    """The rule of kernels of one job which makes parts of sums; filters: of dy, as `_window`."""

    def rule(call: _Call) -> Tiling | None:
        words, at = call.words(layout), layout.place("job") if filters else 0
        job = JOB.unpack(call.numbers[at : at + JOB.size])
        dy = math.prod(job["out"]) * (words[filters] if filters else job["ldx"])
        return call.tiling(
            _images(job),
            {0: _read(job), 1: dy},
            counts=(at + JOB.place("rows"),),
            fixed=_alone(at),
            parts=(2, call.sizes[2] // job["mt"]),
        )

    return rule


def _winograd(call: _Call) -> Tiling | None:
    words = call.words(WINOGRAD_WORDS)
    if words["nt"] > 1:  # scratch memory has room for the columns of a thread alone
        return None
    images = TILES.unpack(words["tiles"])["images"]
    x, y = (IMAGE.unpack(words[name]) for name in "xy")
    steps = {at: q["height"] * q["width"] * q["ld"] for at, q in ((0, x), (2, y))}
    count = WINOGRAD_WORDS.place("tiles") + TILES.place("images")
    return call.tiling(images, steps, counts=(count,), fixed={WINOGRAD_WORDS.place("mt"): 1})


def _pool(layout: Words, windows: Sequence[int], pixels: int) -> Callable[[_Call], Tiling | None]:
    """The rule of a pool; its pointers to an element for each window, and to one for each pixel."""

    def rule(call: _Call) -> Tiling | None:
        words = call.words(layout)
        steps = {at: math.prod(words["out"]) * words["channels"] for at in windows}
        steps[pixels] = math.prod(words["size"]) * words["channels"]
        return call.tiling(words["images"], steps, counts=(layout.place("images"),))

    return rule


def _pool_max(call: _Call) -> Tiling | None:
    """Indices of places in the batch are none of a sample."""
    return None if call.spec.params[1] else _pool(MAX_WORDS, [1], 0)(call)


# By template, of the kernels that look at neighbours or sum over images.
SAMPLES: dict[str, Callable[[_Call], Tiling | None]] = {
    "conv": _conv,
    "conv_dw": _conv_dw,
    "conv_few": _window(FEW_WORDS, "filters"),
    "conv_few_dw": _parts(FEW_DW_WORDS, "filters"),
    "depthwise": _window(DEPTHWISE_WORDS, ""),
    "depthwise_dw": _parts(JOB, ""),
    "pool_max": _pool_max,
    "pool_max_taps": _pool(MAX_WORDS, [1, 2], 0),
    "pool_max_taps_grad": _pool(MAX_GRAD_WORDS, [0, 1], 2),
    "pool_mean": _pool(MEAN_WORDS, [1], 0),
    "pool_mean_grad": _pool(MEAN_WORDS, [0], 1),
    "winograd": _winograd,
}
