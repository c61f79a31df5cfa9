"""The session over the memory of this host: the features of a connection, made over one attachment."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from shmq.client.following.copying import copying
from shmq.client.following.members import FollowingMembers
from shmq.client.leader import Leader
from shmq.client.pop.poppers import Poppers
from shmq.client.producers.local_sends import LocalSends
from shmq.client.refusals import seconds_left
from shmq.client.requests.replier import Home, Replier
from shmq.client.requests.requester import Requests, SharedReplies, renewed
from shmq.client.search import Search
from shmq.client.wire import LOG
from shmq.client.wire_shm.groups import ShmGroups
from shmq.client.wire_shm.wire import ShmQueues, ShmWire
from shmq.errors import ShmqError, TopicNotFound
from shmq.protocol.request_reply import REPLY_QUEUES, reply_topic
from shmq.shm.place import Place

if TYPE_CHECKING:
    from shmq.client.transactions.half import LocalTransactions, Transactions


class LocalSession:
    """Everything of a connection that dies with a generation or a fork."""

    def __init__(self, place: Place, *, client_id: str, timeout: float) -> None:
        self.wire = wire = ShmWire(place, client_id=client_id, timeout=timeout)
        self.leader = Leader(
            lambda: wire.store,
            broker=wire.instance.broker_name,
            cluster=wire.control.attachment.cluster,
            client_id=client_id,
            timeout=timeout,
            copying=lambda: copying(place.links_path),
        )
        wire.control.leader = self.leader
        self.queues = ShmQueues(wire)
        self.members = FollowingMembers(wire, ShmGroups(wire, self.queues), self.leader)
        self.poppers = Poppers(wire, self.queues, wire.message_at)
        self.sends = LocalSends(wire, self.queues, self.leader)
        self.search = Search(wire, self.queues, self.members.pull_reader, lambda at: wire.store.message_at(at))
        self._transactions: LocalTransactions | None = None
        self._making = threading.RLock()  # a handler of a signal may begin a transaction while its thread does
        self._requests = self._new_requests()

    # -- requests
    @property
    def requests(self) -> Requests:
        """Sends requests to the leader."""
        return self.leader.session.requests if self.leader.is_elsewhere else self._requests

    def _new_requests(self) -> Requests:
        home = Home(self.wire.control.attachment.cluster, self.wire.instance.broker_name, self._store_reply)
        return Requests(self._open_replies, Replier(self.wire, self.queues, home).reply)

    def _open_replies(self) -> SharedReplies:
        wire, cluster = self.wire, self.wire.control.attachment.cluster
        index = self.queues.create(reply_topic(cluster), queues=REPLY_QUEUES)
        producer = self.sends.request_producer(wire.timeout)
        reader = self.members.pull_reader((), None)
        return SharedReplies(wire.store, reader, producer, index, cluster=cluster, client_id=wire.client_id)

    def _store_reply(self, topic: str, body: Any, properties: Any, queue_id: int) -> bool:
        try:
            self.sends.internal_producer.send(topic, body, properties=properties, queue_id=queue_id)
        except TopicNotFound:  # it was deleted; requesters read the new one from their next connection on
            self.queues.create(topic, queues=REPLY_QUEUES)
            return False
        return True

    # -- transactions
    @property
    def transactions(self) -> Transactions:
        """Begins and ends transactions at the leader; made at the first use."""
        if self.leader.is_elsewhere:
            return self.leader.session.transactions
        found = self._transactions
        if found is None:
            with self._making:
                found = self._transactions = self._transactions or self._new_transactions()
        return found

    def _new_transactions(self) -> LocalTransactions:
        from shmq.client.transactions.half import LocalTransactions

        wire = self.wire
        made = LocalTransactions(
            wire,
            wire.instance.broker_name,
            store=wire.store,
            producer=self.sends.internal_producer,
            resolve=self.queues.resolve,
            waits_durable=wire.counts_on_disk,
        )
        wire.control.on_check = made.checked
        return made

    # -- life
    @property
    def is_led_elsewhere(self) -> bool:
        """Whether calls here may wait for another host, which leads."""
        return self.leader.is_elsewhere

    def reach(self, seconds: float) -> float:
        """Wait for the leader where that is another host, `seconds` at most; return how many are left."""
        if not self.leader.is_elsewhere:
            return seconds
        deadline = time.monotonic() + seconds
        self.leader.session_within(seconds)
        return seconds_left(deadline)

    def renew(self) -> bool:
        """After a reconnection: map the next generation (True), or go on with this one under the new client slot."""
        if not self.wire.is_current:
            self.members.keep_progress()
        with self._making:  # what is made meanwhile is of the segments of before
            is_new = self.wire.renew()  # which may have become others since the look above
            if is_new:
                self._transactions = None
        if not is_new:
            return self.members.renew()
        self.sends.renew()
        requests, self._requests = self._requests, self._new_requests()
        requests.close(renewed)
        try:
            self.members.renew()
        except ShmqError as error:  # consumers open where they were; the lookout asks again, and they move then
            LOG.warning("the leader could not be asked for the groups, and is asked again: %s", error)
        return True

    def close(self) -> None:
        self._requests.close()
        self.members.close()
        self.leader.close()
        self.wire.close()

    def abandon(self) -> None:
        self.leader.abandon()
        self.wire.abandon()
