"""Flower's messages without its processes: a grid that runs clients in this one, one by one. The
apps, mods and strategies are those of a deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

Client = Callable[[Message, Context], Message]


class LocalGrid:
    """What a strategy asks of a grid. Node n has the partition n; ``clients`` may grow while it
    runs. ``on_the_way(message)`` may damage a reply."""

    def __init__(
        self, clients: list[Client], on_the_way: Callable[[Message], Message] | None = None
    ):
        self.clients = clients
        self.on_the_way = on_the_way
        self._contexts: dict[int, Context] = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0  # for Message

    def get_node_ids(self) -> Iterable[int]:
        return range(1, len(self.clients) + 1)

    def send_and_receive(self, messages: Iterable[Message], **_options) -> Iterable[Message]:
        replies = [self._reply(message) for message in messages]
        return [self.on_the_way(reply) for reply in replies] if self.on_the_way else replies

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = self._contexts.setdefault(
            node, Context(1, node, {"partition-id": node - 1}, RecordDict(), {})
        )
        return self.clients[node - 1](message, context)
