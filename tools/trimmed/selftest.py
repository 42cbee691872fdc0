"""Self-test of a build: the losses of a few steps, or the answers of a build that cannot train, and
the scores by which a decoder continues a text, are recorded here and compared on the device.

The self-test reads the checkpoint next to the build, and checks by its CRC-32 that it is the
recorded one; parameters can be larger than the rest of a build.

The inputs are made up by a generator of random numbers that Python and C compute alike, so that
they need not be stored: s = 1664525 s + 1013904223 modulo 2^32 (Knuth, The Art of Computer
Programming 2, 3.3.4, line 16).  A float is the upper 24 bits of a number divided by 2^24.  An
integer is the highest bit, because 0 and 1 are valid labels of every model.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.api import CheckpointState, Module, Optimizer
from engine.base.element_types import HALVES, NUMPY
from engine.base.errors import StateError
from engine.base.plan_options import PRECISIONS, PlanOptions, Precision
from engine.plan.plan import Plan
from engine.system import files as files_io
from engine.tools.trimmed.decoders import DecoderPlans, open_decoder
from engine.tools.trimmed.manifest import MANIFEST
from engine.tools.trimmed.plans import Planned, load_state
from engine.training.artifact_set import CHECKPOINT
from engine.training.decoder import CLOSE
from engine.training.inference import read_sharing
from engine.training.joined import JoinedStep
from engine.training.large_constants import freeze_constants
from engine.training.memory import Memory
from engine.training.model import Model

STEPS, RATE = 3, 0.01  # at least so many steps or answers, and one of every batch size
FIRST = 3  # tokens of a text at once, before as many single ones as there are steps
# Of models that scale their loss: small enough that no CPU skips a step, whatever sums of float16
# its products have.
SCALE = 1024.0
A, C = 1664525, 1013904223
BLOCK = 1 << 16  # elements that are summed at a time
# How far a device may be from what was recorded, relative to it: a few units of rounding.  CPUs
# with and without products of 16 bits round other numbers.  A decoder in integers rounds what it
# multiplies, so a unit of rounding before that can be a step of 8 bits after it: `CLOSE`.
TOLERANCES = {"f32": 1e-4, "f16": 1e-2, "bf16": 1e-2}


@dataclass(frozen=True, slots=True)
class CheckpointStamp:
    """Identity of the checkpoint of a build: the file's size and its CRC-32."""

    size: int
    crc32: int

    @classmethod
    def of(cls, content: bytes) -> CheckpointStamp:
        """Return the identity of a file with this content."""
        return cls(len(content), zlib.crc32(content))


def keep_trained(out: Path, checkpoint: CheckpointStamp) -> None:
    """Check that a build into a folder overwrites no checkpoint but one that a build made.

    Raises:
        StateError: it would.
    """
    path = out / CHECKPOINT
    if not path.exists():
        return
    there = CheckpointStamp.of(files_io.read(os.fspath(path), "checkpoint"))
    try:
        made = json.loads((out / MANIFEST).read_text("utf-8"))["checkpoint"]
    except (OSError, ValueError, LookupError, TypeError):
        made = None
    if there != checkpoint and asdict(there) != made:
        raise StateError(
            f"{path} is not what the last build into this folder wrote: it was trained since, or "
            "is another file. Move it away, or build into another folder"
        )


def draw_words(count: int, seed: int) -> tuple[npt.NDArray[np.uint32], int]:
    """Return the next `count` numbers (uint32) of the generator, and its state after them.

    The state k steps after s is a_k s + c_k.  Applied to the first k numbers, this gives the next k
    numbers in one operation on arrays.  Then k doubles: a_2k = a_k^2, c_2k = a_k c_k + c_k.
    """
    out = np.empty(max(count, 1), np.uint32)
    out[0] = (A * seed + C) % 2**32
    a, c, done = A, C, 1
    while done < count:
        n = min(done, count - done)
        out[done : done + n] = out[:n] * np.uint32(a) + np.uint32(c)
        a, c, done = a * a % 2**32, (a * c + c) % 2**32, done + n
    return out[:count], int(out[count - 1]) if count else seed


