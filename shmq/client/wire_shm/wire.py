"""The wire to the broker of this host: its control socket, and the segments of one generation mapped here.

    attach    the control plane says who we are -> segments are checked and mapped -> the kernel counts us as present
    renew     after a reconnection: the next generation is mapped, or this one goes on under the new client slot
    close     the reverse; what is still exported (messages, views) keeps its own mapping alive
    abandon   in a forked child: let go of everything without telling the broker anything, it all belongs to the parent

A broker that answers while its segments or its log are not where this process looks has another /dev/shm, IPC namespace
or file system. An error of its own says so at once: a hint to start the broker would lead the user astray.

Invariant: the segments belong to the owner of the socket that described them. `store` is another object after a
renewal, so parts ask for it each time and keep none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from shmq.client.wire import Answer, Question, guarded
from shmq.client.wire_shm.control import ControlClient
from shmq.client.wire_shm.control_channel import Attachment
from shmq.errors import BrokerNotRunning, ForeignNamespace, SegmentError, ShmqError
from shmq.protocol.codes import Role, TopicFlush
from shmq.protocol.command import Command
from shmq.shm.core import Message, Store
from shmq.shm.instance import Instance
from shmq.shm.log_reach import check_log_is_here
from shmq.shm.place import Place
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import are_here, open_store


class ShmWire:
    """One attachment to a broker of this host; `timeout` in seconds."""

    is_local = True
    __slots__ = (
        "_counted",
        "_flushes",
        "_flushes_version",
        "client_id",
        "control",
        "instance",
        "place",
        "store",
        "timeout",
    )

    def __init__(self, place: Place, *, client_id: str, timeout: float) -> None:
        self.place = place
        self.client_id = client_id
        self.timeout = timeout
        self._counted = False
        self._flushes: dict[str, int] = {}  # flush of topics, as of a version of the tables
        self._flushes_version = -1
        self.control = ControlClient.connect(place, client_id=client_id, role=Role.BOTH, timeout=timeout)
        try:
            self.instance: Instance = self.control.attachment.instance
            self.store: Store = self._map()
        except BaseException:
            self.control.close()
            raise

    def _map(self) -> Store:
        store = map_segments(self.control.attachment, alive=self.control.alive)
        self._counted = True
        store.use_client(self.control.attachment.client_slot, self.control.attachment.slot_generation)
        return store

    @property
    def alive(self) -> bool:
        """Whether the control plane answers."""
        return self.control.alive

    @property
    def is_current(self) -> bool:
        """Whether the segments mapped here are those of the broker that answers."""
        return self.control.attachment.instance.generation == self.instance.generation

    @property
    def wait_durable(self) -> bool:
        """Whether a send is answered only once it is on disk (synchronous flush)."""
        return self.control.attachment.wait_durable

    def counts_on_disk(self, topic: str) -> bool:
        """Whether a message of a topic is answered only once it is on disk: as the topic says, else as the broker."""
        version = self.store.table_version
        if version != self._flushes_version:
            self._flushes, self._flushes_version = {}, version  # a new one: another thread may look into the old one
        flush = self._flushes.get(topic)
        if flush is None:
            index = self.store.topic_find(topic)
            if index < 0:
                return self.wait_durable
            flush = self._flushes[topic] = self.store.topic(index)["flush"]
        return self.wait_durable if flush == TopicFlush.BROKER else flush == TopicFlush.SYNC

    def message_at(self) -> Callable[..., Message] | None:
        """Return what reads the message at a log position; None while the broker that answers has another log."""
        return self.store.message_at if self.is_current else None

    def now_ms(self) -> int:
        """Return the time on the broker's clock in ms since the epoch."""
        return self.store.clock_ms

    # -- requests
    def brokers(self, topic: str | None = None) -> list[str]:
        """Return the broker's name if it has a topic."""
        return [self.instance.broker_name] if topic is None or self.store.topic_find(topic) >= 0 else []

    def address(self, broker: str) -> str:
        """Return "": it is on this host."""
        return ""

    def request(self, question: Question, timeout: float | None = None) -> Command:
        """Ask the broker, and return its answer."""
        _, code, ext, body = question  # there is one broker
        return self.control.request(code, ext, body, timeout)

    def begin(
        self,
        question: Question,
        then: Callable[[Answer], None],
        *,
        timeout: float | None = None,
        slave_may_answer: bool = False,
    ) -> None:
        """Ask the broker without waiting; an answer comes when it comes, or the link breaks."""
        leader = self.control.leader
        if leader is not None and leader.takes(question.code):
            try:
                leader.session.wire.begin(question, then, timeout=timeout)
            except ShmqError as error:  # it cannot be reached
                guarded(then, error)
            return
        del slave_may_answer

        def answered(reply: Command | None) -> None:
            then(BrokerNotRunning("the connection broke before the answer came") if reply is None else reply)

        try:
            self.control.begin(question.code, question.ext or {}, question.body, then=answered)
        except ShmqError as error:  # it is away
            guarded(then, error)

    # -- life
    def renew(self) -> bool:
        """Map the next generation (True), or go on with this one under the new client slot."""
        attachment = self.control.attachment
        if self.is_current:
            self.store.use_client(attachment.client_slot, attachment.slot_generation)
            return False
        self._discount()
        self.instance = attachment.instance
        self.store = self._map()
        return True

    def close(self) -> None:
        """Say goodbye to the broker and let the segments go; never raises."""
        with contextlib.suppress(ShmqError, OSError):
            self.control.close()
        self._discount()

    def abandon(self) -> None:
        """Forget everything in a forked child; the parent's registration stays as it is."""
        self.control.abandon()
        self._counted = False  # the kernel does not count the child for what its parent attached

    def _discount(self) -> None:
        if self._counted:
            self._counted = False
            detach_presence(self.instance)


def map_segments(attachment: Attachment, *, alive: bool) -> Store:
    """Return the mapped segments of an attachment, counted as attached; `alive` says whether its broker answers now.

    Raises:
        ForeignNamespace: they, or the log's files, are in a namespace that this process does not share.
        SegmentError, PermissionDenied, VersionMismatch: as `open_store`.
    """
    instance = attachment.instance
    check_log_is_here(instance)
    try:
        store = open_store(instance, writable=True, uid=attachment.broker_uid)
    except SegmentError as error:
        if not alive or are_here(instance):
            raise
        raise ForeignNamespace(
            f'broker "{instance.broker_name}" answers, but its segments are not in the shared memory of this process',
            hint="share its IPC namespace and its /dev/shm (docker: --ipc=container:<broker>), or connect over TCP",
        ) from error
    attach_presence(instance)
    return store
