"""Wrong values for every parameter of every public function, class and method.

A value that does not fit its annotation ends in an `EngineError` that names the parameter: no
TypeError from inside, no warning of NumPy, no silent conversion.  Numbers that mean nothing are
refused, too, but where `SIGNED` says that they mean something.
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import onnx
import pytest
from typing_extensions import TypeAliasType

from engine import Trainer
from engine.api import CheckpointState, Module, Optimizer
from engine.base.signatures import ABOVE_0, ANY, AT_LEAST_1, BELOW_1, FINITE, Range, check_arguments
from engine.data import Arrays
from engine.errors import DTypeError, EngineError, InputError
from engine.graphs.io import onnx_io
from tests.support.harness import drop_type
from tests.support.places import GOLDENS

MODULES = (
    "engine.api", "engine.artifacts", "engine.backend", "engine.data", "engine.inference",
    "engine.lora",
    "engine.onnxblock", "engine.onnxblock.blocks", "engine.onnxblock.loss",
    "engine.base.sparse_update", "engine.onnxblock.optim", "engine.reports",
    "engine.trainer.callbacks",
    "engine.trainer.runs", "engine.trainer.schedules", "engine.trainer.trainer",
)  # fmt: skip
CALLED_BY_US = re.compile(  # methods that users write or inherit, and the package calls
    r"on_\w+|build|named|parts|states|attributes|rate|factor|curve|observe|total|restore|change"
    r"|__call__|augmented|position|describe|save|layout|decode|read|prepare|decoded|lengths|sample_name"
)
SIGNED = {  # numbers that may be negative
    "initial_lr", "learning_rate", "ignore_index", "seed", "exponent", "value_float", "clip_min",
    "clip_max", "alpha", "beta", "default_float", "default_int64", "to", "margin", "weight_decay",
    "dampening", "min_delta", "threshold", "mean", "pad", "missing_values", "keys_int64s",
    "keys_floats", "values_floats", "values_int64s", "indices", "tokens", "beta2_decay",
    "fill", "mask_fill",
}  # fmt: skip


REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ELSEWHERE = (
    "CheckpointState",
    "CheckpointState.region_bytes",
    "NodeArg",
    "Section",
)  # made by loading; plain


class Hostile:
    """Every method that a check may call raises."""

    def _raise(self, *args: Any) -> Any:
        raise RuntimeError("hostile")

    __index__ = __float__ = __int__ = __iter__ = __len__ = __bool__ = __repr__ = __str__ = _raise
    __array__ = __fspath__ = __getitem__ = __contains__ = __eq__ = _raise
    __hash__ = _raise


WRONG: dict[str, tuple[Any, str]] = {  # values, and what an annotation has that takes them
    "None": (None, r"None|Any\b"),
    "object": (object(), r"Any\b"),
    "hostile": (Hostile(), r"Any\b"),
    "type": (dict, r"Any\b|Callable|Augment|Given|tokenizer"),
    "complex": (1j, r"Any\b"),
    "bool": (True, r"bool|Any\b|Array|int \| float \| bool"),
    "NaN": (math.nan, r"Any\b|Array"),
    "infinity": (math.inf, r"Any\b|Array"),
    "fraction": (1.5, r"float|Any\b|Array|Number"),
    "huge": (10**40, r"Any\b|Array|float"),
    "surrogate": ("\ud800", r"Any\b"),
    "text of a list": ("ab", r"str|Path|Source|Model|Literal|Any\b|Mode|Given|Task|Missing"),
    "bytes": (b"\xff", r"bytes|Source|Model|Any\b"),
    "list of objects": ([object()], r"Any\b"),
    "mapping": ({1: object()}, r"Sequence\[Any|Any\b|Sequence|Iterable|list|Augment"),
}


@functools.cache
def given() -> dict[str, Any]:
    """Return default values of parameters, by annotation."""
    mlp = GOLDENS / "mlp"
    state = CheckpointState.load_checkpoint(mlp / "checkpoint")
    module = Module(mlp / "training_model.onnx", state, mlp / "eval_model.onnx", threads=1)
    return {
        "CheckpointState": state, "Module": module, "AdaptableTrainer | Module": module,
        "Optimizer": Optimizer(mlp / "optimizer_model.onnx", module),
        "Trainer": Trainer(mlp, threads=1),
        "ModelSource": mlp / "training_model.onnx", "Graph": onnx_io.load(mlp / "forward.onnx"),
        "ModelProto": onnx.load(mlp / "forward.onnx"),
        "Arrays": Arrays((np.ones((6, 4), np.float32), np.zeros(6, np.int64))),
    }  # fmt: skip


def callables() -> Iterator[tuple[str, Callable[..., Any], list[inspect.Parameter]]]:
    """Every public function, class and method with its title and its parameters."""
    seen = set()
    for module in map(importlib.import_module, MODULES):
        own = [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        for name in getattr(module, "__all__", own):
            actual_value = getattr(module, name)
            if id(actual_value) in seen or name.startswith("_") or not callable(actual_value):
                continue
            seen.add(id(actual_value))
            if not inspect.isclass(actual_value):
                yield (
                    f"{module.__name__}.{name}",
                    actual_value,
                    [*inspect.signature(actual_value).parameters.values()],
                )
            elif not issubclass(actual_value, BaseException | enum.Enum):
                yield from _methods(actual_value)


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any], list[inspect.Parameter]]]:
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        is_bound = isinstance(method, staticmethod | classmethod)
        function = method.__func__ if is_bound else method
        if name == "__init__" and not inspect.isabstract(kind):
            parameters = list(inspect.signature(kind).parameters.values())
            yield f"{kind.__name__}", kind, parameters
        elif (
            inspect.isfunction(function) and not name.startswith("_")
            and not CALLED_BY_US.fullmatch(name) and function.__module__.startswith("engine.")
            and not getattr(function, "__isabstractmethod__", False)
        ):  # fmt: skip
            owner = kind if is_bound else given().get(kind.__name__)
            if owner is not None:
                parameters = list(inspect.signature(getattr(owner, name)).parameters.values())
                yield f"{kind.__name__}.{name}", getattr(owner, name), parameters


def sample(parameter: inspect.Parameter) -> Any:
    """Something that a required parameter takes."""
    hint = str(parameter.annotation)
    plain: dict[str, Any] = {
        "NodeProto": given()["ModelProto"].graph.node[0], "tuple[str": ("x",),
        "Callable": print, "Mapping": {}, "TensorProto": ([], []),
        "Number": (), "Model": given()["ModelProto"], "Sequence": ["x"], "list": ["x"],
        "float": 0.5,
        "int": 1, "bool": True, "Path": "none/x", "str": "x",
    }  # fmt: skip
    if hint in given():
        return given()[hint]
    return next((value for part, value in plain.items() if part in hint), None)


def outcome(
    function: Callable[..., Any], parameters: list[inspect.Parameter], name: str, value: Any
) -> str:
    """Return the result of a value for one parameter, with samples for all other required ones."""
    needed = [p for p in parameters if p.default is p.empty and p.kind not in REST]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(**{**{p.name: sample(p) for p in needed}, name: value})
    except EngineError as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"{type(error).__name__} from inside"
    return "accepted"


def test_a_public_parameter_refuses_what_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faults, count = [], 0
    for title, function, parameters in callables():
        if title in ELSEWHERE:
            continue
        for p in parameters:
            hint = str(p.annotation)
            if p.annotation is p.empty or p.kind in REST:
                continue
            wrong = [(k, v) for k, (v, taken) in WRONG.items() if not re.search(taken, hint)]
            for what, value in wrong:
                count += 1
                told = outcome(function, parameters, p.name, value)
                if not told.startswith("refused") or not re.search(rf"\b{p.name}\b", told):
                    faults.append(f"{title}({p.name}: {hint} = {what}): {told}")
            if re.search(r"^(int|float)\b", hint) and p.name not in SIGNED:
                told = outcome(function, parameters, p.name, -1)
                if not told.startswith("refused"):
                    faults.append(f"{title}({p.name}=-1): {told}")
    assert not faults, "\n".join(faults)
    assert count > 5000


# --- the checks themselves


@check_arguments(count=AT_LEAST_1, betas=BELOW_1, rate=ABOVE_0, weight=FINITE, bound=ANY)
def declared(
    count: int = 1,
    betas: tuple[float, float] = (0.0, 0.0),
    rate: float | None = None,
    names: Sequence[str] = (),
    mode: Literal["a", "b"] | None = None,
    factors: Mapping[str, float] | None = None,
    weight: np.ndarray[Any, np.dtype[Any]] | None = None,
    bound: float = 0.0,
    *rest: int,
    **options: int,
) -> tuple[Any, ...]:
    return count, names, bound, rest, options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"count": 0}, InputError, "count=0: expected 1 or more"),
        ({"count": 1 << 70}, InputError, "count: a number of 71 bits is too large; 1 or more"),
        ({"betas": (0.5, 1)}, InputError, r"betas\[1\]=1: expected from 0 to below 1"),
        ({"betas": (0.5,)}, InputError, r"betas: expected 2 values \(a number, a number\), got 1"),
        ({"rate": 0.0}, InputError, r"rate=0\.0: expected above 0"),
        ({"rate": "fast"}, DTypeError, "rate: expected a number or None, got 'fast'"),
        ({"names": ["a", 1]}, InputError, "names: expected a list of names, got 1 in it"),
        ({"mode": "c"}, InputError, "mode='c'; expected one of 'a', 'b' or None"),
        ({"factors": {"x": "y"}}, DTypeError, r"factors\['x'\]: expected a number, got 'y'"),
        ({"weight": [1.0, math.nan]}, InputError, "weight: expected finite numbers"),
        ({"bound": "x"}, DTypeError, "bound: expected a number, got 'x'"),
        ({"more": 1.5}, DTypeError, r"more: expected a whole number, got 1\.5"),
    ],
)
def test_an_annotation_says_what_is_expected(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        declared(**drop_type(options))


Number = TypeVar("Number", bound=np.generic)
NamedArray = TypeAliasType("NamedArray", np.ndarray[Any, np.dtype[Number]], type_params=(Number,))


@check_arguments
def takes_named_arrays(
    rows: NamedArray[np.int64], few: NamedArray[np.float32] | None = None
) -> tuple[Any, ...]:
    return rows, few


def test_the_name_of_a_type_is_the_type() -> None:
    """As NumPy 2.5 declares `NDArray` on Python 3.12 and newer: by a `type` statement."""
    rows = np.arange(3)
    assert takes_named_arrays(rows) == (rows, None)
    for given, name in (("abc", "rows"), (True, "rows"), ([0.5], "rows")):
        with pytest.raises(EngineError, match=name):
            takes_named_arrays(drop_type(given))
    with pytest.raises(EngineError, match="few"):
        takes_named_arrays(rows, drop_type("abc"))


def test_what_fits_arrives_as_python_has_it() -> None:
    actual_declared = declared(
        drop_type(np.int64(3)),
        names=drop_type(iter("ab")),
        bound=math.inf,
        more=drop_type(np.int8(2)),
    )
    assert actual_declared == (3, ["a", "b"], math.inf, (), {"more": 2})
    assert [type(actual_declared[0]), type(actual_declared[4]["more"])] == [int, int]
    assert str(Range(high=2)) == "2"
