"""Strategies of Flower: their construction by name, and their state between rounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from engine.base.errors import CheckpointError, InputError, NameNotFoundError, suggest_nearest
from engine.federated.flower.records import from_record, to_record
from engine.federated.flower.robust import SoundKrum, SoundMultiKrum
from engine.federated.flower.server_options import STRATEGY
from engine.federated.parameters import Arrays

Numbers = dict[str, Any]

# Strategies that examine single updates, instead of only averaging them by weight.
ROBUST = ("Bulyan", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum")
NEED_EACH = (*ROBUST, "QFedAvg")
_OURS: dict[str, type[Strategy]] = {"Krum": SoundKrum, "MultiKrum": SoundMultiKrum}


def make_strategy(name: str, config: Mapping[str, Any]) -> Strategy:
    """Return a strategy of `flwr.serverapp.strategy` with its options in a configuration.

    Raises:
        NameNotFoundError: there is no such strategy for arrays.
        InputError: it has no such option, or refuses the value.
    """
    known = {each: kind for each, kind in vars(strategies).items() if _aggregates(kind)} | _OURS
    if name not in known:
        raise NameNotFoundError(
            f"strategy={name!r}: Flower has "
            f"{', '.join(sorted(known))}{suggest_nearest(name, known)}"
        )
    given = read_options(name, config)
    accepted = inspect.signature(known[name]).parameters
    for option in given:
        if option not in accepted:
            raise InputError(
                f"strategy {name} has no option "
                f"{option!r}{suggest_nearest(option, accepted)}; it has "
                f"{', '.join(accepted)}"
            )
    try:
        made = known[name](**given)
    except (TypeError, ValueError) as error:
        raise InputError(f"strategy {name}: {error}") from error
    assert isinstance(made, Strategy)
    return made


def _aggregates(kind: Any) -> bool:
    """Return whether a class is a strategy for arrays: not for trees, and not a wrapper."""
    return (
        isinstance(kind, type)
        and issubclass(kind, Strategy)
        and not inspect.isabstract(kind)
        and not kind.__name__.startswith("FedXgb")
        and "strategy" not in inspect.signature(kind).parameters
    )


def read_options(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a strategy: the common ones, and the ones in the table of its name."""
    chosen = {key: config[key] for key in STRATEGY if key in config}
    own = f"{name}."
    chosen |= {key.removeprefix(own): v for key, v in config.items() if key.startswith(own)}
    return {key.replace("-", "_"): value for key, value in chosen.items()}


def withstands(strategy: Strategy) -> bool:
    """Return whether a strategy, or one inside it, is made to withstand malicious clients."""
    kinds = {type(each).__name__.removeprefix("Sound") for each in _list_chain(strategy)}
    return not kinds.isdisjoint(ROBUST)


def take_snapshot(strategy: Strategy) -> Callable[[], None]:
    """Return a function that restores the current state of a strategy and of those inside it."""
    kept = [
        (each, {k: _copy_value(v) for k, v in vars(each).items()}) for each in _list_chain(strategy)
    ]

    def restore() -> None:
        for each, attributes in kept:
            vars(each).clear()
            vars(each).update({name: _copy_value(value) for name, value in attributes.items()})

    return restore


def _list_chain(strategy: Any) -> list[Strategy]:
    """Return a strategy and those inside of it."""
    inner = [_list_chain(value) for value in vars(strategy).values() if isinstance(value, Strategy)]
    return [strategy, *(each for chains in inner for each in chains)]


def _copy_value(value: Any) -> Any:
    """Return the value of an attribute, with arrays of its own."""
    kind = _find_kind(value)
    if kind is None:
        return value
    return _restore_kind(
        {name: np.array(array) for name, array in _list_items(value, kind).items()}, kind
    )


def read_state(strategy: Strategy) -> tuple[Arrays, Numbers]:
    """Return the state in a strategy's attributes: arrays by name, and the rest for JSON.

    Arrays are searched in attributes that are lists, dicts or records, and in strategies inside
    others, as for differential privacy.  Functions are not part of the state.
    """
    arrays, numbers = Arrays(), Numbers()
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            inner = read_state(value)
            arrays |= {f"{name}.{each}": array for each, array in inner[0].items()}
            numbers |= {f"{name}.{each}": number for each, number in inner[1].items()}
        elif isinstance(value, bool | int | float | str):
            numbers[name] = value
        elif (kind := _find_kind(value)) is not None:
            items = _list_items(value, kind)
            numbers[f"{name}:{kind}"] = list(items)  # files have their own order
            arrays |= {f"{name}/{each}": array for each, array in items.items()}
    return arrays, numbers


def remember(strategy: Strategy, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
    """Restore the state that `read_state` has returned for a strategy of the same kind.

    Raises:
        CheckpointError: the strategy was of another kind.
    """
    for key, value in numbers.items():
        name, _, kind = key.partition(":")
        owner: Any = strategy
        attribute = name
        while "." in attribute:
            first, _, attribute = attribute.partition(".")
            owner = getattr(owner, first, None)
        if not hasattr(owner, attribute):
            raise CheckpointError(
                f"the checkpoint belongs to another strategy: {type(strategy).__name__} has no "
                f"{name!r}"
            )
        if not kind:
            setattr(owner, attribute, value)
            continue
        setattr(
            owner,
            attribute,
            _restore_kind({each: arrays[f"{name}/{each}"] for each in value}, kind),
        )


def _find_kind(value: Any) -> str | None:
    """Return how an attribute holds arrays, or None."""
    if isinstance(value, ArrayRecord):
        return "record"
    if isinstance(value, dict) and value and all(isinstance(a, np.ndarray) for a in value.values()):
        return "dict"
    if isinstance(value, list) and value and all(isinstance(a, np.ndarray) for a in value):
        return "list"
    return None


def _list_items(value: Any, kind: str) -> Arrays:
    if kind == "record":
        return from_record(value)
    return dict(value) if kind == "dict" else {str(i): array for i, array in enumerate(value)}


def _restore_kind(arrays: Arrays, kind: str) -> Any:
    if kind == "record":
        return to_record(arrays)
    return arrays if kind == "dict" else [arrays[str(i)] for i in range(len(arrays))]
