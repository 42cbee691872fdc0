"""Configurations of runs: what is read is checked, and what is written is read again."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.artifacts import SGD, CrossEntropyLoss
from engine.base import option_tables as tables
from engine.base.fields import read_declaration
from engine.errors import DTypeError, EngineError, FileError, InputError
from engine.tools.actions import run_config
from engine.tools.actions.run_config import RunConfig, make_config, override_values, read, to_toml
from engine.trainer.schedules import Cosine

TEXT = """
[model]
path = "mobilenet.onnx"
loss = "cross_entropy"
loss_options = {label_smoothing = 0.1}
train = ["classifier.*", "!*.bias"]

[data]
path = "photos/"
validation = 0.25
augment = "flip"
options = {size = [96, 96]}

[optimizer]
name = "sgd"
lr = 1
momentum = 0.9

[schedule]
name = "cosine"
warmup = 0.1

[fit]
epochs = 3
unfreeze = {"features.*" = 2}
"""


def config(text: str) -> RunConfig:
    return make_config(tomllib.loads(text), "run.toml")


def test_a_file_becomes_what_it_names() -> None:
    made = config(TEXT)
    assert made.model.train == ("classifier.*", "!*.bias")
    assert made.data.augment == ("flip",)
    assert made.data.kind == "auto"
    assert made.fit.unfreeze == {"features.*": 2}
    loss = made.make_loss()
    assert isinstance(loss, CrossEntropyLoss)
    assert loss.label_smoothing == 0.1
    assert made.make_optimizer() == SGD(1.0, momentum=0.9)
    assert isinstance(made.make_schedule(), Cosine)
    assert made.make_schedule().warmup == 0.1


def test_what_is_written_is_read_again() -> None:
    for made in (RunConfig(), config(TEXT)):
        assert config(to_toml(made)) == made
    changed = RunConfig().change("data", classes=('a "b"', "ü\x7f\n"), kind="images")
    assert config(to_toml(changed)) == changed


@given(st.text(), st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1))
def test_all_values_survive_writing(text: str, number: float, whole: int) -> None:
    options = {"a": text, text or "b": number, "c": [whole, True, {"d": text}]}
    made = RunConfig().change("data", options=options)
    assert tomllib.loads(to_toml(made))["data"]["options"] == options


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[modle]\n", InputError, r"run.toml: unknown table \[modle\]; nearest: 'model'"),
        ("fit = 3\n", InputError, r"run.toml \[fit\]: expected a table, got 3"),
        (
            "[fit]\nepoch = 3\n",
            InputError,
            r"run.toml \[fit\]: unknown key 'epoch'; nearest: 'epochs'",
        ),
        (
            "[fit]\nepochs = 'three'\n",
            DTypeError,
            r"\[fit\]: epochs: expected a whole number, got 'three'",
        ),
        ("[fit]\nepochs = 2.5\n", DTypeError, "epochs: expected a whole number, got 2.5"),
        ("[fit]\nepochs = true\n", DTypeError, "epochs: expected a whole number, got True"),
        ("[fit]\nepochs = 0\n", InputError, r"run.toml \[fit\]: epochs=0: expected 1 or more"),
        (
            '[fit]\nmemory_budget = "much"\n',
            InputError,
            "memory_budget='much': expected a number of bytes",
        ),
        ("[fit]\nhours = 0\n", InputError, "hours=0.0: expected above 0"),
        ("[fit]\nmode = 'least'\n", InputError, "mode='least'; expected one of 'min', 'max'"),
        ("[data]\nkind = 'image'\n", InputError, "expected one of .*nearest: 'images'"),
        ("[data]\nvalidation = 1.5\n", InputError, "validation=1.5: expected from 0 to below 1"),
        (
            "[data]\nvalidation = true\n",
            DTypeError,
            "validation: expected a number, text or None",
        ),
        ("[data]\nbatch_size = 0\n", InputError, r"\[data\]: batch_size=0: expected 1 or more"),
        ("[data]\naugment = [1]\n", InputError, "augment: expected a list of names, got 1 in it"),
        (
            "[fit]\nunfreeze = {a = 'b'}\n",
            DTypeError,
            r"unfreeze\['a'\]: expected a whole",
        ),
        ("[optimizer]\nname = 'adamx'\n", InputError, r"\[optimizer\]: no optimizer 'adamx'; near"),
        (
            "[optimizer]\nrate = 0.1\n",
            InputError,
            r"\[optimizer\] adamw: unknown key 'rate'; nearest|unknown key 'rate'; known: lr",
        ),
        ("[optimizer]\nlr = 'high'\n", DTypeError, "lr: expected a number.*, got 'high'"),
        ("[schedule]\nname = 'cosin'\n", InputError, "no schedule 'cosin'; nearest: 'cosine'"),
        ("[fit]\nmicro_batches = 0\n", InputError, "micro_batches=0: expected 1 or more"),
        ("[model]\nupdate = {bias = true}\n", InputError, "update: unknown key 'bias'; nearest"),
        ("[model]\nupdate = {last = -1}\n", InputError, "last=-1"),
        ("[model]\nlora = {rank = 4}\n", InputError, r"\[model\]: lora: 'match' is missing"),
        ("[model]\nloss = 'mes'\n", InputError, r"\[model\] loss: no loss 'mes'; nearest: 'mse'"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, error: type[EngineError], message: str) -> None:
    with pytest.raises(error, match=message):
        config(text)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(FileError, match=r"run\.toml"):
        read(path)
    path.write_text("[fit]\nepochs = \n")
    with pytest.raises(InputError, match=r"run.toml: .*line 2"):
        read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"run.toml"):
        read(path)


def test_words_override() -> None:
    actual: dict[str, Any] = {"fit": {"epochs": 3}}
    words = ["fit.epochs=5", "data.path=photos/", "model.train=['a', 'b']", "data.options.size=8"]
    override_values(actual, tables.parse_assignments(words, "--set"), "--set")
    assert actual == {
        "fit": {"epochs": 5}, "data": {"path": "photos/", "options": {"size": 8}},
        "model": {"train": ["a", "b"]},
    }  # fmt: skip
    for words, message in (
        (["epochs=3"], r"--set epochs: expected TABLE.KEY=VALUE.*did you mean fit.epochs\?"),
        (["fit.epochs"], "--set 'fit.epochs': expected NAME=VALUE"),
        (["fit.epochs.last=3"], "'epochs' is not a table"),
        (["fit.epochs=1", "fit.epochs=2"], "given twice"),
    ):
        with pytest.raises(InputError, match=message):
            override_values(
                {"fit": {"epochs": 3}}, tables.parse_assignments(words, "--set"), "--set"
            )


def test_every_key_is_explained() -> None:
    for name, kind in run_config.TABLES.items():
        for each in dataclasses.fields(kind):
            if kind is not run_config.ChosenClass:
                assert read_declaration(each).text.endswith("."), (name, each.name)
