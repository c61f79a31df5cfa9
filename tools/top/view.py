"""One page of `shmq top`: a headline, what is wrong, bars, and the tables that fit.

Everything is text of rich, so the page is the same on a terminal, in a pipe and in a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from shmq.client.client_id import name_of
from shmq.figures.broker_rules import broker_findings
from shmq.figures.processes import STOPPED
from shmq.figures.quantity import age_text, count_text, plural, rate_text, size_text
from shmq.figures.replication import election_text
from shmq.figures.replication_rules import replication_findings
from shmq.figures.snapshot import Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Verdict, by_severity
from shmq.message import is_system_group
from shmq.shm.links import CATCHING_UP, CONNECTING
from shmq.tools.top.rates import GroupRow, Picture, ProcessRow, TopicRow
from shmq.tools.top.table import Column, Row, layout

PANES = ("processes", "topics", "groups")
KEYS = "s sort · r reverse · p processes · t topics · g groups · a all · d details · SPACE pause · q quit"
_NOTHING = "–"
_HIDDEN_KINDS = ("system", "retry")
_THRESHOLDS = Thresholds()
_BAR = 20
_GOOD, _BAD = ("running", "sleeping", "disk", "hidden", ""), "bold red"

SORTS: dict[str, tuple[str, ...]] = {
    "processes": ("cpu", "in", "out", "lag", "memory", "idle", "pid", "name"),
    "topics": ("in", "out", "messages", "size", "name"),
    "groups": ("lag", "ready", "out", "oldest", "name"),
}
_SORT_TITLES = {"cpu": "cpu%", "in": "in/s", "out": "out/s"}


@dataclass(frozen=True)
class Choice:
    """The viewer's choices."""

    pane: str = "all"  # or one of PANES
    sorts: tuple[int, int, int] = (0, 0, 0)  # place in SORTS, for each of PANES
    reverse: bool = False
    deep: bool = False
    system: bool = False  # topics and groups of the broker itself too, and retry topics
    paused: bool = False
    help: bool = False
    offset: int = 0

    def sort_of(self, pane: str) -> str:
        """Return by what a pane is sorted."""
        names = SORTS[pane]
        return names[self.sorts[PANES.index(pane)] % len(names)]


def page(picture: Picture, choice: Choice, *, width: int, height: int | None = None) -> Group:
    """Return what is shown; `height` None shows everything, as a pipe wants it."""
    head = [_headline(picture, choice, width), *_troubles(picture.snapshot), _bars(picture), *_hosts(picture.snapshot)]
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
    stored = _known(size_text, picture.in_bytes_rate)
    rates = f"in {_known(rate_text, picture.in_rate)}/s {stored}/s   out {_known(rate_text, picture.out_rate)}/s"
    text = Text("  ".join(facts), "bold")
    text.append("   " + rates)
    state = "PAUSED" if choice.paused else "[?] help"
    gap = width - len(text.plain) - len(state)
    if gap >= 2 and width < 1000:
        text.append(" " * gap + state, "reverse" if choice.paused else "dim")
    return text


def _troubles(snapshot: Snapshot) -> list[Text]:
    """The reasons that keep messages from flowing, worst first, by the rules of `shmq health`, which has the cure."""
    judged = by_severity(finding for finding in broker_findings(snapshot, _THRESHOLDS))
    found = [finding.what for finding in judged if finding.verdict is not Verdict.OK]
    stopped = [process for process in snapshot.processes if process.role == "client" and process.state in STOPPED]
    found += [f"the client {process.name} (pid {process.pid}) is {process.state}" for process in stopped]
    return [Text("! " + text, _BAD) for text in found]


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
        if log.replicas_in_sync is not None:
            text.append(
                f"{plural(log.replicas_in_sync, 'slave')} in sync, {size_text(log.unconfirmed_bytes)} behind   "
            )
        text.append(f"lock waits given up {count_text(log.busy)}")
    return text


def _hosts(snapshot: Snapshot) -> list[Text]:
    """The election, and each slave or master on another host, a line each; and why one is not well, with the cure."""
    told = snapshot.replication
    if told is None:
        return []
    links = [("slave", row) for row in told.replicas] + ([("master", told.master)] if told.master else [])
    lines = [] if told.election is None else [Text(election_text(told.election))]
    for name, row in links:
        text = Text(f"{name} {row.address} ")
        text.append(
            row.state, "yellow" if row.state in (CATCHING_UP, CONNECTING) else _BAD if row.age is None else "green"
        )
        if row.lag_bytes is not None and row.lag_ms is not None:
            text.append(f"   {size_text(row.lag_bytes)}, {age_text(row.lag_ms / 1000)} behind")
        lines.append(text)
    wrong = [each for each in replication_findings(snapshot, _THRESHOLDS) if each.verdict is not Verdict.OK]
    return lines + [Text(f"{each.check} {each.subject}: {each.why}; {each.do}", "dim") for each in wrong]


