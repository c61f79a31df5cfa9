"""Handles what readers could not hand out: units are written again from the log, damaged records are kept.

    report of a unit     right again from the log         its reader reads on       counted as mended
                         the log does not hold its record                           as a damaged record
    report of a record   below the durable end            logged, counted, a copy goes to the quarantine
    a range without any record                            the same once, and counts as all messages that lay there

A report is settled when everything that follows from it is done, so a reader that waits for it looks again at once.

Rules: (1) reports are written by clients, so every number is checked before it is used; (2) each damage is logged and
counted once, however many readers meet it; (3) a round deals with REPORTS_PER_ROUND at most; (4) a report whose writer
died before it was whole is passed over at the second look.
"""

from typing import Any, NamedTuple

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.units import UnitWriter
from shmq.shm.core import DAMAGE_UNIT, CoreError, DamageReport, KeeperStore, Store
from shmq.shm.counters import Counters
from shmq.store.commitlog import CommitLogFiles
from shmq.store.quarantine import Quarantine

_REPORTS_PER_ROUND = 32
_KNOWN_MAX = 4096
_RECORD_BYTES_MAX = 5 << 20


class _Place(NamedTuple):
    """Where damage is."""

    queue: int
    queue_offset: int
    log_position: int


class DamageKeeper:
    """The keeper's part for damage."""

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        commitlog: CommitLogFiles,
        units: UnitWriter,
        quarantine: Quarantine,
        counters: Counters,
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._commitlog = commitlog
        self._units = units
        self._quarantine = quarantine
        self._log = log
        self._mended = counters.counter("shmq_units_mended")
        self._damaged = counters.counter("shmq_records_damaged")
        self._known: dict[_Place, None] = {}
        self._half_written = False

    def round(self) -> bool:
        """Deal with reports; True when there may be more."""
        for _ in range(_REPORTS_PER_ROUND):
            report = self._keeper_store.damage_take()
            if report is None:
                return False
            if not report.kind and not self._half_written:
                self._half_written = True
                return True
            self._half_written = False
            try:
                self._deal_with(report)
            except (OSError, CoreError) as error:
                self._log("damage.not_mended", reason=str(error))
            self._keeper_store.damage_settle()
        return True

    def _deal_with(self, report: DamageReport) -> None:
        if report.kind == DAMAGE_UNIT and report.queue >= 0:
            self._mend(report)
        elif report.kind:
            self._keep(
                _Place(report.queue, report.queue_offset, report.log_position),
                report.record_bytes,
                "its checksum does not hold",
            )

    def _mend(self, report: DamageReport) -> None:
        count, damages = self._units.mend(report.queue, report.queue_offset)
        if count:
            self._mended.add(count)
            self._log("units.mended", **self._names(report.queue), queue_offset=report.queue_offset, count=count)
        elif damages:
            damage = damages[0]
            place = _Place(report.queue, report.queue_offset, damage.position)
            many = 1 if damage.record is not None else self._units.messages_within(damage.position, damage.end)
            self._keep(place, damage.end - damage.position, damage.reason, messages=max(1, many))
        else:
            place = _Place(report.queue, report.queue_offset, report.log_position)
            self._keep(place, report.record_bytes, "the log has no record of this queue offset")

    def _keep(self, place: _Place, size: int, reason: str, *, messages: int = 1) -> None:
        position = place.log_position
        is_stored = self._store.log_begin <= position < self._store.log_end
        known = _Place(-1, 0, position) if is_stored else place  # the same record, whichever reader met it
        if known in self._known:
            return
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[known] = None
        size = min(size, self._store.log_end - position, _RECORD_BYTES_MAX) if is_stored else 0
        facts: dict[str, Any] = {
            **self._names(place.queue),
            "queue_offset": place.queue_offset,
            "log_position": position,
            "record_bytes": size,
            "messages": messages,
        }
        kept = size > 0 and self._quarantine.add(position, self._commitlog.read(position, size), facts)
        self._damaged.add(messages)
        self._log("record.damaged", **facts, reason=reason, quarantined=kept)

    def _names(self, index: int) -> dict[str, Any]:
        queue = self._units.queue_of(index) if index >= 0 else None
        return {"topic": queue[0], "queue_id": queue[1]} if queue is not None else {}
