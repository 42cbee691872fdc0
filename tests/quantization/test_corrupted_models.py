"""Commands on models whose integers do not fit, and calibration on wrong data.

Each refuses them in one line, which names the node and its input, and writes nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgegrad import lora
from engine.base.aliases import Array
from engine.errors import ModelWarning
from engine.tools import cli
from tests.support.corrupted_units import make_wrong_models
from tests.support.integer_models import (
    draw_samples,
    make_float,
    write,
    write_attention,
    write_blocks,
)

# The forms of layers, each with what reads it last.
MODELS = {
    **{f"{how} {kind}": (how, kind) for how in ("QDQ", "QOperator", "dynamic", "dynamic optimised")
       for kind in ("Gemm", "Conv")},
    "QAttention": ("", "attention"),
    "MatMulNBits": ("MatMulNBits", "blocks"),
    "blocks": ("DequantizeLinear", "blocks"),
}  # fmt: skip
# Where shapes are wrong that only a plan knows, commands that make none have their own refusals.
PLANNING = ("check", "profile", "plan", "build")


def write_model(name: str, folder: Path) -> tuple[Path, Array]:
    """Write a model; return it, and samples."""
    how, kind = MODELS[name]
    if kind == "attention":
        return write_attention(folder), np.ones((8, 5, 12), np.float32)
    if kind == "blocks":
        return write_blocks(how, folder), np.ones((8, 20), np.float32)
    x = draw_samples(kind, 8)
    return write(make_float(kind), how, x, folder), x


def list_commands(folder: Path, file: Path) -> dict[str, tuple[Any, ...]]:
    """Return what each command is called with on a model; it writes to the path `out`, if at all.

    Beside the model are artifacts/, whose training model has its layers and adapters.
    """
    data, out = folder / "data.npz", folder / "out"
    loss = ("--loss", "cross_entropy")
    return {
        "check": (file, "--brief"),
        "profile": (file, "--inference", "--repeats", 1),
        "quantize": (file, "--calibrate", data, "-o", out),
        "lora": (file, "--match", ".", "-o", out),
        "artifacts": (file, *loss, "-o", out),
        "head": ("train", "--model", file, "--data", data, "--train", "head", "-o", out),
        "train": ("train", "--model", file, "--data", data, "-o", out),
        "plan": (folder / "artifacts", "-o", out, "--batch", 1),
        "build": (folder / "artifacts", "-o", out, "--batch", 1),
    }


def call(
    capsys: pytest.CaptureFixture[str], command: str, words: tuple[Any, ...]
) -> tuple[int, str]:
    """Call a command; return its status, and the line or the report that says why it refuses."""
    line = [*map(str, words)] if words[0] == "train" else [command, *map(str, words)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)  # a scale of another type looks trainable
        status = cli.main(line)
    printed = capsys.readouterr()
    # `check` reports all obstacles at once, beside lines of progress.
    return status, printed.out or printed.err.strip().rpartition("\n")[2]


def choose(count: int, commands: tuple[str, ...], *, all_of: bool) -> Iterator[tuple[int, str]]:
    """Yield corruptions by number, and commands: all of them, or each corruption with one."""
    for k in range(count):
        yield from ((k, c) for c in (commands if all_of else (commands[k % len(commands)],)))


@pytest.mark.parametrize("all_of", [False, pytest.param(True, marks=pytest.mark.whole)])
@pytest.mark.parametrize("name", MODELS)
def test_every_command_names_the_node_and_its_input(
    name: str, all_of: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, x = write_model(name, tmp_path)
    np.savez(tmp_path / "data.npz", x=x, labels=np.arange(len(x)) % 6)
    model, bad = onnx.load(file), tmp_path / "bad.onnx"
    adapted = lora.adapt(file, ".").to_bytes()
    (tmp_path / "adapted.onnx").write_bytes(adapted)
    made = tmp_path / "artifacts"
    words = (tmp_path / "adapted.onnx", "--loss", "cross_entropy", "--internal-data", "-o", made)
    assert cli.main(["artifacts", *map(str, words)]) == 0
    capsys.readouterr()
    training = onnx.load(made / "training_model.onnx")
    commands = list_commands(tmp_path, bad)
    for of_artifacts, source in ((False, model), (True, training)):
        wrong = [*make_wrong_models(source)]
        chosen = tuple(c for c in commands if (c in ("plan", "build")) == of_artifacts)
        for k, command in choose(len(wrong), chosen, all_of=all_of):
            what, node, i, changed = wrong[k]
            onnx.save(changed, made / "training_model.onnx" if of_artifacts else bad)
            status, text = call(capsys, command, commands[command])
            case = f"{command}: {what} of input {i} of {node}: {text}"
            assert status, case
            if "of shape" not in what or command in PLANNING:
                assert f"{node}'" in text, case
                assert f"input {i}" in text, case
            left = tmp_path / "out"
            assert not left.exists(), case


def test_weights_that_are_missing_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, x = write_model("QDQ Gemm", tmp_path)
    np.savez(tmp_path / "data.npz", x=x, labels=np.arange(len(x)) % 6)
    bad, weights = tmp_path / "bad.onnx", tmp_path / "weights.bin"
    onnx.save(
        onnx.load(file), bad, save_as_external_data=True, location=weights.name, size_threshold=0
    )
    whole = weights.read_bytes()
    commands = list_commands(tmp_path, bad)
    for command in commands.keys() - {"plan", "build"}:
        for left in (None, whole[: len(whole) // 2]):
            weights.unlink(missing_ok=True)
            if left is not None:
                weights.write_bytes(left)
            status, text = call(capsys, command, commands[command])
            assert status == 1
            assert "weights.bin" in text, f"{command}: {text}"
            assert not (tmp_path / "out").exists()


def make_wrong_samples() -> dict[str, tuple[Any, str]]:
    """Return arrays that calibrate nothing, and what is said of each."""
    x = draw_samples("Gemm", 8)
    hole, infinite = x.copy(), x.copy()
    hole[3, 2], infinite[3, 2] = np.nan, np.inf
    shape = r"a sample is \[.*\], and the model's input 'x' takes \[20\]"
    return {
        "none": (x[:0], "no samples"),
        "zeros": (np.zeros_like(x), "every element of the input 'x' is 0"),
        "equal": (np.ones_like(x), "every element of the input 'x' is 1"),
        "wide": (np.concatenate([x, x], 1), shape),
        "numbers": (x[:, 0], shape),
        "empty": (x[:, :0], shape),
        "texts": (np.array(["a"] * 8), shape),
        "float64": (x.astype(np.float64), "input 'x': expected float32, got float64"),
        "NaN": (hole, r"'x' has NaN in sample 3, column 2"),
        "infinite": (infinite, "the input 'x' is not finite"),
        "one value": (np.float32(3), "'x' is one value"),
    }


@pytest.mark.parametrize("case", make_wrong_samples())
def test_wrong_samples_calibrate_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, told = make_wrong_samples()[case]
    file, data, out = tmp_path / "float.onnx", tmp_path / "data.npz", tmp_path / "out"
    onnx.save(make_float("Gemm"), file)
    count = len(samples) if np.ndim(samples) else 1
    np.savez(data, x=samples, labels=np.zeros(count, np.int64))
    for words in (
        ("quantize", file, "--calibrate", data, "-o", out),
        ("train", "--model", file, "--data", data, "--qat", "-o", out),
    ):
        status, text = call(capsys, words[0], words if words[0] == "train" else words[1:])
        assert status == 1
        assert re.search(told, text), text
        assert not out.exists()
