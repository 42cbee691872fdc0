"""The self-test of a build: the losses of a few steps are recorded here and compared on the device.

The inputs are made up by a generator of random numbers that Python and C compute alike, so that
they need not be stored: s = 1664525 s + 1013904223 modulo 2^32 (Knuth, The Art of Computer
Programming 2, 3.3.4, line 16).  A float is the upper 24 bits of a number divided by 2^24.  An
integer is the highest bit, because 0 and 1 are valid labels of every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.api import CheckpointState, Module, Optimizer
from engine.element_types import NUMPY
from engine.tools.trimmed.plans import Planned

STEPS, RATE = 5, 0.01
A, C = 1664525, 1013904223


def random_words(count: int, seed: int) -> tuple[npt.NDArray[np.uint32], int]:
    """The next `count` numbers (uint32) of the generator, and its state after them.

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
    """An input of made-up values, and the state of the generator after them."""
    words, seed = random_words(int(np.prod(shape, dtype=np.int64)), seed)
    kind = np.dtype(NUMPY[dtype])
    if kind.kind == "f":
        values = ((words >> np.uint32(8)) * 2.0**-24).astype(kind)
    else:
        values = (words >> np.uint32(31)).astype(kind)
    return values.reshape(shape), seed


def record(files: Mapping[str, Path], planned: Planned, threads: int) -> tuple[str, bytes]:
    """Train STEPS steps on this machine, with the engine.

    Returns C declarations of the losses and of the sum of squares of the trained parameters, and
    the checkpoint that training began with.  A device computes the same up to rounding; the same
    CPU computes the same bits.
    """
    state = CheckpointState.load_checkpoint(files["checkpoint"])
    data = state.to_bytes()
    module = Module(files["train"], state, threads=threads)
    optimizer = Optimizer(files["optimizer"], module) if "optimizer" in files else None
    if optimizer is not None:
        optimizer.set_learning_rate(RATE)
    plans, seed, losses = [each["train"] for each in planned.batches.values()], 1, []
    for step in range(STEPS):
        plan, inputs = plans[step % len(plans)], []
        ports = {p.name: p for p in plan.inputs}
        for name in planned.inputs["train"]:
            port = ports[name]
            made, seed = make_input(plan.buffers[port.buffer].dtype, port.shape, seed)
            inputs.append(made)
        found = module(*inputs)
        loss = found[0] if isinstance(found, tuple) else found
        losses.append(float(np.float32(loss.reshape(-1)[0])))
        if optimizer is not None:
            optimizer.step()
            module.lazy_reset_grad()
    parameters = module.get_contiguous_parameters(trainable_only=True).astype(np.float64)
    rows = [
        f"#define CHECKPOINT_BYTES {len(data)}u",
        f"#define HAS_OPTIMIZER {int(optimizer is not None)}",
        f"#define LEARNING_RATE {RATE}f",
        f"static const float recorded[] = {{{', '.join(x.hex() + 'f' for x in losses)}}};",
        f"static const double recorded_square_sum = {float(np.sum(parameters**2)).hex()};",
    ]
    return "\n".join(rows), data
