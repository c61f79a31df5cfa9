"""The way from a slave's host to the broker that leads: what changes anything is done there.

    this host           sends, transactions, requests, and the codes of AT_LEADER
    leads               by shared memory and the control socket; nothing here is used
    follows a leader    over TCP to the leader; so does a host that is fenced, as another one leads now
    knows no leader     are refused, with NotMaster

Groups are the leader's, but not those of a host that takes nothing of it, as its log is none of the leader's
(`owns_groups`): what names a place in the log is not the leader's then.

Messages are read from shared memory; those of groups are sent by the leader where the copy here does not go on. The
leader's address stands in the segments, where each switch writes it, and the topics in the tables there, which are
copies of the leader's: no name server is asked, and the leader only about topics that are not there yet. Where it has
accounts, it knows the sender by the keys in $SHMQ_ACCESS_KEY and $SHMQ_SECRET_KEY.

    dial        a thread of its own opens the session with a leader; calls wait for it as long as each may
    fails       its error answers every call as long again as the dial took, a second at most; then it is dialled anew
    switch      another address is dialled at once, and what the dial before brings is closed

Invariants: (1) the leader is looked up before each send and each request, so nothing has to be opened anew after a
switch; (2) what was sent to a leader that is gone is never sent a second time here: its error says that it may be
stored; (3) nothing here waits for the leader before a send or a request needs it; (4) one dial is on its way at a time
to one address, and no lock is held meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from shmq.client.background import begun, started
from shmq.client.following.copying import Copying
from shmq.client.kinds import check_wait
from shmq.client.place import remote_place
from shmq.client.refusals import AWAY, seconds_left
from shmq.client.wire import HandedOver, MessageSender, Question, guarded
from shmq.errors import BrokerNotRunning, ConnectError, NotMaster, RequestTimeout, ShmqError
from shmq.protocol.body import TABLE_BYTES_MAX, TopicConfig, TopicTable, decode_body, encode_body
from shmq.protocol.client_requests import topic_table
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import Answer, reply_of
from shmq.protocol.route import (
    DEFAULT_TOPIC,
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRoute,
    encode_route,
    encode_standard,
)
from shmq.shm.core import READ_ONLY_FENCED, READ_ONLY_FOLLOWER, Store

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shmq.client.remote.groups import TcpGroups
    from shmq.client.remote_session import RemoteSession

AT_LEADER = frozenset(
    {
        Request.CONSUMER_SEND_MSG_BACK,
        Request.END_TRANSACTION,
        Request.RECALL_MESSAGE,
        Request.POP_MESSAGE,
        Request.ACK_MESSAGE,
        Request.BATCH_ACK_MESSAGE,
        Request.CHANGE_MESSAGE_INVISIBLETIME,
        Request.UPDATE_AND_CREATE_TOPIC,
        Request.DELETE_TOPIC_IN_BROKER,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Request.DELETE_SUBSCRIPTIONGROUP,
    }
)
"""Requests that change the log or the tables; a slave refuses them."""

_OF_GROUPS = frozenset(
    {
        Request.CONSUMER_SEND_MSG_BACK,
        Request.POP_MESSAGE,
        Request.ACK_MESSAGE,
        Request.BATCH_ACK_MESSAGE,
        Request.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
"""Those of them that name messages by their places in the log: where the logs differ, they would mean other ones."""

TABLES_SECONDS = 10.0
"""How long a topic that was made at the leader may take to appear on this host."""

_FAILED_SECONDS_MAX: Final = 1.0
_LOOK_SECONDS: Final = 0.1  # between two looks at who leads, of a call that waits for a dial


class _Dial:
    """One dial of a leader.

    Until a failure of it is over its error stands for another one: a host that answers nothing would cost each call the
    whole time of a dial. One that refuses at once is dialled anew at once, as its broker may be starting.
    """

    __slots__ = ("address", "began", "future", "stands_until")

    def __init__(self, address: str) -> None:
        self.address = address
        self.began = time.monotonic()
        self.stands_until = float("inf")
        self.future: Future[RemoteSession | Exception]

    def failed(self) -> None:
        now = time.monotonic()
        self.stands_until = now + min(now - self.began, _FAILED_SECONDS_MAX)


class Leader:
    """The leader of one attachment's broker; any thread may use it.

    Args:
        store: returns the segments of this host, which are others after a restart.
        broker: the name of the broker, which all hosts of it share; `cluster` likewise.
        timeout: seconds, of a request that names none.
        copying: says how this host's copy of the leader's log goes on.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        broker: str,
        cluster: str,
        client_id: str,
        timeout: float,
        copying: Callable[[], Copying] = Copying,
    ) -> None:
        self._store = store
        self._copying = copying
        self._broker, self._cluster = broker, cluster
        self._client_id, self._timeout = client_id, timeout
        self._session: RemoteSession | None = None
        self._dial: _Dial | None = None
        self._lock = threading.RLock()  # a handler of a signal may close what its thread is using
        self._is_closed = False

    @property
    def follows(self) -> bool:
        """Whether this host follows, be its leader known or not."""
        return self._store().standing == READ_ONLY_FOLLOWER

    @property
    def is_elsewhere(self) -> bool:
        """Whether this host follows a leader that it knows, or is going to: it is fenced, and that one leads now."""
        store = self._store()
        return store.standing in (READ_ONLY_FOLLOWER, READ_ONLY_FENCED) and bool(store.leader)

    @property
    def owns_groups(self) -> bool:
        """Whether this host follows, and its groups are the leader's, be that known or not."""
        return self.follows and not self._copying().is_refused

    @property
    def copying(self) -> Copying:
        """How the copy of its log goes on, which this host has."""
        return self._copying()

    def has(self, groups: TcpGroups) -> bool:
        """Whether these groups are those of the session with the leader."""
        session = self._session
        return session is not None and session.members is groups

    @property
    def session(self) -> RemoteSession:
        """The session with the leader of now, opened if need be; waits as long as the connection does.

        Raises:
            NotMaster: it cannot be reached, or a switch has just begun and no leader is known.
            PermissionDenied: it is not for us.
        """
        return self.session_within(self._timeout)

    def session_within(self, seconds: float) -> RemoteSession:
        """The same, waiting for `seconds` at most."""
        deadline = time.monotonic() + seconds
        while not (dial := self._dialled()).future.done():
            left = deadline - time.monotonic()
            with contextlib.suppress(TimeoutError):
                dial.future.exception(max(0.0, min(left, _LOOK_SECONDS)))
                if dial.address == self._store().leader:  # else the dial of the leader of now is waited for
                    break
            if left <= _LOOK_SECONDS and not dial.future.done():
                raise _unreachable(dial.address, f"no connection within {seconds:g} s")
        return _session_of(dial)

    def _dialled(self) -> _Dial:
        """Return the dial of the leader of now, begun if need be."""
        with self._lock:
            if self._is_closed:
                raise BrokerNotRunning("the connection is closed", hint="connect again with shmq.connect()")
            address, dial = self._address_now(), self._dial
            if dial is None or dial.address != address or time.monotonic() >= dial.stands_until:
                self._drop()
                self._dial = None
                # A fork while the thread of the dial imports would leave the module locked in the child for good.
                importlib.import_module("shmq.client.remote_session")
                dial = _Dial(address)
                dial.future = begun(lambda: self._opened(dial), name="shmq-dial")
                self._dial = dial
            return dial

    def _address_now(self) -> str:
        address = self._store().leader
        if not address:
            raise NotMaster(
                "this host follows, and who leads is not known now", hint="shmq cluster status says who leads"
            )
        return address

    def _opened(self, dial: _Dial) -> RemoteSession | Exception:
        """Return the session of a dial, on its thread, or its error without frames, which would keep the connection."""
        try:
            session = self._open(dial.address)
        except Exception as error:
            dial.failed()
            return error.with_traceback(None)
        with self._lock:
            if dial is self._dial and not self._is_closed:
                self._session = session
                return session
        session.close()
        return NotMaster(f"the master at {dial.address} was left meanwhile", hint="shmq cluster status says who leads")

    def _open(self, address: str) -> RemoteSession:
        from shmq.client.remote_session import RemoteSession  # a host that leads pays nothing for TCP

        place = remote_place(f"rocketmq://{address}")
        return RemoteSession(place, client_id=self._client_id, timeout=self._timeout, answer=self._answer)

    def takes(self, code: int) -> bool:
        """Whether a request is the leader's, and that is another host."""
        return code in AT_LEADER and self.is_elsewhere and (code not in _OF_GROUPS or self.owns_groups)

    def request(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", timeout: float | None = None
    ) -> Command:
        """Ask the leader; raises as `Wire.request`."""
        made = (ext or {}).get("topic", "") if code == Request.UPDATE_AND_CREATE_TOPIC else ""
        is_new = bool(made) and self._store().topic_find(made) < 0
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        wire = self.session_within(seconds).wire
        reply = wire.request(Question(self._broker, code, ext, body), seconds_left(deadline))
        if made:
            reply.ext["created"] = str(is_new).lower()  # what a broker says on its own host only
        return reply

    def begin(self, question: Question, then: Callable[[Answer], None], timeout: float | None) -> None:
        """Ask the leader without waiting, not for a dial either; as `Wire.begin`."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)

        def opened(dial: _Dial) -> None:
            try:
                wire = _session_of(dial).wire
            except ShmqError as error:  # it cannot be reached
                guarded(then, error)
            else:
                wire.begin(question, then, timeout=seconds_left(deadline))

        try:
            dial = self._dialled()
        except ShmqError as error:
            guarded(then, error)
        else:
            dial.future.add_done_callback(lambda _: opened(dial))

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write offsets of a group down, by queue id, where the leader has what was read here.

        Raises:
            ConsumeError: it lacks the end of a queue; the offsets are those of other messages there.
        """
        from shmq.client.following.agreement import ends_otherwise, is_part

        session, store = self.session, self._store()
        entry = store.topic_find(topic)
        for queue_id in offsets:
            index = store.queue_index(entry, queue_id) if entry >= 0 else -1
            queue = MessageQueue(self._broker, queue_id, topic)
            if index >= 0 and not session.wire.call(is_part(store, session.members.questions, index, queue)):
                raise ends_otherwise(queue)
        session.queues.commit(group, topic, offsets)

    def has_topic(self, topic: str) -> bool:
        """Whether the leader is another host that has a topic; False where it does not answer."""
        if not self.is_elsewhere:
            return False
        try:
            return self.session.wire.call(self._queues_there(self._broker, topic)) is not None
        except ShmqError:
            return False

    def introduce(self, producer_groups: Sequence[str]) -> None:
        """Tell the leader which producer groups it may ask about transactions; repeated every 20 s."""
        if producer_groups and self.is_elsewhere:
            with contextlib.suppress(*AWAY):
                self.session.members.register(producer_groups, ())

    # -- what name servers answer elsewhere
    async def _answer(self, code: int, ext: Mapping[str, str]) -> Command:
        broker, cluster = self._broker, self._cluster
        brokers = {broker: BrokerData(broker, {MASTER_ID: self._address_now()}, cluster)}
        if code == Request.GET_BROKER_CLUSTER_INFO:
            return Command(code=Response.SUCCESS, body=encode_standard(ClusterInfo(brokers, {cluster: [broker]})))
        if code == Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            names = [str(entry["name"]) for entry in self._store().topics()]
            return Command(code=Response.SUCCESS, body=encode_body(TopicList(names)))
        topic = ext.get("topic", "")
        queues = self._queues_of(broker, topic) or await self._queues_there(broker, topic)
        if queues is None:
            return Command(code=Response.TOPIC_NOT_EXIST, remark="no such topic here")
        route = TopicRoute(list(brokers.values()), [queues])
        return Command(code=Response.SUCCESS, body=encode_route(route, standard=True))

    def _queues_of(self, broker: str, topic: str) -> QueueData | None:
        store = self._store()
        index = store.topic_find(topic)
        if index >= 0:
            entry = store.topic(index)
            return QueueData(broker, entry["read_queues"], entry["write_queues"], entry["perm"], entry["flags"])
        # Whether it makes topics by itself the leader says, when the first message is sent.
        return QueueData(broker) if topic == DEFAULT_TOPIC else None

    async def _queues_there(self, broker: str, topic: str) -> QueueData | None:
        """The queues of a topic that this host does not know yet: a message group would go to another one than its own.

        Raises:
            ConnectError, RequestTimeout: the leader does not answer.
            PermissionDenied, RemoteError: it refuses to say so.
        """
        session = self._session
        if session is None or not topic:
            return None  # it opens just now
        wire, command = session.wire, Command(code=Request.GET_TOPIC_CONFIG, ext={"topic": topic})
        reply = await wire.network.request(wire.names.current, command, self._timeout)
        if reply.code == Response.REQUEST_CODE_NOT_SUPPORTED:  # by RocketMQ 4's: it has the list of all alone
            reply = reply_of(await wire.network.request(wire.names.current, topic_table(), self._timeout))
            found = decode_body(reply.body, TopicTable, dialect_bytes_max=TABLE_BYTES_MAX).topicConfigTable.get(topic)
        else:
            found = None if reply.code == Response.TOPIC_NOT_EXIST else decode_body(reply_of(reply).body, TopicConfig)
        if found is None:
            return None
        return QueueData(broker, found.readQueueNums, found.writeQueueNums, found.perm, found.topicSysFlag)

    # -- life
    def leave(self) -> None:
        """Say goodbye to the leader; what needs it next opens a new session. Never raises."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Say goodbye to the leader for good; never raises."""
        with self._lock:
            self._is_closed = True
            self._drop()
            self._dial = None

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._dial = None  # that of this session; one that goes on is kept, as it may be of the next leader
            # The goodbye goes to a leader that may be dead; a thread of its own waits for it, where one can be had.
            try:
                started(threading.Thread(target=session.close, name="shmq-leave", daemon=True))
            except ConnectError:
                session.close()

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and of nothing else."""
        self._dial = None
        session, self._session = self._session, None
        if session is not None:
            session.abandon()


def _session_of(dial: _Dial) -> RemoteSession:
    """Return what a dial that is over has brought; each call raises an error of its own."""
    brought = dial.future.result()
    if not isinstance(brought, Exception):
        return brought
    if isinstance(brought, (BrokerNotRunning, RequestTimeout)) or not isinstance(brought, ShmqError):
        raise _unreachable(dial.address, brought) from brought  # a foreign error is of this host: no descriptor left
    raise copy.copy(brought) from brought


def _unreachable(address: str, reason: object) -> NotMaster:
    return NotMaster(
        f"this host follows the master at {address}, which cannot be reached: {reason}",
        hint="shmq cluster status says who leads; where that host is gone: shmq cluster promote",
    )


class FollowingSender(HandedOver):
    """Sends in shared memory where this host leads, and to the leader where it follows; see `MessageSender`.

    Args:
        here: sends in shared memory, and refuses where no leader is known.
        there: makes what sends to the leader, out of a session with it.
        timeout: seconds, of a send that names none.
    """

    def __init__(
        self, leader: Leader, here: MessageSender, there: Callable[[RemoteSession], MessageSender], timeout: float
    ) -> None:
        self._leader = leader
        self._here = here
        self._make = there
        self._timeout = timeout
        self._made: tuple[RemoteSession, MessageSender] | None = None

    def _carry_out(self, method: str, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self._leader.is_elsewhere:
            return getattr(self._here, method)(*positional, **named)
        seconds = check_wait(named.get("timeout"), self._timeout)
        deadline = time.monotonic() + seconds
        session, made = self._leader.session_within(seconds), self._made
        if made is None or made[0] is not session:
            made = self._made = session, self._make(session)
        if method != "reserve":  # whose timeout is that of the later commit
            named = {**named, "timeout": seconds_left(deadline)}
        return getattr(made[1], method)(*positional, **named)
