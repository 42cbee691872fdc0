"""Options from tables: names, types and defaults match the functions that take them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from engine.artifacts import AdamW, Group
from engine.base import option_tables as tables
from engine.base.option_tables import describe, fit_value, make, parse_assignments
from engine.errors import DTypeError, EngineError, InputError
from engine.tools.actions.run_config import make_config, to_toml


@dataclass(frozen=True)
class Point:
    """Two numbers."""

    x: float
    y: float = 0.0


@dataclass(frozen=True)
class Shapes:
    """Options of every type that occurs."""

    points: Sequence[Point] = ()
    size: int | tuple[int, int] = 8
    mode: Literal["min", "max"] | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    names: Sequence[str] = ()


class Reader:
    """Class that is not a dataclass."""

    def __init__(self, path: str, *, rate: int = 3, exact: bool = False) -> None:
        self.made = (path, rate, exact)


def test_values_become_what_is_declared() -> None:
    made = make(
        Shapes,
        {
            "points": [{"x": 1}, {"x": 2, "y": 3.5}],
            "size": [4, 5],
            "mode": "max",
            "weights": {"a": 1},
            "names": "one",
        },
        "[t]",
    )
    assert made == Shapes((Point(1.0), Point(2.0, 3.5)), (4, 5), "max", {"a": 1.0}, ("one",))
    assert isinstance(made.points[0].x, float)
    assert make(Shapes, {}, "[t]") == Shapes()
    assert make(Reader, {"exact": True}, "[t]", path="p").made == ("p", 3, True)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"sise": 3}, InputError, r"^\[t\]: unknown key 'sise'; nearest: 'size'$"),
        ({"points": [{"z": 1}]}, InputError, r"^\[t\]: points: unknown key 'z'; known: x, y$"),
        ({"points": [{}]}, InputError, r"^\[t\]: points: 'x' is missing$"),
        ({"points": [3]}, DTypeError, r"\[t\]: points\[0\]: expected a Point, got 3"),
        (
            {"points": {"x": 1}},
            DTypeError,
            r"points\[0\]: expected a Point, got 'x'",
        ),
        ({"size": [1]}, InputError, r"\[t\]: size: expected 2 values \(a whole number, a whole"),
        (
            {"size": 2.0},
            DTypeError,
            r"\[t\]: size: expected a whole number or 2 values .* got 2\.0",
        ),
        ({"size": True}, DTypeError, r"\[t\]: size: expected .*, got True"),
        ({"mode": "mean"}, InputError, r"\[t\]: mode='mean'; expected one of 'min', 'max'"),
        ({"weights": {"a": "b"}}, DTypeError, r"weights\['a'\]: expected a number, got 'b'"),
        ({"weights": 3}, DTypeError, r"\[t\]: weights: expected a mapping, got 3"),
        ({"names": [1]}, InputError, r"\[t\]: names: expected a list of names, got 1 in it"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(
    table: dict[str, Any], error: type[EngineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(Shapes, table, "[t]")


def test_what_must_be_given() -> None:
    with pytest.raises(InputError, match=r"\[t\]: 'path' is missing"):
        make(Reader, {}, "[t]")
    with pytest.raises(InputError, match="unknown key 'path'; known: rate, exact"):
        make(Reader, {"path": "q"}, "[t]", path="p")


def test_types_in_words() -> None:
    assert describe(float | None) == "a number"
    assert describe(tuple[float, float]) == "2 values (a number, a number)"
    assert describe(bool | Sequence[Point] | None) == "true or false or a list (each a Point)"
    assert describe(Point | None) == "a table"
    assert describe(Any) == "anything"
    assert fit_value([1, "a"], Any, "here") == [1, "a"]
    assert fit_value({}, Point | None, "here") is None


def test_words_are_values_of_toml_or_texts() -> None:
    words = ["a=1", "b=[1, 2]", "c=photos/x y", "d='q'", "e=true", "f=x=1", "g=", "h=1\ni = 2"]
    assert parse_assignments(words, "--set") == {
        "a": 1, "b": [1, 2], "c": "photos/x y", "d": "q", "e": True, "f": "x=1", "g": "",
        "h": "1\ni = 2",
    }  # fmt: skip


def test_groups_of_parameters_from_a_file() -> None:
    groups = [{"match": ["*.bias"], "weight_decay": 0.0}, {"match": "norm.*", "lr_scale": 0.5}]
    config = make_config({"optimizer": {"weight_decay": 0.1, "groups": groups}}, "run.toml")
    assert config.make_optimizer() == AdamW(
        weight_decay=0.1, groups=(Group(("*.bias",), weight_decay=0.0), Group(("norm.*",), 0.5))
    )
    assert make_config(tomllib.loads(to_toml(config)), "run.toml") == config


def test_every_option_of_what_is_chosen_by_name_can_be_read() -> None:
    """Types of options are found out for all losses, optimizers, schedules and datasets."""
    from engine.data import Csv, Images, Sounds
    from engine.data.texts import LabelledTexts, Texts
    from engine.trainer import names

    makers: list[Any] = [Csv, Images, Sounds, LabelledTexts, Texts]
    for known in (names.list_losses(), names.list_optimizers(), names.schedule_kinds()):
        makers += known.values()
    for maker in makers:
        for option in tables.list_options(maker).values():
            assert describe(option.type)
