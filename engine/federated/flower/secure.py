"""Server's part of secure aggregation: the sum of all updates, from masked numbers of each.

Flower has SecAgg+ for its older interface alone: a workflow that wants a `LegacyContext` and a
strategy of `flwr.server`.  `SecureGrid` runs this workflow for the training messages of a round,
four for each client, and then replies for every participating client with the mean of all updates,
so that a strategy that averages gets their average.

All clients have equal weight, and send no numbers.  An update travels as integer multiples of 2 R /
2**22, for elements within +-R, in 8 bytes each.  A client that fails is left out as long as two
thirds of the clients remain; with fewer the round has no result.

Masks come from `engine.federated.flower.masks`.  Every message of a client in the four stages is
checked before Flower reads it; a malformed one is an error of that client.  A client that keeps to
the form but lies, in its masks or in its shares of secrets, cannot be identified: then the sum is
out of range, or Flower fails, and the round has no result.

Source: Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, 2020.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import (
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import (
    parameters_to_arrayrecord,
    recorddict_to_fitres,
)
from flwr.server import LegacyContext
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from engine.base.errors import EngineError, InputError
from engine.federated import parameters
from engine.federated.flower.masks import MASKS, NAMES, STEPS, with_masks
from engine.federated.flower.mods import ROUND
from engine.federated.flower.nodes import PassingGrid
from engine.federated.flower.parsing import read_array
from engine.federated.flower.records import ARRAYS, CONFIG, EXAMPLES, METRICS, arrays_of, to_record
from engine.federated.flower.replies import count_bytes
from engine.federated.schema import ArrayField

_SHARES = 1.0  # shares of a client's secret: one for each other client
_ENOUGH = 2 / 3  # shares that reveal it
_LONGEST = 4096  # bytes of a key, of a share, and of one that is encrypted
_log = logging.getLogger("flwr")


class SecureGrid(PassingGrid):
    """Grid whose training messages are answered by the mean of all updates.

    largest: the largest magnitude of an element of an update, as on the clients.
    """

    def __init__(self, grid: Grid, largest: float) -> None:
        super().__init__(grid)
        self.largest = largest
        self.sent = self.received = 0  # bytes of the last training

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, in training by SecAgg+, whose stages take up to `timeout` each."""
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != MessageType.TRAIN:
            return self.grid.send_and_receive(asked, timeout=timeout)
        once = _Once(self.grid, asked)
        counting = _CheckingGrid(self.grid, [array.shape for array in once.sent.values()])
        workflow = _Workflow(
            _SHARES,
            _ENOUGH,
            max_weight=1.0,
            clipping_range=self.largest,
            quantization_range=STEPS,
            modulus_range=MASKS,
            timeout=timeout,
        )
        try:
            workflow(counting, once.context)
            once.check_range(self.largest)
        except Exception as error:  # a client can make Flower fail with any exception
            once.results.clear()
            _log.warning(
                "round %s: secure aggregation fails: %s: %s",
                once.round, type(error).__name__, error,
            )  # fmt: skip
        self.sent, self.received = counting.sent, counting.received
        _log.info(
            "round %s: train: %s bytes to %d clients, %s bytes from them, for secure aggregation",
            once.round, f"{self.sent:,}", len(asked), f"{self.received:,}",
        )  # fmt: skip
        return [reply for message in asked if (reply := once.reply(message, counting.reasons))]


class _Workflow(SecAggPlusWorkflow):
    """Flower's workflow, with the masks of the clients.

    A client that has not shared its secrets has added no mask, and nobody has shares of them: from
    then on it is left out, whereas Flower 1.41 asks for its shares and gives up.
    """

    unmask_stage = with_masks(SecAggPlusWorkflow.unmask_stage)

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        """Run the second stage; only its participants count from then on."""
        enough = super().share_keys_stage(grid, context, state)
        state.sampled_node_ids = set(state.active_node_ids)
        state.nid_to_neighbours = {
            node: state.nid_to_neighbours[node] & state.sampled_node_ids
            for node in state.sampled_node_ids
        }
        return enough


