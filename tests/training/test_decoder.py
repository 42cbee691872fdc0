"""Decoders: tokens within caches in place, equal to onnxruntime's and to the whole text's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import engine
from bench.decoders import DecoderSizes, build_gpt2_decoder, build_qwen2_decoder
from engine.errors import DTypeError, InputError, LabelError, ShapeError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.graphs.ir.graph import Graph, Node
from engine.kernels.vocabulary.op import TensorType
from engine.training import decoder as decoders
from tests.support.decoders import count_positions

GPT2 = DecoderSizes(layers=2, width=64, heads=4, keys=4, wide=128, words=100, positions=64)
QWEN2 = DecoderSizes(layers=2, width=64, heads=4, keys=2, wide=128, words=100, positions=64)
PROMPT = [5, 7, 9, 11, 13]
FORMS: dict[str, Any] = {
    "gpt2-concat": lambda: build_gpt2_decoder(GPT2, "concat"),
    "gpt2-attention": lambda: build_gpt2_decoder(GPT2, "attention"),
    "qwen2-concat-int4": lambda: build_qwen2_decoder(QWEN2, "concat", bits=4),
    "qwen2-grouped": lambda: build_qwen2_decoder(QWEN2, "grouped"),
}


def open_session(graph: Graph) -> engine.Session:
    return engine.Session(onnx_io.to_bytes(graph), threads=1)


class Reference:
    """onnxruntime, which returns a larger copy of its caches for each token."""

    def __init__(self, graph: Graph, sizes: DecoderSizes, batch: int = 1) -> None:
        onnxruntime = pytest.importorskip("onnxruntime")
        self.session = onnxruntime.InferenceSession(onnx_io.to_bytes(graph))
        self.graph, self.length = graph, 0
        empty = np.zeros((batch, sizes.keys, 0, sizes.head), np.float32)
        self.caches = dict.fromkeys((n for n in graph.inputs if n.startswith("past")), empty)

    def append(self, ids: Any) -> Any:
        """Return the scores after tokens [batch, count]."""
        batch, count = ids.shape
        total = self.length + count
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones((batch, total), np.int64),
            "position_ids": np.tile(np.arange(self.length, total), (batch, 1)),
        }
        given = {name: array for name, array in feed.items() if name in self.graph.inputs}
        scores, *caches = self.session.run(None, {**given, **self.caches})
        self.caches = dict(zip(self.caches, caches, strict=True))
        self.length = total
        return scores[:, -1]


@pytest.mark.parametrize("form", FORMS)
def test_each_token_is_onnxruntimes_and_the_whole_texts(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "LEAST_CAPACITY", 16)  # so that caches grow twice
    graph = FORMS[form]()
    sizes = GPT2 if form.startswith("gpt2") else QWEN2
    decoder, reference = open_session(graph).decoder(), Reference(graph, sizes)
    text = list(PROMPT)
    expected = reference.append(np.array([text]))
    for _ in range(40):
        scores = decoder.append(text if not decoder.length else text[-1:])
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=2e-6)
        text.append(int(expected.argmax()))
        expected = reference.append(np.array([text[-1:]]))
    whole = open_session(graph).decoder().append(text[:-1])
    np.testing.assert_allclose(scores, whole, rtol=1e-5, atol=2e-6)


# How a model may end, after its product; whether its last row can be taken before that.
ENDINGS: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], bool]] = {
    "a product": ([("Identity", ["raw"], {})], True),
    "a bias and a scale": ([("Add", ["bias", "raw"], {}), ("Mul", ["", "scale"], {})], True),
    "a softmax": ([("Softmax", ["raw"], {"axis": -1})], False),
    "two outputs": ([("Identity", ["raw"], {})], False),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("bits", [32, 4])
def test_a_prompt_scores_its_last_token_alone(ending: str, bits: int) -> None:
    graph = build_qwen2_decoder(QWEN2, "concat", bits=bits)
    nodes, is_early = ENDINGS[ending]
    (last,) = (node for node in graph.nodes if "logits" in node.outputs)
    last.outputs = ("raw",)
    graph.initializers["bias"] = np.linspace(-1, 1, 100, dtype=np.float32)
    graph.initializers["scale"] = np.array(0.5, np.float32)
    made = "raw"
    for at, (op, inputs, attrs) in enumerate(nodes):
        out = "logits" if at + 1 == len(nodes) else f"tail{at}"
        graph.nodes.append(Node(op, tuple(i or made for i in inputs), (out,), attrs, "", out))
        made = out
    if ending == "two outputs":
        graph.outputs.append("raw")
        graph.types["raw"] = graph.types["logits"]
    session = open_session(graph)
    decoder, by_steps = session.decoder(), session.decoder()
    scores = decoder.append(PROMPT)
    for token in PROMPT:
        expected = by_steps.append([token])
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=2e-6)
    plan = decoder._get_prompt_program().plan
    rows = decoders.LEAST_PROMPT
    assert any(b.shape == (1, rows, QWEN2.width) for b in plan.buffers)
    assert any(b.shape[:2] == (1, rows) and b.shape[-1] == 100 for b in plan.buffers) != is_early


def test_a_token_makes_no_plan_and_moves_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "LEAST_CAPACITY", 16)
    session = open_session(FORMS["gpt2-concat"]())
    decoder = session.decoder()
    decoder.append(PROMPT)
    step = decoder._step
    assert step is not None
    places = {name: array.ctypes.data for name, array in step.inputs.items()}
    assert not any(name.startswith("present") for name in step.outputs)
    cache = step.inputs["past_key_values.1.value"]
    before = cache.copy()
    while decoder.length < 16:
        decoder.append([1])
        filled = decoder.length
        np.testing.assert_array_equal(cache[:, :, : filled - 1], before[:, :, : filled - 1])
        assert np.any(cache[:, :, filled - 1])
        before = cache.copy()
    assert decoder._step is step
    assert {name: array.ctypes.data for name, array in step.inputs.items()} == places
    decoder.append([1])
    assert decoder._step is not step
    assert decoder._step is not None
    grown = decoder._step.inputs["past_key_values.1.value"]
    assert grown.shape[2] == 32
    np.testing.assert_array_equal(grown[:, :, :16], before)


def test_texts_of_a_batch_and_a_second_decoder_do_not_meet() -> None:
    graph = FORMS["gpt2-concat"]()
    session, prompts = open_session(graph), np.array([PROMPT, PROMPT[::-1]])
    both, reference = session.decoder(batch=2, capacity=12), Reference(graph, GPT2, batch=2)
    alone = session.decoder(capacity=12)
    for tokens in (prompts, np.array([[3], [4]]), np.array([[8], [1]])):
        expected = reference.append(tokens)
        np.testing.assert_allclose(both.append(tokens), expected, rtol=1e-5, atol=2e-6)
        alone_scores = alone.append(tokens[1])
        np.testing.assert_allclose(alone_scores[0], expected[1], rtol=1e-5, atol=2e-6)


def test_a_shortened_text_goes_on_otherwise() -> None:
    session = open_session(FORMS["qwen2-grouped"]())
    decoder = session.decoder(capacity=20)
    decoder.append(PROMPT)
    decoder.append([1, 2, 3])
    decoder.truncate(6)
    scores = decoder.append([4])
    np.testing.assert_allclose(
        scores, session.decoder().append([*PROMPT, 1, 4]), rtol=1e-5, atol=2e-6
    )
    decoder.truncate(0)
    np.testing.assert_allclose(
        decoder.append([9]), session.decoder().append([9]), rtol=1e-5, atol=2e-6
    )


def test_generation_takes_the_best_token_or_a_chosen_one() -> None:
    session = open_session(FORMS["gpt2-concat"]())
    tokens = session.generate(PROMPT, 6)
    text = list(PROMPT)
    for token in tokens:
        assert session.decoder().append(text).argmax() == token
        text.append(int(token))
    both = session.generate(np.array([PROMPT, PROMPT]), 6)
    np.testing.assert_array_equal(both, [tokens, tokens])
    assert session.generate(PROMPT, 6, stop=[int(tokens[2])]).size <= 3
    worst = session.generate(PROMPT, 2, choose=lambda scores: scores.argmin(-1))
    assert worst[0] == session.decoder().append(PROMPT).argmin()
    with pytest.raises(ShapeError, match=r"choose returned the shape .1, 100.; expected .1."):
        session.generate(PROMPT, 2, choose=lambda scores: scores)


@pytest.mark.parametrize(
    ("past", "text"),
    [("before", "index 127 at position 0"), ("before.few", "scores differ by 0")],
)
def test_a_model_that_counts_the_past_by_its_size_is_refused(past: str, text: str) -> None:
    session = open_session(count_positions(FORMS["gpt2-concat"](), past))
    with pytest.raises(UnsupportedOpError, match=f"{text}.* from the size of the past"):
        session.decoder().append(PROMPT)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda d: d.append([]), InputError, "no tokens to add"),
        (lambda d: d.append([1.5]), DTypeError, "tokens are float64; expected integers"),
        (lambda d: d.append([[1], [2]]), ShapeError, r"shape .2, 1.; expected .1, count."),
        (lambda d: d.append([1] * 11), InputError, "11 more tokens after 0: the caches hold 10"),
        (lambda d: d.append([100]), LabelError, "index 100"),
        (lambda d: d.truncate(1), InputError, "length is 1; expected 0 to 0"),
    ],
)
def test_bad_tokens_are_refused(call: Any, error: type[Exception], text: str) -> None:
    decoder = open_session(FORMS["gpt2-concat"]()).decoder(capacity=10)
    with pytest.raises(error, match=text):
        call(decoder)
    assert decoder.length == 0
    assert decoder.append(PROMPT).shape == (1, 100)


def test_models_without_caches_are_refused_by_what_they_have() -> None:
    x, y = ({name: TensorType("f32", (2,))} for name in "xy")
    plain = Graph("m", x, ["y"], {}, [Node("Relu", ("x",), ("y",))], {"": 17}, y)
    with pytest.raises(InputError, match=r"inputs .'x'. and the outputs .'y'.: no caches"):
        open_session(plain).generate([1], 3)
    lost = FORMS["gpt2-concat"]()
    lost.outputs.remove("present.1.key")
    with pytest.raises(InputError, match=r"no output 'present\.1\.key'"):
        open_session(lost).decoder()
    more = FORMS["gpt2-concat"]()
    more.inputs["beam"] = TensorType("i64", (1,))
    with pytest.raises(InputError, match=r"beside caches the model takes .*'beam'"):
        open_session(more).decoder()


def test_a_cache_that_another_node_reads_is_refused() -> None:
    graph = FORMS["gpt2-concat"]()
    graph.nodes.pop()  # which names the scores
    graph.nodes += [
        Node("ReduceSum", ("past_key_values.0.key",), ("sum",), {"keepdims": 0}, name="total"),
        Node("Add", (graph.nodes[-1].outputs[0], "sum"), ("logits",)),
    ]
    with pytest.raises(UnsupportedOpError, match=r"ReduceSum 'total' reads the cache 'past"):
        open_session(graph).decoder().append(PROMPT)
