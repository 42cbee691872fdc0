"""Numbers of every function of C: Python refuses what C refuses, and nothing else.

`test_walks.py` compares the package of a build with C, call by call; here, the engine is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from engine.errors import EngineError
from engine.plan.noise import check_seed
from engine.tools.trimmed.api import ApiFunction, list_functions
from tests.bindings.walks import python
from tests.bindings.walks.values import FLOATS, WIDE
from tests.support.builds import load, make_build, make_source, needs_cc
from tests.support.places import GOLDENS

FUNCTIONS = {f.name: f for f in list_functions(make_source("mnist").read_header())}
# Functions whose numbers have no name in Python: it finds tensors and properties by name, makes
# buffers of their sizes, and sets a batch by the shape of what a step is given.
ELSEWHERE = {
    "worker", "input_info", "output_info", "input", "output", "batch_size", "set_batch",
    "parameter_info", "parameter", "gradient", "get_property", "save_part", "answer_size",
    "write_answer",
}  # fmt: skip
# The calls of the engine, and numbers that nothing is wrong with.
ENGINE: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "set_linear_rate": (
        lambda t, peak, warmup, total: LinearLRScheduler(t, warmup, total, peak),
        (0.5, 1, 4),
    ),
    "set_learning_rate": (lambda t, rate: t.set_learning_rate(rate), (0.5,)),
    "set_property_int": (lambda t, value: set_property(t, value), (1,)),
    "set_property_float": (lambda t, value: set_property(t, np.float32(value)), (1.5,)),
    "set_seed": (lambda t, seed: check_seed(seed), (0,)),
}
# The engine has neither: it counts steps and draws itself, scales by the type of a model, and a
# decoder of it is another object, which test_decoder_build.py compares with a build's.
OWN = {"set_step", "set_draws", "set_loss_scale", "truncate"}


def set_property(optimizer: Optimizer, value: Any) -> None:
    optimizer.module.session.state.properties["note"] = value


def list_numbers(function: ApiFunction) -> list[str]:
    """Return the kinds of the numbers that a caller gives."""
    return [a.kind for a in function.given if a.kind in ("int", "long", "float", "size")]


def list_rows(kinds: list[str], good: tuple[float, ...]) -> Iterator[tuple[float, ...]]:
    """Yield values of a call: each number that nobody should pass, with the others as they are."""
    yield good
    for i, kind in enumerate(kinds):
        for odd in FLOATS if kind == "float" else WIDE:
            yield (*good[:i], odd, *good[i + 1 :])


def test_every_number_of_c_is_compared() -> None:
    numeric = {name for name, function in FUNCTIONS.items() if list_numbers(function)}
    assert numeric - ELSEWHERE <= {*python.CALLS}
    assert not ELSEWHERE & {*python.CALLS}
    acts = {name for name in numeric - ELSEWHERE if FUNCTIONS[name].changes}
    assert acts - {"set_parameter", "set_gradient"} == {*ENGINE} | OWN


@needs_cc
@pytest.mark.parametrize("name", ENGINE)
def test_the_engine_has_the_limits_of_c(name: str) -> None:
    call, good = ENGINE[name]
    trainer = load(make_build("mlp")).Trainer(GOLDENS / "mlp/checkpoint")
    handle, functions = trainer.state._handle, load(make_build("mlp"))._C
    state = CheckpointState.load_checkpoint(GOLDENS / "mlp/checkpoint")
    module = Module(GOLDENS / "mlp/training_model.onnx", state)
    optimizer = Optimizer(GOLDENS / "mlp/optimizer_model.onnx", module)
    first = [b"note"] if "property" in name else []
    for values in list_rows(list_numbers(FUNCTIONS[name]), good):
        fits = all(isinstance(v, float) or -(2**63) <= v < 2**63 for v in values)
        is_refused = not fits or bool(functions[name](handle.pointer, *first, *values))
        try:
            call(optimizer, *values)
        except EngineError:
            assert is_refused, (values, "the engine alone refuses")
        else:
            assert not is_refused, (values, "C alone refuses")
