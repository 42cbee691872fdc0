"""The server's part of secure aggregation: the sum of all updates, and masked numbers of each.

Flower has SecAgg+ for its older interface alone: a workflow that wants a `LegacyContext` and a
strategy of `flwr.server`.  `SecureGrid` lets it have the training messages of a round, four of them
for each client, and then replies for every client that took part with the mean of all updates, so
that a strategy that averages gets their average.

All clients have equal weight, and send no numbers.  An update travels in whole numbers of steps of
2 R / 2**22, for elements within +-R, each of 8 bytes.  A client that fails is left out while two
thirds of the clients are there; with fewer the round has no result.

Masks of Flower 1.41 come from a Mersenne Twister that is seeded with 32 bits: they hide an update
from who reads messages, and not from who searches for the seed.

Source: Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, 2020.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

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
from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord
from flwr.server import LegacyContext
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from engine.federated import parameters
from engine.federated.flower.masks import MASKS, NAMES, STEPS
from engine.federated.flower.mods import ROUND
from engine.federated.flower.nodes import PassingGrid
from engine.federated.flower.records import ARRAYS, CONFIG, EXAMPLES, METRICS, arrays_of, to_record
from engine.federated.flower.replies import nbytes

_SHARES = 1.0  # of a client's secret: one for each other client
_ENOUGH = 2 / 3  # of these reveal it
_log = logging.getLogger("flwr")


class SecureGrid(PassingGrid):
    """A grid whose training messages are answered by the mean of all updates.

    largest: of the magnitudes that an element of an update can have, as the clients have it.
    """

    def __init__(self, grid: Grid, largest: float) -> None:
        super().__init__(grid)
        self.largest = largest
        self.sent = self.received = 0  # bytes of the last training

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; those of a training by SecAgg+, whose stages take `timeout` each."""
        asked = list(messages)
        if not asked or asked[0].metadata.message_type != MessageType.TRAIN:
            return self.grid.send_and_receive(asked, timeout=timeout)
        counting, once = _CountingGrid(self.grid), _Once(self.grid, asked)
        workflow = SecAggPlusWorkflow(
            _SHARES,
            _ENOUGH,
            max_weight=1.0,
            clipping_range=self.largest,
            quantization_range=STEPS,
            modulus_range=MASKS,
            timeout=timeout,
        )
        workflow(counting, once.context)
        self.sent, self.received = counting.sent, counting.received
        _log.info(
            "round %s: train: %s bytes to %d clients, %s bytes from them, for secure aggregation",
            once.round, f"{self.sent:,}", len(asked), f"{self.received:,}",
        )  # fmt: skip
        return [reply for message in asked if (reply := once.reply(message, counting.reasons))]


class _CountingGrid(PassingGrid):
    """Counts bytes, and keeps the reasons of errors by their nodes."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.sent = self.received = 0
        self.reasons: dict[int, str] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and wait for their replies."""
        asked = list(messages)
        self.sent += sum(map(nbytes, asked))
        found = list(self.grid.send_and_receive(asked, timeout=timeout))
        self.received += sum(map(nbytes, found))
        for reply in found:
            if reply.has_error():
                self.reasons[reply.metadata.src_node_id] = reply.error.reason or "no reason"
        return found


class _Once(Strategy):
    """A strategy of the older interface that asks for one training of certain nodes."""

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
                MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: self.round}),
                MAIN_PARAMS_RECORD: parameters_to_arrayrecord(values, keep_input=True),
            }
        )
        self.context = LegacyContext(Context(grid.run.run_id, 0, {}, state, {}), strategy=self)

    def reply(self, message: Message, reasons: dict[int, str]) -> Message | None:
        """What the client of a message has replied; None: nothing in time."""
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

    # --- of the older interface

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """What all clients are asked for."""
        config = {**self.config, NAMES: json.dumps(list(self.sent))}
        return [(proxy, FitIns(parameters, config)) for proxy in self.proxies]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[Any],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Keep the mean, which stands in the result of every client that took part."""
        self.results = {int(proxy.cid): result.parameters for proxy, result in results}
        return None, {}

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """None: the parameters of the round are there."""
        return None

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Nobody: evaluation has no secure aggregation."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[Any],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Nothing."""
        return None, {}

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Nothing: `Rounds` evaluates."""
        return None
