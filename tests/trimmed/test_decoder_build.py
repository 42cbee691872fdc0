"""Builds with a decoder: token by token equal to a session of the engine, in known memory."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine.errors import FileError, InputError, ModelError, UnsupportedOpError
from engine.graphs.io import onnx_io
from engine.tools import cli
from engine.tools.dev.emulators import find_emulator
from engine.tools.trimmed.build import build
from engine.tools.trimmed.bundle import Bundle
from engine.tools.trimmed.decoders import DecoderOptions
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.plans import list_artifacts, make_plans
from engine.tools.trimmed.targets import resolve
from engine.trainer import Trainer
from tests.support.builds import (
    SANITIZE,
    STRICT,
    compile_c,
    list_sources,
    load,
    make_build,
    needs_cc,
    run,
)
from tests.support.decoders import (
    CAPACITY,
    LENGTH,
    PROMPT,
    SHAPES,
    WORDS,
    build_decoder,
    check_drill,
    count_positions,
    make_artifacts,
    make_decoder_build,
)
from tests.support.needs import needs_emulator
from tests.support.places import DRIVERS

pytestmark = needs_cc


@pytest.mark.parametrize(("shape", "threads"), [("gpt2", 1), ("qwen2", 1), ("qwen2", 2)])
def test_a_text_goes_on_as_in_a_session_while_the_model_learns(shape: str, threads: int) -> None:
    folder, artifacts = make_decoder_build(shape, threads=threads), make_artifacts(shape)
    mine, other = load(folder).Trainer(), Trainer(artifacts, threads=threads)
    decoder = mine.decoder()
    reference = other.session(artifacts / "decoder.onnx").decoder(capacity=CAPACITY)
    assert (decoder.length, decoder.capacity) == (0, CAPACITY)
    rng = np.random.default_rng(0)
    for _ in range(2):
        for tokens in (PROMPT, [3], [1, 2], range(20), [4] * 12):
            expected = reference.append(list(tokens))
            np.testing.assert_array_equal(decoder.append(list(tokens)), expected)
        assert decoder.length == CAPACITY
        text, labels = rng.integers(0, WORDS, (2, 1, LENGTH))
        batch = [text, np.ones((1, LENGTH), np.int64), np.arange(LENGTH)[None], labels]
        assert mine.step(*batch) == other.step(*batch)
        for length in (7, 0):
            decoder.truncate(length)
            reference.truncate(length)
            np.testing.assert_array_equal(decoder.append([8]), reference.append([8]))
        decoder.truncate(0)
        reference.truncate(0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_decoder_alone_has_its_parameters_in_the_library(shape: str, tmp_path: Path) -> None:
    model = make_artifacts(shape) / "decoder.onnx"
    options = Options(
        "mnist", resolve("native"), PlanRequest(decoder=DecoderOptions(CAPACITY, path=model))
    )
    manifest = build(None, tmp_path / "out", options)
    folder = tmp_path / "out"
    flags = (*STRICT, "-std=c11", *SANITIZE)
    program = compile_c(tmp_path / "tokens", *flags, DRIVERS / "tokens.c", *list_sources(folder))
    printed = run(program, "-", tmp_path / "scores")
    # A session packs weights that are constants, and so sums in another order than a build.
    check_drill(printed, tmp_path / "scores", shape, exact=False, is_alone=True)
    assert not (folder / "checkpoint").exists()
    values = sum(v.nbytes for v in build_decoder(shape).initializers.values())
    assert manifest["report"]["parts"]["constants"] > 0.95 * values
    assert manifest["sizes"]["memory"] < 0.5 * values
    assert manifest["decoder"] == {"positions": CAPACITY, "prompt": 16}
    for define in ("-DEDGEGRAD_FREESTANDING", "-O2"):
        compile_c(tmp_path / "x.o", *flags, define, f"-I{folder}", "-c", folder / "src/mnist.c")


@pytest.mark.parametrize("prompt", [0, 1])
def test_a_decoder_has_the_values_of_the_checkpoint(prompt: int, tmp_path: Path) -> None:
    """Also without the rest of the library, and without a plan for prompts."""
    folder = make_decoder_build("gpt2", prompt=prompt)
    program = compile_c(
        tmp_path / "tokens", *STRICT, "-std=c11", "-O2", DRIVERS / "tokens.c",
        *list_sources(folder),
    )  # fmt: skip
    printed = run(program, folder / "checkpoint", tmp_path / "scores")
    check_drill(printed, tmp_path / "scores", "gpt2", exact=prompt != 1)
    only = Options(
        "mnist",
        resolve("native"),
        PlanRequest(only="decoder", decoder=DecoderOptions(CAPACITY, prompt)),
    )
    manifest = build(make_artifacts("gpt2"), tmp_path / "only", only)
    assert "mnist_append" in manifest["functions"]
    assert not {"mnist_infer", "mnist_train_step"} & set(manifest["functions"])
    words = (*STRICT, "-std=c11", "-O2", DRIVERS / "tokens.c")
    program = compile_c(tmp_path / "alone", *words, *list_sources(tmp_path / "only"))
    printed = run(program, folder / "checkpoint", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "scores").read_bytes()


ANSWER = re.compile(r"answer \d: squares of the scores (\S+), recorded (\S+), (\w+);")


@pytest.mark.parametrize("is_alone", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_a_self_test_compares_scores_and_fails_where_they_differ(
    is_alone: bool, tmp_path: Path
) -> None:
    """Of a decoder beside training steps, and of one alone, which reads no checkpoint."""
    folder, words = make_decoder_build("qwen2"), [tmp_path / "changed"]
    if is_alone:
        path = make_artifacts("qwen2") / "decoder.onnx"
        options = Options(
            "mnist", resolve("native"), PlanRequest(decoder=DecoderOptions(CAPACITY, 0, path))
        )
        folder = tmp_path / "out"
        build(None, folder, options)
    else:
        words.append(folder / "checkpoint")
    said = run(folder / "selftest")
    assert "passed" in said
    assert ("step 3: loss" in said) != is_alone
    rows = ANSWER.findall(said)
    assert [verdict for *_, verdict in rows] == ["equal"] * 4
    assert len({value for value, *_ in rows}) == 4
    text = (folder / "src/selftest.c").read_text()
    (recorded,) = re.findall(r"recorded_sums\[\] = \{(.*)\};", text)
    numbers = recorded.split(", ")
    numbers[2] = (float.fromhex(numbers[2]) * 1.001).hex()
    (tmp_path / "changed.c").write_text(text.replace(recorded, ", ".join(numbers)))
    sources = (tmp_path / "changed.c", *list_sources(folder))
    compile_c(tmp_path / "changed", *STRICT, "-std=c11", "-O1", *sources)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert [v for *_, v in ANSWER.findall(done.stdout)] == ["equal", "equal", "WRONG", "equal"]
    assert "FAILED" in done.stdout


@pytest.mark.whole
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=needs_emulator(name))
        for name in ("raspberrypi2", "raspberrypi5", "riscv64", "windows-x86_64", "wasm32")
    ],
)
def test_a_decoder_answers_elsewhere_as_here(target: str) -> None:
    folder, emulator = make_decoder_build("qwen2", target=target), find_emulator(target)
    assert emulator is not None
    program = folder / resolve(target).file_name("executable", "selftest")
    said = emulator.run(program, folder / "checkpoint")
    rows = ANSWER.findall(said)
    assert len(rows) == 4
    for value, recorded, _ in rows:
        assert float(value) == pytest.approx(float(recorded), rel=1e-5)


def test_caches_lie_in_the_models_memory_and_only_new_rows_are_written() -> None:
    artifacts = make_artifacts("gpt2")
    files = {**list_artifacts(artifacts), "decoder": artifacts / "decoder.onnx"}
    target = resolve("native").target
    planned = make_plans(files, target, PlanRequest(decoder=DecoderOptions(CAPACITY)))
    without = make_plans(list_artifacts(artifacts), target, PlanRequest())
    assert planned.decoder is not None
    sizes = SHAPES["gpt2"]
    cache = 4 * sizes.keys * CAPACITY * sizes.head
    assert planned.decoder.cache_bytes == 2 * sizes.layers * cache
    step = planned.decoder.plans["step"]
    caches = {p.buffer for p in step.inputs if p.name.startswith("past")}
    places = {step.buffers[b].offset for b in caches}
    for each in step.steps:
        for a in each.args:
            if a.buffer >= 0 and a.mode not in ("r", "-"):
                b = step.buffers[a.buffer]
                assert b.region == "work" or b.offset not in places or "write_cache" in each.kernel
                assert b.region != "work" or b.nbytes < cache
    mine, other = Bundle(planned, target, 1), Bundle(without, target, 1)
    assert mine.list_areas()["caches of the decoder"] == planned.decoder.cache_bytes
    assert mine.list_areas()["parameters"] == other.list_areas()["parameters"]
    assert other.list_areas()["caches of the decoder"] == 0
    assert mine.count_memory() == sum(mine.list_areas().values())


def test_a_build_without_a_decoder_has_nothing_of_it() -> None:
    folder = make_build("mlp")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert not {"mnist_append", "mnist_scores", "mnist_truncate"} & set(manifest["functions"])
    assert re.search("#define MNIST_DECODES +0 ", (folder / "mnist.h").read_text())
    module = load(folder)
    with pytest.raises(module.StateError, match="no decoder; edgegrad build --positions"):
        module.Trainer().decoder()


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        ([], "InputError", "there are no tokens to append"),
        ([WORDS], "LabelError", f"index {WORDS} at position 0"),
        ([1, 2, WORDS], "LabelError", f"index {WORDS} at position"),
        ([-1], "LabelError", "token -1 at position 0 is negative"),
        ([2**40], "LabelError", "integers of 32 bits"),
        ([2.5], "InputError", "expected integers .count., got float64.1."),
        ([[1], [2]], "InputError", "this build continues one text, got 2"),
        ("abc", "InputError", "tokens: expected integers"),
        ([1] * (CAPACITY + 1), "InputError", f"41 more tokens after 0: the caches hold {CAPACITY}"),
    ],
)
def test_bad_tokens_are_refused_and_the_text_stays(tokens: Any, error: str, text: str) -> None:
    module = load(make_decoder_build("gpt2"))
    decoder = module.Trainer().decoder()
    with pytest.raises(getattr(module, error), match=text):
        decoder.append(tokens)
    assert decoder.length == 0
    before = decoder.append(PROMPT)
    with pytest.raises(module.Error):
        decoder.append(tokens if len(tokens) < CAPACITY else [1] * CAPACITY)
    assert decoder.length == len(PROMPT)
    with pytest.raises(module.InputError, match="a length of 6 tokens: give 0 to 5"):
        decoder.truncate(6)
    decoder.truncate(len(PROMPT) - 1)
    np.testing.assert_allclose(decoder.append(PROMPT[-1:]), before, rtol=1e-4, atol=1e-6)


def test_parameters_that_are_no_numbers_give_scores_that_are_none() -> None:
    trainer = load(make_decoder_build("gpt2")).Trainer()
    trainer.state.parameters["wte"].data[...] = np.nan
    scores = trainer.decoder().append(PROMPT)
    assert scores.shape == (1, WORDS)
    assert np.isnan(scores).all()


def test_a_model_without_values_has_no_answer() -> None:
    module = load(make_decoder_build("gpt2"))
    given = module.Trainer().state.to_bytes()
    assert module.Trainer(given).decoder().append([1]).shape == (1, WORDS)
    artifacts = make_artifacts("gpt2")
    state = engine.api.CheckpointState.load_checkpoint(artifacts / "checkpoint")
    with pytest.raises(module.CheckpointError):
        module.Trainer(state.to_bytes()[:100])


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((0, 0), "--positions 0: the caches of a decoder hold 1 token or more"),
        ((-3, 0), "--positions -3"),
        ((1 << 40, 0), "--positions 1099511627776"),
        ((8, 9), "--prompt 9: expected 1 to 8"),
        ((8, -1), "--prompt -1: expected 1 to 8"),
    ],
)
def test_sizes_out_of_range_are_refused(sizes: tuple[int, int], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        DecoderOptions(*sizes)


def test_options_that_a_decoder_alone_has_no_use_for_are_refused() -> None:
    options = Options("mnist", resolve("native"), PlanRequest(decoder=DecoderOptions(8)))
    alone = replace(options.plans, only="decoder")
    with pytest.raises(InputError, match="leave out --only decoder"):
        replace(alone, joined=True)
    changes: tuple[dict[str, Any], ...] = ({"export": True}, {"federated": True})
    for change in changes:
        with pytest.raises(InputError, match="leave out --only decoder"):
            replace(options, plans=alone, **change)
    with pytest.raises(InputError, match="--only decoder: give --positions"):
        Options("mnist", resolve("native"), PlanRequest(only="decoder"))


def test_a_caches_of_one_token_answers_one(tmp_path: Path) -> None:
    model = make_artifacts("gpt2") / "decoder.onnx"
    options = Options(
        "mnist", resolve("native"), PlanRequest(decoder=DecoderOptions(1, path=model))
    )
    manifest = build(None, tmp_path / "out", options)
    assert manifest["decoder"] == {"positions": 1, "prompt": 1}


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (lambda whole: whole[: len(whole) // 2], ModelError, "model.onnx"),
        (lambda whole: b"", ModelError, "model.onnx"),
        (lambda whole: (make_artifacts("gpt2") / "forward.onnx").read_bytes(), InputError,
         "no caches"),
        (lambda whole: onnx_io.to_bytes(count_positions(build_decoder("gpt2"), "before")),
         UnsupportedOpError, "from the size of the past"),
    ],
    ids=["truncated", "empty", "no decoder", "counts by size"],
)  # fmt: skip
def test_files_that_are_no_decoder_are_refused(
    content: Any, error: type[Exception], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content((make_artifacts("gpt2") / "decoder.onnx").read_bytes()))
    options = Options(
        "mnist", resolve("native"), PlanRequest(decoder=DecoderOptions(16, path=path))
    )
    with pytest.raises(error, match=text):
        build(None, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_a_decoder_of_another_network_is_refused(tmp_path: Path) -> None:
    options = Options(
        "mnist",
        resolve("native"),
        PlanRequest(decoder=DecoderOptions(16, path=make_artifacts("qwen2") / "decoder.onnx")),
    )
    with pytest.raises(InputError, match="lacks the trained parameters"):
        build(make_artifacts("gpt2"), tmp_path / "out", options)


def test_the_command_builds_one_from_a_folder_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_artifacts("gpt2")
    words = ["build", str(folder), "--positions", "16", "--prompt", "4", "--report"]
    assert cli.main([*words, "--name", "mnist", "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^  caches of the decoder +16,384 ", printed, re.MULTILINE)
    made = json.loads((tmp_path / "out/manifest.json").read_text())
    assert made["decoder"] == {"positions": 16, "prompt": 4}
    shutil.copy(folder / "decoder.onnx", tmp_path / "writer.onnx")
    words = ["build", "--decoder", str(tmp_path / "writer.onnx"), "--positions", "16"]
    assert cli.main([*words, "-o", str(tmp_path / "alone")]) == 0
    assert (tmp_path / "alone/writer.h").exists()
    for words, status, text in (
        (["--decoder", str(tmp_path / "writer.onnx")], 2, "a decoder has caches: give --positions"),
        ([str(folder), "--prompt", "3"], 2, "give --positions, the tokens that they hold"),
        ([str(folder), "--positions", "0"], 1, "--positions 0: the caches of a decoder hold 1"),
        ([str(tmp_path / "none"), "--positions", "4"], 1, "none"),
    ):
        assert cli.main(["build", *words, "-o", str(tmp_path / "refused")]) == status
        assert text in capsys.readouterr().err
    (tmp_path / "bare").mkdir()
    for name in ("training_model.onnx", "checkpoint"):
        shutil.copy(folder / name, tmp_path / "bare")
    options = Options("mnist", resolve("native"), PlanRequest(decoder=DecoderOptions(4)))
    with pytest.raises(FileError, match="no such file: give --decoder, the file of a model with"):
        build(tmp_path / "bare", tmp_path / "refused", options)
