"""Options of artifacts, losses and optimizers that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.artifacts import SGD, AdamW, BCEWithLogitsLoss, CrossEntropyLoss, MSELoss
from engine.errors import (
    DTypeError,
    InputError,
    NameNotFoundError,
)
from tests.support.harness import drop_type
from tests.support.mlp_files import make_artifact


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"requires_grad": 3}, InputError, "requires_grad: expected a list of names, got 3"),
        ({"requires_grad": ["0.wieght"]}, NameNotFoundError, "nearest: '0.weight'"),
        ({"prefix": 3}, DTypeError, "prefix: expected text, got 3"),
        ({"nominal_checkpoint": "x"}, DTypeError, "nominal_checkpoint: expected True or False"),
        ({"ort_format": np.ones(2)}, DTypeError, "ort_format: expected True or False"),
    ],
)
def test_artifact_options(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_artifact(artifact_directory=tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MSELoss(drop_type(["mean"])), DTypeError, "reduction: expected text, got list"),
        (lambda: MSELoss("max"), InputError, "reduction='max'; expected one of mean, sum, none"),
        (
            lambda: CrossEntropyLoss(ignore_index=drop_type(1.5)),
            DTypeError,
            "ignore_index: expected",
        ),
        (lambda: CrossEntropyLoss(weight=np.ones(10, complex)), DTypeError, "got complex128"),
        (
            lambda: BCEWithLogitsLoss(pos_weight=drop_type("x")),
            DTypeError,
            "pos_weight: expected an",
        ),
        (lambda: BCEWithLogitsLoss(pos_weight=np.array(np.nan)), InputError, "pos_weight: exp"),
        (lambda: AdamW(betas=drop_type((0.9,))), InputError, "betas: expected 2 values"),
        (lambda: AdamW(betas=(0.9, 1.0)), InputError, "from 0 to below 1"),
        (lambda: AdamW(adam_mode=2), InputError, r"adam_mode=2; expected 0 \(as torch\) or 1"),
        (lambda: AdamW(bias_correction=False, adam_mode=0), InputError, "always corrects the bias"),
        (lambda: AdamW(eps=np.nan), InputError, "eps nan is not finite"),
        (
            lambda: AdamW(weight_decay=drop_type(None)),
            DTypeError,
            "weight_decay: expected a number",
        ),
        (
            lambda: AdamW(groups=drop_type(None)),
            DTypeError,
            r"groups: expected a list \(each a Group\), got None",
        ),
        (lambda: SGD(clip_grad=drop_type("1")), DTypeError, "clip_grad: expected a number"),
        (lambda: SGD(clip_grad=0), InputError, "clip_grad=0: expected above 0"),
    ],
)
def test_options_of_losses_and_optimizers(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """They are refused where they are written, not where they are used."""
    with pytest.raises(error, match=message):
        make()
