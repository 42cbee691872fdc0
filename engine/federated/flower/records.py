"""Records of Flower's messages: conversion from arrays and numbers, and back.

Flower's own strategies expect these keys: record "arrays" has the parameters by name, "metrics" the
numbers, "config" the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from engine.base.errors import InputError
from engine.federated.learner import Kept
from engine.federated.parameters import Arrays
from engine.federated.schema import EXAMPLES as EXAMPLES

ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"
PARTITION = "partition-id"  # a key of the configuration of nodes: which client one is
_KEPT = "edgegrad.kept"


def to_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Return arrays by name as a record."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """Return the arrays of a record by name."""
    return {name: array.numpy() for name, array in record.items()}


def arrays_of(content: RecordDict) -> Arrays:
    """Return the parameters in a message.

    Raises:
        InputError: it has none.
    """
    if ARRAYS not in content.array_records:
        raise InputError(
            f"the message has no record {ARRAYS!r} of arrays; it has {list(content) or 'nothing'}"
        )
    return from_record(content.array_records[ARRAYS])


def read_config(content: RecordDict) -> dict[str, Any]:
    """Return the configuration in a message, or an empty one."""
    return dict(content.config_records.get(CONFIG, ConfigRecord()))


def tell_partition(context: Context) -> RecordDict:
    """Return the reply that says which client a node is.

    Unlike the node's id, this does not change from run to run.
    """
    partition = context.node_config.get(PARTITION, -1)
    return RecordDict({CONFIG: ConfigRecord({PARTITION: int(partition)})})


def load_kept(state: RecordDict) -> Kept:
    """Return the state that a client has kept in its context."""
    arrays = state.array_records.get(_KEPT + ".arrays")
    numbers = state.config_records.get(_KEPT + ".numbers")
    return Kept(
        {} if arrays is None else from_record(arrays),
        {} if numbers is None else {name: int(str(n)) for name, n in numbers.items()},
    )


def store_kept(kept: Kept, state: RecordDict) -> None:
    """Keep the state in the context of a client, which never leaves it."""
    state[_KEPT + ".arrays"] = to_record(kept.arrays)
    state[_KEPT + ".numbers"] = ConfigRecord(dict(kept.numbers))
