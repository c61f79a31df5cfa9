"""What readers see: whatever they were shown once has to be there after any power cut."""

from __future__ import annotations

from collections.abc import Iterable

import shmq
from tests.crash.history.history import Place, name_in


class Looking:
    """Pull consumers of some topics that look at everything, from the beginning on."""

    def __init__(self, mq: shmq.Connection, topics: Iterable[str]) -> None:
        self._mq = mq
        self._topics = sorted(topics)
        self._consumers: dict[str, shmq.PullConsumer] = {}
        self._seen: dict[str, Place] = {}

    def look(self) -> dict[str, Place]:
        """Return the place of every message that was seen so far, by name."""
        for topic in self._topics:
            if topic not in self._consumers and topic in self._mq.admin.topics:
                self._consumers[topic] = self._mq.pull_consumer(topic)
        for topic, consumer in self._consumers.items():
            while messages := consumer.poll(500):
                for message in messages:
                    name = name_in(bytes(message.body))
                    if name is not None:
                        self._seen[name] = (topic, message.queue_id, message.offset)
        return dict(self._seen)
