"""A broker that is killed in front of any change it makes to tables or log, and clients that go on with the next one.

The log and the tables are what outlives a bridge; what it appends or writes is each one change, which the core makes
whole or not at all (`tests/crash` kills it at every instruction of that). So a bridge that is killed in front of its
n-th change, for every n, was killed at every point where that makes a difference. A client is killed by leaving out
what it would have done next.
"""

from collections.abc import Callable
from typing import Any

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.stored_record import StoredRecord, stored_record
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Notify, Reply, Wake
from shmq.protocol.command import Command
from tests.broker.record_log import RecordLog

LOCAL, REMOTE = Address("127.0.0.1", 10911), Address("10.0.0.9", 40_000)
_KILLS_MAX = 8
_CHANGES = ("append", "append_together", "append_batch", "append_encoded_batch", "raise_fence")


class Killed(BaseException):
    """The process is gone."""


class World:
    """What outlives a broker, a clock, and a broker that is killed in front of its `kill_at`-th change.

    Attributes:
        kills: how often a broker was killed.
        client_kills: how often a client was, behind its `client_kill_at`-th step.
        again: how many changes the broker after the one that was killed makes before it is killed, too.
    """

    def __init__(
        self,
        tables: Any,
        settings: BrokerSettings,
        kill_at: int = -1,
        client_kill_at: int = -1,
        again: Callable[[], int] | None = None,
    ) -> None:
        self.tables, self.settings = tables, settings
        self.log = RecordLog(tables)
        tables.units = self.log.units
        self.left = kill_at
        self._again = again
        self.client_left = client_kill_at
        self.kills = self.client_kills = 0
        self.now_ms = 1_000_000
        self._wake_at_ms: int | None = None
        self._depth = 0
        self.notices: list[Notify] = []
        for name in _CHANGES:
            setattr(self.log, name, self._counted(getattr(self.log, name)))
        for name in ("set_committed", "topic_put", "group_set"):
            setattr(tables, name, self._counted(getattr(tables, name)))
        tables.group_put = self._counted(tables.group_put, unless=lambda name: name in tables.all_groups)
        tables.offset_put = self._counted(tables.offset_put, unless=lambda *key: key in tables.slots)
        self.add_topic("orders")
        self.start()

    def add_topic(self, name: str) -> None:
        self._depth += 1  # not the broker's doing
        self.tables.topic_put(name, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        self._depth -= 1

    def _counted(self, action: Callable[..., Any], *, unless: Callable[..., bool] | None = None) -> Callable[..., Any]:
        def change(*values: Any, **named: Any) -> Any:
            if not self._depth and not (unless and unless(*values)):
                if self.left == 0:
                    self.left = self._again() if self._again and self.kills < _KILLS_MAX else -1
                    raise Killed
                self.left -= 1
            self._depth += 1
            try:
                return action(*values, **named)
            finally:
                self._depth -= 1

        return change

    @property
    def was_killed(self) -> bool:
        return self.kills + self.client_kills > 0

    def start(self) -> None:
        """Start as a new process, which knows only what the tables and the log hold."""
        while True:
            try:
                self.broker = Broker(self.tables, self.settings, now_ms=self.now_ms, log=self.log)
                self.broker.connected(1, None, self.now_ms, remote=REMOTE, local=LOCAL)
                return
            except Killed:
                self.kills += 1

    def _alive(self, action: Callable[[], list[Effect]]) -> list[Effect] | None:
        try:
            effects = action()
        except Killed:
            self.kills += 1
            self._wake_at_ms = None
            self.start()
            return None
        for effect in effects:
            if isinstance(effect, Wake):
                wake_at_ms = self.now_ms + effect.after_ms
                self._wake_at_ms = min(wake_at_ms, self._wake_at_ms or wake_at_ms)
            elif isinstance(effect, Notify):
                self.notices.append(effect)
        return effects

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Command | None:
        """Send a request; None when the broker did not live to answer it."""
        fields = {name: str(value) for name, value in (ext or {}).items()}
        command = Command(code=code, opaque=7, ext=fields, body=body)
        effects = self._alive(lambda: self.broker.handle(1, command, self.now_ms))
        if effects is None:
            return None
        (reply,) = [effect.command for effect in effects if isinstance(effect, Reply) and effect.command.opaque == 7]
        return reply

    def insist(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Send a request until a broker lives to answer it."""
        while (reply := self.ask(code, ext, body)) is None:
            pass
        return reply

    def lives(self) -> bool:
        """Whether the client gets to its next step."""
        self.client_left -= 1
        if self.client_left == -1:
            self.client_kills += 1
            return False
        return True

    def pass_time(self, ms: int) -> None:
        """Tick each second, and wake when that is asked for."""
        until_ms = self.now_ms + ms
        tick_ms = self.now_ms
        while self.now_ms <= until_ms:
            if self._wake_at_ms is not None and self._wake_at_ms <= self.now_ms:
                self._wake_at_ms = None
                self._alive(lambda: self.broker.woken(self.now_ms))
            if self.now_ms >= tick_ms:
                tick_ms = self.now_ms + 1000
                self._alive(lambda: self.broker.tick(self.now_ms))
            then_ms = max(self.now_ms + 1, min(tick_ms, self._wake_at_ms or tick_ms))
            self.tables.clock += then_ms - self.now_ms
            self.now_ms = then_ms

    def records(self, topic: str, queue_id: int = 0) -> list[StoredRecord]:
        """What is in a queue; nothing where there is no such topic."""
        found = self.tables.topic(topic)
        held = self.log.records.get(found.queues[queue_id], []) if found else []
        records = [stored_record(data) for data, _, _ in held]
        return [record for record in records if record is not None]

    def put(self, *bodies: bytes) -> None:
        """Store messages as a local producer does, whom no kill of the broker concerns."""
        self._depth += 1
        for body in bodies:
            self.log.append(self.tables.topic("orders"), 0, NewRecord(body, b"", born_ms=self.tables.clock))
        self._depth -= 1

    def committed(self, group: str, topic: str) -> int:
        """Where a group goes on in queue 0 of a topic."""
        found, index = self.tables.topic(topic), self.tables.group(group)
        slot = self.tables.offset_slot(index, found.queues[0]) if found and index is not None else None
        return max(0, self.tables.committed(slot)) if slot is not None else 0
