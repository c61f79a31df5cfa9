"""Owns one client talking to one broker, as a test sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.deadline import eventually
from tests.interop.peers.java import LineClient
from tests.interop.peers.wire import Wire, has_route
from tests.interop.target import Target

CREATE_TOPIC = 17
GET_MAX_OFFSET = 30


@dataclass(frozen=True)
class Pair:
    """A client, the broker it is pointed at, and names of its own."""

    client_name: str
    client: LineClient
    target: Target
    named: Callable[[str], str]

    def do(self, verb: str, **arguments: Any) -> Any:
        """Let the client do something at this broker's name server; returns its result."""
        return self.client.do(verb, nameServer=self.target.name_server, **arguments)

    def close(self, verb: str, name: str) -> None:
        """Close a producer or consumer of the client, if the client still lives."""
        if self.client.is_alive:
            self.client.do(verb, name=name)

    def bodies(self, *consumers: str) -> set[str]:
        """What these consumers have received."""
        return {each["body"] for consumer in consumers for each in self.client.received(consumer)}

    def has_route(self, topic: str) -> bool:
        """Whether the name server hands out a route of a topic."""
        return has_route(self.target.name_server, topic)

    def stored(self, topic: str, queues: int = 4) -> int:
        """Return how many messages can be consumed; a stock broker makes them visible a moment after the reply."""
        with Wire(self.target.broker_address) as wire:
            replies = [wire.ask(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}) for queue in range(queues)]
        return sum(int(reply.fields["offset"]) for reply in replies if reply is not None)

    def new_topic(self, queues: int = 4) -> str:
        """Create a topic and wait until it has a route."""
        name = self.named("topic")
        fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
        with Wire(self.target.broker_address) as wire:
            reply = wire.ask(
                CREATE_TOPIC,
                {key: str(value).lower() if key == "order" else str(value) for key, value in fields.items()},
            )
        assert reply is not None and reply.code == 0, reply
        eventually(lambda: self.has_route(name), f"{name} has a route")
        return name
