"""Names of other frameworks, in messages about keywords, keys and options that nobody takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine import Trainer
from engine.base import option_tables
from engine.base.other_names import HERE
from engine.errors import InputError
from engine.tools import cli
from engine.tools.actions import run_config
from engine.trainer import names
from engine.trainer.metrics.named import OTHER_NAMES, list_known
from tests.support.tiny import LABELS, X, make_trainer

DATA = (X, LABELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_split": 0.2}, "Trainer.fit() got an unexpected keyword argument "
         "'validation_split'; here it is Trainer.fit(..., validation=data or a share such as 0.2)"),
        ({"verbose": 1}, "here it is Trainer.fit(..., progress=False)"),
        ({"lr": 0.1}, "here it is the optimizer's, AdamW(lr=1e-3), or trainer.learning_rate"),
        ({"epoch": 3}, "unexpected keyword argument 'epoch'; nearest: 'epochs'"),
        ({"lora": 3}, "'lora'; Trainer.from_model, Trainer.from_onnx and Trainer.from_torch"),
        ({"weight_decay": 0.1}, "here it is the optimizer's, AdamW(weight_decay=0.01)"),
        ({"precision": "bf16"}, 'here it is Trainer.from_onnx(..., precision="auto")'),
        ({"train_size": 3}, "Trainer.fit() got an unexpected keyword argument 'train_size'"),
    ],
)  # fmt: skip
def test_fit_answers_names_that_it_does_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        make_trainer().fit(DATA, **options)


def test_inputs_and_targets_are_one_argument() -> None:
    fit: Any = make_trainer().fit
    with pytest.raises(TypeError, match=r"takes 2 positional arguments but 3 .*, \(x, y\)$"):
        fit(X, LABELS)


def test_metrics_answer_too() -> None:
    for name, here in (("acc", "accuracy"), ("AUC", "auroc"), ("wer", "error_rate")):
        with pytest.raises(InputError, match=f"no metric '{name}'; .*; here it is '{here}'"):
            make_trainer().evaluate(DATA, metrics=name)
    with pytest.raises(InputError, match="nearest: 'accuracy'"):
        make_trainer().evaluate(DATA, metrics="acuracy")
    assert {*OTHER_NAMES.values()} <= {*list_known()}


def test_makers_and_predict_answer_too() -> None:
    with pytest.raises(TypeError, match=r"'device'; here it is always the CPU"):
        make_trainer(device="cpu")
    with pytest.raises(TypeError, match=r"'epochs'; Trainer\.fit takes it"):
        make_trainer(epochs=3)
    predict: Any = make_trainer().predict
    with pytest.raises(TypeError, match=r"predict\(\) got .* 'verbose'; here it is"):
        predict(X, verbose=0)
    constructor: Any = Trainer
    with pytest.raises(TypeError, match=r"Trainer\(\) got .* 'seeds'; nearest: 'seed'"):
        constructor("none", seeds=3)


def test_an_own_keyword_comes_before_other_methods() -> None:
    """`Trainer.check` has `batch`; of `fit` it is called `batch_size`."""
    fit: Any = make_trainer().fit
    with pytest.raises(TypeError, match=r"fit\(\) got .* 'batch'; nearest: 'batch_size'$"):
        fit(DATA, batch=32)


def test_run_toml_answers_too() -> None:
    with pytest.raises(InputError, match=r"unknown key 'validation_split'; here it is 'validation'"
                       r" in \[data\]"):  # fmt: skip
        run_config.make_config({"fit": {"validation_split": 0.2}}, "run.toml")


def test_a_command_answers_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--num-epochs", "3"]) == 2
    assert "--num-epochs: here it is --set fit.epochs=VALUE.\n" in capsys.readouterr().err


def test_every_key_of_the_table_is_one() -> None:
    known = {
        "optimizer": {
            "name",
            *option_tables.list_options(type(names.make_optimizer("adamw", {}, ""))),
        },
        "schedule": {
            "name",
            *option_tables.list_options(type(names.make_schedule("cosine", {}, ""))),
        },
    }
    for here in HERE.values():
        if here.key:
            table, key = here.key.split(".")
            kind: Any = run_config.TABLES[table]
            assert key in known.get(table, vars(kind).get("__dataclass_fields__")), here


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("bce", "bce_with_logits"), ("binary_cross_entropy", "bce_with_logits"),
        ("categorical_crossentropy", "cross_entropy"), ("MAE", "l1"), ("l2_loss", "mse"),
    ],
)  # fmt: skip
def test_a_loss_by_its_name_elsewhere_is_told_its_name_here(name: str, here: str) -> None:
    with pytest.raises(InputError, match=f"no loss {name!r}; here it is {here!r}"):
        names.make_loss(name, {}, "")
    assert here in names.list_losses()
