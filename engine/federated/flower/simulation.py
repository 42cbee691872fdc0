"""Federation inside this process: for tests, debugging, and machines without Flower's simulation.

Clients answer one after another, and only a server that waits for them runs meanwhile.  Messages,
contexts and errors are Flower's; `flwr run` is for many clients on many cores.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.federated.flower.records import PARTITION


@check_arguments(clients=AT_LEAST_1)
def simulate(
    server: ServerApp,
    client: ClientApp,
    clients: int,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Run a federation of some clients in this process, until its ServerApp returns.

    config: the configuration of the run, as in `[tool.flwr.app.config]`.

    Raises:
        InputError: there is no client.
        Exception: any exception of the ServerApp; an exception of a ClientApp becomes the error of
            its reply.
    """
    _identify()
    grid = LocalGrid(client, clients, dict(config or {}))
    state = Context(grid.run.run_id, 0, {}, RecordDict(), dict(config or {}))
    server(grid, state)


class LocalGrid(Grid):
    """Grid whose nodes are clients in this process.

    contexts: the contexts of the clients, by the ids of their nodes.
    """

    def __init__(self, app: ClientApp, clients: int, config: Mapping[str, Any]) -> None:
        _identify()
        self.app = app
        self.contexts: dict[int, Context] = {}
        for number in range(clients):
            node = secrets.randbits(62)
            own: UserConfig = {PARTITION: number, "num-partitions": clients}
            self.contexts[node] = Context(1, node, own, RecordDict(), dict(config))
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(1)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let clients answer messages; return their ids."""
        ids = []
        for message in messages:
            message.content = deepcopy(message.content)  # as over a network: records are not shared
            message.metadata.__dict__["_message_id"] = secrets.token_hex(16)
            ids.append(message.metadata.message_id)
            self._replies[ids[-1]] = self._answer(message)
        return ids

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self.app(message, context)
        except Exception as error:  # becomes the error of the reply, as in Flower
            reason = f"{type(error).__name__}: {error}"
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=reason), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to messages, each once."""
        return [self._replies.pop(each) for each in message_ids if each in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return their replies."""
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)


def _identify() -> None:
    """Give this process the identity that Flower's messages need, unless it has one."""
    with suppress(RuntimeError):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id  # noqa: B018  # raise
        return
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
