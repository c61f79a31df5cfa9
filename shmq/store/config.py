"""The config directory: topics, groups, consumer offsets as RocketMQ keeps them, and what it has no field for.

`tables.py` carries these tables into shared memory and back.

    config/topics.json             topicConfigTable         name -> perm, readQueueNums, writeQueueNums, topicSysFlag …
    config/subscriptionGroup.json  subscriptionGroupTable   name -> retryMaxTimes …
    config/consumerOffset.json     offsetTable              "topic@group" -> queue id -> offset;
                                   logEnd: where the log ended at the latest when they were read
    config/delayOffset.json        offsetTable              level -> offset in the schedule topic's queue;
                                   copiesFrom: log position, see daemon/broker/timers/copies.py
    config/timerProgress.json      timerProgress            group -> word, of the timer topic's queue
    config/lostMessages.json       lost                     "topic@group" -> queue id -> [count, seconds]
    config/shmq.json               topics: name -> kind, flush, born, and where a former life of the name ended;
                                   deleted: name -> log position of the deletion

Each file is sealed (seal.py): one wrong digit in an offset would skip messages in silence. A file without a seal, as
RocketMQ writes it, is believed if it can be read.

Rules: (1) a table is replaced atomically and the previous one kept as `.bak`; nothing is written when nothing changed;
an orderly stop gives `.bak` the present content, so that what is removed or damaged before the next start is not lost;
(2) an unreadable table is read from its `.bak`; when that is unreadable too the broker refuses to start, because
beginning with empty tables would mean consuming everything again; so it does when a table is missing of which the
durable mark says that it was written;
(3) fields we do not know are kept as they were read; (4) an offset above 0 that was read before its topic began is of a
deleted one of that name: the host went down before the table was written again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shmq.delay_levels import SCHEDULE_COPIES_GROUP, SCHEDULE_GROUP
from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import read_plain
from shmq.store.atomic import adopt, cure_of, equal_backup, fault_of, forget, write_atomically
from shmq.store.fastjson import dumps, dumps_rows, loads
from shmq.store.layout import StoreLayout
from shmq.store.seal import SEAL_KEY, is_sealed, sealed
from shmq.store.table_entries import (
    COPIES_FROM,
    DELAY_KEY,
    MARK_KEYS,
    TIMER_KEYS,
    LossTable,
    OffsetTable,
    TableEntries,
    Tables,
    timer_fault,
)
from shmq.store.table_entries import TopicRecord as TopicRecord
from shmq.timing import TIMER_COPIES_GROUP, TIMER_GROUPS

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAYS = "delayOffset.json"
TIMERS = "timerProgress.json"
OWN = "shmq.json"
LOSSES = "lostMessages.json"
_LOG_END = "logEnd"
_NOTHING: Mapping[str, Any] = MappingProxyType({})

_TABLE_OF = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    OFFSETS: "offsetTable",
    DELAYS: "offsetTable",
    TIMERS: "timerProgress",
    OWN: "topics",
    LOSSES: "lost",
}

OWN_GROUPS = frozenset((SCHEDULE_GROUP, SCHEDULE_COPIES_GROUP, *TIMER_GROUPS, TIMER_COPIES_GROUP))
"""Groups that are progress of the broker's own: in no list of groups, and in files of their own."""
FLUSH_MOST = 2
FROM_BACKUP = "config.from_backup"  # the event of a table that had to be read from there

Log = Callable[..., None]


def table_names(files: int) -> list[str]:
    """Return the names of tables that are said by a bit each."""
    return [name for number, name in enumerate(_TABLE_OF) if files >> number & 1]


