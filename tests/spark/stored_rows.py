"""Every message of a topic, copied, for those who compare what was written with what is there."""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """What a message was."""

    body: bytes
    queue_id: int
    tag: str | None
    keys: list[str]
    properties: dict[str, str]


def stored(broker: Any, topic: str) -> list[Row]:
    """Read a topic from its beginning to its end."""
    found: list[Row] = []
    with broker.connect() as mq, mq.pull_consumer(topic) as consumer:
        while messages := consumer.poll(512, 0.5):
            found += [
                Row(bytes(each.body), each.queue_id, each.tag, list(each.keys), dict(each.properties))
                for each in messages
            ]
    return found
