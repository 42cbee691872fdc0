"""Nodes in the same order in every run: sorted by their clients.

Flower gives nodes random ids, and chooses among them in the order in which it lists them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from engine.federated.flower.records import PARTITION, read_config

_log = logging.getLogger("flwr")


class PassingGrid(Grid):
    """Grid that forwards to another one; subclasses change a part of this."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return self.grid.get_node_ids()

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self.grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the available replies to some messages."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and wait for their replies."""
        return self.grid.send_and_receive(messages, timeout=timeout)


class OrderedGrid(PassingGrid):
    """Grid that lists its nodes by partition, then by id.

    Each node is asked once.  One that does not answer, or has no partition, comes last.

    timeout: seconds for the nodes to answer: as long as a round may take, since a process of a
        simulation may first have to start, and load all that an app needs.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        super().__init__(grid)
        self._timeout = timeout
        self._partitions: dict[int, int] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes, ordered."""
        nodes = list(self.grid.get_node_ids())
        self._ask([node for node in nodes if node not in self._partitions])
        return sorted(nodes, key=lambda node: (self._partitions[node], node))

    def _ask(self, nodes: list[int]) -> None:
        if not nodes:
            return
        last = 1 << 62
        self._partitions |= dict.fromkeys(nodes, last)
        messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        answered = 0
        for reply in self.grid.send_and_receive(messages, timeout=self._timeout):
            if not reply.has_error():
                partition, node = (
                    read_config(reply.content).get(PARTITION),
                    reply.metadata.src_node_id,
                )
                if type(partition) is int and 0 <= partition < last and node in self._partitions:
                    answered += 1
                    self._partitions[node] = partition
        if answered < len(nodes):
            _log.warning(
                "%d of %d nodes do not say which client they are: which of them a round has "
                "depends on their ids, and not on the seed alone",
                len(nodes) - answered,
                len(nodes),
            )
