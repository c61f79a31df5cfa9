"""What a slave copies beside the log: topics, groups and offsets, as its master's broker says them.

    21   every topic             made or changed here; deleted where it is not named any more, and made again where it
                                 was made again there, by the places in the log where each begins
    201  every group             made, with its settings; deleted where it was named before
    43   offsets of groups       raised here; set back where they are what the master said before
    15   to the master           offsets that were committed here while it was gone, once it is met again
    45   progress of delays      raised, as offsets of the group that reads the schedule topic
    a mark in the log            topics and groups that were changed since the last answer, see `table_marks`

An answer says how things are now, not at which place of the log they became so: an offset may be ahead of what is
here. Of a consumer that pops it tells of checkpoints in the log, and progress of delayed and timed messages tells of
copies: a slave that believed it without them would lose a message later. A master of ours says where its log
ended then, and what it said is believed once that is here. Of a stock one it is believed at once, and a promotion sets
an offset back to the end of its queue (`shmq.store.tables.lower_offsets`).

An offset that was committed on this host is ahead of the master's, and stays until that has reached it. So does every
offset at the first answer of a connection: a master that comes again after its host crashed has lost the last ones.

A topic that a master of ours does not name is deleted once this log is as long as the master's was before it answered,
unless a record of it lies behind that: then it was made again meanwhile. Topics of the broker's own, and of groups, are
left alone: this host makes them too. A group with a member here stays. What a stock master does not name stays.

Invariants: (1) nothing that a member of this host uses is deleted on account of an answer; (2) whatever a master
answers, the outcome is a change of these tables, or a ShmqError or OSError that says why not; (3) when `end` returns
nothing is changed any more, however late an answer comes: this host may lead then, and its topics be its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.topics import delete_retries
from shmq.daemon.ha.slave.kept_commits import KeptCommits
from shmq.daemon.ha.slave.known_copies import MARKS, note_own_copies, note_told_copies
from shmq.daemon.ha.slave.known_pops import note_known_pops
from shmq.daemon.ha.slave.master_broker import ANSWER_SECONDS, Committed, MasterBroker, Progress, Told
from shmq.delay_levels import SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.errors import InvalidName, ProtocolError, SegmentFull, UsageError
from shmq.message import (
    DEAD_LETTER_PREFIX,
    PERM_READ_WRITE,
    QUEUES_MAX,
    RETRY_PREFIX,
    check_group,
    check_topic,
    is_system_topic,
)
from shmq.protocol.body import SubscriptionGroupConfig, TopicConfig, parse_flush, parse_kind
from shmq.protocol.codes import TopicFlush, TopicKind
from shmq.protocol.system_topics.table_marks import TablesMark
from shmq.timing import TIMER_GROUP, TIMER_TOPIC

_GROUP_SEPARATOR = "@"
_OF_GROUPS = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
_UNKNOWN = 1 << 63  # a log position that no log has


def _is_of_users(topic_name: str) -> bool:
    return not is_system_topic(topic_name) and not topic_name.startswith(_OF_GROUPS)


def _key(topic_name: str, group: str) -> str:
    return f"{topic_name}{_GROUP_SEPARATOR}{group}"


class MasterTables:
    """The tables of one master, and how they get into ours.

    Args:
        master: host and port of its broker.
        tables: ours.
        kept: what was committed here under masters before this one.
    """

    def __init__(self, master: tuple[str, int], tables: StoreTables, kept: KeptCommits | None = None) -> None:
        self._master = MasterBroker(master, lambda: tables.facts().log_end)
        self._tables = tables
        self._groups = GroupSettings(tables)
        self._kept = kept or KeptCommits(tables)
        self._held: Progress | None = None
        self._turn = threading.Lock()
        self._is_over = False
        self._known_end = -1  # of the log: what is below it the offsets here tell of
        self._absent: dict[str, int] = {}  # topics that it does not name, by where its log ended before it said so
        self._copied_end = 0  # of its log: the tables here tell of every change that it had made then
        self._told_groups: set[str] = set()
        self._followed: dict[int, int] = {}  # by slot, the offsets that are here as the master said
        self._version = 0  # of its tables, as they were copied
        self._version_now: int | None = None  # as it said last; None: it does not say
        self._born: dict[str, int] | None = None  # by topic, where it begins in the log; None: the master does not say

    @property
    def tells_lives(self) -> bool:
        """Whether the master says where its topics begin."""
        return self._born is not None

    @property
    def are_old(self) -> bool:
        """Whether the master has said since that its topics or groups are others."""
        return self._version_now is not None and self._version_now != self._version

    def end(self) -> None:
        """Change nothing any more from when this returns; any thread may call."""
        with self._turn:
            self._is_over = True

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change this host on account of the master; `end` waits for it.

        Raises:
            UsageError: the master is not followed any more.
        """
        with self._turn:
            if self._is_over:
                raise UsageError(f"this host does not follow {self._master.name} any more")
            yield

    def copy(self, seconds: float = ANSWER_SECONDS) -> None:
        """Ask for everything, and take it over; raises what `ask` and `take` raise."""
        self.take(self.ask(seconds))

    def ask(self, seconds: float = ANSWER_SECONDS) -> Told:
        """Ask for everything, and change nothing.

        Raises:
            OSError: the master cannot be reached.
            ShmqError: it refuses, or says what cannot be.
        """
        return self._master.ask(seconds)

    def meet(self, told: Told) -> None:
        """Take over the first answer of a connection, and say what was committed here before it.

        Raises:
            OSError: the master cannot be reached.
            ShmqError: as `take`.
        """
        self._kept.collect()
        for known in (self._followed, self._absent, self._told_groups):
            known.clear()
        with self.changing():
            note_own_copies(self._tables, told.progress.asked_end)
        self.take(told)
        if self._kept.waiting:
            self._tell_kept()

    def lost(self) -> None:
        """Note that the master is gone: its groups may commit here."""
        self._kept.lost()

    def _tell_kept(self) -> None:
        def commits() -> Iterator[Committed]:
            for place, offset in list(self._kept.waiting.items()):
                yield Committed(*place, offset)
                self._kept.forget(place)

        self._master.tell(commits())

    def take(self, told: Told) -> None:
        """Take over what the master of this log said.

        Raises:
            ShmqError: it cannot be, or there is no room for it; or the master is not followed any more.
        """
        with self.changing():
            self._version = told.topics.dataVersion.counter
            born = told.topics.bornPositions
            self._born = born if isinstance(born, dict) else None
            self._copied_end = told.topics_end or 0
            for topic in told.topics.topicConfigTable.values():
                self._put_topic(topic)
            self._note_absent(told)
            self._delete_groups({group.groupName for group in told.groups})
            self._put_groups(told.groups)
            self._hold(told.progress)

    def change(self, mark: TablesMark, log_position: int) -> None:
        """Take over what the master changed before it stored a mark, unless a copy of its tables has told of it.

        Raises:
            ShmqError: it cannot be, or there is no room for it; or the master is not followed any more.
        """
        with self.changing():
            if log_position < self._copied_end:
                return
            for topic in mark.topics:
                self._end_former_life(topic.topicName, mark.born.get(topic.topicName, 0))
                self._put_topic(topic)
                self._absent.pop(topic.topicName, None)
            self._put_groups(mark.groups)
            self._told_groups |= {group.groupName for group in mark.groups}
            for name in filter(_is_of_users, mark.deleted_topics):
                self._delete_absent(name, log_position)
            for name in mark.deleted_groups:
                self._delete_group(name)

    def _end_former_life(self, name: str, born: int) -> None:
        """Empty a topic that was deleted and made again at the master; `born` is where its log ended then."""
        if self._born is not None:
            self._born[name] = born
        topic = self._tables.topic(name)
        if topic is not None and any(0 <= self._first_position(queue) < born for queue in topic.queues):
            self._make_again(name)

    def _put_groups(self, groups: Iterable[SubscriptionGroupConfig]) -> None:
        for group in groups:
            check_group(group.groupName)
            self._groups.check(group)
            self._groups.put(group)

    def copy_offsets(self, seconds: float = ANSWER_SECONDS) -> None:
        """Ask for what changes with every message that is read, and take it over; raises what `ask`, `take` raise."""
        held = self._master.ask_progress(seconds)
        with self.changing():
            self._hold(held)

    def _hold(self, held: Progress) -> None:
        """Believe it now or later; what was said before comes first, or a slave that is always behind got none."""
        log_end = self._tables.facts().log_end
        self._version_now = held.version
        self._settle(log_end)
        if self._held is None or held.stamp < self._held.stamp:  # the master's log may have lost its end
            self._held = held
            self._settle(log_end)

    def settle(self, log_end: int) -> list[str]:
        """Believe what the master has said, once its log of then is here; return the topics that were deleted."""
        if self._held is not None and log_end >= self._held.stamp:
            with self.changing():
                self._settle(log_end)
        due = [name for name, end in self._absent.items() if end <= log_end]
        if not due:
            return []
        with self.changing():
            return [name for name in due if self._delete_absent(name, self._absent.pop(name))]

    def _note_absent(self, told: Told) -> None:
        """Note which topics here the master does not name; of one that is always behind, since when it does not."""
        if self._born is None or told.topics_end is None:
            return
        named, end = told.topics.topicConfigTable, told.topics_end
        here = (topic.name for topic in self._tables.topics())
        users = filter(_is_of_users, here)
        self._absent = {name: self._absent.get(name, end) for name in users if name not in named}

    def _delete_absent(self, name: str, end: int) -> bool:
        topic = self._tables.topic(name)
        if topic is None or any(self._last_position(queue) >= end for queue in topic.queues):
            return False
        delete_retries(self._tables, lambda _, of: of == name)
        self._tables.topic_delete(name)
        return True

    def _last_position(self, queue: int) -> int:
        """Where the last record of a queue lies, -1 where it has none."""
        low, high = self._tables.queue_bounds(queue)
        if low >= high:
            return -1
        units = self._tables.units(queue, high - 1, 1)
        return units[0].log_position if units else _UNKNOWN

    def _first_position(self, queue: int) -> int:
        """Where the first record of a queue lies, -1 where it has none."""
        low, high = self._tables.queue_bounds(queue)
        units = self._tables.units(queue, low, 1) if low < high else []
        return units[0].log_position if units else -1

    def _delete_groups(self, named: set[str]) -> None:
        for name in self._told_groups - named:
            self._delete_group(name)
        self._told_groups = named

    def _delete_group(self, name: str) -> None:
        number = self._tables.group(name)
        if number is None or any(map(self._tables.offset_owned, self._tables.group_offsets(number).values())):
            return
        delete_retries(self._tables, lambda group, _: group == name)
        self._tables.group_delete(name)

    def _settle(self, log_end: int) -> None:
        held = self._held
        if held is not None and log_end >= held.stamp:
            self._held = None
            self._put_offsets(held.offsets)
            self._put_delays(held.delays)
            self._note_copies(held)
            self._known_end = max(self._known_end, held.stamp or held.asked_end)

    @property
    def known_end(self) -> int:
        """Up to where in the log the progress of groups is known here; -1: none is known yet."""
        return self._known_end

    def note_known_pops(self) -> None:
        """Note for the broker that leads with these tables behind which pops the progress is not known."""
        if self._known_end >= 0:
            with contextlib.suppress(SegmentFull):  # else some messages are read twice
                note_known_pops(self._tables, self._known_end)

    def make_topic(self, name: str, queues: int) -> None:
        """Make what a record is of and the master has no more: it was deleted there, and its records are still to come.

        Raises:
            ShmqError: no name of a topic, too many queues, or no room.
        """
        with self.changing():
            topic = self._tables.topic(name)
            most = max(queues, topic.read_queues if topic else 0)
            self._put_topic(TopicConfig(name, most, most, topic.perm if topic else PERM_READ_WRITE))

    def is_of_another_life(self, name: str, log_position: int, firsts: Iterable[int]) -> bool:
        """Whether a topic here was deleted on the master before a record that is the first of its queue.

        Args:
            log_position: of that record.
            firsts: log positions of the first messages of the topic's queues here.
        """
        born = self._born.get(name) if self._born is not None else None
        if born is None or born > log_position:
            return False  # that life is over, too
        return any(first < born for first in firsts)

    def make_again(self, name: str) -> None:
        """Delete a topic, and make it with the same settings and empty queues.

        Raises:
            ShmqError: there is no room.
        """
        with self.changing():
            self._make_again(name)

    def _make_again(self, name: str) -> None:
        topic = self._tables.topic(name)
        if topic is None:
            return
        self._tables.topic_delete(name)
        self._tables.topic_put(
            name,
            read_queues=topic.read_queues,
            write_queues=topic.write_queues,
            perm=topic.perm,
            flags=topic.flags,
            kind=topic.kind,
        )
        if topic.flush:
            self._tables.topic_set_flush(name, topic.flush)

    def _put_topic(self, config: TopicConfig) -> None:
        check_topic(config.topicName)
        counts = (config.readQueueNums, config.writeQueueNums)
        if not all(0 <= count <= QUEUES_MAX for count in counts) or not max(counts):
            raise ProtocolError(f"the master says that topic {config.topicName!r} has {counts[0]} queues to read")
        attributes = config.attributes if isinstance(config.attributes, dict) else {}
        text = ",".join(f"+{key.lstrip('+')}={value}" for key, value in attributes.items())
        kind, flush = _kind_of(text), TopicFlush.BROKER
        with contextlib.suppress(UsageError):
            flush = parse_flush(text) or flush
        known = self._tables.topic(config.topicName)
        wanted = (*counts, config.perm, config.topicSysFlag, int(kind))
        if known is None or known[1:6] != wanted:
            self._tables.topic_put(
                config.topicName,
                read_queues=counts[0],
                write_queues=counts[1],
                perm=config.perm,
                flags=config.topicSysFlag,
                kind=int(kind),
            )
        if (known.flush if known else 0) != int(flush):
            self._tables.topic_set_flush(config.topicName, int(flush))

    def _put_offsets(self, table: dict[str, dict[int, int]]) -> None:
        for name, offsets in table.items():
            topic_name, _, group = name.rpartition(_GROUP_SEPARATOR)
            topic = self._tables.topic(topic_name)
            if topic is None:
                continue
            try:
                check_group(group)
            except InvalidName:
                continue
            for queue_id, offset in offsets.items() if group not in MARKS.values() else ():
                if 0 <= queue_id < len(topic.queues):
                    self._follow(group, topic.queues[queue_id], offset)

    def _put_delays(self, table: dict[int, int]) -> None:
        topic = self._tables.topic(SCHEDULE_TOPIC)
        for level, offset in table.items():
            if topic is not None and 0 < level <= len(topic.queues):
                self._raise(SCHEDULE_GROUP, topic.queues[level - 1], offset)

    def _note_copies(self, held: Progress) -> None:
        words = {SCHEDULE_TOPIC: held.delays, TIMER_TOPIC: held.offsets.get(_key(TIMER_TOPIC, TIMER_GROUP))}
        for name, group in MARKS.items():
            if words[name]:
                mark = held.offsets.get(_key(name, group), {}).get(0, 0)
                note_told_copies(self._tables, name, mark, held.asked_end)

    def _follow(self, group: str, queue: int, offset: int) -> None:
        slot = self._tables.offset_put(self._tables.group_put(group), queue)
        here = self._tables.committed(slot)
        if offset > here or (offset < here and self._followed.get(slot) == here):
            self._tables.set_committed(slot, offset)
            here = offset
        if offset == here:
            self._followed[slot] = offset
        self._kept.spoken_of(slot)

    def _raise(self, group: str, queue: int, offset: int) -> None:
        slot = self._tables.offset_put(self._tables.group_put(group), queue)
        if offset > self._tables.committed(slot):
            self._tables.set_committed(slot, offset)


def _kind_of(attributes: str) -> TopicKind:
    """The kind of a topic; RocketMQ has attributes that mean nothing here."""
    try:
        return parse_kind(attributes)
    except UsageError:
        return TopicKind.NORMAL
