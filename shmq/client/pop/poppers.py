"""The popping consumers of one connection: their queues, and the beginning of a new group."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from shmq.client.living import Living
from shmq.client.pop.reader import MappedLog, PopReader
from shmq.client.position import BEGIN
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import Question, Queues, QueueSlot, ReaderOwner, Wire
from shmq.errors import BrokerNotRunning, RemoteError, TopicNotFound
from shmq.message import retry_topic_of
from shmq.progress import Backlog
from shmq.protocol.codes import Request, Response
from shmq.protocol.pop import ANY_QUEUE
from shmq.protocol.route import DEFAULT_TOPIC


class Poppers:
    """The readers of one connection that pop."""

    def __init__(self, wire: Wire, queues: Queues, log: MappedLog | None = None) -> None:
        """
        Args:
            log: the log on this host; None over TCP.
        """
        self._wire = wire
        self._queues = queues
        self._log = log
        self._readers: Living[PopReader] = Living(lambda reader: reader.stopped)

    def open(self, owner: ReaderOwner, spec: ConsumerSpec) -> PopReader | None:
        """Return a new reader; None where none is wanted, or the brokers do not offer POP.

        A new group begins where it is to begin.

        Raises:
            ConnectError, RequestTimeout: the brokers do not answer.
        """
        if spec.invisible is None or (self._log is None and not self._is_offered(spec)):
            return None
        self._begin(spec)
        reader = PopReader(
            self._wire,
            owner,
            spec,
            find_brokers=lambda: self._brokers(spec.topic),
            waiting=None if self._log is None else lambda: self._waiting_for(spec),
            log=self._log,
        )
        self._readers.add(reader)
        return reader

    def of(self, spec: ConsumerSpec) -> list[PopReader]:
        """Return the readers that pop a topic for a group."""
        return [reader for reader in self._readers if not reader.stopped and reader.spec[:2] == spec[:2]]

    def slots(self, spec: ConsumerSpec) -> list[QueueSlot]:
        """Return every queue of a topic; its readers look for its brokers again."""
        for reader in self.of(spec):
            reader.look_for_brokers()
        return self._slots(spec.topic)

    def settle(self) -> None:
        """Let the brokers confirm what was acknowledged; waits for them a second a reader at most."""
        for reader in self._readers:
            reader.settle()

    def _is_offered(self, spec: ConsumerSpec) -> bool:
        """Say whether every broker of a topic, or of the cluster while it has none, offers POP."""
        # A topic that does not exist yet will be where the default topic is.
        names = self._wire.brokers(spec.topic) or self._wire.brokers(DEFAULT_TOPIC)
        ext = {"consumerGroup": spec.group or "", "topic": spec.topic, "queueId": str(ANY_QUEUE)}
        away: BrokerNotRunning | None = None
        answers = 0
        for name in names:
            try:
                self._wire.request(Question(name, Request.POLLING_INFO, ext))
            except BrokerNotRunning as error:
                away = error
                continue
            except (RemoteError, TopicNotFound) as error:  # it knows the request, but not the topic or the group
                if error.code == Response.REQUEST_CODE_NOT_SUPPORTED:
                    return False
            answers += 1
        if away is not None and not answers:
            raise away
        return bool(answers)

    def _begin(self, spec: ConsumerSpec) -> None:
        queues, topic, group = self._queues, spec.topic, spec.group
        if spec.start == BEGIN or group is None or not self._wire.brokers(topic) or queues.committed(group, topic):
            return
        places = {slot.queue_id: queues.place_in(topic, slot, spec.start) for slot in self._slots(topic)}
        queues.commit(group, topic, places)

    def _slots(self, topic: str) -> list[QueueSlot]:
        """Return the queues of a topic; [] where there is none, as a look does not make one."""
        if self._wire.brokers(topic):
            with contextlib.suppress(TopicNotFound):  # it went meanwhile
                return self._queues.read_queues(topic, must_exist=True)
        return []

    def _brokers(self, topic: str) -> Mapping[str, int]:
        """Return {name of a broker with readable queues of a topic: the id users know its queue 0 by}."""
        ids = [slot.queue_id for slot in self._slots(topic)]
        named = [(self._queues.message_queue(topic, queue_id), queue_id) for queue_id in ids]
        return {queue.brokerName: queue_id - queue.queueId for queue, queue_id in named}

    def _waiting_for(self, spec: ConsumerSpec) -> int:
        """Return how many messages wait for a group, those that come again included."""
        assert spec.group is not None
        queues, count = self._queues, 0
        for topic in (spec.topic, retry_topic_of(spec.group, spec.topic)):
            if not (slots := self._slots(topic)):
                continue
            committed = queues.committed(spec.group, topic)
            for slot in slots:
                begin, end = queues.bounds(topic, slot)
                count += Backlog(committed.get(slot.queue_id, -1), begin, end).waiting
        return count
