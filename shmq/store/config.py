"""The config directory: topics, groups, consumer offsets as RocketMQ keeps them, and what it has no field for.

`tables.py` carries these tables into shared memory and back.

    config/topics.json             topicConfigTable         name -> perm, readQueueNums, writeQueueNums, topicSysFlag …
    config/subscriptionGroup.json  subscriptionGroupTable   name -> retryMaxTimes …
    config/consumerOffset.json     offsetTable              "topic@group" -> queue id -> offset
    config/delayOffset.json        offsetTable              level -> offset in the schedule topic's queue
    config/timerProgress.json      timerProgress            group -> word, of the timer topic's queue
    config/shmq.json               topics: name -> kind, flush, born;  deleted: name -> log position of the deletion

The last entry of each file is `"shmqCrc32"`, the CRC-32 of all bytes before it: one wrong digit in an offset is valid
JSON and would skip messages in silence. RocketMQ reads the entry as a field that it does not know, and writes the file
without it; a file without one is believed if it can be read.

Rules: (1) a table is replaced atomically and the previous one kept as `.bak`; nothing is written when nothing changed;
(2) an unreadable table is read from its `.bak`; when that is unreadable too the broker refuses to start, because
beginning with empty tables would mean consuming everything again; so it does when a table is missing of which the
durable mark says that it was written;
(3) fields we do not know are kept as they were read.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shmq.delay_levels import SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.errors import CorruptionError, StoreError
from shmq.store.atomic import write_atomically
from shmq.store.fastjson import dumps, dumps_rows, loads
from shmq.store.layout import StoreLayout
from shmq.timing import TIMER_GROUPS, TIMER_TOPIC

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAYS = "delayOffset.json"
TIMERS = "timerProgress.json"
OWN = "shmq.json"

_TABLE_OF = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    OFFSETS: "offsetTable",
    DELAYS: "offsetTable",
    TIMERS: "timerProgress",
    OWN: "topics",
}

_SEAL_KEY = "shmqCrc32"
_SEAL = re.compile(rb',\n\t"shmqCrc32":"([0-9a-f]{8})"\n\}\s*\Z')

_DELAY_KEY = (SCHEDULE_TOPIC, SCHEDULE_GROUP)
_TIMER_KEYS = tuple((TIMER_TOPIC, group) for group in TIMER_GROUPS)
OWN_GROUPS = frozenset((SCHEDULE_GROUP, *TIMER_GROUPS))
"""Groups that are progress of the broker's own: in no list of groups, and in files of their own."""
FLUSH_MOST = 2
KIND_NAMES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")

Log = Callable[..., None]
OffsetTable = dict[tuple[str, str], dict[int, int]]


@dataclass
class TopicRecord:
    """One topic as the files describe it; `raw` keeps RocketMQ's fields that we do not use."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = 6
    flags: int = 0
    kind: int = 0
    flush: int = 0  # 0 as the broker, 1 asynchronous, 2 synchronous
    born: int = 0
    raw: dict[str, Any] = field(default_factory=dict)

    def to_object(self) -> dict[str, Any]:
        """Return RocketMQ's TopicConfig."""
        return {
            "order": False,
            "topicFilterType": "SINGLE_TAG",
            **self.raw,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicName": self.name,
            "topicSysFlag": self.flags,
            "writeQueueNums": self.write_queues,
        }


@dataclass
class Tables:
    """Everything the config directory says."""

    topics: dict[str, TopicRecord] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    offsets: OffsetTable = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)