def _table(picture: Picture, choice: Choice, pane: str) -> tuple[Sequence[Column], list[Row]]:
    rows: Sequence[Any]
    if pane == "processes":
        fields, rows = _PROCESS_DETAILS if choice.deep else _PROCESSES, picture.processes
    elif pane == "topics":
        fields, rows = _TOPICS, [row for row in picture.topics if choice.system or row.kind not in _HIDDEN_KINDS]
    else:
        fields, rows = _GROUPS, [row for row in picture.groups if choice.system or not is_system_group(row.name)]
    lines = [Row(tuple(cell(row) for _, cell in fields), _style(row)) for row in _sorted(rows, choice, pane)]
    return [column for column, _ in fields], lines


def _style(row: ProcessRow | TopicRow | GroupRow) -> str:
    if isinstance(row, GroupRow):
        return "yellow" if _note(row) else ""
    return _BAD if isinstance(row, ProcessRow) and row.state not in _GOOD else ""


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


def _known(text: Callable[[Any], str], value: float | None) -> str:
    return _NOTHING if value is None else text(value)


def _name(row: ProcessRow) -> str:
    # A connection's name ends its client id and would be the first to give way in a narrow terminal.
    named = name_of(row.name)
    shown = f"{named} {row.name.removesuffix(f'@{named}')}" if named else row.name
    return (shown or _NOTHING) + ("" if row.state in _GOOD else f" ({row.state})")


def _note(row: GroupRow) -> str:
    if row.conflict:
        return "members subscribe differently"
    return "no members" if row.lag and not row.members else ""


# Columns of each table, and how their cells are made of a row.
_Fields = tuple[tuple[Column, Callable[[Any], str]], ...]
_PROCESSES: _Fields = (
    (Column("pid"), lambda row: _known(str, row.pid)),
    (Column("user", right=False, importance=6, flexible=True), lambda row: row.user or _NOTHING),
    (Column("role", right=False, importance=1), lambda row: row.role),
    (Column("name", right=False, importance=2, flexible=True), _name),
    (Column("cpu%"), lambda row: _known("{:.1f}".format, row.cpu_percent)),
    (Column("memory", importance=3), lambda row: _known(size_text, row.rss_bytes)),
    (Column("in/s"), lambda row: _known(rate_text, row.in_rate)),
    (Column("out/s"), lambda row: _known(rate_text, row.out_rate)),
    (Column("lag", importance=1), lambda row: _known(count_text, row.lag)),
    (Column("idle", importance=4), lambda row: _known(age_text, row.idle)),
    (Column("groups", right=False, importance=5, flexible=True), lambda row: " ".join(row.groups) or _NOTHING),
)
_PROCESS_DETAILS: _Fields = (
    *_PROCESSES[:6],
    (Column("uss", importance=3), lambda row: _known(size_text, row.uss_bytes)),
    *_PROCESSES[6:-1],
    (Column("state", right=False), lambda row: row.state or _NOTHING),
)
_TOPICS: _Fields = (
    (Column("topic", right=False, flexible=True), lambda row: row.name),
    (Column("kind", right=False, importance=3), lambda row: row.kind),
    (Column("queues", importance=4), lambda row: str(row.queues)),
    (Column("messages", importance=1), lambda row: count_text(row.messages)),
    (Column("size", importance=2), lambda row: size_text(row.size_bytes)),
    (Column("in/s"), lambda row: _known(rate_text, row.in_rate)),
    (Column("out/s"), lambda row: _known(rate_text, row.out_rate)),
    (Column("groups", importance=3), lambda row: str(row.groups)),
)
_GROUPS: _Fields = (
    (Column("group", right=False, flexible=True), lambda row: row.name),
    (Column("members", importance=3), lambda row: str(row.members)),
    (Column("topics", importance=4), lambda row: str(row.topics)),
    (Column("lag"), lambda row: count_text(row.lag)),
    (Column("ready", importance=1), lambda row: _known(count_text, row.ready)),
    (Column("out/s"), lambda row: _known(rate_text, row.out_rate)),
    (Column("oldest", importance=2), lambda row: _known(age_text, row.oldest)),
    (Column("", right=False, importance=2), _note),
)


def _help() -> list[Text]:
    lines = [
        "",
        "s r      next sort key; turn the order around",
        "p t g a  processes, topics, groups, all of them",
        "d        details of processes: USS and state",
        "y        topics and groups of the broker itself too, and retry topics",
        "+ -      refresh more or less often",
        "↑ ↓ PgUp PgDn Home   scroll, where one table is shown",
        "SPACE    pause; q quit; ? this help",
        "",
        "IN/s and OUT/s of a process are messages it stored and was given; those of clients over TCP are not counted",
        "per client. OUT/s of topics and groups is the progress of groups. LAG counts stored messages that a group has",
        "not consumed, READY those that its subscription selects. – is: not known from here.",
    ]
    return [Text(line) for line in lines]