def make_input(
    dtype: str, shape: tuple[int, ...], seed: int
) -> tuple[npt.NDArray[np.generic], int]:
    """Return an input of made-up values, and the state of the generator after them."""
    words, seed = draw_words(int(np.prod(shape, dtype=np.int64)), seed)
    kind = np.dtype(NUMPY[dtype])
    if kind.kind == "f":
        values = ((words >> np.uint32(8)) * 2.0**-24).astype(kind)
    else:
        values = (words >> np.uint32(31)).astype(kind)
    return values.reshape(shape), seed


def _make_inputs(
    plans: Sequence[Plan], names: Sequence[str]
) -> Iterator[dict[str, npt.NDArray[np.generic]]]:
    """Yield made-up inputs of the plans of all batch sizes in turn, `STEPS` times or more often.

    names: of the caller's inputs, in the order in which C fills them.
    """
    seed = 1
    for call in range(max(STEPS, len(plans))):
        plan, made = plans[call % len(plans)], {}
        ports = {p.name: p for p in plan.inputs}
        for name in names:
            port = ports[name]
            made[name], seed = make_input(plan.buffers[port.buffer].dtype, port.shape, seed)
        yield made


def _write_number(value: float) -> str:
    """Return a number as C writes it, to the last bit."""
    if math.isfinite(value):
        return value.hex()
    return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def _write_numbers(values: Sequence[float]) -> str:
    return ", ".join(map(_write_number, values))


def _sum_squares(values: npt.NDArray[Any]) -> float:
    """Return the sum of squares of a 1-D array in float64, without a copy of all of it in that
    type.
    """
    blocks = (values[i : i + BLOCK].astype(np.float64) for i in range(0, values.size, BLOCK))
    return math.fsum(float(block @ block) for block in blocks)


def _list_types(plans: Sequence[Plan]) -> Set[str]:
    """Return the element types of what plans compute and of their parameters."""
    given = [{port.buffer for port in plan.inputs} for plan in plans]
    return {
        b.dtype
        for plan, inputs in zip(plans, given, strict=True)
        for k, b in enumerate(plan.buffers)
        if k not in inputs
    }


def _find_precision(plans: Sequence[Plan], precision: Precision) -> Precision:
    """Return the precision of plans; of those that chose it, as in their values."""
    if precision != "auto":
        return precision
    dtypes = _list_types(plans)
    return next((half for half in PRECISIONS if half in HALVES and half in dtypes), "f32")


def _find_tolerance(plans: Sequence[Plan], precision: Precision) -> float:
    """Return how far answers may be from the recorded ones, relative to them."""
    if _list_types(plans) & {"i8", "u8"}:
        return CLOSE
    return TOLERANCES[_find_precision(plans, precision)]


def record(
    files: Mapping[str, Path],
    planned: Planned,
    threads: int,
    checkpoint: CheckpointStamp | None,
    planning: PlanOptions,
) -> str:
    """Compute on this machine, with the engine, what a device is to compute.

    Returns C declarations of the results and of the checkpoint, which a decoder alone lacks.  A
    device computes the same up to rounding; the same CPU computes the same bits.
    """
    rows = [
        f"#define CHECKPOINT_BYTES {checkpoint.size if checkpoint else 0}u",
        f"#define CHECKPOINT_CRC32 {checkpoint.crc32 if checkpoint else 0}u",
    ]
    if planned.decoder is not None:
        rows += _record_scores(files, planned.decoder, planning)
    if "train" in planned.plans:
        rows += _record_steps(files, planned, threads, planning.precision)
    elif "infer" in planned.plans:
        rows += _record_outputs(files, planned, threads, planning.precision)
    return "\n".join(rows)


