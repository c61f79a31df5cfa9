"""Rows that are staged and become visible together, once: STAGE_ROWS, COMMIT_ROWS, DROP_ROWS, STAGED_STATE.

Spark's sink writes this way, so that a batch that is tried again, by any task in any order, is there once. Its
rows wait in a hidden topic until they are committed; then the broker, not the writer, copies them to their queues.
Before a chunk is copied, a mark records where those queues end, so after a crash the successor knows what was copied.

Half messages as in transactions would need an op record, a check and a Python object for each row; a high-water mark
for each queue would drop other rows than before when a task's rows come in another order. The price of this way is that
the log holds the rows twice.

    STAGE_ROWS    chunk + mark, one append       not visible
    COMMIT_ROWS   the marker                     from here on the rows count, whichever process dies
                  copies some chunks an answer   `left` says how many are still to come: ask again
    DROP_ROWS     the attempts of a unit are forgotten; what is not committed is forgotten after a day, or with the
                  writer's next batch: without a marker the answer to "how did it end?" is always "rolled back"

Invariants:
 1. A unit of a batch is committed once; a second commit is answered with the first.
 2. What was acknowledged is in the log: a successor reads the marks and is where its predecessor was.
 3. Rows are copied in the order of their commits, one chunk at a time, each row once.
 4. A rows' queue that retention has cut off is never copied in part without a word: commits of it are refused.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shmq.daemon.broker.log import Storage
from shmq.daemon.broker.records.stored_record import StoredRecord
from shmq.daemon.broker.rows.copies import RowCopies
from shmq.daemon.broker.rows.log import RowLog
from shmq.daemon.broker.rows.state import AttemptKey, Pending, RowState, Unit, UnitKey
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Topic
from shmq.daemon.broker.topics import AUTO_CREATE_TOPIC, create_by_send
from shmq.daemon.logic.access.rights import Permission
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.header_fields import INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.delay_levels import DelayLevels
from shmq.errors import BrokerBusy, MessageTooLarge, ProtocolError, ShmqError, TopicNotFound, TransactionError
from shmq.message import PERM_WRITE, check_topic, is_system_topic, pop_names
from shmq.protocol.codes import Request
from shmq.protocol.staged_rows import (
    ATTEMPT_CHARACTERS_MAX,
    CHECKSUM_MASK,
    COMMITTED,
    STAGED,
    WHOLE,
    WRITER_CHARACTERS_MAX,
    StagedPart,
)
from shmq.protocol.system_topics.row_marks import BeginMark, CommitMark, DoneMark, DropMark
from shmq.typed_json import decode_json

_CHUNKS_PER_REQUEST = 4  # about 4 MiB, a few milliseconds
_ATTEMPTS_MAX = 10_000
_ABANDONED_MS = 24 * 3_600_000
_UNIT_KEPT_MS = 30 * 24 * 3_600_000
_RETRY_MS = 1000
_OF_ACCOUNT = "\x1f"  # no writer's own name has it


class Rows(Part):
    """Serves writers whose rows count together."""

    def __init__(self, storage: Storage, settings: BrokerSettings, levels: DelayLevels) -> None:
        self._tables, self._log, self._arrived = storage
        self._settings = settings
        self.state = RowState()
        self._marks = RowLog(self._tables, self._log, self.state)
        self._copy = RowCopies(self._tables, self._log, settings, levels)
        self._alarm = Alarm()

    # -- time

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Go on with what was committed, and forget what was not in time."""
        self._alarm.stop()
        if not self._marks.exists:
            return ()
        if not self._marks.ready(now_ms, must_be_durable=self._settings.wait_durable):
            return [self._alarm.set(now_ms, 1)]
        self._expire(now_ms)
        return self._go_on(now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Go on with what was too much for one run."""
        return self._alarm.ring(now_ms, self.tick)

    def _go_on(self, now_ms: int) -> list[Effect]:
        if not self.state.pending:
            self._marks.compact(now_ms)
            return []
        key = next(iter(self.state.pending))
        try:
            moved, effects = self._step(key, now_ms)
        except ShmqError as error:
            report = Report(f"the rows of writer {_shown(key.writer)} are copied later: {error}")
            return [report, self._alarm.set(now_ms, _RETRY_MS)]
        return [*effects, self._alarm.set(now_ms, 1 if moved else _RETRY_MS)]

    def _expire(self, now_ms: int) -> None:
        for key in [key for key, attempt in self.state.attempts.items() if now_ms - attempt.used_ms > _ABANDONED_MS]:
            self._marks.write(DropMark(*key), now_ms)
        oldest = self._tables.clock_ms - _UNIT_KEPT_MS
        for unit in [unit for unit, known in self.state.units.items() if known.used_ms < oldest]:
            if unit not in self.state.pending:
                del self.state.units[unit]

    # -- requests

    @serves(Request.STAGE_ROWS)
    def _stage(self, call: Call) -> Answer:
        self._check_ready(call)
        ext = call.ext
        writer, batch, unit = self._whose(call)
        partition = number_of(ext, "partition", most=INT32_MAX)
        key = AttemptKey(writer, batch, partition, _short(ext, "attempt", ATTEMPT_CHARACTERS_MAX))
        if (committed := self._committed(writer, batch, unit)) is not None:
            return committed
        attempt = self.state.attempts.get(key)
        chunk, known = number_of(ext, "chunk", most=INT32_MAX), len(attempt.chunks) if attempt is not None else 0
        if chunk < known:
            return Answer(ext={"state": STAGED})  # the answer was lost, not the rows
        if chunk > known:
            raise TransactionError(
                f"chunk {chunk} of partition {partition} has no chunk {known} before it: its attempt was dropped",
                hint="write the partition again",
            )
        if attempt is None and len(self.state.attempts) >= _ATTEMPTS_MAX:
            raise BrokerBusy(f"{_ATTEMPTS_MAX} attempts are open", hint="commit them, or drop them")
        topic, queue_id = self._target(text_of(ext, "topic"), number_of(ext, "queueId", most=INT32_MAX))
        is_delayed = flag_of(ext, "delayed")
        self._check_rows(call.command.body, topic, is_delayed=is_delayed)
        self._marks.stage(key, chunk, call, topic=topic.name, queue_id=queue_id, is_delayed=is_delayed)
        return Answer(ext={"state": STAGED})

    @serves(Request.COMMIT_ROWS)
    def _commit(self, call: Call) -> Answer:
        self._check_ready(call)
        writer, batch, unit = self._whose(call)
        key = UnitKey(writer, unit)
        if (committed := self._committed(writer, batch, unit)) is None:
            parts = _parts_of(call.command.body)
            self._check_parts(writer, batch, parts)
            self._check_topics(call, (AttemptKey(writer, batch, part.partition, part.attempt) for part in parts))
            rows, checksum = number_of(call.ext, "rows"), number_of(call.ext, "checksum", most=CHECKSUM_MASK)
            mark = CommitMark(writer, batch, unit, parts, rows, checksum, self._tables.clock_ms)
            self._marks.write(mark, call.now_ms)
            committed = self._committed(writer, batch, unit)
            assert committed is not None
        committed.effects = self._pump(key, call.now_ms)
        committed.ext["left"] = str(self._left(key))
        return committed

    @serves(Request.DROP_ROWS)
    def _drop(self, call: Call) -> Answer:
        self._check_ready(call)
        writer, batch, unit = self._whose(call)
        wanted = call.ext.get("attempt")
        dropped = [
            key
            for key in self.state.superseded(writer, batch, unit)
            if key.batch == batch and wanted in (None, "", key.attempt)
        ]
        self._check_topics(call, dropped)
        for key in dropped:
            self._marks.write(DropMark(*key), call.now_ms)
        return Answer(ext={"dropped": str(len(dropped))})

    @serves(Request.STAGED_STATE)
    def _tell(self, call: Call) -> Answer:
        self._check_ready(call)
        return self._committed(*self._whose(call)) or Answer(ext={"state": ""})

    # -- checks

    def _check_ready(self, call: Call) -> None:
        if self._marks.exists and not self._marks.ready(call.now_ms, must_be_durable=self._settings.wait_durable):
            raise BrokerBusy("staged rows are still being read", hint="try again")

    def _whose(self, call: Call) -> tuple[str, int, int]:
        writer = _short(call.ext, "writer", WRITER_CHARACTERS_MAX)
        if not call.rights.is_everything:
            writer = f"{call.rights.name}{_OF_ACCOUNT}{writer}"
        return writer, number_of(call.ext, "batch"), number_of(call.ext, "unit", least=WHOLE, most=INT32_MAX)

    def _committed(self, writer: str, batch: int, unit: int) -> Answer | None:
        """What is answered when a batch is there already."""
        known = self.state.units.get(UnitKey(writer, unit))
        if known is None or known.batch < batch:
            return None
        if known.batch > batch:
            raise TransactionError(
                f"writer {_shown(writer)} is at batch {known.batch}, batch {batch} is over",
                hint="another query writes with this writerId, or an old one came back",
            )
        return Answer(ext={"state": COMMITTED, "rows": str(known.rows), "checksum": str(known.checksum)})

    def _target(self, name: str, queue_id: int) -> tuple[Topic, int]:
        check_topic(name)
        if is_system_topic(name) or any(pop_names(name)):
            raise TopicNotFound(f"topic {name} is the broker's own", hint="another topic")
        queues = self._settings.default_queues
        topic = self._tables.topic(name) or create_by_send(
            self._tables, name, AUTO_CREATE_TOPIC, queues, is_unit_mode=False
        )
        if topic is None:
            raise TopicNotFound(f'topic "{name}" does not exist', hint=f"shmq topic create {name}")
        if not topic.perm & PERM_WRITE or not 0 <= queue_id < len(topic.queues):
            raise TopicNotFound(f'topic "{name}" has no queue {queue_id} to write to', hint=f"shmq topic show {name}")
        return topic, queue_id

    def _check_rows(self, body: bytes, topic: Topic, *, is_delayed: bool) -> None:
        most = self._settings.message_bytes_max
        if len(body) > most:
            raise MessageTooLarge(f"rows of {len(body)} bytes, {most} are allowed", hint="smaller rows")
        if not self._copy.check(body, topic, is_delayed=is_delayed, now_ms=self._tables.clock_ms):
            raise ProtocolError("there is no row")

    def _check_parts(self, writer: str, batch: int, parts: list[StagedPart]) -> None:
        missing = self.state.missing(writer, batch, parts)
        if missing is not None:
            raise TransactionError(
                f"partition {missing.partition} of batch {batch} is not staged any more, or not in full",
                hint="write the batch again",
            )
        first = min(
            (
                self.state.attempts[AttemptKey(writer, batch, part.partition, part.attempt)].chunks[0]
                for part in parts
                if part.chunks
            ),
            default=None,
        )
        if first is not None and first < self._marks.first_rows:
            raise TransactionError(
                f"rows of batch {batch} were deleted by retention before they were committed",
                hint="write the batch again, or raise the retention",
            )

    def _check_topics(self, call: Call, keys: Iterable[AttemptKey]) -> None:
        """Let a sender end only what was staged for topics that it may send to."""
        if call.rights.is_everything:
            return
        for key in keys:
            attempt = self.state.attempts.get(key)
            for offset in attempt.chunks if attempt is not None else ():
                topic = self._marks.topic_of(offset)
                if topic is not None:
                    call.rights.check(topic, Permission.PUB)

    # -- copying

    def _left(self, key: UnitKey) -> int:
        """How much has to happen before a unit may be called written: chunks, and the disk."""
        pending = self.state.pending.get(key)
        if pending is not None:
            return len(pending.chunks) - pending.next + 1
        unit = self.state.units[key]
        return int(self._settings.wait_durable and self._log.durable_end < unit.end)

    def _pump(self, key: UnitKey, now_ms: int) -> list[Effect]:
        """Copy a few chunks for the request that waits for them: those committed before have to go first."""
        effects: list[Effect] = []
        for _ in range(_CHUNKS_PER_REQUEST):
            if key not in self.state.pending:
                break
            try:
                moved, news = self._step(next(iter(self.state.pending)), now_ms)
            except ShmqError:
                if not effects:
                    raise
                break  # requests for the rows before are answered; one for the rest gets the error
            effects += news
            if not moved:
                break
        return [*effects, *([self._alarm.set(now_ms, _RETRY_MS)] if self.state.pending else [])]

    def _step(self, key: UnitKey, now_ms: int) -> tuple[bool, list[Effect]]:
        """Copy one chunk, or write down that there is none left; False when it has to wait for the disk."""
        pending = self.state.pending[key]
        if pending.next >= len(pending.chunks):
            self._finish(key, pending, now_ms)
            return True, []
        offset = pending.chunks[pending.next]
        chunk = self._marks.chunk(offset)
        effects: list[Effect] = []
        if chunk is None:
            if offset >= self._marks.first_rows:
                return False, []
            effects.append(
                Report(f"rows of writer {_shown(key.writer)} that were committed are gone: retention was faster")
            )
        else:
            effects += self._arrived(self._copied(key, pending, chunk, now_ms), now_ms)
        pending.next, pending.begun = pending.next + 1, None
        return True, effects

    def _copied(self, key: UnitKey, pending: Pending, chunk: StoredRecord, now_ms: int) -> list[int]:
        def begin(places: list[tuple[str, int, int]]) -> None:
            self._marks.write(BeginMark(key.writer, key.unit, pending.next, places), now_ms)

        begun = pending.begun if pending.begun is not None and pending.begun.i == pending.next else None
        return self._copy.copy(chunk, begun, begin)

    def _finish(self, key: UnitKey, pending: Pending, now_ms: int) -> None:
        mark = pending.commit
        end = self._marks.write(DoneMark(mark.w, mark.b, mark.u, mark.r, mark.s, mark.t), now_ms)
        unit: Unit = self.state.units[key]
        unit.end = end


def _shown(writer: str) -> str:
    return writer.replace(_OF_ACCOUNT, "/")


def _short(ext: Mapping[str, str], name: str, characters_max: int) -> str:
    text = text_of(ext, name)
    if len(text) > characters_max or not text.isprintable():
        raise ProtocolError(f"the field {name} has {len(text)} characters, {characters_max} are allowed")
    return text


def _parts_of(body: bytes) -> list[StagedPart]:
    try:
        return decode_json(body, list[StagedPart])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the body names no parts: {error}") from error
