"""Drills: the calls that every binding is put through, and the same calls made by the engine.

Each drill takes nine steps of a golden, the fourth without an update, evaluates, predicts, keeps
properties, is refused eight times, resumes from bytes and from a file, takes a tenth step, lets two
threads train one model, moves parameters, exports the inference model, sets a rate of a schedule,
and makes and ends sessions.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx

from engine.api import CheckpointState, Module, Optimizer
from tests.bindings.programs import TOOLCHAINS, Place
from tests.support.places import GOLDENS

REFUSALS = (
    "BAD_INPUT: .*'{x}'.*",
    r"BAD_LABEL: label 10 at position 0 is outside \[0, 10\)",
    "BAD_INPUT: .*(NaN|nan).*",
    "BAD_INPUT: the parameters have {count} elements, the buffer 1",
    "BAD_CHECKPOINT: .+",
    "BAD_FILE: .*missing.*",
    "BAD_STATE: .*gradients.*",
    "BAD_INPUT: (parameter '.+' is not float64|the buffer is float64: .+)",
)
GONE = "BAD_STATE: .+"
MOST_GROWN = 32  # MiB that many sessions may leave, as collectors are in no hurry


def write_steps(case: str, path: Path) -> None:
    """Write the steps of a golden: learning rate, inputs and labels, ten times."""
    trace = np.load(GOLDENS / case / "trace.npz")
    with open(path, "wb") as file:
        for rate, x, y in zip(trace["learning_rates"], trace["x"], trace["y"], strict=True):
            file.write(np.float32(rate).tobytes() + x.astype("f4").tobytes())
            file.write(y.astype("i8").tobytes())


class Reference:
    """The engine, which takes the steps of a drill."""

    def __init__(self, case: str) -> None:
        folder = GOLDENS / case
        trace = np.load(folder / "trace.npz")
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(
            folder / "training_model.onnx", state, folder / "eval_model.onnx", threads=1
        )
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        self.losses = []
        for k, rate in enumerate(trace["learning_rates"]):
            if k == 9:
                self.evaluated = float(module.eval()(trace["x"][k], trace["y"][k]))
                state.properties["note"] = "grüß"
                state.properties["count"] = 9007199254740993
            optimizer.set_learning_rate(float(rate))
            self.losses.append(float(module.train()(trace["x"][k], trace["y"][k])))
            if k != 3:
                optimizer.step()
                module.lazy_reset_grad()
        self.checkpoint = state.to_bytes(include_optimizer_state=True)
        self.parameters = {name: parameter.data for name, parameter in state.parameters}
        self.input = json.loads((folder / "case.json").read_text()).get("input", "input")
        self.count = sum(p.data.size for _, p in state.parameters if p.requires_grad)


def check(
    printed: str,
    out: Path,
    case: str,
    *,
    exact: bool,
    sized: bool = True,
    ends: bool = True,
    turns: bool = True,
) -> None:
    """Check what a drill printed and the checkpoint that it wrote.

    exact: to the last bit; otherwise to rounding, as on a processor without fused sums.
    sized, ends, turns: as in `Toolchain`.
    """
    reference = Reference(case)
    lines = printed.splitlines()
    rows = [line.partition(" ")[::2] for line in lines]
    numbers = [int(rest) for word, rest in rows if word in ("loss", "eval")]
    losses = np.array(numbers, np.int32).view(np.float32)
    expected = np.array(
        [*reference.losses[:9], reference.evaluated, reference.losses[9]], np.float32
    )
    if exact:
        np.testing.assert_array_equal(losses, expected)
        assert out.read_bytes() == reference.checkpoint
    else:
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert len(out.read_bytes()) == len(reference.checkpoint)
    exported = onnx.load(out.with_name(f"{out.name}.onnx")).graph.initializer
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in exported}
    for name in reference.parameters.keys() & arrays.keys():
        values = reference.parameters[name]
        if exact:
            np.testing.assert_array_equal(arrays[name], values)
        np.testing.assert_allclose(arrays[name], values, rtol=1e-4, atol=1e-6)
    assert len(arrays) >= 4, "the weights and biases of two layers"
    patterns = [*REFUSALS[not sized :], *[GONE] * ends]
    refused = [rest for word, rest in rows if word == "refused"]
    assert len(refused) == len(patterns), printed
    for line, pattern in zip(refused, patterns, strict=True):
        pattern = pattern.replace("{x}", "input").replace("{count}", str(reference.count))
        assert re.fullmatch(pattern, line), line
    facts = dict(row for row in rows if row[0] not in ("loss", "eval", "refused", "grown"))
    assert facts == {
        "predicted": "40",
        "property": "grüß 9007199254740993",
        "unchanged": "true",
        "round": "trip true",
        "alike": "true",
        "parameters": f"{reference.count} true",
        "rate": "0.25",
    } | ({"turns": "100"} if turns else {})
    assert int(dict(rows)["grown"]) <= MOST_GROWN


def run(
    language: str, folder: Path, case: str, out: Path, sessions: str, place: Place, *, exact: bool
) -> None:
    """Put a language through the drill, at a place, with the build in a folder."""
    tools = TOOLCHAINS[language]
    write_steps(case, out / "steps")
    program = tools.make(folder, tools.name_program("drill"), out, place)
    printed = program.run(folder / "checkpoint", out / "steps", out / "out", sessions)
    check(
        printed, out / "out", case,
        exact=exact, sized=tools.sized, ends=tools.ends, turns=tools.turns,
    )  # fmt: skip


REFUSED = (  # of Hostile.m and Hostile.swift, whatever made the call
    "BAD_INPUT: input '?input'?.*: expected .*",
    "BAD_INPUT: (inputs: )?expected 2.*, got 1",
    "BAD_STATE: there are no gradients yet: train a step first",
    "BAD_CHECKPOINT: .*",
    "BAD_CHECKPOINT: .+",
    "BAD_INPUT: name: expected text without null characters",
    "NO_MEMORY: .+",
    "BAD_STATE: the model was closed",
)


def check_refusals(printed: str) -> None:
    """Check what a program prints that makes each of these calls, and then a thousand times."""
    lines = printed.splitlines()
    refused = [line.removeprefix("refused ") for line in lines if line.startswith("refused ")]
    assert len(refused) == len(REFUSED), printed
    for line, pattern in zip(refused, REFUSED, strict=True):
        assert re.fullmatch(pattern, line), line
    facts = dict(line.split() for line in lines if not line.startswith("refused "))
    assert facts["unchanged"] == "true"
    assert int(facts["grown"]) <= 4, "MiB, after a thousand refusals of each kind"
