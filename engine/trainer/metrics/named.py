"""Metrics by name: `metrics=["accuracy", "f1_macro"]`, `--metric auroc`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from engine.base.errors import DTypeError, InputError, suggest_nearest
from engine.base.labels import IGNORED
from engine.trainer.metric import Declaration, Given, Metric
from engine.trainer.metrics import classes, families, values

METRICS: tuple[Callable[..., Metric], ...] = tuple(
    vars(families)[name] for name in vars(families)["__all__"]
)
_TOP = re.compile(r"top([1-9]\d*)")
# The columns of a history that say nothing about how well a model has learned.
NOT_RESULTS = frozenset({"epoch", "lr", "seconds", "samples_per_second", "memory"})


def get_declaration(kind: Any) -> Declaration:
    """Return the declaration of a metric of this package."""
    declared: Declaration = kind.declared
    return declared


OTHER_NAMES = {
    other: declared.name
    for declared in map(get_declaration, METRICS)
    for other in declared.other_names.split()
}
"""Names of metrics in other packages."""


def list_known() -> dict[str, Callable[[], Metric]]:
    """Return all names, each with a function that makes its metric; top5 stands for any number."""
    made: dict[str, Callable[[], Metric]] = {}
    for kind in METRICS:
        declared = get_declaration(kind)
        for ending, options in {"": {}, **declared.variants}.items():
            made[declared.name + ending] = _make_maker(kind, options)
    return made


def _make_maker(kind: Callable[..., Metric], options: Mapping[str, Any]) -> Callable[[], Metric]:
    return lambda: kind(**options)


def metrics_of(
    given: Sequence[Given] | Given,
    ignore_index: int | None = IGNORED,
    threshold: float | None = None,
) -> list[Metric]:
    """Make metrics of names ("top" with any number after it), `Metric` objects and functions.

    ignore_index, threshold: for the metrics that are given by name.

    Raises:
        InputError: a name is not known, or two metrics have one name.
        DTypeError: something else is given.
    """
    several: Any = given
    if isinstance(given, str | Metric) or callable(given):
        several = [given]
    try:
        several = list(several)
    except TypeError:
        raise DTypeError(f"metrics: expected a list, got {type(given).__name__}") from None
    metrics = [_make_metric(each, ignore_index, threshold) for each in several]
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1 or name == "loss":
            raise InputError(f"two metrics are called {name!r}; give one of them another name=")
    return metrics


def check_named(metrics: Sequence[Metric], parts: Sequence[str]) -> None:
    """Refuse a metric of a model with several losses that does not name what it takes.

    parts: the losses of several outputs, by name.  A user's own class may read any of them.

    Raises:
        InputError: a metric would compare the first output with the last input.
    """
    for metric in metrics if len(parts) > 1 else ():
        missing = [f"{name}=" for name in metric.takes if getattr(metric, name) is None]
        if missing and (metric.declared is not None or isinstance(metric, values.Function)):
            outputs = [part.removeprefix("loss_") for part in parts]
            raise InputError(
                f"metric {metric.name!r}: the outputs {outputs} have one target each; name what to "
                f"compare by {' and '.join(missing)} of {type(metric).__name__}"
            )


def _make_metric(given: Any, ignore_index: int | None, threshold: float | None) -> Metric:
    if isinstance(given, Metric):
        return given
    if isinstance(given, type) and issubclass(given, Metric):
        raise DTypeError(f"metrics: {given.__name__} is a class; give {given.__name__}()")
    if not isinstance(given, str):
        if callable(given):
            return values.Function(given)
        raise DTypeError(
            f"metrics: expected a name, a Metric or a function, got {type(given).__name__}"
        )
    made = _make_named(given)
    for option, value in (("ignore_index", ignore_index), ("threshold", threshold)):
        if hasattr(made, option):
            setattr(made, option, value)
    return made


def _make_named(name: str) -> Metric:
    """Return the metric of a name.

    Raises:
        InputError: there is none.
    """
    if top := _TOP.fullmatch(name):
        return classes.TopK(int(top[1]))
    makers = list_known()
    if name not in makers:
        names = [get_declaration(kind).name for kind in METRICS]
        other = OTHER_NAMES.get(name.lower())
        hint = f"; here it is {other!r}" if other else suggest_nearest(name, makers)
        raise InputError(f"no metric {name!r}; known: {', '.join(names)}{hint}")
    metric = makers[name]()
    metric.name = name
    return metric


def list_results(metrics: Sequence[Metric], classes: Sequence[str] | None) -> dict[str, float]:
    """Return the results of metrics by column.

    classes: the names of the classes; None if unknown.

    Raises:
        InputError: two metrics have the same column.
    """
    results: dict[str, float] = {}
    for metric in metrics:
        for column, value in metric.results(classes).items():
            if column in results or column == "loss":
                raise InputError(
                    f"two metrics have the column {column!r}; give one of them another name="
                )
            results[column] = value
    return results


@lru_cache
def find_declaration(column: str) -> Declaration | None:
    """Return the declaration of the metric whose name a column of the history has.

    The name of the metric ends the column, or is followed by `_` and a variant or a class.  None if
    the column has the name of no metric.
    """
    matches: list[tuple[int, Declaration]] = []
    for kind in METRICS:
        declared = get_declaration(kind)
        name = r"top\d+" if kind is classes.TopK else re.escape(declared.name)
        endings = "|".join(re.escape(e) for e in declared.variants if not e.startswith("_"))
        per_class = "(_.+)?" if declared.variants else ""
        match = re.search(rf"(?:^|_)({name})(?:{endings})?{per_class}$", column)
        if match:
            matches.append((len(match[1]), declared))
    return max(matches, key=lambda each: each[0])[1] if matches else None


def is_share(column: str) -> bool:
    """Return whether a column has the name of a metric that is shown in percent."""
    declared = find_declaration(column)
    return declared is not None and declared.is_share