def _record_scores(
    files: Mapping[str, Path], writing: DecoderPlans, planning: PlanOptions
) -> list[str]:
    """Continue a made-up text by its first tokens at once and then one by one.

    Returns declarations of the text, and of the sums of squares of the scores.
    """
    positions, state = writing.options.positions, load_state(files)
    words, _ = draw_words(min(FIRST + STEPS, positions), 1)
    text, first = (words >> np.uint32(31)).tolist(), min(FIRST, positions)
    raw = read_sharing(os.fspath(files["decoder"]), state)
    decoder = open_decoder(raw, state, planning, positions)
    answers = [decoder.append(text[:first]), *(decoder.append([t]) for t in text[first:])]
    sums = [_sum_squares(scores.reshape(-1)) for scores in answers]
    tolerance = _find_tolerance([*writing.plans.values()], planning.precision)
    return [
        f"#define FIRST_TOKENS {first}u",
        f"#define SCORES_TOLERANCE {tolerance}",
        f"static const int32_t text[] = {{{', '.join(map(str, text))}}};",
        f"static const double recorded_sums[] = {{{_write_numbers(sums)}}};",
    ]


def _record_outputs(
    files: Mapping[str, Path], planned: Planned, threads: int, precision: Precision
) -> list[str]:
    """Answer on made-up inputs, in the precision of the plans.

    Returns declarations of the sums of squares of all outputs, answer by answer.
    """
    state, names = load_state(files), planned.outputs["infer"]
    plans = [each["infer"] for each in planned.batches.values()]
    memory = Memory(planning=PlanOptions(precision=_find_precision(plans, precision)))
    whole = Model(files["eval"], state, memory, threads, "eval model")
    freeze_constants([whole], memory)
    model, sums = whole.select(names, "inference model"), list[float]()
    for inputs in _make_inputs(plans, planned.inputs["infer"]):
        program = model.get_program([inputs[name].shape for name in model.inputs])
        for name in model.inputs:
            program.inputs[name][...] = inputs[name]
        program.run()
        sums += [_sum_squares(program.outputs[name].reshape(-1)) for name in names]
    return [
        f"#define OUTPUTS_TOLERANCE {_find_tolerance(plans, precision)}",
        f"static const double recorded_outputs[] = {{{_write_numbers(sums)}}};",
    ]


def _record_steps(
    files: Mapping[str, Path], planned: Planned, threads: int, precision: Precision
) -> list[str]:
    """Train a few steps, in the precision of the plans.

    Returns declarations of the losses, and of the sum of squares of the trained parameters.
    """
    state = CheckpointState.load_checkpoint(files["checkpoint"])
    plans = [each["train"] for each in planned.batches.values()]
    precision = _find_precision(plans, precision)
    scaling = None if planned.scales_loss else 1
    module = Module(files["train"], state, threads=threads, precision=precision, loss_scale=scaling)
    optimizer = Optimizer(files["optimizer"], module) if "optimizer" in files else None
    if optimizer is not None:
        optimizer.set_learning_rate(RATE)
    if planned.scales_loss:
        state.loss_scale = SCALE
    joined = JoinedStep(module, optimizer) if planned.is_joined and optimizer is not None else None
    losses = list[float]()
    for made in _make_inputs(plans, planned.inputs["train"]):
        inputs = [*made.values()]
        results = module(*inputs) if joined is None else joined.run(inputs, check_finite=False)
        loss = results[0] if isinstance(results, tuple) else results
        losses.append(float(np.float32(loss.reshape(-1)[0])))
        if optimizer is not None and joined is None:
            optimizer.step()
            module.lazy_reset_grad()
    trained = (p.data.reshape(-1) for _, p in state.parameters if p.requires_grad)
    square_sum = math.fsum(_sum_squares(values) for values in trained)
    return [
        f"#define HAS_OPTIMIZER {int(optimizer is not None)}",
        f"#define LEARNING_RATE {RATE}f",
        f"#define LOSS_SCALE {SCALE if planned.scales_loss else 0.0}f",
        f"#define TOLERANCE {TOLERANCES[precision]}",
        f"static const double recorded[] = {{{_write_numbers(losses)}}};",
        f"static const double recorded_square_sum = {_write_number(square_sum)};",
    ]
