"""Decoders for builds: artifacts of the same networks, and the calls that a drill makes of one."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

import engine
from bench.decoders import DecoderSizes, build_gpt2_decoder, build_qwen2_decoder
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.decoding import place_caches
from engine.kernels.vocabulary.op import TensorType
from engine.tools.trimmed.build import build
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from engine.trainer import Trainer
from tests.support.shared import make_once

WORDS, LENGTH, CAPACITY = 100, 8, 40  # tokens that there are, of a text to learn, in caches
SHAPES = {  # queries of four heads; two heads of keys and values serve them in the second
    "gpt2": DecoderSizes(2, 64, 4, 4, 128, WORDS, 64),
    "qwen2": DecoderSizes(2, 64, 4, 2, 128, WORDS, 64),
}
PROMPT = [5, 7, 9, 11, 13]
LATER = range(3, 13)  # tokens that a drill appends one by one
KEPT, LAST = 7, 8  # the tokens that it then keeps, and the one that it adds to them
REFUSALS = (  # of a drill, which has appended 15 tokens
    rf"BAD_LABEL: index {WORDS} at position 0 is outside \[-{WORDS}, {WORDS}\)",
    f"BAD_INPUT: 26 more tokens after 15: the caches hold {CAPACITY}",
    "BAD_INPUT: there are no tokens to append",
    "BAD_INPUT: a length of 16 tokens: give 0 to 15",
)


def build_decoder(shape: str) -> Graph:
    """Return a decoder as exporters write it."""
    if shape == "gpt2":
        return build_gpt2_decoder(SHAPES[shape], "concat")
    return build_qwen2_decoder(SHAPES[shape], "grouped")


def count_positions(graph: Graph, past: str) -> Graph:
    """Let a decoder count positions by the size of its past, as `past` computes it."""
    del graph.inputs["position_ids"]
    graph.initializers |= {"one": np.array(1), "axis": np.array([0]), "few": np.array(3)}
    graph.nodes[:0] = [
        Node("Shape", ("past_key_values.0.key",), ("rows",), {"start": 2, "end": 3}),
        Node("Shape", ("input_ids",), ("count",), {"start": 1, "end": 2}),
        Node("Squeeze", ("rows",), ("before",)),
        Node("Min", ("before", "few"), ("before.few",)),
        Node("Squeeze", ("count",), ("new",)),
        Node("Add", (past, "new"), ("after",)),
        Node("Range", (past, "after", "one"), ("positions",)),
        Node("Unsqueeze", ("positions", "axis"), ("position_ids",)),
    ]
    return graph


@functools.cache
def make_artifacts(shape: str) -> Path:
    """Return a folder of artifacts of a decoder's network, beside which `decoder.onnx` lies.

    The network to train is the decoder without caches, with its values.
    """
    return make_once(f"decoder-{shape}", lambda folder: _write_artifacts(shape, folder))


def _write_artifacts(shape: str, folder: Path) -> None:
    decoder = build_decoder(shape)
    form = build_gpt2_decoder if shape == "gpt2" else build_qwen2_decoder
    whole = form(SHAPES[shape], "concat")
    presents = {name: name.replace("past_key_values", "present") for name in whole.inputs
                if name.startswith("past")}  # fmt: skip
    shapes = {name: (1, LENGTH) for name in whole.inputs if name not in presents}
    graph = place_caches(whole, presents, shapes, 0)
    graph.nodes.append(Node("Transpose", ("logits",), ("scores",), {"perm": [0, 2, 1]}, "", "last"))
    graph.outputs, graph.types = ["scores"], {"scores": TensorType("f32", (1, WORDS, LENGTH))}
    shared = [n for n, v in graph.initializers.items() if v.ndim and n in decoder.initializers]
    trained = [n for n in shared if graph.initializers[n].dtype == np.float32]
    folder.mkdir()
    onnx_io.save(graph, str(folder / "forward.onnx"))
    Trainer.from_onnx(
        folder / "forward.onnx", "cross_entropy", train=trained, folder=folder, threads=1
    )
    onnx_io.save(decoder, str(folder / "decoder.onnx"))


@functools.cache
def make_decoder_build(
    shape: str, languages: str = "", target: str = "native", threads: int = 1, prompt: int = 0
) -> Path:
    """Return the folder of a build of these artifacts with the decoder, called `mnist`."""
    named = languages.split(",") if languages else []
    # Without commas, which linkers split paths at.
    name = "-".join(["writer", shape, *named, target, str(threads), str(prompt)])
    options = Options(
        "mnist",
        resolve(target),
        PlanRequest(threads=threads, decoder=DecoderOptions(CAPACITY, prompt)),
        bindings=named,
    )
    return make_once(name, lambda out: build(make_artifacts(shape), out, options))


@functools.cache
def answer_drill(shape: str, *, is_alone: bool = False) -> np.ndarray:
    """Return the scores of all calls of a drill, from a session of the engine.

    is_alone: the decoder has its own parameters, and not the parameters of the artifacts.
    """
    artifacts = make_artifacts(shape)
    if is_alone:
        session = engine.Session(artifacts / "decoder.onnx", threads=1)
    else:
        session = Trainer(artifacts, threads=1).session(artifacts / "decoder.onnx")
    decoder = session.decoder(capacity=CAPACITY)
    scores = [decoder.append(PROMPT), *(decoder.append([token]) for token in LATER)]
    decoder.truncate(KEPT)
    return np.concatenate([*scores, decoder.append([LAST])])


def check_drill(
    printed: str, out: Path, shape: str, *, exact: bool = True, is_alone: bool = False
) -> None:
    """Check what a drill of a decoder printed, and the scores that it wrote."""
    lines = printed.splitlines()
    refused = [line.removeprefix("refused ") for line in lines if line.startswith("refused ")]
    assert len(refused) == len(REFUSALS), printed
    for line, pattern in zip(refused, REFUSALS, strict=True):
        assert re.fullmatch(pattern, line), line
    rest = [line for line in lines if not line.startswith("refused ")]
    assert rest == [f"length 15 of {CAPACITY}", "forgotten true"]
    scores = np.fromfile(out, np.float32).reshape(-1, WORDS)
    expected = answer_drill(shape, is_alone=is_alone)
    if exact:
        np.testing.assert_array_equal(scores, expected)
    else:
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
