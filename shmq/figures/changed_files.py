"""Files of a store that another program changed under its running broker: how each is reported, and what it means.

The keeper counts them (`keeper/live/held_files.py`), in words that stay when it dies; `shmq health` and
`mq.admin.health()` report them until the next start of the broker.

    fate                  what became of the file                                          verdict
    saved, restored       the keeper wrote it again                                        WARNING, all of them together
    access                it is there, and cannot be opened anew                           WARNING
    kept                  the log that it is of was removed; a copy of it lies elsewhere   WARNING
    lost                  it could not be written again, or what was stored in it is gone  CRITICAL
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from shmq.errors import SegmentError
from shmq.figures.verdict import Finding, Measure, Verdict

if TYPE_CHECKING:
    from shmq.shm.counter_reader import Entry
    from shmq.shm.instance import Instance

FILES_CHANGED = "shmq_files_changed"
"""The counter's family; its labels are the fields of ChangedFile. 0: it is over."""
LOST, SAVED, RESTORED, ACCESS, KEPT = "lost", "saved", "restored", "access", "kept"
_NAMED = 5


class ChangedFile(NamedTuple):
    """A file of the store that another program changed while the broker ran.

    Attributes:
        fate: "lost", "saved" (of the log), "restored" (of another file), "access" (it may not be opened any more) or
            "kept" (of a log that was removed).
        do: the command that mends it, "" where there is none.
    """

    file: str
    fate: str
    what: str
    do: str


def changed_files(entries: Iterable[Entry]) -> tuple[ChangedFile, ...]:
    """Return the files that counters tell of."""
    told = (dict(entry.labels) for entry in entries if entry.family == FILES_CHANGED and entry.words[0])
    return tuple(ChangedFile(**{name: labels.get(name, "") for name in ChangedFile._fields}) for labels in told)


def read_changed_files(instance: Instance) -> tuple[ChangedFile, ...]:
    """Return the files that a broker's keeper tells of; none where its counters are gone or may not be read."""
    from shmq.shm.counter_reader import open_counters  # a fast health check judges files and reads no counters

    try:
        reader = open_counters(instance)
    except SegmentError:
        return ()
    try:
        return changed_files(entry for block in reader.blocks() for entry in block.entries)
    finally:
        reader.close()


def findings_of_files(files: Iterable[ChangedFile], root: str) -> Iterator[Finding]:
    """Judge changed files of the store at `root`: each that is gone or closed, and together all that were mended."""
    files = tuple(files)
    mended = [file for file in files if file.fate in (SAVED, RESTORED)]
    for file in [file for file in files if file not in mended][:_NAMED]:
        verdict, why = Verdict.CRITICAL, "a program changed it under the broker"
        if file.fate == ACCESS:
            verdict, why = Verdict.WARNING, "programs that open it anew cannot"
        elif file.fate == KEPT:
            verdict, why = Verdict.WARNING, "the log was removed while no process of the broker ran"
        name = file.file.removeprefix(f"{root}/")
        yield Finding("store", verdict, f"{name} {file.what}", name, why, file.do or "shmq doctor")
    if mended:
        named = ", ".join(f"{file.file.removeprefix(f'{root}/')} {file.what}" for file in mended[:_NAMED])
        count = len(mended)
        what = f"{count} file{'s' * (count > 1)} of the store changed under the broker, which wrote them again: {named}"
        why = "a cleaner, a copy or an rsync that deletes works in the store: the next time it may be the log"
        do = f"keep it away from {root}; what it put there lies in {root}/quarantine"
        yield Finding("store", Verdict.WARNING, what, "files", why, do, {"files_changed": Measure(count, "c")})
