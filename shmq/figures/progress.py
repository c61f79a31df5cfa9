"""Topics, groups and clients: the counts in shared memory, beside the members of groups as the broker last said.

`shmq.progress` defines lag and in flight. `ready` counts those of the waiting messages that the group's subscription
selects, by the tag hashes in the units. An expression (SQL92) is not evaluated: all that waits counts as ready then,
and `ready_exact` is false.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from shmq.errors import ShmqError
from shmq.figures.mapped import GroupOffset, QueueOf, group_offsets
from shmq.figures.model import kind_name, topic_role
from shmq.figures.snapshot import Client, Departure, Group, Member, QueueProgress, Topic
from shmq.message import RETRY_PREFIX, is_system_group
from shmq.progress import Backlog
from shmq.protocol.roster import Roster, RosterMember
from shmq.shm.core import UNIT_BYTES, Store, tag_hash
from shmq.shm.unit import tag_codes_of, units_of

_TAG = "TAG"
_EVERYTHING = "*"
_UNITS_A_READ = 4096
SCAN_MAX = 200_000  # units looked at for the ready messages of all groups in one snapshot


def collect_topics(store: Store) -> tuple[tuple[Topic, ...], dict[int, QueueOf]]:
    """Return every topic by name, and where each queue index belongs."""
    topics, queues = [], {}
    for entry in store.topics():
        name, messages, stored, size = entry["name"], 0, 0, 0
        for index in entry["queues"]:
            row = store.queue(index)
            messages += max(0, row.offset_max - row.offset_min)
            stored, size = stored + row.offset_max, size + row.bytes
            queues[index] = QueueOf(name, row.queue_id, index, row.offset_min, row.offset_max)
        role = topic_role(name, entry["perm"], kind_name(entry["kind"]))
        topics.append(Topic(name, role, entry["perm"], len(entry["queues"]), messages, stored, size))
    return tuple(sorted(topics, key=lambda topic: topic.name)), queues


def collect_groups(
    store: Store, queues: Mapping[int, QueueOf], clients: Iterable[Client], roster: Roster | None, *, oldest: bool
) -> tuple[Group, ...]:
    """Return every group by name.

    Args:
        oldest: whether to look up how old the oldest waiting messages are, which reads records.
    """
    return _GroupCollector(store, queues, clients, roster, oldest=oldest).groups()


class _Wanted:
    """The subscriptions of a group's members, all together: topic -> tag hashes, None for everything."""

    def __init__(self, members: Sequence[RosterMember]) -> None:
        self.is_known = bool(members)
        self.is_exact = True
        self._topics: dict[str, frozenset[int] | None] = {}
        for member in members:
            for topic, (language, terms) in member.subscription.items():
                self.is_exact &= language == _TAG
                before = self._topics.get(topic, frozenset())
                everything = language != _TAG or not terms or _EVERYTHING in terms or before is None
                self._topics[topic] = None if everything else (before or frozenset()) | set(map(tag_hash, terms))

    def hashes(self, topic: str) -> frozenset[int] | None:
        """A group takes its own redeliveries whatever it subscribes to."""
        return None if topic.startswith(RETRY_PREFIX) else self._topics.get(topic, frozenset())