class ConfigFiles:
    """Reads and writes the config directory; one process writes it.

    Args:
        log: told about every table that had to be read from its backup.
    """

    def __init__(self, layout: StoreLayout, *, log: Log) -> None:
        self._layout = layout
        self._log = log
        self._raw: dict[str, dict[str, Any]] = {}  # last known content of each file
        self.written = 0  # the files that there are, as the durable mark says it: one bit each, in the order of above
        self.restored = 0  # tables that had to be read from their backup

    def load(self) -> Tables:
        """Read all tables.

        Raises:
            CorruptionError: a table and its backup are both unreadable.
        """
        for number, name in enumerate(_TABLE_OF):
            found = self._read(name)
            self._raw[name] = found or {}
            self.written |= (found is not None) << number
        own = self._raw[OWN]
        return Tables(
            topics=_topics(self._raw[TOPICS].get(_TABLE_OF[TOPICS], {}), own.get("topics", {})),
            groups={
                str(name): dict(raw)
                for name, raw in self._raw[GROUPS].get(_TABLE_OF[GROUPS], {}).items()
                if isinstance(raw, dict)
            },
            offsets=_offsets(self._raw[OFFSETS].get(_TABLE_OF[OFFSETS], {}))
            | _delays(self._raw[DELAYS].get(_TABLE_OF[DELAYS], {}))
            | _timers(self._raw[TIMERS].get(_TABLE_OF[TIMERS], {})),
            deleted={str(name): int(at) for name, at in own.get("deleted", {}).items() if isinstance(at, int)},
        )

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
        (self._layout.config / name).unlink(missing_ok=True)

    def save_topics(self, topics: dict[str, TopicRecord], deleted: dict[str, int]) -> bool:
        """Write topics.json and shmq.json where they changed; True when one did.

        Raises:
            StoreError: the disk refused.
        """
        table = {name: record.to_object() for name, record in sorted(topics.items())}
        own = {
            name: {"kind": record.kind, "born": record.born} | ({"flush": record.flush} if record.flush else {})
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
        words = {group: offsets.get((topic, group), {}).get(0, 0) for topic, group in _TIMER_KEYS}
        changed = any(words.values()) and self._write(TIMERS, {_TABLE_OF[TIMERS]: words}, versioned=False)
        levels = offsets.get(_DELAY_KEY)
        table = {str(queue_id + 1): offset for queue_id, offset in sorted((levels or {}).items())}
        if levels is not None and self._write(DELAYS, {_TABLE_OF[DELAYS]: table}, versioned=False):
            changed = True
        return changed

    def save_offsets(self, offsets: OffsetTable) -> bool:
        """Write consumerOffset.json if it changed; True when it did. The progress of delayed messages is not in it.

        Raises:
            StoreError: the disk refused.
        """
        table = {
            f"{topic}@{group}": dict(sorted(queues.items()))
            for (topic, group), queues in sorted(offsets.items())
            if group not in OWN_GROUPS
        }
        return self._write(OFFSETS, {_TABLE_OF[OFFSETS]: table}, versioned=False)

    def _write(self, name: str, tables: dict[str, Any], *, versioned: bool) -> bool:
        known = self._raw.get(name, {})
        path = self._layout.config / name
        if all(known.get(key) == value for key, value in tables.items()) and path.exists():
            return False
        content = {**known, **tables}
        if versioned:
            version = known.get("dataVersion")
            counter = version.get("counter", 0) if isinstance(version, dict) else 0
            content["dataVersion"] = {
                **(version if isinstance(version, dict) else {}),
                "counter": (counter if isinstance(counter, int) else 0) + 1,
                "timestamp": int(time.time() * 1000),
            }
        access = self._layout.access
        text = dumps(content).encode() if versioned else dumps_rows(content)
        try:
            write_atomically(path, _sealed(text), mode=access.read_mode, gid=access.gid, backup=True)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}", hint="free disk space") from error
        self._raw[name] = content
        self.written |= 1 << list(_TABLE_OF).index(name)
        return True

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
                    self.restored += 1
                    self._log("config.from_backup", file=str(backup), reason=reason or f"there is no {name}")
                return found
        if reason:
            raise CorruptionError(
                path,
                0,
                f"unreadable, and so is its backup: {reason}",
                hint=f"restore {path}, or remove both to start anew",
            )
        return None


def _sealed(text: bytes) -> bytes:
    """Add the entry with the checksum to an object that is not empty."""
    body = text.rstrip().removesuffix(b"}").rstrip()
    return body + b',\n\t"%b":"%08x"\n}' % (_SEAL_KEY.encode(), zlib.crc32(body))


def _parsed(path: Path, table: str) -> dict[str, Any]:
    content = path.read_bytes()
    seal = _SEAL.search(content)
    if seal is not None and zlib.crc32(content[: seal.start()]) != int(seal[1], 16):
        raise ValueError(f"the checksum of {path.name} is wrong (whoever edits it removes its last entry, {_SEAL_KEY})")
    data = loads(content.decode())
    if isinstance(data, dict):
        data.pop(_SEAL_KEY, None)
    if not isinstance(data, dict) or not isinstance(data.get(table, {}), dict):
        raise ValueError(f"{path.name} holds no {table}")
    return data


def _topics(table: dict[str, Any], own: Any) -> dict[str, TopicRecord]:
    found: dict[str, TopicRecord] = {}
    for name, raw in table.items():
        if not isinstance(raw, dict):
            continue
        mine = own.get(name, {}) if isinstance(own, dict) and isinstance(own.get(name, {}), dict) else {}
        found[name] = TopicRecord(
            name=name,
            read_queues=_number(raw.get("readQueueNums"), 8),
            write_queues=_number(raw.get("writeQueueNums"), 8),
            perm=_number(raw.get("perm"), 6),
            flags=_number(raw.get("topicSysFlag"), 0),
            kind=_number(mine.get("kind"), _kind_of(raw)),
            flush=_number(mine.get("flush"), 0),
            born=_number(mine.get("born"), 0),
            raw=raw,
        )
    return found


def _kind_of(raw: dict[str, Any]) -> int:
    """RocketMQ 5 says the kind in a topic attribute."""
    attributes = raw.get("attributes")
    named = attributes.get("message.type") if isinstance(attributes, dict) else None
    return KIND_NAMES.index(named) if named in KIND_NAMES else 0


def _number(value: Any, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def _offsets(table: dict[str, Any]) -> OffsetTable:
    found: OffsetTable = {}
    for key, queues in table.items():
        topic, separator, group = str(key).partition("@")
        if separator and isinstance(queues, dict):
            found[topic, group] = {
                int(queue): offset
                for queue, offset in queues.items()
                if str(queue).isdigit() and type(offset) is int and offset >= 0
            }
    return found


def _delays(table: dict[str, Any]) -> OffsetTable:
    levels = {
        int(level) - 1: offset
        for level, offset in table.items()
        if str(level).isdigit() and int(level) > 0 and type(offset) is int and offset >= 0
    }
    return {_DELAY_KEY: levels} if levels else {}


def _timers(raw: Any) -> OffsetTable:
    """Read timerProgress.json; a word that cannot be is left out, so that messages come twice rather than never."""
    if not isinstance(raw, dict):
        return {}
    words = {group: raw.get(group) for group in TIMER_GROUPS}
    if not all(type(word) is int and 0 <= word < 1 << 63 for word in words.values()):
        return {}
    return {(TIMER_TOPIC, group): {0: int(word)} for group, word in words.items() if word is not None}