class ConfigFiles:
    """Reads and writes the config directory; one process writes it.

    Args:
        log: called for every table that had to be read from its backup.
    """

    def __init__(self, layout: StoreLayout, *, log: Log) -> None:
        self._layout = layout
        self._log = log
        self._raw: dict[str, dict[str, Any]] = {}  # last known content of each file
        self.written = 0  # the files that there are, as the durable mark says it: one bit each, in the order of above
        self.restored_files = 0  # tables that had to be read from their backup, likewise
        self.ignored: list[str] = []  # entries that say nothing that can be, in words

    @property
    def restored(self) -> int:
        """How many tables had to be read from their backup."""
        return self.restored_files.bit_count()

    @property
    def ignored_files(self) -> int:
        """Which tables have entries that say nothing that can be, as `restored_files`."""
        return sum(
            any(entry.startswith(f"{name}: ") for entry in self.ignored) << number
            for number, name in enumerate(_TABLE_OF)
        )

    def load(self) -> Tables:
        """Read all tables.

        Raises:
            CorruptionError: a table and its backup are both unreadable.
        """
        for number, name in enumerate(_TABLE_OF):
            found = self._read(name)
            self._raw[name] = found or {}
            self.written |= (found is not None) << number
        entries = TableEntries()
        topics = entries.topics(self._table(TOPICS), self._table(OWN))
        deleted = entries.deleted(self._raw[OWN].get("deleted", {}))
        tables = Tables(
            topics=topics,
            groups=entries.groups(self._table(GROUPS)),
            offsets=self._of_now(entries.offsets(self._table(OFFSETS)), topics, deleted)
            | entries.delays(self._table(DELAYS), self._raw[DELAYS].get(COPIES_FROM))
            | entries.timers(self._table(TIMERS)),
            deleted=deleted,
            losses=entries.losses(self._table(LOSSES)),
        )
        self.ignored = entries.ignored
        for entry in self.ignored:
            self._log("config.entry_ignored", entry=entry)
        return tables

    def _of_now(self, offsets: OffsetTable, topics: dict[str, TopicRecord], deleted: dict[str, int]) -> OffsetTable:
        """Return the offsets without those of deleted topics, also where one of the name was made since (rule 4)."""
        log_end = self._raw[OFFSETS].get(_LOG_END)
        found: OffsetTable = {}
        for (topic, group), queues in offsets.items():
            record = topics.get(topic)
            is_gone = record is None and topic in deleted
            is_younger = record is not None and isinstance(log_end, int) and record.born >= log_end
            if is_gone or (is_younger and any(queues.values())):
                self._log("config.offsets_of_deleted_topic", topic=topic, group=group)
            else:
                found[topic, group] = queues
        return found

    def _table(self, name: str) -> dict[str, Any]:
        return dict(self._raw[name].get(_TABLE_OF[name], {}))

    def check_missing(self, written: int) -> None:
        """Refuse to go on without a table that was there.

        Args:
            written: what the durable mark says was written.

        Raises:
            CorruptionError: a table is missing, and so is its backup.
        """
        numbered = enumerate(_TABLE_OF)
        missing = [self._layout.config / name for number, name in numbered if written & ~self.written & 1 << number]
        if missing:
            names = ", ".join(path.name for path in missing)
            raise CorruptionError(
                self._layout.config,
                0,
                f"{names} is missing, and so is its backup" if len(missing) == 1 else f"{names} are missing",
                hint="restore what is missing; to begin without it, as a new broker without groups and their progress: "
                f"echo '{{}}' | tee {' '.join(map(str, missing))}",
            )

    def find_damaged(self) -> list[tuple[str, str]]:
        """Return names and reasons of files and backups that cannot be believed; for any thread. Raises OSError."""
        found = []
        for name, table in _TABLE_OF.items():
            for candidate in (name, f"{name}.bak"):
                try:
                    _parsed(self._layout.config / candidate, table)
                except FileNotFoundError:
                    continue
                except ValueError as error:
                    found.append((candidate, str(error)))
        return found

    def discard(self, name: str) -> None:
        """Remove a file that cannot be believed; the next save writes a table anew and leaves its backup alone."""
        forget(self._layout.config / name)
        (self._layout.config / name).unlink(missing_ok=True)

    def adopt_files(self) -> None:
        """Take every table and backup for ours as it is."""
        for name in _TABLE_OF:
            for path in self.copies(name):
                adopt(path)

    def copies(self, name: str) -> tuple[Path, Path]:
        """Return the paths of a table and of its backup."""
        path = self._layout.config / name
        return path, path.with_name(f"{name}.bak")

    @property
    def names(self) -> list[str]:
        """Names of the tables that there are."""
        return [name for number, name in enumerate(_TABLE_OF) if self.written & 1 << number]

    def save_backups(self) -> None:
        """Give every backup the content that its table has by now, in bytes of its own.

        Raises:
            StoreError: the disk refused.
        """
        access = self._layout.access
        for name in self._raw:
            path, backup = self.copies(name)
            if fault_of(path):
                continue  # another program's content is not known to be good
            try:
                _parsed(path, _TABLE_OF[name])
                equal_backup(path, mode=access.read_mode, gid=access.gid)
            except ValueError:
                continue  # it was read from its backup at the start, and has not changed since
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{backup} cannot be written: {error.strerror}", hint=cure_of(error)) from error

    def put_back(self, name: str) -> None:
        """Write a table again as it was saved last.

        Raises:
            StoreError: the disk refused.
        """
        self._store(name, self._raw[name], versioned=name in (TOPICS, GROUPS))

    def save_topics(self, topics: dict[str, TopicRecord], deleted: dict[str, int]) -> bool:
        """Write topics.json and shmq.json where they changed; True when one did.

        Raises:
            StoreError: the disk refused.
        """
        table = {name: record.to_object() for name, record in sorted(topics.items())}
        own = {
            name: {"kind": record.kind, "born": record.born}
            | ({"ended": record.ended} if record.ended >= 0 else {})
            | ({"flush": record.flush} if record.flush else {})
            for name, record in sorted(topics.items())
        }
        # Ours first: a topic without its birth position would take over the units of a deleted namesake.
        changed = self._write(OWN, {"topics": own, "deleted": dict(sorted(deleted.items()))}, versioned=False)
        return self._write(TOPICS, {_TABLE_OF[TOPICS]: table}, versioned=True) or changed

    def save_groups(self, groups: dict[str, dict[str, Any]]) -> bool:
        """Write subscriptionGroup.json if it changed; True when it did. Raises StoreError."""
        return self._write(GROUPS, {_TABLE_OF[GROUPS]: dict(sorted(groups.items()))}, versioned=True)

    def save_delays(self, offsets: OffsetTable) -> bool:
        """Write delayOffset.json and timerProgress.json where the progress of delayed messages changed.

        Returns:
            Whether one did.

        Raises:
            StoreError: the disk refused.
        """
        words = {group: offsets.get((topic, group), {}).get(0, 0) for topic, group in TIMER_KEYS}
        delay_mark, timer_mark = (offsets.get(key, {}).get(0) for key in MARK_KEYS)
        is_known = any(words.values()) or bool(timer_mark)
        if is_known and timer_mark is not None:
            words[TIMER_COPIES_GROUP] = timer_mark
        changed = is_known and self._write(TIMERS, {_TABLE_OF[TIMERS]: words}, versioned=False)
        levels = offsets.get(DELAY_KEY)
        table = {str(queue_id + 1): offset for queue_id, offset in sorted((levels or {}).items())}
        content = {_TABLE_OF[DELAYS]: table} | ({COPIES_FROM: delay_mark} if delay_mark is not None else {})
        if levels is not None and self._write(DELAYS, content, versioned=False):
            changed = True
        return changed

    def forget_progress(self, first_copy: int) -> None:
        """Call no delayed or timed message delivered: copies that the progress tells of are about to be cut off.

        Args:
            first_copy: a record border, above 0, below which no copy lies: from there on the next start looks for those
                that are left.

        Raises:
            StoreError: the disk refused.
        """
        levels = self.load().offsets.get(DELAY_KEY, {})
        forgotten: OffsetTable = {key: {0: 0} for key in TIMER_KEYS} | {key: {0: first_copy} for key in MARK_KEYS}
        self.save_delays(forgotten | {DELAY_KEY: dict.fromkeys(levels, 0)})

    def forget_lives(self, position: int) -> None:
        """Call no topic deleted, or made, at or behind a log position: what lies there is about to be cut off.

        Its life before goes on, unless it was over below that; where nothing says so, it has none. What began or ended
        just there counts as cut off: a message that comes again is better than one that never comes. What its groups
        have read in the later life says nothing of the former one: they begin anew.

        Raises:
            CorruptionError: a table and its backup are both unreadable.
            StoreError: the disk refused.
        """
        tables, told_end = self.load(), self._raw[OFFSETS].get(_LOG_END)
        later = {name: record.born for name, record in tables.topics.items() if record.born >= position}
        if self._raw[OFFSETS] and not (isinstance(told_end, int) and told_end <= position):
            offsets = TableEntries().offsets(self._table(OFFSETS))  # also those that `load` takes for a deleted topic's
            self._raw[OFFSETS].pop(_TABLE_OF[OFFSETS], None)  # so it is written, whatever it says
            begun = {name for name, born in later.items() if not isinstance(told_end, int) or born < told_end}
            self.save_offsets(
                {key: dict.fromkeys(of, 0) if key[0] in begun else of for key, of in offsets.items()}, position
            )
        if not (self._raw[TOPICS] and self._raw[OWN]):
            return  # an empty table is none that is missing, which the start refuses
        deleted = {name: at for name, at in tables.deleted.items() if at < position}
        for name in later:
            record = tables.topics[name]
            if 0 <= record.ended < position:
                del tables.topics[name]
                deleted[name] = record.ended
            else:
                record.born, record.ended = (0 if record.ended >= 0 else position), -1
        self.save_topics(tables.topics, deleted)

    def save_offsets(self, offsets: OffsetTable, log_end: int | None = None) -> bool:
        """Write consumerOffset.json if it changed; True when it did. The progress of delayed messages is not in it.

        Args:
            log_end: where the log ended before they were read; None where that says nothing.

        Raises:
            StoreError: the disk refused.
        """
        table = {
            f"{topic}@{group}": dict(sorted(queues.items()))
            for (topic, group), queues in sorted(offsets.items())
            if group not in OWN_GROUPS
        }
        return self._write(OFFSETS, {_TABLE_OF[OFFSETS]: table}, versioned=False, beside={_LOG_END: log_end})

    def save_losses(self, losses: LossTable) -> bool:
        """Write lostMessages.json if it changed; True when it did. Raises StoreError."""
        table = {
            f"{topic}@{group}": {str(queue_id): list(numbers) for queue_id, numbers in sorted(queues.items())}
            for (topic, group), queues in sorted(losses.items())
        }
        if not table and not self._raw.get(LOSSES):
            return False
        return self._write(LOSSES, {_TABLE_OF[LOSSES]: table}, versioned=False)

    def _write(
        self, name: str, tables: dict[str, Any], *, versioned: bool, beside: Mapping[str, Any] = _NOTHING
    ) -> bool:
        """Write a file if its tables have changed, with what stands `beside` them; there, None takes an entry out."""
        known = self._raw.get(name, {})
        path = self._layout.config / name
        is_known = all(known.get(key) == value for key, value in tables.items())
        if is_known and path.exists() and path.with_name(f"{name}.bak").exists():
            return False
        content = {**known, **tables, **beside}
        content = {key: value for key, value in content.items() if value is not None or key not in beside}
        if versioned:
            version = known.get("dataVersion")
            counter = version.get("counter", 0) if isinstance(version, dict) else 0
            content["dataVersion"] = {
                **(version if isinstance(version, dict) else {}),
                "counter": (counter if isinstance(counter, int) else 0) + 1,
                "timestamp": int(time.time() * 1000),
            }
        self._store(name, content, versioned=versioned)
        self._raw[name] = content
        self.written |= 1 << list(_TABLE_OF).index(name)
        return True

    def _store(self, name: str, content: dict[str, Any], *, versioned: bool) -> None:
        path, access = self._layout.config / name, self._layout.access
        text = dumps(content).encode() if versioned else dumps_rows(content)
        try:
            write_atomically(path, sealed(text), mode=access.read_mode, gid=access.gid, backup=True)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}", hint=cure_of(error)) from error

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._layout.config / name
        backup = path.with_name(name + ".bak")
        reason = ""
        for candidate in (path, backup):
            try:
                found = _parsed(candidate, _TABLE_OF[name])
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                reason = reason or str(error)
                self._log("config.unreadable", file=str(candidate), reason=str(error))
            else:
                if candidate is backup:
                    self.restored_files |= 1 << list(_TABLE_OF).index(name)
                    self._log(FROM_BACKUP, file=str(backup), reason=reason or f"there is no {name}")
                return found
        if reason:
            raise CorruptionError(
                path,
                0,
                f"unreadable, and so is its backup: {reason}",
                hint=f"restore {path}, or remove both to start anew",
            )
        return None


def _parsed(path: Path, table: str) -> dict[str, Any]:
    content = read_plain(path)
    try:
        is_sealed(content)
    except ValueError:
        hint = f"an edited file must not have the last entry, {SEAL_KEY}"
        raise ValueError(f"the checksum of {path.name} is wrong ({hint})") from None
    data = loads(content.decode())
    if isinstance(data, dict):
        data.pop(SEAL_KEY, None)
    if not isinstance(data, dict) or not isinstance(data.get(table, {}), dict):
        raise ValueError(f"{path.name} holds no {table}")
    if table == _TABLE_OF[TIMERS] and (reason := timer_fault(data.get(table, {}))):
        raise ValueError(f"{path.name} {reason}")
    return data
