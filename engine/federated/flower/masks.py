"""Client's part of secure aggregation: Flower's SecAgg+ around a training run.

Flower's mod reads `FitIns` and `FitRes` of its older interface; `mask_reply` translates.  The
server receives the update of the client as integers with masks, which cancel in the sum only.
`engine.federated.flower.secure` has the server's part.

Flower 1.41 draws masks with a Mersenne Twister that is seeded with 32 bits, which a server can find
by search.  `draw_keystream` replaces it: ChaCha20 with a key of 256 bits, derived from the whole
secret. Copies of the two functions of Flower that draw masks get it by name; Flower itself is not
changed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from types import FunctionType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import (
    Code,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitins

from engine.base.errors import InputError
from engine.federated import parameters
from engine.federated.flower.records import ARRAYS, CONFIG, arrays_of, to_record
from engine.federated.parameters import Arrays

NAMES = "parameter-names"  # of the configuration of a round: a list, as JSON
STEPS = 1 << 22  # integers from -range to range; Flower's default
MASKS = 1 << 32  # bound of a sum: 1,024 clients


def draw_keystream(
    seed: bytes, limit: int, shapes: list[tuple[int, ...]]
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Draw masks: arrays of uniform integers below 2**32 that depend on the seed alone.

    seed: a secret of one round, used for one client or for one pair of them.
    limit: 2**32.
    """
    assert limit == MASKS
    cipher = Cipher(algorithms.ChaCha20(hashlib.sha256(seed).digest(), bytes(16)), None)
    stream, masks = cipher.encryptor(), list[Any]()
    for shape in shapes:
        words = np.frombuffer(stream.update(bytes(4 * int(np.prod(shape)))), "<u4")
        masks.append(words.astype(np.int64).reshape(shape))
    return masks


def with_masks(function: Any, **names: Any) -> Any:
    """Return a copy of a function of Flower that draws its masks by `draw_keystream`.

    names: other names and their new values.
    """
    names_in = {**function.__globals__, "pseudo_rand_gen": draw_keystream, **names}
    return FunctionType(function.__code__, names_in, function.__name__, function.__defaults__)


# The package gives the name of this module to the function in it.
_flower: Any = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
_secaggplus_mod = with_masks(
    _flower.secaggplus_mod,
    _collect_masked_vectors=with_masks(_flower._collect_masked_vectors),
)


def mask_reply(
    message: Message, context: Context, train: ClientAppCallable, largest: float
) -> Message:
    """Take part in secure aggregation; `train` replies with all parameters.

    largest: the largest magnitude of an element of an update.

    Raises:
        InputError: training failed, or an element is larger.
    """

    def fit(message: Message, context: Context) -> Message:
        instructions = recorddict_to_fitins(message.content, keep_input=True)
        names = json.loads(str(instructions.config.pop(NAMES)))
        sent = name_values(names, instructions.parameters)
        message.content = RecordDict(
            {ARRAYS: to_record(sent), CONFIG: ConfigRecord(dict(instructions.config))}
        )
        reply = train(message, context)
        if reply.has_error():
            raise InputError(reply.error.reason or "training failed without a reason")
        update = parameters.subtract(arrays_of(reply.content), sent)
        for name, array in update.items():
            if not np.abs(array).max(initial=0) <= largest:
                raise InputError(
                    f"update of {name!r} has {np.abs(array).max():g}; secure aggregation sends "
                    f"elements up to secure-range = {largest:g}"
                )
        values = ndarrays_to_parameters([update[name].astype(np.float64) for name in names])
        result = FitRes(Status(Code.OK, ""), values, num_examples=1, metrics={})
        return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)

    reply: Message = _secaggplus_mod(message, context, fit)
    return reply


def name_values(names: list[str], values: Parameters) -> Arrays:
    """Return parameters of Flower's older interface, which have no names, by name."""
    return dict(zip(names, parameters_to_ndarrays(values), strict=True))
