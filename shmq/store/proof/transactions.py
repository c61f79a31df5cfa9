"""Proves the records of transactions against each other.

    op record          its body names queue offsets of halves that were stored before it
    committed message  its header names the log position of a half, and an op record settles that half
    half               open while no op record names it, or the half it is a copy of, and the checks have not passed
                       it: the next broker asks its producer

A stock broker stores a half again each time it asks its producer, and writes the op records of what has ended up to
three seconds later, all of them in one: copies that it made meanwhile are named by no op record. All copies of a half
have its transaction id, so what has ended under one of them has ended.

A half below the log's begin, or in damage of the log, proves nothing.
"""

from __future__ import annotations

from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.protocol.system_topics import transaction
from shmq.store.proof.findings import Damages, Findings
from shmq.store.proof.record import WalkedRecord
from shmq.timing import TIMER_TOPIC


class TransactionProof:
    """One pass.

    Args:
        checked: queue offset of the halves below which the checks have dealt with every one.
    """

    def __init__(self, findings: Findings, *, log_begin: int, checked: int) -> None:
        self._findings = findings
        self._checked = checked
        self._log_begin = log_begin
        self._halves: dict[int, int] = {}  # log position -> queue offset, of those that may still be committed
        self._copies: dict[int, int] = {}  # queue offset of a copy -> of the half that the producer knows
        self._ids: dict[int, str] = {}  # queue offset of a half -> its transaction
        self._half_end = -1  # queue offset behind the last half; -1: none was seen
        self._settled: set[int] = set()
        self._waiting: set[int] = (
            set()
        )  # what copies of committed messages name instead: daemon/broker/timers/copies.py
        self._committed: list[tuple[int, int]] = []  # log positions of message and half

    @property
    def open_halves(self) -> int:
        """How many transactions have not been ended."""
        ended = {self._id_of(offset) for offset in self._settled}
        ended |= {self._id_of(self._halves[half]) for _, half in self._committed if half in self._halves}
        return len({self._id_of(offset) for offset in self._halves.values() if self._is_unsettled(offset)} - ended)

    def add(self, record: WalkedRecord) -> None:
        """Take the next whole record of the log."""
        if record.topic == transaction.HALF_TOPIC:
            self._halves[record.position] = record.queue_offset
            self._half_end = record.queue_offset + 1
            name = record.properties.get("__transactionId__") or record.properties.get("UNIQ_KEY")
            if name:
                self._ids[record.queue_offset] = name
            first = record.properties.get(transaction.FIRST_HALF, "")
            if first.isascii() and first.isdigit():
                self._copies[record.queue_offset] = int(first)
        elif record.topic == transaction.OP_TOPIC:
            self._add_op(record)
        elif record.kind == transaction.COMMIT:
            if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
                self._waiting.add(record.position + 1)
            self._committed.append((record.position, record.fields["prepared_position"]))

    def finish(self, damages: Damages) -> None:
        """Say which messages and halves do not belong together."""
        for position, half in self._committed:
            if half < self._log_begin or half in self._waiting or damages.holds(half):
                continue
            where = f"byte {position}"
            if half not in self._halves:
                self._findings.add(
                    "transactions", where, f"a committed message names a half at byte {half}: none there"
                )
            elif self._is_unsettled(self._halves[half]) and not damages.ranges:
                reason = f"a message is committed, and no op record settles its half at byte {half}"
                self._findings.add("transactions", where, f"{reason}: it may be committed again")

    def _id_of(self, offset: int) -> str:
        return self._ids.get(offset, str(offset))

    def _is_unsettled(self, offset: int) -> bool:
        known = {offset, self._copies.get(offset, offset)}
        return offset >= self._checked and not known & self._settled

    def _add_op(self, record: WalkedRecord) -> None:
        where = f"byte {record.position}"
        for word in record.fields["body"].decode(errors="replace").split(","):
            if not (word.isascii() and word.isdigit()):
                if word:
                    self._findings.add("transactions", where, f"an op record names no half: {word[:20]!r}")
                continue
            offset = int(word)
            self._settled.add(offset)
            if self._half_end >= 0 and offset >= self._half_end:
                reason = f"an op record settles the half at queue offset {offset}, the halves end at {self._half_end}"
                self._findings.add("transactions", where, reason)
