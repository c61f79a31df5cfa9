"""One page of `shmq top`: a headline, what is wrong, bars, and the tables that fit.

Everything is text of rich, so the page is the same on a terminal, in a pipe and in a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from shmq.tools.terminal.quantity import age_text, count_text, rate_text, size_text
from shmq.tools.top.rates import GroupRow, Picture, ProcessRow, TopicRow
from shmq.tools.top.table import Column, Row, layout
from shmq.tools.top.trouble import troubles_of

PANES = ("processes", "topics", "groups")
KEYS = "s sort · r reverse · p processes · t topics · g groups · a all · d details · SPACE pause · q quit"
_NOTHING = "–"
_BAR = 20
_GOOD, _BAD = ("running", "sleeping", "disk", ""), "bold red"

SORTS: dict[str, tuple[str, ...]] = {
    "processes": ("cpu", "in", "out", "lag", "memory", "idle", "pid", "name"),
    "topics": ("in", "out", "messages", "size", "name"),
    "groups": ("lag", "ready", "out", "oldest", "name"),
}
_SORT_TITLES = {"cpu": "cpu%", "in": "in/s", "out": "out/s"}


@dataclass(frozen=True)
class Choice:
    """What the viewer asked for."""

    pane: str = "all"  # or one of PANES
    sorts: tuple[int, int, int] = (0, 0, 0)  # place in SORTS, for each of PANES
    reverse: bool = False
    deep: bool = False
    system: bool = False  # topics of the broker itself too
    paused: bool = False
    help: bool = False
    offset: int = 0

    def sort_of(self, pane: str) -> str:
        """Return by what a pane is sorted."""
        names = SORTS[pane]
        return names[self.sorts[PANES.index(pane)] % len(names)]


def page(picture: Picture, choice: Choice, *, width: int, height: int | None = None) -> Group:
    """Return what is shown; `height` None shows everything, as a pipe wants it."""
    head = [_headline(picture, choice, width), *_troubles(picture), _bars(picture)]
    panes = PANES if choice.pane == "all" else (choice.pane,)
    tables = {pane: _table(picture, choice, pane) for pane in panes}
    lines: list[Text] = list(head)
    if choice.help:
        return _cut([*lines, *_help()], width, height)
    room = None if height is None else max(0, height - len(head) - 1)
    for pane, share in _shares({pane: len(rows) + 1 for pane, (_, rows) in tables.items()}, room).items():
        columns, rows = tables[pane]
        title = _SORT_TITLES.get(choice.sort_of(pane), choice.sort_of(pane))
        offset = min(choice.offset, max(0, len(rows) - 1)) if len(panes) == 1 else 0
        lines += layout(columns, rows, width=width, height=share, offset=offset, sorted_by=title)
        lines += [Text("")] if len(panes) > 1 and pane != panes[-1] else []
    return _cut(lines, width, height)


def _cut(lines: list[Text], width: int, height: int | None) -> Group:
    """Exactly as many lines as there are, the keys in the last one, none longer than the terminal is wide."""
    if height is not None:
        lines = lines[: height - 1] + [Text("")] * (height - 1 - len(lines))
        lines.append(Text(KEYS, "dim"))
    for line in lines:
        line.truncate(width)
    return Group(*lines)


def _shares(wanted: dict[str, int], room: int | None) -> dict[str, int]:
    """Lines of each table: what it needs, and at least its part of what there is."""
    if room is None:
        return wanted
    left, shares, open_panes = max(0, room - (len(wanted) - 1)), {}, dict(wanted)
    while open_panes:
        part = left // len(open_panes)
        small = {pane: need for pane, need in open_panes.items() if need <= part}
        if not small:
            for index, pane in enumerate(open_panes):
                shares[pane] = part + (left % len(open_panes) if index == 0 else 0)
            break
        for pane, need in small.items():
            shares[pane] = need
            left -= need
            del open_panes[pane]
    return {pane: max(0, shares[pane]) for pane in wanted}


def _headline(picture: Picture, choice: Choice, width: int) -> Text:
    broker, supervisor = picture.snapshot.broker, picture.snapshot.process("supervisor")
    facts = [f"shmq {broker.name}"]
    if supervisor is not None and supervisor.alive:
        facts += [f"pid {supervisor.pid}", *([broker.tcp] if broker.tcp else [])]
        facts += [f"up {age_text(supervisor.age)}"] if supervisor.age is not None else []
    rates = f"in {_rate(picture.in_rate)}/s {_bytes_rate(picture.in_bytes_rate)}/s   out {_rate(picture.out_rate)}/s"
    text = Text("  ".join(facts), "bold")
    text.append("   " + rates)
    state = "PAUSED" if choice.paused else "[?] help"
    gap = width - len(text.plain) - len(state)
    if gap >= 2 and width < 1000:
        text.append(" " * gap + state, "reverse" if choice.paused else "dim")
    return text


def _troubles(picture: Picture) -> list[Text]:
    return [Text("! " + text, _BAD) for text in troubles_of(picture.snapshot)]


def _bars(picture: Picture) -> Text:
    snapshot = picture.snapshot
    parts: list[tuple[str, float, str]] = []
    own = [segment for segment in snapshot.segments if segment.state == "own" and segment.size_bytes]
    used, size = sum(segment.used_bytes for segment in own), sum(segment.size_bytes for segment in own)
    if size:
        parts.append(("segments", used / size, size_text(used)))
    if snapshot.disk is not None:
        parts.append(("disk", snapshot.disk.used_percent / 100, f"{size_text(snapshot.disk.free_bytes)} free"))
    text = Text()
    for name, share, note in parts:
        full = round(_BAR * min(1.0, share))
        text.append(f"{name} ")
        text.append("█" * full, "green" if share < 0.75 else "yellow" if share < 0.9 else "red")
        text.append("░" * (_BAR - full) + f" {100 * share:.0f}% ", "dim")
        text.append(f"{note}   ")
    log = snapshot.log
    if log is not None:
        text.append(f"flush behind {size_text(log.flush_behind_bytes)}   spare files {log.spare_files}   ")
        text.append(f"lock waits given up {count_text(log.busy)}")
    return text


def _table(picture: Picture, choice: Choice, pane: str) -> tuple[Sequence[Column], list[Row]]:
    if pane == "processes":
        columns = _PROCESS_DETAILS if choice.deep else _PROCESSES
        return columns, [_process(row, deep=choice.deep) for row in _sorted(picture.processes, choice, pane)]
    if pane == "topics":
        shown = [row for row in picture.topics if choice.system or row.kind != "system"]
        return _TOPICS, [_topic(row) for row in _sorted(shown, choice, pane)]
    return _GROUPS, [_group(row) for row in _sorted(picture.groups, choice, pane)]


_KEYS_OF: dict[str, Callable[[Any], Any]] = {
    "cpu": lambda row: row.cpu_percent,
    "in": lambda row: row.in_rate,
    "out": lambda row: row.out_rate,
    "lag": lambda row: row.lag,
    "memory": lambda row: row.uss_bytes if row.uss_bytes is not None else row.rss_bytes,
    "idle": lambda row: row.idle,
    "pid": lambda row: row.pid,
    "messages": lambda row: row.messages,
    "size": lambda row: row.size_bytes,
    "ready": lambda row: row.ready,
    "oldest": lambda row: row.oldest,
}


def _sorted(rows: Sequence[Any], choice: Choice, pane: str) -> list[Any]:
    """Largest first, names and pids from the small end; what is not known comes last either way."""
    sort = choice.sort_of(pane)
    by_name = sorted(rows, key=lambda row: row.name, reverse=sort == "name" and choice.reverse)
    if sort == "name":
        return by_name
    key = _KEYS_OF[sort]
    known = [row for row in by_name if key(row) is not None]
    unknown = [row for row in by_name if key(row) is None]
    return sorted(known, key=key, reverse=(sort != "pid") is not choice.reverse) + unknown


_PROCESSES = (
    Column("pid"),
    Column("user", right=False, importance=6, flexible=True),
    Column("role", right=False, importance=1),
    Column("name", right=False, importance=2, flexible=True),
    Column("cpu%"),
    Column("memory", importance=3),
    Column("in/s"),
    Column("out/s"),
    Column("lag", importance=1),
    Column("idle", importance=4),
    Column("groups", right=False, importance=5, flexible=True),
)
_PROCESS_DETAILS = (*_PROCESSES[:6], Column("uss", importance=3), *_PROCESSES[6:-1], Column("state", right=False))


def _process(row: ProcessRow, *, deep: bool) -> Row:
    cells = [
        _NOTHING if row.pid is None else str(row.pid),
        row.user or _NOTHING,
        row.role,
        row.name or _NOTHING,
        _NOTHING if row.cpu_percent is None else f"{row.cpu_percent:.1f}",
        _size(row.rss_bytes),
        *([_size(row.uss_bytes)] if deep else []),
        _rate(row.in_rate),
        _rate(row.out_rate),
        _count(row.lag),
        _age(row.idle),
        (row.state or _NOTHING) if deep else " ".join(row.groups) or _NOTHING,
    ]
    if row.state not in _GOOD:
        cells[3] = f"{cells[3]} ({row.state})"
    return Row(tuple(cells), "" if row.state in _GOOD else _BAD)


_TOPICS = (
    Column("topic", right=False, flexible=True),
    Column("kind", right=False, importance=3),
    Column("queues", importance=4),
    Column("messages", importance=1),
    Column("size", importance=2),
    Column("in/s"),
    Column("out/s"),
    Column("groups", importance=3),
)


def _topic(row: TopicRow) -> Row:
    cells = (row.name, row.kind, str(row.queues), count_text(row.messages), size_text(row.size_bytes))
    return Row((*cells, _rate(row.in_rate), _rate(row.out_rate), str(row.groups)))


_GROUPS = (
    Column("group", right=False, flexible=True),
    Column("members", importance=3),
    Column("topics", importance=4),
    Column("lag"),
    Column("ready", importance=1),
    Column("out/s"),
    Column("oldest", importance=2),
    Column("", right=False, importance=2),
)


def _group(row: GroupRow) -> Row:
    note = "members subscribe differently" if row.conflict else "nobody reads" if row.lag and not row.members else ""
    cells = (row.name, str(row.members), str(row.topics), _count(row.lag), _count(row.ready), _rate(row.out_rate))
    return Row((*cells, _age(row.oldest), note), "yellow" if note else "")


def _help() -> list[Text]:
    lines = [
        "",
        "s r      next sort key; turn the order around",
        "p t g a  processes, topics, groups, all of them",
        "d        details of processes: USS and state",
        "y        topics of the broker itself too",
        "+ -      refresh more or less often",
        "↑ ↓ PgUp PgDn Home   scroll, where one table is shown",
        "SPACE    pause; q quit; ? this help",
        "",
        "IN/s and OUT/s of a process are messages it stored and was given; those of clients over TCP are not counted",
        "per client. OUT/s of topics and groups is the progress of groups. LAG counts stored messages that a group has",
        "not consumed, READY those that its subscription selects. – is: not known from here.",
    ]
    return [Text(line) for line in lines]


def _rate(value: float | None) -> str:
    return _NOTHING if value is None else rate_text(value)


def _bytes_rate(value: float | None) -> str:
    return _NOTHING if value is None else size_text(int(value))


def _size(value: int | None) -> str:
    return _NOTHING if value is None else size_text(value)


def _count(value: int | None) -> str:
    return _NOTHING if value is None else count_text(value)


def _age(value: float | None) -> str:
    return _NOTHING if value is None else age_text(value)