class _GroupCollector:
    """Makes the groups of one snapshot; `left` bounds how many units are looked at for all of them."""

    def __init__(
        self,
        store: Store,
        queues: Mapping[int, QueueOf],
        clients: Iterable[Client],
        roster: Roster | None,
        *,
        oldest: bool,
    ) -> None:
        self._store = store
        self._queues = queues
        self._oldest = oldest
        self._roster = roster
        clients = list(clients)
        self._pids = {client.slot: client.pid for client in clients if client.slot is not None}
        self._alive = {client.client_id for client in clients if client.alive}
        self._left = SCAN_MAX
        self._now_ms = time.time() * 1000

    def groups(self) -> tuple[Group, ...]:
        names = dict(self._store.groups())
        popped = self._roster.in_flight if self._roster else {}
        entries: dict[str, list[GroupOffset]] = {name: [] for name in names.values()}
        for entry in group_offsets(self._store, names, self._queues.get, lambda: popped):
            entries[entry.group].append(entry)
        return tuple(sorted((self._group(*each) for each in entries.items()), key=lambda group: group.name))

    def _group(self, name: str, entries: Sequence[GroupOffset]) -> Group:
        said = self._roster.groups.get(name) if self._roster else None
        gone = [entry for entry in self._roster.departed if entry.group == name] if self._roster else []
        # Without members, the subscriptions of the last ones select what waits.
        wanted = _Wanted(said.members if said else [entry.member for entry in gone])
        rows, exact, born = [], wanted.is_exact, []
        for entry in entries:
            row, is_exact = self._progress(entry, wanted)
            exact &= is_exact
            rows.append(row)
            if row.lag > row.in_flight and self._oldest:
                born.append(self._stored_ms(entry.queue, max(entry.committed, row.offset_min)))
        times = [time_ms for time_ms in born if time_ms is not None]
        now_ms = time.monotonic_ns() // 1_000_000
        since = said.differs_since_ms if said else None
        ready = [row.ready for row in rows if row.ready is not None]
        return Group(
            name=name,
            model=said.model.lower() if said else "",
            lag=sum(row.lag for row in rows),
            ready=sum(ready) if len(ready) == len(rows) else None,
            ready_exact=exact,
            in_flight=sum(row.in_flight for row in rows),
            oldest=max(0.0, self._now_ms - min(times)) / 1000 if times else None,
            members=tuple(self._member(member) for member in (said.members if said else ())),
            queues=tuple(sorted(rows, key=lambda row: (row.topic, row.queue_id))),
            differs=None if since is None else max(0, now_ms - since) / 1000,
            conflicts=said.conflicts if said else 0,
            departed=tuple(
                Departure(
                    entry.member.client_id,
                    entry.member.pid or None,
                    entry.member.transport,
                    max(0, now_ms - entry.at_ms) / 1000,
                )
                for entry in gone
            ),
        )

    def _progress(self, entry: GroupOffset, wanted: _Wanted) -> tuple[QueueProgress, bool]:
        _, _, _, queue, committed, owner, updated_ms, in_flight, cleaned, _ = entry
        topic, queue_id, _, offset_min, offset_max = queue
        backlog = Backlog(committed, offset_min, offset_max, in_flight)
        ready, exact = self._ready(queue, backlog, wanted.hashes(topic)) if wanted.is_known else (None, True)
        idle = max(0.0, self._now_ms - updated_ms) / 1000 if updated_ms else None
        # By place: names would take a tenth of a look at ten thousand of them.
        row = QueueProgress(
            topic,
            queue_id,
            offset_min,
            offset_max,
            None if committed < 0 else committed,
            backlog.lag,
            ready,
            self._pids.get(owner),
            idle,
            in_flight,
        )
        if not cleaned and not 0 <= committed < offset_min:
            return row, exact  # nearly always, and there are many
        return self._with_losses(row, entry), exact

    def _with_losses(self, row: QueueProgress, entry: GroupOffset) -> QueueProgress:
        """Add the losses counted at the deletion or, where that was before a restart, those that the offsets show."""
        lost = entry.cleaned
        if entry.committed >= 0 and not is_system_group(entry.group):
            lost = Backlog(entry.committed, row.offset_min, row.offset_max, cleaned=lost).lost
        age = max(0.0, self._now_ms / 1000 - entry.cleaned_at) if entry.cleaned else None
        return row._replace(lost=lost, lost_age=age)

    def _ready(self, queue: QueueOf, backlog: Backlog, hashes: frozenset[int] | None) -> tuple[int, bool]:
        """The number of waiting messages that match, and whether all of them were looked at."""
        if hashes is None or not backlog.waiting:
            return backlog.waiting, True
        begin, end, ready = backlog.next_offset, backlog.end, 0
        while hashes and begin < end and self._left > 0:
            units = self._store.units_stored(queue.queue_index, begin, min(_UNITS_A_READ, end - begin, self._left))
            count = len(units) // UNIT_BYTES
            if not count:
                break
            ready += sum(code in hashes for code in tag_codes_of(units))
            begin, self._left = begin + count, self._left - count
        if not hashes:
            return 0, True  # the topic is not read any more
        return ready + end - begin, begin == end

    def _stored_ms(self, queue: QueueOf, offset: int) -> int | None:
        try:
            for position, size, _ in units_of(self._store.units_stored(queue.queue_index, offset, 1)):
                return self._store.message_at(position, size).store_ms
        except ShmqError:
            pass
        return None

    def _member(self, member: RosterMember) -> Member:
        return Member(
            client_id=member.client_id,
            transport=member.transport,
            language=member.language.lower(),
            pid=member.pid or None,
            alive=member.transport == "tcp" or member.client_id in self._alive,
            subscription={topic: shown(*interest) for topic, interest in sorted(member.subscription.items())},
        )


def shown(language: str, terms: Sequence[str]) -> str:
    """Return a subscription as its owner wrote it: `fruit || veg`, `*`, `SQL92 a > 1`."""
    text = " || ".join(terms)
    return text if language == _TAG else f"{language} {text}"


def newest_ms(store: Store, topic: str) -> int | None:
    """Return when the newest message of a topic was stored; None when there is none. Raises ShmqError."""
    index = store.topic_find(topic)
    times = []
    for queue in store.topic(index)["queues"] if index >= 0 else ():
        row = store.queue(queue)
        if row.offset_max > row.offset_min:
            for position, size, _ in units_of(store.units_stored(queue, row.offset_max - 1, 1)):
                times.append(store.message_at(position, size).store_ms)
    return max(times, default=None)
