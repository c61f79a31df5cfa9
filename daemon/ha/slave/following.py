"""A slave's thread: the stream from its master into this host's log, and the master's tables into ours.

    tables asked for -> connected -> met, of one log -> tables taken -> frames -> FollowerLink
           ^                             |                                            |
           |                             |             the core takes whole records -> reports
           |                             +---- an empty log, and the master's begins elsewhere: the segments are given
           |                             |     up, and the keeper makes new ones with a log that begins there; one that
           |                             |     ends before that is given up first
           |                             +---- a log that parts from the master's: cut by the keeper, likewise
           +---- every 10 s, offsets every second, and when a record is of a topic or queue that is not here

A record may be a mark of what the master has changed in its tables: that is taken over before the record is reported,
so the master's word "done" counts on this host, too.

Whatever fails, the connection is closed and made again a second later, and goes on at the log end. A reason is logged
once.

Rules: (1) only this thread moves the log end of a slave; (2) a slave that cannot go on says why and changes nothing:
of a master with another log neither a record nor a table is taken; (3) whatever is changed beside the log is changed
while the master is followed (`MasterTables.changing`): its answer may come when this host leads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from struct import pack
from typing import NamedTuple

import msgspec

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.election.effects import Message
from shmq.daemon.ha.election.message_codec import message_bytes, read_message
from shmq.daemon.ha.handshake import Claim
from shmq.daemon.ha.meeting import START_AGAIN, Side, State
from shmq.daemon.ha.proving import prove_to_master, refuse_itself
from shmq.daemon.ha.slave.flush_news import FlushNews
from shmq.daemon.ha.slave.follower import FollowerLink
from shmq.daemon.ha.slave.mark_reader import MarkReader
from shmq.daemon.ha.slave.master_broker import ANSWER_SECONDS, TablesNotTold, Told
from shmq.daemon.ha.slave.master_state import MasterState, cure_of, obstacle
from shmq.daemon.ha.slave.master_tables import MasterTables
from shmq.daemon.ha.slave.own_log import OwnLog
from shmq.daemon.ha.trust import WITHOUT_SECRET, Trust
from shmq.delay_levels import DelayLevels
from shmq.errors import CorruptionError, ProtocolError, ShmqError
from shmq.shm.core import (
    ACK_CONFIRMED,
    LOG_FULL,
    NO_QUEUE,
    NO_TOPIC,
    OK,
    KeeperStore,
    ReplicaStore,
    Store,
)
from shmq.shm.unit import units_of
from shmq.store.layout import StoreLayout
from shmq.store.lineage.epochs import check_epochs, load_epochs, store_epochs
from shmq.store.lineage.standing import Identity, store_identity

_AGAIN_SECONDS = 1.0
_ELECTED_AGAIN_SECONDS = 0.2  # the leader is about to serve
_CONNECT_SECONDS = 5.0
_CONFIRM_SECONDS = 0.2
_SLOW_FLUSH_MS, _SLOW_MS = 100, 1_000
_LITTLE_BYTES = 64 << 10
_GATHER_SECONDS = 0.001
_LOOK_SECONDS = 0.2
_WAIT_SECONDS = 0.005  # for a file that the keeper makes
_LOCK_SECONDS = 1.0
_TABLES_MS = 10_000
_ASK_SECONDS = 2.0  # for tables now and then: nothing is followed meanwhile
_PAUSES = 10  # after a question without an answer, and after a copy of all tables, as long as that took
_UNTOLD_MS = 30_000
_OFFSETS_MS = 1_000  # what was read since is read again where the master dies
_READ_BYTES = 1 << 20


class Elected(NamedTuple):
    """The leader to follow, and the part of the election that hears of it; any thread is called.

    Attributes:
        store, epoch: of the leader.
        joined: this log is a part of the leader's, on the disk too.
        heard: the leader says something of the election.
    """

    store: str
    epoch: int
    joined: Callable[[], None]
    heard: Callable[[Message], None]


class Following:
    """One slave.

    Args:
        master: host and port where the master ships its log.
        store: mapped writable, and told to follow.
        tables: the master's.
        layout: of the store directory.
        me: who this slave is; of its log `store` says the rest.
        elected: where the master was elected.
        trust: whom this host follows.
        own_port: where this slave ships its own log, 0: nowhere.
    """

    def __init__(
        self,
        master: tuple[str, int],
        store: Store,
        tables: MasterTables,
        levels: DelayLevels,
        layout: StoreLayout,
        log: EventLog,
        *,
        me: Side,
        elected: Elected | None = None,
        trust: Trust = WITHOUT_SECRET,
        own_port: int = 0,
    ) -> None:
        self._own_port = own_port
        self._trust = trust
        self._elected = elected
        self._speaking = threading.Lock()
        self._connection: socket.socket | None = None
        self._received, self._received_bytes = memoryview(bytearray(_READ_BYTES)), 0  # by the last call
        self._flushes: FlushNews | None = None
        self._says: deque[Message | None] = deque()
        self._confirmed = 0
        self._slow_until_ms = 0
        self._master = master
        self._me = msgspec.structs.replace(me, is_aside=elected is None)
        self._store = store
        self._layout = layout
        self._own = OwnLog(store, layout, log)
        self._marks = MarkReader(store)
        self._replica = ReplicaStore(store)
        self._keeper_store = KeeperStore(store)
        self._shows_confirmed = store.head["ack_rule"] == ACK_CONFIRMED
        self._tables = tables
        self._delays = pack(f"={levels.count}Q", *(levels.delay_ms(level + 1) for level in range(levels.count)))
        self.stopping = threading.Event()
        self._log = log
        self._is_stock = False  # the master, as it has just said itself: it is not greeted again
        self._judged_end = 1  # below it each first record of a queue was looked at
        self._known_until = 0  # below it the tables say when each topic was made for the last time
        self._tables_ms = self._offsets_ms = self._told_ms = 0
        self._copying_ms = 0  # as long as all tables took
        self._complaint = ""
        self._is_joined = False
        self.state = MasterState(_text(master))

    @property
    def epoch(self) -> int:
        """The newest that this slave has heard of."""
        return self._me.epoch

    def note_known_pops(self) -> None:
        """Note for the next master behind which pops the progress is not known here."""
        self._tables.note_known_pops()

    def stop(self) -> None:
        """Let `run` return; any thread may call.

        From when this returns the master gets nothing, and nothing here changes on its account but, while the core
        follows, the log.
        """
        self.stopping.set()
        self._tables.end()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # ends a send that waits
        with self._speaking:
            pass

    def say(self, message: Message | None) -> None:
        """Tell the leader something of the election, None: how far this log is; any thread may call."""
        with self._speaking:
            if self._flushes is not None:
                self._says.append(message)
                self._flushes.ring()

    def run(self) -> None:
        """Follow until told to stop."""
        self._tables.lost()
        while not self.stopping.is_set() and not self._store.retired:
            reason, cure = self._attempt()
            self._tables.lost()
            self.state.lost(reason, cure, _now_ms())
            if reason != self._complaint and not self.stopping.is_set():
                self._complaint = reason
                self._log(
                    "ha.master_lost", master=_text(self._master), reason=reason, hint=cure, log_end=self._store.log_end
                )
            self.stopping.wait(_AGAIN_SECONDS if self._elected is None else _ELECTED_AGAIN_SECONDS)

    def _attempt(self) -> tuple[str, str]:
        """Follow over one connection; return why it is over, and what can be done about it."""
        try:
            reason, cure = self._follow()
            return reason, cure or cure_of(ProtocolError(reason))
        except CorruptionError as error:
            return str(error), error.hint or START_AGAIN
        except (ShmqError, OSError, UnicodeError) as error:
            where = "" if isinstance(error, ShmqError | TablesNotTold) else f"{_text(self._master)}: "
            return f"{where}{error}", cure_of(error)

    def _follow(self) -> tuple[str, str]:
        asked = None if self._trust.secret else self._tables.ask()
        with socket.create_connection(self._master, _CONNECT_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            refuse_itself(connection, self._own_port)
            proven = self._prove(connection)  # where it has to, a master gets nothing before
            return self._follow_over(connection, proven, asked or self._tables.ask())

    def _prove(self, connection: socket.socket) -> Claim | None:
        """Have the master prove who it is, where it has to; raises ProtocolError."""
        host = connection.getpeername()[0]
        refuses_plain = self._trust.refuses_plain(host)
        is_stock, self._is_stock = self._is_stock, False
        if not self._trust.secret or (is_stock and refuses_plain is None and self._elected is None):
            self._is_stock = is_stock
            return None
        proven = prove_to_master(connection, self._trust, self._me, is_ended=self.stopping.is_set)
        if proven is None:
            self._is_stock = self._elected is None
            raise ProtocolError("the master is a stock RocketMQ broker; it is asked again, as its own slaves ask")
        return proven

    def _follow_over(self, connection: socket.socket, proven: Claim | None, asked: Told) -> tuple[str, str]:
        end = self._store.log_end
        link = FollowerLink(
            end,
            _now_ms(),
            is_empty=self._own.is_empty(end),
            me=msgspec.structs.replace(self._me, begin=self._store.log_begin),
            greets=not self._is_stock,
            last=self._own.last_record(end),
            expects=None if self._elected is None else self._elected[:2],
            proven=proven,
        )
        self._is_stock = False  # for this connection: the next master of this address may be another one
        self._is_joined = False
        connection.setblocking(False)
        with contextlib.closing(FlushNews(self._store, connection)) as flushes:
            self._log("ha.master_connected", master=_text(self._master), log_end=end)
            with self._known(connection, flushes):
                try:
                    while not self.stopping.is_set() and not self._store.retired and not link.closed:
                        self._turn(connection, flushes, link, asked)
                except ShmqError as error:
                    link.refuse(str(error), cure_of(error))
                    with contextlib.suppress(OSError):
                        self._send(connection, link)
                    raise
                with contextlib.suppress(OSError):  # a master that was replaced has to know it
                    self._send(connection, link)
        self._is_stock = link.is_stock and not link.is_met
        if link.begins_at is not None:
            with self._tables.changing():
                self._own.begin_at(link.begins_at, _text(self._master), is_stock=link.is_stock)
        if link.state is State.OVERTAKEN and link.master is not None:
            with self._tables.changing():
                self._own.start_over(link.master.begin, link.master.epoch, _text(self._master))
        if link.cut_at is not None and link.master is not None:
            with self._tables.changing():
                self._own.cut_at(link.cut_at, link.master.epoch, _text(self._master))
        if link.state is not None and link.state is not State.FOLLOWING:
            if link.state.is_refusal:
                self.state.refuse()
            return f"{link.state}: {link.closed}", link.cure
        return link.closed, link.cure

    @contextlib.contextmanager
    def _known(self, connection: socket.socket, flushes: FlushNews) -> Iterator[None]:
        """Let other threads end a connection, and speak over it, while it lasts."""
        with self._speaking:
            self._connection, self._flushes = connection, flushes
            self._says.clear()
        try:
            yield
        finally:
            with self._speaking:
                self._connection = self._flushes = None

    def _send(self, connection: socket.socket, link: FollowerLink) -> None:
        with self._speaking:
            if (out := link.take()) and not (self.stopping.is_set() and self._elected is not None):
                sent = 0
                with contextlib.suppress(BlockingIOError):
                    sent = connection.send(out)
                if sent < len(out):
                    connection.settimeout(_CONNECT_SECONDS)
                    connection.sendall(out[sent:])
                    connection.setblocking(False)

    def _receive(self, connection: socket.socket, link: FollowerLink) -> memoryview | None:
        """Return what has come, which the next call overwrites; nothing at the end, None where there is nothing yet.

        Where no sender waits, and no more comes than is taken, what the master ships at once is taken at once, and
        reported once.
        """
        if not link.is_prompt and self._received_bytes < _LITTLE_BYTES:
            time.sleep(_GATHER_SECONDS)
        try:
            self._received_bytes = connection.recv_into(self._received)
        except BlockingIOError:
            return None
        return self._received[: self._received_bytes]

    def _speak(self, link: FollowerLink) -> None:
        """Say what the election wants said."""
        while self._says:
            message = self._says.popleft()
            if message is None:
                link.report(_now_ms())
            else:
                link.say(message_bytes(message))

    def _hear(self, link: FollowerLink, elected: Elected) -> None:
        """Tell the election what was heard, and readers what is confirmed."""
        messages, link.messages = link.messages, []
        for message in messages:
            elected.heard(read_message(message))
        if (
            link.confirmed > self._confirmed
            and self._shows_confirmed
            and self._replica.confirm(link.confirmed, 0, _CONFIRM_SECONDS) is not None
        ):
            self._confirmed = link.confirmed

    def _join(self, master: Side | None) -> None:
        """Take over which log this is, and whose epochs; before a byte of it. A stock master says neither."""
        self._is_joined = True
        self._own.joined()
        if master is None:
            return
        log = master.log or self._me.log
        if (log, master.in_sync_min) != (self._me.log, self._me.in_sync_min):
            store_identity(self._layout, Identity(self._me.store, log, master.in_sync_min))
        epochs = check_epochs(master.epochs)
        if epochs != load_epochs(self._layout):
            store_epochs(self._layout, epochs)
        self._me = msgspec.structs.replace(self._me, log=log, epochs=epochs, in_sync_min=master.in_sync_min)
        if self._elected is not None:
            self._elected.joined()

    def _turn(self, connection: socket.socket, flushes: FlushNews, link: FollowerLink, asked: Told) -> None:
        self._speak(link)
        self._send(connection, link)
        if flushes.wait(reads=not link.is_full) and (data := self._receive(connection, link)) is not None:
            if not data:
                link.closed = "the master closed the connection"
            link.feed(data, _now_ms())
            self._complaint = "" if not link.closed else self._complaint
            if link.is_proven and not link.closed:
                if not self._is_joined:
                    self._tables.meet(asked)
                    self._tables_ms = self._offsets_ms = self._told_ms = _now_ms()
                    with self._tables.changing():
                        self._join(link.master)
                self.state.heard(is_stock=link.is_stock, now_ms=_now_ms())
        self._apply(link)
        if self._elected is not None:
            self._hear(link, self._elected)
        for topic in self._tables.settle(self._store.log_end):
            self._log("ha.topic_deleted", topic=topic)
        if link.is_prompt and self._store.durable_end < self._store.log_end:
            self._flush(flushes)
        if self._is_joined:  # not before: what the log says of tables may be missing in them
            link.flushed(self._store.durable_end, _now_ms())
        link.tick(_now_ms())
        self._send(connection, link)
        if self._is_joined:
            self.state.reached(self._store.log_end, link.master_end, _now_ms())
            self._look_at_tables()

    def _look_at_tables(self) -> None:
        """Copy what is due; a master whose broker ends or starts again just now goes on shipping, and may hand over."""
        asked_ms = _now_ms()
        try:
            since_ms, pause_ms = asked_ms - self._tables_ms, _PAUSES * self._copying_ms
            if since_ms >= max(_TABLES_MS, pause_ms):
                self._copy_tables(_ASK_SECONDS)
            elif asked_ms - self._offsets_ms >= _OFFSETS_MS:
                self._tables.copy_offsets(_ASK_SECONDS)
                self._offsets_ms = self._told_ms = asked_ms
                if self._tables.are_old and since_ms >= pause_ms:
                    self._copy_tables(_ASK_SECONDS)
        except OSError as error:
            self._offsets_ms = _now_ms() + _PAUSES * (_now_ms() - asked_ms)
            self._tables_ms = max(self._tables_ms, self._offsets_ms + _OFFSETS_MS - _TABLES_MS)
            if asked_ms - self._told_ms >= _UNTOLD_MS:
                self.state.fails(f"its tables are not copied: {error}", cure_of(error), _now_ms())

    def _flush(self, flushes: FlushNews) -> None:
        """Have on the disk what was taken.

        A little is flushed by this thread: no other one has to be woken for it, nor to wake this one. Of more the next
        is taken while the keeper flushes, which `flushes` waits for; but not where this host shows only what is
        confirmed, as that comes later. Where a flush takes so long that nothing would be heard of the master, the
        keeper does it, too.
        """
        began_ms, log_end = _now_ms(), self._store.log_end
        is_little = self._shows_confirmed or log_end - self._store.durable_end <= _LITTLE_BYTES
        if is_little and began_ms >= self._slow_until_ms:
            self._keeper_store.flush()
            if _now_ms() - began_ms > _SLOW_FLUSH_MS:
                self._slow_until_ms = _now_ms() + _SLOW_MS
        else:
            flushes.want(log_end)

    def _apply(self, link: FollowerLink) -> None:
        """Let the core take what it can; what is missing for the rest is made."""
        while not self.stopping.is_set():
            position, data = link.pending()
            received = len(data)
            with data:
                if not data:
                    return
                try:
                    judged_end = self._judged_end if self._tables.tells_lives else 0
                    end, _, stop, missing = self._replica.replicate(
                        data, position, self._delays, _LOCK_SECONDS, judged_end, link.epoch
                    )
                except CorruptionError:
                    self._take(link, self._store.log_end)
                    raise
            self._take(link, end)
            if stop == OK and end == position:
                return
            if stop in (NO_TOPIC, NO_QUEUE) and missing is not None:
                self._make_known(*missing, log_end=end, received_end=position + received)
            elif stop != OK:
                self.state.waits(*obstacle(self._store, stop), _now_ms())
                self.stopping.wait(_WAIT_SECONDS if stop == LOG_FULL else _LOOK_SECONDS)
                return

    def _take(self, link: FollowerLink, end: int) -> None:
        """Take over what the new records say of tables; they are reported then, and not before."""
        marks = self._marks.take()
        if any(mark is None for _, mark in marks):
            self._copy_tables()  # the master's own say what such a mark would
        for log_position, mark in marks:
            if mark is not None:
                self._tables.change(mark, log_position)
        link.applied(end, _now_ms())

    def _make_known(self, topic: bytes, queue_id: int, *, log_end: int, received_end: int) -> None:
        """Make the queue of the record at the log end, or, where it is the first of a new life, the whole topic anew.

        Args:
            received_end: the master had this much in its log before it is asked now.
        """
        name = topic.decode(errors="replace")
        if log_end >= self._known_until or len(self._queues(name)) <= queue_id:
            self._copy_tables()
            self._known_until = received_end
        self._judged_end = log_end + 1
        queues = self._queues(name)
        if len(queues) <= queue_id:
            self._tables.make_topic(name, queue_id + 1)
        elif self._store.queue(queues[queue_id]).offset_max or self._tables.is_of_another_life(
            name, log_end, self._firsts(queues)
        ):
            self._tables.make_again(name)
            self._log("ha.topic_made_again", topic=name, log_position=log_end)

    def _queues(self, topic: str) -> list[int]:
        index = self._store.topic_find(topic)
        return list(self._store.topic(index)["queues"]) if index >= 0 else []

    def _firsts(self, queues: list[int]) -> Iterator[int]:
        """Log positions of the first messages of queues."""
        for queue in queues:
            first = self._store.queue(queue).offset_min
            for unit in units_of(self._store.units_stored(queue, first, 1)):
                yield unit.log_position

    def _copy_tables(self, seconds: float = ANSWER_SECONDS) -> None:
        self._tables_ms = self._offsets_ms = _now_ms()
        self._tables.copy(seconds)
        self._told_ms = _now_ms()
        self._copying_ms = self._told_ms - self._tables_ms


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