class _CheckingGrid(PassingGrid):
    """Grid that counts bytes, checks replies, and keeps the reasons of errors by node.

    shapes: the shapes of the parameters.
    """

    def __init__(self, grid: Grid, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(grid)
        self.shapes = [(1,), *shapes]  # the weight comes first
        self.sent = self.received = 0
        self.reasons: dict[int, str] = {}
        self._keys: set[bytes] = set()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and wait for their replies."""
        asked = list(messages)
        self.sent += sum(map(count_bytes, asked))
        requests = {message.metadata.dst_node_id: message for message in asked}
        said = {  # a client in this process removes some of it
            node: dict(message.content.config_records[RECORD_KEY_CONFIGS])
            for node, message in requests.items()
        }
        came = list(self.grid.send_and_receive(asked, timeout=timeout))
        self.received += sum(map(count_bytes, came))
        replies: dict[int, Message] = {}
        for reply in came:
            node = reply.metadata.src_node_id
            if node in replies or node not in requests:
                continue
            try:
                if not reply.has_error():
                    self._check(said[node], reply)
            except (EngineError, LookupError, TypeError, ValueError) as error:
                reason = f"its message cannot be read: {type(error).__name__}: {error}"
                reply = Message(Error(ErrorCode.UNKNOWN, reason), reply_to=requests[node])
            replies[node] = reply
            if reply.has_error():
                self.reasons[node] = str(reply.error.reason or "no reason")
        return list(replies.values())

    def _check(self, asked: Mapping[str, Any], reply: Message) -> None:
        """Refuse a reply that does not fit its stage.

        Raises:
            EngineError, LookupError, TypeError, ValueError: a field is malformed.
        """
        fields = dict(reply.content.config_records[RECORD_KEY_CONFIGS])
        stage = asked[Key.STAGE]
        if stage == Stage.SETUP:
            keys = _read_bytes([fields[Key.PUBLIC_KEY_1], fields[Key.PUBLIC_KEY_2]])
            if len(set(keys)) < 2 or self._keys & set(keys):
                raise InputError("its public keys are equal, or belong to another client")
            for key in keys:
                bytes_to_public_key(key)
            self._keys |= set(keys)
        elif stage == Stage.SHARE_KEYS:
            others = {int(n) for n in asked if n != Key.STAGE} - {reply.metadata.src_node_id}
            _check_pairs(fields[Key.DESTINATION_LIST], fields[Key.CIPHERTEXT_LIST], others)
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            arrays = fields[Key.MASKED_PARAMETERS]
            if not isinstance(arrays, list) or len(arrays) != len(self.shapes):
                raise InputError(f"it has no list of {len(self.shapes)} masked arrays")
            for shape, each in zip(self.shapes, cast("list[bytes]", arrays), strict=True):
                values = read_array("a masked array", each, ArrayField(shape, np.dtype("<i8")))
                if values.size and not 0 <= int(values.min()) <= int(values.max()) < MASKS:
                    raise InputError(f"a masked number is not from 0 to {MASKS - 1}")
            recorddict_to_fitres(reply.content, keep_input=True)
        elif stage == Stage.UNMASK:
            nodes = {
                *_read_integers(asked[Key.ACTIVE_NODE_ID_LIST]),
                *_read_integers(asked[Key.DEAD_NODE_ID_LIST]),
            }
            _check_pairs(fields[Key.NODE_ID_LIST], fields[Key.SHARE_LIST], nodes)


def _check_pairs(nodes: Any, values: Any, expected: set[int]) -> None:
    """Refuse lists unless they have some bytes for every expected node, and for no other.

    Raises:
        InputError: the lists do not fit.
    """
    senders = _read_integers(nodes)
    if (
        len(senders) != len(set(senders))
        or set(senders) != expected
        or len(_read_bytes(values)) != len(senders)
    ):
        raise InputError(f"it has {len(senders)} shares; expected one for each of {len(expected)}")


def _read_integers(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(type(each) is int for each in values):
        raise InputError(f"{values!r:.80} is not a list of integers")
    return values


def _read_bytes(values: Any) -> list[bytes]:
    if not isinstance(values, list) or not all(
        type(each) is bytes and len(each) <= _LONGEST for each in values
    ):
        raise InputError(f"{values!r:.80} is not a list of up to {_LONGEST} bytes each")
    return values


class _Once(Strategy):
    """Strategy of the older interface that asks for one training of certain nodes."""

    def __init__(self, grid: Grid, asked: list[Message]) -> None:
        content = asked[0].content
        self.sent = arrays_of(content)
        self.config: dict[str, Scalar] = {
            name: value
            for name, value in content.config_records[CONFIG].items()
            if isinstance(value, bool | int | float | str | bytes)
        }
        self.round = int(str(self.config[ROUND]))
        self.results: dict[int, Parameters] = {}
        self.proxies: list[ClientProxy] = [
            GridClientProxy(message.metadata.dst_node_id, grid, grid.run.run_id)
            for message in asked
        ]
        values = ndarrays_to_parameters(list(self.sent.values()))
        state = RecordDict(
            {
                MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: self.round}),
                MAIN_PARAMS_RECORD: parameters_to_arrayrecord(values, keep_input=True),
            }
        )
        self.context = LegacyContext(Context(grid.run.run_id, 0, {}, state, {}), strategy=self)

    def reply(self, message: Message, reasons: dict[int, str]) -> Message | None:
        """Return the reply for the client of a message, or None if it was too late."""
        node = message.metadata.dst_node_id
        if node not in self.results:
            reason = reasons.get(node)
            if reason is None and not self.results and reasons:
                reason = "too few clients are left for the sum of this round"
            error = Error(ErrorCode.UNKNOWN, reason)
            return None if reason is None else Message(error, reply_to=message)
        mean = dict(zip(self.sent, parameters_to_ndarrays(self.results[node]), strict=True))
        content = RecordDict(
            {
                ARRAYS: to_record(parameters.add(self.sent, mean)),
                METRICS: MetricRecord({EXAMPLES: 1}),
                CONFIG: ConfigRecord({ROUND: self.round}),
            }
        )
        return Message(content, reply_to=message)

    def check_range(self, largest: float) -> None:
        """Refuse a mean that no updates within the range can have.

        Raises:
            InputError: an element is larger.
        """
        for values in self.results.values():
            for array in parameters_to_ndarrays(values):
                most = float(np.abs(array).max(initial=0))
                if not math.isfinite(most) or most > largest * (1 + 1e-6):
                    raise InputError(
                        f"the mean has {most:g}; updates are up to {largest:g}: a client has lied "
                        "about its masks or its shares"
                    )

    # --- of the older interface

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the requests to all clients."""
        config = {**self.config, NAMES: json.dumps(list(self.sent))}
        return [(proxy, FitIns(parameters, config)) for proxy in self.proxies]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Any],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Keep the mean, which is in the result of every participating client."""
        self.results = {int(proxy.cid): result.parameters for proxy, result in results}
        return None, {}

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Return None: the parameters of the round are known."""
        return None

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return no requests: evaluation has no secure aggregation."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[Any],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Return nothing."""
        return None, {}

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Return nothing: `Rounds` evaluates."""
        return None
