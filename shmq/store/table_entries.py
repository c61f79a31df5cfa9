"""Reads the entries of the tables in the config directory.

An entry that can say nothing (a negative offset, a topic that is no object) is left out, and named: the reader of the
table reports it, because what it stood for is not there any more. A file with a seal has none, unless we wrote it so.

Rule: what is left out makes messages come again, and never skips one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shmq.delay_levels import SCHEDULE_COPIES_GROUP, SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.message import PERM_READ_WRITE
from shmq.timing import TIMER_COPIES_GROUP, TIMER_GROUPS, TIMER_TOPIC

KIND_NAMES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
DELAY_KEY = (SCHEDULE_TOPIC, SCHEDULE_GROUP)
MARK_KEYS = (SCHEDULE_TOPIC, SCHEDULE_COPIES_GROUP), (TIMER_TOPIC, TIMER_COPIES_GROUP)
COPIES_FROM = "copiesFrom"  # beside RocketMQ's table of levels
TIMER_KEYS = tuple((TIMER_TOPIC, group) for group in TIMER_GROUPS)

OffsetTable = dict[tuple[str, str], dict[int, int]]
LossTable = dict[tuple[str, str], dict[int, tuple[int, int]]]
"""topic and group -> queue id -> messages that cleaning took from the group, seconds since the epoch of the last."""


@dataclass
class TopicRecord:
    """One topic as the files describe it; `raw` keeps RocketMQ's fields that we do not use."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = PERM_READ_WRITE
    flags: int = 0
    kind: int = 0
    flush: int = 0  # 0 as the broker, 1 asynchronous, 2 synchronous
    born: int = 0
    ended: int = -1  # log position where a former life of the name was over; -1: none is known
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
    losses: LossTable = field(default_factory=dict)


def timer_fault(words: dict[str, Any]) -> str:
    """Say why these cannot be the words of timerProgress.json; "" when they can, or there are none yet."""
    for group in TIMER_GROUPS if words else ():
        if group not in words:
            return f"lacks the word {group}"
        if not _is_word(words[group]):
            return f"says {words[group]!r} for {group}"
    return ""


class TableEntries:
    """Reads tables, and keeps in `ignored` what of them it had to leave out."""

    def __init__(self) -> None:
        self.ignored: list[str] = []

    def topics(self, table: dict[str, Any], own: dict[str, Any]) -> dict[str, TopicRecord]:
        """Read topics.json, and what shmq.json adds."""
        found: dict[str, TopicRecord] = {}
        for name, raw in table.items():
            if not isinstance(raw, dict):
                self._ignore("topics.json", name, raw)
                continue
            mine = own.get(name, {})
            if not isinstance(mine, dict):
                self._ignore("shmq.json", name, mine)
                mine = {}
            found[name] = TopicRecord(
                name=name,
                read_queues=self._number("topics.json", name, raw.get("readQueueNums"), 8),
                write_queues=self._number("topics.json", name, raw.get("writeQueueNums"), 8),
                perm=self._number("topics.json", name, raw.get("perm"), PERM_READ_WRITE),
                flags=self._number("topics.json", name, raw.get("topicSysFlag"), 0),
                kind=self._number("shmq.json", name, mine.get("kind"), _kind_of(raw)),
                flush=self._number("shmq.json", name, mine.get("flush"), 0),
                born=self._number("shmq.json", name, mine.get("born"), 0),
                ended=self._number("shmq.json", name, mine.get("ended"), -1),
                raw=raw,
            )
        return found

    def groups(self, table: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Read subscriptionGroup.json."""
        for name, raw in table.items():
            if not isinstance(raw, dict):
                self._ignore("subscriptionGroup.json", name, raw)
        return {str(name): dict(raw) for name, raw in table.items() if isinstance(raw, dict)}

    def deleted(self, table: Any) -> dict[str, int]:
        """Read the tombstones of shmq.json."""
        pairs = self._pairs("shmq.json", "deleted", table)
        return {str(name): int(at) for name, at in pairs if self._is_word("shmq.json", name, at)}

    def offsets(self, table: dict[str, Any]) -> OffsetTable:
        """Read consumerOffset.json."""
        name, found = "consumerOffset.json", OffsetTable()
        for key, queues in table.items():
            topic, separator, group = str(key).partition("@")
            if not separator or not isinstance(queues, dict):
                self._ignore(name, key, queues)
                continue
            found[topic, group] = {
                int(queue): offset
                for queue, offset in queues.items()
                if self._is_number(name, key, queue) and self._is_word(name, f"{key} {queue}", offset)
            }
        return found

    def delays(self, table: dict[str, Any], mark: Any = None) -> OffsetTable:
        """Read delayOffset.json, and the mark of copies in it, which RocketMQ does not write."""
        name = "delayOffset.json"
        levels = {
            int(level) - 1: offset
            for level, offset in table.items()
            if self._is_number(name, "level", level) and int(level) and self._is_word(name, f"level {level}", offset)
        }
        found: OffsetTable = {DELAY_KEY: levels} if levels else {}
        if levels and mark is not None and self._is_word(name, COPIES_FROM, mark):
            found[MARK_KEYS[0]] = {0: mark}
        return found

    def timers(self, words: dict[str, Any]) -> OffsetTable:
        """Read timerProgress.json, which has no fault."""
        found = {(TIMER_TOPIC, group): {0: int(words[group])} for group in TIMER_GROUPS if words}
        mark = words.get(TIMER_COPIES_GROUP)  # older files have none
        if mark is not None and self._is_word("timerProgress.json", TIMER_COPIES_GROUP, mark):
            found[MARK_KEYS[1]] = {0: mark}
        return found

    def losses(self, table: dict[str, Any]) -> LossTable:
        """Read lostMessages.json."""
        name, found = "lostMessages.json", LossTable()
        for key, queues in table.items():
            topic, _, group = str(key).partition("@")
            for queue, numbers in self._pairs(name, key, queues):
                is_pair = isinstance(numbers, list) and len(numbers) == 2 and all(map(_is_word, numbers))
                if is_pair and self._is_number(name, key, queue):
                    found.setdefault((topic, group), {})[int(queue)] = numbers[0], numbers[1]
                elif not is_pair:
                    self._ignore(name, f"{key} {queue}", numbers)
        return found

    def _pairs(self, file: str, key: Any, table: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(table, dict):
            yield from table.items()
        else:
            self._ignore(file, key, table)

    def _is_number(self, file: str, key: Any, text: Any) -> bool:
        is_number = str(text).isdigit()
        if not is_number:
            self._ignore(file, key, text)
        return is_number

    def _is_word(self, file: str, key: Any, value: Any) -> bool:
        if not _is_word(value):
            self._ignore(file, key, value)
        return _is_word(value)

    def _number(self, file: str, key: str, value: Any, default: int) -> int:
        if value is not None and not self._is_word(file, key, value):
            return default
        return default if value is None else int(value)

    def _ignore(self, file: str, key: Any, value: Any) -> None:
        self.ignored.append(f"{file}: {key} is {str(value)[:60]!r}")


def _is_word(value: Any) -> bool:
    return type(value) is int and 0 <= value < (1 << 63) - 1  # the core keeps an offset plus 1, signed


def _kind_of(raw: dict[str, Any]) -> int:
    """RocketMQ 5 says the kind in a topic attribute."""
    attributes = raw.get("attributes")
    named = attributes.get("message.type") if isinstance(attributes, dict) else None
    return KIND_NAMES.index(named) if named in KIND_NAMES else 0
