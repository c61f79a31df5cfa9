"""Proves a whole store: one walk over the log, which every part looks at.

Reads only, so it works beside a running broker, on a store that was stopped or killed, on a copy, and on the store of a
stock broker.

    settled       stopped in order (no `abort`)       everything has to agree
    not settled   runs, or was killed                 what the durable mark says is on disk has to agree; what lies
                                                      behind it the next start, or the keeper, still writes

Rules: (1) the mark and the tables are read before the log, so that nothing they say can be newer than the log; (2) a
range of the log that has a copy in quarantine is known: it is a note; (3) before every name is a plain file that may be
read, nothing is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.errors import CorruptionError, UsageError
from shmq.protocol.system_topics.transaction import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from shmq.shm.access import Access
from shmq.shm.core import RecordBatch
from shmq.store.checkpoint import checkpoint_fault
from shmq.store.consumequeue import FILE_BYTES, ConsumeQueueFiles, Queue
from shmq.store.dispatch import Dispatch
from shmq.store.durable import DurableMark, Mark
from shmq.store.index.files import IndexFiles, IndexShape
from shmq.store.index.mark import load_index_mark
from shmq.store.layout import StoreLayout
from shmq.store.lineage.loss import is_shortened_elsewhere, missing_cure, missing_ranges, missing_text
from shmq.store.proof.findings import Damages, Findings
from shmq.store.proof.index import IndexProof
from shmq.store.proof.index_sums import prove_index_sums
from shmq.store.proof.progress import ProgressProof, read_tables
from shmq.store.proof.record import WalkedRecord
from shmq.store.proof.transactions import TransactionProof
from shmq.store.proof.units import UnitProof
from shmq.store.table_entries import Tables
from shmq.store.verify import LogFiles, ReadBytes, RecordWalk, Verification, with_newer_begin
from shmq.timing import TIMER_TOPIC

_EVERYTHING = 1 << 63
_COUNTED_DAMAGES = 20  # whose messages are counted over all queues
# Of these, and of everything that is part of a transaction, each record is looked at.
_WATCHED_TOPICS = tuple(name.encode() for name in (HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC))


@dataclass
class Proof:
    """The extent of a proof, and its findings."""

    root: Path
    settled: bool
    findings: Findings = field(default_factory=Findings)
    damages: Damages = field(default_factory=Damages)
    file_bytes: int = 0
    files: int = 0
    log_begin: int = 0
    log_end: int = 0
    durable_end: int | None = None
    records: int = 0
    queues: int = 0
    units: int = 0
    index_entries: int = 0
    indexed: int = 0  # log position below which every key was looked for in the index
    offsets: int = 0
    open_transactions: int = 0


@dataclass(frozen=True)
class _Parts:
    """The parts that look at every record."""

    units: UnitProof
    index: IndexProof
    transactions: TransactionProof
    progress: ProgressProof

    def add(self, position: int, data: bytes) -> None:
        record = WalkedRecord(position, data)
        for part in (self.units, self.index, self.transactions, self.progress):
            part.add(record)

    def add_batch(self, batch: RecordBatch, read: ReadBytes) -> None:
        self.units.add_batch(batch)
        self.index.add_batch(batch)
        for position, size in batch.watched:
            record = WalkedRecord(position, read(position, size))
            self.transactions.add(record)
            self.progress.add(record)


def is_store(root: Path) -> bool:
    """Whether a directory looks like a store."""
    return (root / "commitlog").is_dir()


def prove_store(root: Path, *, shape: IndexShape | None = None) -> Proof:
    """Compare everything in a store with everything else.

    Args:
        shape: of its index files, where they are not as RocketMQ has them.

    Raises:
        UsageError: there is no store.
        OSError: it cannot be read.
    """
    if not is_store(root):
        raise UsageError(f"{root} is no store: it has no commitlog/", hint="shmq store verify DIRECTORY")
    layout = StoreLayout(root, Access(-1))
    proof = Proof(root, settled=not layout.abort.exists())
    findings = proof.findings
    if _has_false_names(layout, findings):
        return proof
    mark = _read_mark(layout, findings)
    proof.durable_end = mark.durable_end if mark else None
    tables = read_tables(layout, mark, findings)
    log = LogFiles(layout.commitlog)
    _take_files(proof, layout, log, with_newer_begin(mark, layout))
    files = ConsumeQueueFiles(layout, writable=False)
    dispatch = Dispatch(
        born=_take_units(layout, files, tables, mark, findings),
        deleted=tables.deleted,
        levels=DelayLevels(),
        log=lambda *_, **__: None,
    )
    settled_end = None if proof.settled else (mark.dispatched if mark else 0)
    units = UnitProof(files, dispatch, findings, read=log.read, log_begin=log.begin, settled_end=settled_end)
    proof.indexed = _indexed(layout, mark, proof.settled, findings)
    index = IndexProof(layout, findings, log_begin=log.begin, indexed=proof.indexed, shape=shape)
    transactions = TransactionProof(findings, log_begin=log.begin, checked=_checked(tables))
    progress = ProgressProof(tables, findings)
    parts = _Parts(units, index, transactions, progress)
    walked = Verification(durable_end=proof.durable_end, log_begin=log.begin, log_end=log.begin)
    walk = RecordWalk(
        log,
        walked,
        on_record=parts.add,
        on_batch=parts.add_batch,
        watched=_WATCHED_TOPICS,
        on_damage=lambda *at: _on_damage(layout, proof, files, *at),
    )
    try:
        walk.run()
        proof.log_end, proof.records = walked.log_end, walked.records
        _prove_marks(layout, proof, mark, shape)
        units.finish(proof.log_end, proof.damages)
        units.prove_sums()
        proof.queues = len(files.queues())
        progress.finish(_bounds(files, units))
    finally:
        files.close()
    index.finish(proof.log_end, proof.damages)
    transactions.finish(proof.damages)
    proof.units, proof.index_entries, proof.offsets = units.units, index.entries, progress.offsets
    proof.open_transactions = transactions.open_halves
    return proof


def _has_false_names(layout: StoreLayout, findings: Findings) -> bool:
    """Whether a name is no plain file; then nothing is opened, as a pipe would be waited for."""
    parts = {layout.consumequeue: "units", layout.config: "tables", layout.index: "index", layout.index_sums: "index"}
    for fault in layout.faults(writable=False):
        of = next((part for directory, part in parts.items() if fault.path.is_relative_to(directory)), "log")
        findings.add(of, str(fault.path.relative_to(layout.root)), fault.reason, fault.cure)
    if findings.count:
        findings.note("log", str(layout.root), "nothing else was looked at; put these names right first")
    return bool(findings.count)


def _take_files(proof: Proof, layout: StoreLayout, log: LogFiles, mark: Mark | None) -> None:
    proof.file_bytes, proof.files, proof.log_begin = log.file_bytes, len(log.positions), log.begin
    findings = proof.findings
    for problem in log.problems:
        reason, _, cure = problem.partition("; ")
        findings.add("log", "commitlog", reason, cure)
    missing = missing_ranges(log, mark)
    if is_shortened_elsewhere(layout, log, missing):
        begin, end = missing.pop(0)
        findings.note("log", f"bytes {begin} to {end - 1}", "a stock broker has worked on the store and removed them")
    if missing:
        findings.add("log", "commitlog", missing_text(missing, log.file_bytes), missing_cure(missing))
    if proof.settled and mark is None and layout.unit_sums.exists():
        reason = "it is missing or empty, so only reading the whole log tells how far it goes, and where it began"
        findings.add("log", layout.durable_mark.name, reason)


def _take_units(
    layout: StoreLayout, files: ConsumeQueueFiles, tables: Tables, mark: Mark | None, findings: Findings
) -> dict[str, int]:
    """Look at the files of units and of their checksums; return where each topic begins."""
    for path, size in files.misshapen():
        where = str(Path(path).relative_to(layout.root))
        findings.add("units", where, f"it has {size} bytes, a file of units has {FILE_BYTES}")
    born = {name: topic.born for name, topic in tables.topics.items()}
    if not files.sums.load(born, tables.deleted, sequence=mark.unit_sums if mark else 0) and mark:
        findings.add("sums", layout.unit_sums.name, "the checksums of the units are incomplete")
    return {**born, **files.sums.born()}


def _read_mark(layout: StoreLayout, findings: Findings) -> Mark | None:
    durable = DurableMark(layout)
    try:
        mark = durable.load()
    except CorruptionError as error:
        findings.add("log", layout.durable_mark.name, error.reason)
        return None
    if durable.damaged_slots:
        findings.add("log", layout.durable_mark.name, "one of its two copies cannot be read, or is an older one")
    return mark


def _prove_marks(layout: StoreLayout, proof: Proof, mark: Mark | None, shape: IndexShape | None) -> None:
    """Compare what says how far the log goes with how far it goes, and the index with its checksums."""
    prove_index_sums(layout, proof.findings, shape=shape)
    if mark is None:
        return
    if proof.log_end < mark.durable_end:
        reason = f"the log ends here, it was on disk up to byte {mark.durable_end}"
        proof.findings.add("log", f"byte {proof.log_end}", reason)
    has_grown = proof.log_end > mark.durable_end
    fault = checkpoint_fault(layout, has_grown=has_grown)
    if fault:
        proof.findings.add("log", layout.checkpoint.name, fault)
    if proof.settled and has_grown:
        where = layout.durable_mark.name
        reason = f"it speaks of the log up to byte {mark.durable_end}, which ends at {proof.log_end}"
        proof.findings.note("log", where, f"{reason}: a stock broker wrote since, or an older mark was put back")


def _on_damage(layout: StoreLayout, proof: Proof, files: ConsumeQueueFiles, begin: int, end: int, reason: str) -> None:
    proof.damages.ranges.append((begin, end))
    if len(proof.damages.ranges) <= _COUNTED_DAMAGES:
        messages = files.messages_within(begin, end)
        reason += f"; {messages} message{'' if messages == 1 else 's'} of its queues lay there"
    where = f"bytes {begin} to {end - 1}"
    if (layout.quarantine / f"{begin:020d}.record").exists():
        proof.findings.note("log", where, f"{reason}; a copy is in quarantine/")
    else:
        proof.findings.add("log", where, reason)


def _checked(tables: Tables) -> int:
    return tables.offsets.get((HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)


def _indexed(layout: StoreLayout, mark: Mark | None, settled: bool, findings: Findings) -> int:
    """The position up to which the index has to be complete."""
    try:
        said = load_index_mark(layout)
    except CorruptionError as error:
        findings.add("index", layout.index_mark.name, error.reason)
        return 0
    if said is not None:
        return said.indexed
    is_ours = mark is not None
    if is_ours and settled and (IndexFiles(layout).names() or layout.index_sums.is_dir()):
        findings.add("index", layout.index_mark.name, "it is missing, so nothing says how far the index goes")
    if is_ours or not settled:
        return 0  # ours says how far it is; a stock broker that was killed throws its newest file away
    return _EVERYTHING if IndexFiles(layout).names() else 0


def _bounds(files: ConsumeQueueFiles, units: UnitProof) -> dict[Queue, tuple[int, int]]:
    """First offset with a record, and the end, of every queue; by its units if retention took all records."""
    bounds = units.ends()
    for queue in files.queues():
        end = max(files.sums.end(queue), files.bisect(queue, lambda position, size: size > 0))
        first, behind = bounds.get(queue, (end, end))
        bounds[queue] = first, max(behind, end)
    return bounds
