"""A slave's thread: the stream from its master into this host's log, and the master's tables into ours.

    tables copied -> connected -> frames -> FollowerLink -> the core takes whole records -> reports
         ^                                                      |
         +---- every 10 s, and when a record is of a topic or queue that is not here

Whatever fails, the connection is closed and made again a second later, and goes on at the log end. A reason is told
once.

Rules: (1) only this thread moves the log end of a slave; (2) a slave that cannot go on says why and changes nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from struct import pack

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.follower import FollowerLink
from shmq.daemon.ha.master_tables import MasterTables
from shmq.daemon.ha.stream import FROM_BEGINNING
from shmq.delay_levels import DelayLevels
from shmq.errors import CorruptionError, ShmqError, StoreError
from shmq.shm.core import LOG_FULL, NO_QUEUE, NO_TOPIC, OK, ReplicaStore, Store

_AGAIN_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_WAIT_SECONDS = 0.005  # for a file that the keeper makes
_LOCK_SECONDS = 1.0
_TABLES_MS = 10_000
_READ_BYTES = 1 << 20


class Following:
    """One slave.

    Args:
        master: host and port where the master ships its log.
        store: mapped writable, and told to follow.
        tables: the master's.
    """

    def __init__(
        self,
        master: tuple[str, int],
        store: Store,
        tables: MasterTables,
        levels: DelayLevels,
        stopping: threading.Event,
        log: EventLog,
    ) -> None:
        self._master = master
        self._store = store
        self._replica = ReplicaStore(store)
        self._tables = tables
        self._delays = pack(f"={levels.count}Q", *(levels.delay_ms(level + 1) for level in range(levels.count)))
        self._stopping = stopping
        self._log = log
        self._wants_all = True
        self._tables_ms = 0
        self._complaint = ""

    def run(self) -> None:
        """Follow until told to stop."""
        while not self._stopping.is_set() and not self._store.retired:
            try:
                reason = self._follow()
            except (OSError, ShmqError) as error:
                reason = str(error)
            if reason != self._complaint and not self._stopping.is_set():
                self._complaint = reason
                self._log("ha.master_lost", master=_text(self._master), reason=reason, log_end=self._store.log_end)
            self._stopping.wait(_AGAIN_SECONDS)

    def _follow(self) -> str:
        """Follow over one connection; return why it is over."""
        self._copy_tables()
        end = self._store.log_end
        link = FollowerLink(end, _now_ms(), is_empty=end == 0, wants_all=self._wants_all)
        with socket.create_connection(self._master, _CONNECT_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._log("ha.master_connected", master=_text(self._master), log_end=end)
            while not self._stopping.is_set() and not self._store.retired and not link.closed:
                self._turn(connection, link)
        if link.begins_at == FROM_BEGINNING:
            self._wants_all = False  # RocketMQ's own master took our question for a position
        elif link.begins_at is not None:
            raise StoreError(
                f"{link.closed}: its first log files are gone, and an empty slave can only begin at 0",
                hint="copy the master's store directory to this host while that is stopped, then start this slave",
            )
        return link.closed

    def _turn(self, connection: socket.socket, link: FollowerLink) -> None:
        if out := link.take():
            connection.settimeout(_CONNECT_SECONDS)
            connection.sendall(out)
        if not link.is_full:
            connection.settimeout(_LOOK_SECONDS)
            try:
                data = connection.recv(_READ_BYTES)
                if not data:
                    link.closed = "the master closed the connection"
                link.feed(data, _now_ms())
                self._complaint = ""
            except TimeoutError:
                pass
        self._apply(link)
        link.tick(_now_ms())
        if _now_ms() - self._tables_ms >= _TABLES_MS:
            self._copy_tables()

    def _apply(self, link: FollowerLink) -> None:
        """Let the core take what it can; what is missing for the rest is made."""
        while not self._stopping.is_set():
            position, data = link.pending()
            with data:
                if not data:
                    return
                try:
                    end, _, stop, missing = self._replica.replicate(data, position, self._delays, _LOCK_SECONDS)
                except CorruptionError:
                    link.applied(self._store.log_end, _now_ms())
                    raise
            link.applied(end, _now_ms())
            if stop == OK and end == position:
                return
            if stop in (NO_TOPIC, NO_QUEUE) and missing is not None:
                self._make_known(*missing)
            elif stop != OK:
                self._stopping.wait(_WAIT_SECONDS if stop == LOG_FULL else _LOOK_SECONDS)
                return

    def _make_known(self, topic: bytes, queue_id: int) -> None:
        name = topic.decode(errors="replace")
        self._copy_tables()
        index = self._store.topic_find(name)
        if index < 0 or len(self._store.topic(index)["queues"]) <= queue_id:
            self._tables.make_topic(name, queue_id + 1)

    def _copy_tables(self) -> None:
        self._tables_ms = _now_ms()
        self._tables.copy()


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
