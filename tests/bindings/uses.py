"""Builds of one use, `--only` and decoders alone, and a check of their examples."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

import engine
from engine.tools.trimmed.api import Only
from engine.tools.trimmed.build import build
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.bindings.packages import NATIVE
from tests.support.decoders import CAPACITY, make_artifacts
from tests.support.places import GOLDENS
from tests.support.shared import make_once

PLATFORMS = {"js": "wasm32", "swift": "macos-aarch64"}  # of languages that need their own


@functools.cache
def make_use(only: Only, platform: str = "native") -> Path:
    """Return the folder of a build of one use, called `mnist`, with packages."""
    named = [name for name in PLATFORMS if PLATFORMS[name] == platform] or NATIVE.split(",")
    if only == "decoder":
        decoder = DecoderOptions(CAPACITY, path=make_artifacts("gpt2") / "decoder.onnx")
        options = Options("mnist", resolve(platform), PlanRequest(decoder=decoder), bindings=named)
    else:
        options = Options("mnist", resolve(platform), PlanRequest([4], only=only), bindings=named)
    artifacts = None if only == "decoder" else GOLDENS / "mlp"
    return make_once(f"use-{only}-{platform}", lambda out: build(artifacts, out, options))


def list_words(only: Only, folder: Path, out: Path) -> list[Path]:
    """Return the arguments of an example."""
    return {
        "train": [folder / "checkpoint", out / "trained"],
        "inference": [folder / "checkpoint"],
    }.get(only, [])


def check_example(only: Only, printed: str, out: Path) -> None:
    """Check what the example of a build of one use prints, and what it writes."""
    if only == "train":
        losses = [float(x) for x in re.findall(r"^step \d+: loss (\S+)", printed, re.MULTILINE)]
        assert len(losses) == 20
        assert losses[-1] < losses[0]
        assert (out / "trained").stat().st_size > 10_000
    elif only == "inference":
        (values,) = re.findall(r"^output: (.*) \.\.\.$", printed, re.MULTILINE)
        numbers = [float(x) for x in re.findall(r"[-\d.e]+", values)]
        assert len(numbers) >= 2
        assert np.isfinite(numbers).all()
    else:
        assert printed == f"text: {' '.join(map(str, continue_text()))}\n"


@functools.cache
def continue_text() -> list[int]:
    """Return the text that every example continues, from a session of the engine."""
    session = engine.Session(make_artifacts("gpt2") / "decoder.onnx", threads=1)
    decoder, text = session.decoder(capacity=CAPACITY), [0]
    while len(text) < 10:
        text.append(int(np.argmax(decoder.append(text[-1:]))))
    return text
