"""How much work a step of a plan is: floating-point operations of its products, and bytes it moves.

Operations are those of multiply-adds, two each, in matrix products, convolutions, attention and
recurrent networks: those of the operation, whatever algorithm computes it.  A convolution by
Winograd's transforms counts as the direct one, and what attention computes again in its backward
pass counts once.  All else, as maps, normalisations and updates, is told by the bytes it moves.
`OPERATIONS` has a row for each kernel that multiplies; the words are read by their declared names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.element_types import ITEMSIZE
from engine.kernels.ops.conv.patches import JOB
from engine.kernels.ops.conv.winograd import IMAGE, TAPS, TILES
from engine.kernels.registry import templates
from engine.runtime.plan import Arg, Buffer, Kernel, Plan, Step


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a step.

    flops: floating-point operations, of all threads.
    itemsize: bytes of the elements that it computes with.
    moves: bytes that it reads and writes, each byte of an operand once, and of how much different
        memory they are.  What a step of its group has just written is a move of its own, for it
        is only as much memory as a tile a thread.
    """

    flops: int
    itemsize: int
    moves: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """All bytes that it reads and writes."""
        return sum(nbytes for nbytes, _ in self.moves)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel: its parameters and numbers by name, and the elements of its pointers."""

    params: tuple[str | int, ...]
    numbers: Mapping[str, Any]
    elements: Mapping[str, int]


def _jobs(words: Sequence[int]) -> Iterator[dict[str, Any]]:
    for at in range(0, len(words), JOB.size):
        yield JOB.unpack(words[at : at + JOB.size])


def _gemm(call: Call) -> int:
    g = call.numbers
    return int(math.prod(g["batch"]) * g["m"] * g["n"] * g["k"])


def _conv(call: Call) -> int:
    jobs = _jobs(call.numbers["jobs"])
    return sum(int(call.numbers["groups"] * q["rows"] * q["columns"] * q["depth"]) for q in jobs)


def _conv_dw(call: Call) -> int:
    (q,) = _jobs(call.numbers["job"])
    return int(call.numbers["has_w"] * call.numbers["co"] * q["rows"] * q["columns"])


def _depthwise(call: Call) -> int:
    """Back, the windows are those of what is read."""
    (q,) = _jobs(call.numbers["job"])
    pixels = q["rows"]
    if call.numbers["back"]:
        pixels = pixels // math.prod(q["out"]) * math.prod(q["size"])
    return int(pixels * q["ldx"] * math.prod(q["taps"]))


def _depthwise_dw(call: Call) -> int:
    q = call.numbers
    return int(q["rows"] * q["ldx"] * math.prod(q["taps"]))


def _few(call: Call) -> int:
    """As of a depthwise one, for each filter."""
    return _depthwise(call) * int(call.numbers["filters"])


def _few_dw(call: Call) -> int:
    (q,) = _jobs(call.numbers["job"])
    return int(q["rows"] * q["ldx"] * math.prod(q["taps"]) * call.numbers["filters"])


def _winograd(call: Call) -> int:
    """As the direct convolution: 9 taps for each pixel, and not the products of the transforms."""
    g = call.numbers
    images, y = TILES.unpack(g["tiles"])["images"], IMAGE.unpack(g["y"])
    return int(images * y["height"] * y["width"] * g["channels"] * g["columns"] * TAPS * TAPS)


def _attention(each: Callable[[int, int], int]) -> Callable[[Call], int]:
    """The multiply-adds of each score that the band lets be, by the columns of Q and of V."""

    def count(call: Call) -> int:
        g = call.numbers
        seen = 0
        for query in range(g["queries"]):
            first, last = max(query + g["low"], 0), min(query + g["high"] + 1, g["keys"])
            seen += max(last - first, 0)
        return int(g["batch"] * g["heads"] * seen * each(g["width"], g["value_width"]))

    return count


def _walk(gates: str) -> Callable[[Call], int]:
    """All gates of all rows, each a sum over the hidden units."""
    return lambda call: int(call.elements[gates] * call.numbers["hidden"])


# Multiply-adds of the kernels that have many, by template.
OPERATIONS: dict[str, Callable[[Call], int]] = {
    "gemm": _gemm,
    "conv": _conv,
    "conv_dw": _conv_dw,
    "conv_few": _few,
    "conv_few_dw": _few_dw,
    "depthwise": _depthwise,
    "depthwise_dw": _depthwise_dw,
    "winograd": _winograd,
    "winograd_dw": _winograd,
    "attention": _attention(lambda width, columns: width + columns),
    "attention_grad": _attention(lambda width, columns: 2 * width + 2 * columns),
    "lstm": _walk("gates"),
    "lstm_grad": _walk("dgates"),
    "gru": _walk("gates"),
    "gru_grad_after": _walk("dgates"),
    "gru_grad_before": _walk("dgates"),
    "rnn": _walk("gates"),
    "rnn_grad": _walk("dgates"),
}

# Kernels that choose elements by an index: of a table that they read or add to they touch as much
# as they move from or to it.
CHOOSING = ("gather", "scatter")


def work(plan: Plan) -> list[Work]:
    """The work of every step of a plan."""
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    found: list[Work] = []
    written, end = set[int](), 0  # by the steps of the group so far; the end of the group
    for i, step in enumerate(plan.steps):
        if i >= end:
            written, end = set(), i + step.group
        moves = _moves(step, kernels[step.kernel].spec.template, plan, written)
        found.append(_of_step(step, kernels[step.kernel], plan.buffers, moves))
        written |= {a.buffer for a in step.args if a.mode in ("w", "u")}
    return found


def _of_step(
    step: Step, kernel: Kernel, buffers: Sequence[Buffer], moves: tuple[tuple[int, int], ...]
) -> Work:
    spec = kernel.spec
    count = OPERATIONS.get(spec.template)
    operations = 0 if count is None else count(_call(step, kernel, buffers))
    if step.tiles and not step.numbered:  # its numbers are those of a tile
        operations *= step.tiles
    dtype = str(spec.params[0]) if spec.params else ""
    return Work(2 * operations, ITEMSIZE.get(dtype, 4), moves)


def _moves(
    step: Step, template: str, plan: Plan, written: Container[int]
) -> tuple[tuple[int, int], ...]:
    """What a step moves, far and near; see `Work`.

    written: the buffers that steps before it in its group have written.
    """
    used = {a.buffer: a for a in step.args if a.buffer >= 0 and a.mode != "s"}
    sizes = {i: plan.buffers[i].nbytes for i in used}
    if template.startswith(CHOOSING):
        _choose(sizes, used)
    far, near, footprint, close = 0, 0, 0, 0
    for i, arg in used.items():
        times = 2 if arg.mode == "u" else 1
        if arg.thread:  # a thread has one tile of it, again and again
            near += times * arg.thread * step.tiles
            close += sizes[i]
        elif step.tiles and arg.mode == "r" and i in written:
            near += sizes[i]
            close += -(-sizes[i] // step.tiles) * plan.threads
        else:
            far += times * sizes[i]
            footprint += sizes[i]
    return tuple((nbytes, memory) for nbytes, memory in ((far, footprint), (near, close)) if nbytes)


def _choose(sizes: dict[int, int], used: Mapping[int, Arg]) -> None:
    """Let a table that a kernel chooses elements of count as far as it moves from or to it."""
    table = max(sizes, key=lambda i: sizes[i])
    if len(sizes) > 1 and used[table].mode != "w":
        sizes[table] = max(size for i, size in sizes.items() if i != table)


def _call(step: Step, kernel: Kernel, buffers: Sequence[Buffer]) -> Call:
    """The numbers of a step by the names that its kernel has for them."""
    template = templates()[kernel.spec.template]
    layouts = template.layouts(kernel.spec.params)
    pointers = [name for name, kind in template.signature if kind.endswith("*")]
    scalars = [n for n, kind in template.signature if not kind.endswith(("*", "[]"))]
    numbers = dict(zip(scalars, step.consts, strict=False))
    open_words = [name for name, kind in template.signature if kind.endswith("[]")]
    for name in open_words:
        if name in layouts:
            rest = [int(v) for v in step.consts[len(scalars) :]]
            numbers |= layouts[name].unpack(rest)
    elements = {
        name: math.prod(buffers[a.buffer].shape)
        for name, a in zip(pointers, step.args, strict=False)
        if a.buffer >= 0
    }
    return Call(kernel.spec.params, numbers, elements)
