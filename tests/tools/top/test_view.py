"""Rates are differences of two looks, and a page fits whatever terminal it is shown on."""

from dataclasses import replace
from typing import Any

from shmq.figures.snapshot import Broker, Client, Group, Log, Presence, Process, QueueProgress, Snapshot, Topic
from shmq.tools.terminal.rendering import text_of
from shmq.tools.top.live import choice_of, other_interval, pressed
from shmq.tools.top.rates import picture_of
from shmq.tools.top.table import Column, Row, layout
from shmq.tools.top.view import PANES, SORTS, Choice, page
from tests.tables.rows import every_row


def made(kind: Any, **known: Any) -> Any:
    """An object with these figures, and nothing known of the rest."""
    return kind(**{**dict.fromkeys(kind._fields), **known})


BROKER = made(
    Broker,
    name="default",
    url="shmq://default",
    generation="00",
    served=True,
    read_only=0,
    read_only_text="",
    retired=False,
    tcp="127.0.0.1:10911",
)
LOG = made(Log, begin=0, end=10_000, flush_behind_bytes=1_000, spare_files=1, appended=100, busy=0, files=1)


def client(pid: int, *, sent: int, received: int) -> Any:
    return made(
        Client,
        **{"client_id": f"c{pid}", "slot": pid, "pid": pid, "start": 1, "alive": True, "transport": "shm"},
        **{"role": "both", "received": received, "sent": sent, "idle": 0.5, "consumer_groups": ("g",)},
    )


def look(at: float, scale: int, *, count: int = 2) -> Snapshot:
    pids = range(100, 100 + count)
    own = [Process(1, 1, "supervisor", "sleeping", True, age=90.0, cpu_seconds=0.0, user="root", name="python")]
    members = [
        Process(
            pid, 1, "client", "running", True, user="ada", name="python", cpu_seconds=scale * 0.5, rss_bytes=pid << 20
        )
        for pid in pids
    ]
    queue = made(QueueProgress, topic="orders", committed=10 * scale, lag=40 * scale, owner_pid=100)
    group = made(Group, name="g", lag=40, ready=4, oldest=3.0, members=(), queues=(queue,), departed=())
    whole: Snapshot = made(
        Snapshot,
        at=at,
        broker=BROKER,
        processes=(*own, *members),
        presence=Presence(1, 1),
        segments=(),
        log=LOG._replace(appended=100 * scale, end=1024 * scale),
        clients=tuple(client(pid, sent=pid * scale, received=2 * pid * scale) for pid in pids),
        topics=(_topic("orders", "normal", 50 * scale), _topic("TBW102", "system", 0)),
        groups=(group,),
        faults=(),
    )
    return whole


def _topic(name: str, role: str, stored: int) -> Any:
    return made(Topic, name=name, role=role, perm=6, queues=8, messages=40, stored=stored, size_bytes=1000)


def test_rates_are_differences_over_the_time_between() -> None:
    picture = picture_of(look(10.0, 1), look(12.0, 3))
    assert (picture.seconds, picture.in_rate, picture.in_bytes_rate, picture.out_rate) == (2.0, 100.0, 1024.0, 10.0)
    [row] = [row for row in picture.processes if row.pid == 101]
    assert (row.cpu_percent, row.in_rate, row.out_rate, row.role, row.name) == (50.0, 101.0, 202.0, "both", "python")
    [reader] = [row for row in picture.processes if row.pid == 100]
    assert (reader.lag, row.lag, reader.groups) == (120, None, ("g",))
    assert (picture.topics[0].in_rate, picture.topics[0].out_rate, picture.topics[0].groups) == (50.0, 10.0, 1)
    assert (picture.groups[0].out_rate, picture.groups[0].lag) == (10.0, 40)


def test_what_has_no_predecessor_has_no_rate() -> None:
    first = picture_of(None, look(10.0, 1))
    assert first.in_rate is None and all(row.cpu_percent is None for row in first.processes)
    after = look(11.0, 2)
    other = after._replace(broker=after.broker._replace(generation="01"))
    assert picture_of(look(10.0, 1), other).in_rate is None
    reused = after._replace(processes=tuple(p._replace(start=2) for p in after.processes))
    assert all(row.cpu_percent is None for row in picture_of(look(10.0, 1), reused).processes)


@every_row("pane", ["all", *PANES])
@every_row(("width", "height"), [(200, 60), (80, 24), (40, 12), (20, 5), (3, 3)])
def test_a_page_fits_the_terminal(width: int, height: int, pane: str) -> None:
    picture = picture_of(look(10.0, 1, count=40), look(11.0, 2, count=40))
    for choice in (Choice(pane=pane), Choice(pane=pane, deep=True, help=True), Choice(pane=pane, offset=7)):
        lines = text_of(page(picture, choice, width=width, height=height), width=width).splitlines()
        assert len(lines) <= height and max(map(len, lines)) <= width


def test_a_pipe_gets_every_row() -> None:
    picture = picture_of(look(10.0, 1, count=40), look(11.0, 2, count=40))
    text = text_of(page(picture, Choice(), width=100_000))
    assert len([line for line in text.splitlines() if " ada " in line]) == 40 and "more" not in text
    assert "orders" in text and "TBW102" not in text
    assert "TBW102" in text_of(page(picture, Choice(system=True), width=100_000))


def test_rows_come_in_the_order_that_was_asked_for() -> None:
    picture = picture_of(look(10.0, 1, count=9), look(11.0, 2, count=9))
    for sort, first in (("out", "108"), ("pid", "1"), ("memory", "108")):
        choice = choice_of(pane="processes", sort=sort, deep=False, system=False)
        lines = text_of(page(picture, choice, width=100_000)).splitlines()
        at = next(index for index, line in enumerate(lines) if line.split()[:1] == ["PID"])
        assert lines[at + 1].split()[0] == first
        backwards = text_of(page(picture, replace(choice, reverse=True), width=100_000)).splitlines()
        assert backwards[at + 1].split()[0] != first


def test_what_keeps_messages_from_flowing_is_on_top() -> None:
    now = look(11.0, 2)
    dead = now.processes[0]._replace(state="dead", alive=False)
    stopped = now.processes[1]._replace(state="stopped")
    broken = now._replace(
        processes=(dead, stopped), broker=BROKER._replace(read_only=4, read_only_text="the disk is full")
    )
    lines = text_of(page(picture_of(look(10.0, 1), broken), Choice(), width=120, height=30), width=120).splitlines()
    assert lines[1] == "! the supervisor (pid 1) is dead"
    assert lines[2:5] == [
        "! there is no bridge and no keeper",
        "! the store takes no messages: the disk is full",
        "! the client python (pid 100) is stopped",
    ]


def test_the_name_of_a_connection_stands_before_its_client_id() -> None:
    now = look(11.0, 2, count=1)
    own, member = now.processes
    local = member._replace(client_ids=("host@100#1-ff@invoices",))
    known = {"transport": "tcp", "consumer_groups": ("g",), "address": "10.0.0.7:5000", "language": "java", "start": 0}
    remote = tuple(made(Client, client_id=f"10.0.0.7@5{unit}", role="consumer", **known) for unit in ("", "@ledger"))
    picture = picture_of(None, now._replace(processes=(own, local), clients=(*now.clients, *remote)))
    names = ["python", "host@100#1-ff@invoices", "10.0.0.7:5000 java", "10.0.0.7:5000 java ledger"]
    assert [row.name for row in picture.processes] == names
    shown = text_of(page(picture, Choice(), width=200, height=30), width=200)
    assert " invoices host@100#1-ff " in shown and " 10.0.0.7:5000 java ledger " in shown
    assert " invoices" in text_of(page(picture, Choice(), width=80, height=30), width=80)


def test_columns_go_by_importance_and_long_names_are_cut() -> None:
    columns = (Column("pid"), Column("name", right=False, flexible=True), Column("groups", importance=5))
    rows = [Row(("1", "a-very-long-name-indeed", "g")), Row(("2", "b", "h")), Row(("3", "c", "i"))]
    wide = [line.plain for line in layout(columns, rows, width=80, height=4)]
    assert wide[0].split() == ["PID", "NAME", "GROUPS"] and len(wide) == 4
    narrow = [line.plain for line in layout(columns, rows, width=14, height=3)]
    assert "GROUPS" not in narrow[0] and "…" in narrow[1] and narrow[2] == "… 2 more"
    assert [line.plain.split()[0] for line in layout(columns, rows, width=80, height=3, offset=1)] == ["PID", "2", "…"]
    assert layout(columns, rows, width=80, height=0) == []


def test_keys_change_what_is_shown() -> None:
    choice = Choice()
    assert pressed(choice, "t").pane == "topics" and pressed(choice, "a").pane == "all"
    assert pressed(pressed(choice, "t"), "s").sort_of("topics") == SORTS["topics"][1]
    assert pressed(pressed(choice, "t"), "s").sort_of("groups") == SORTS["groups"][0]
    assert pressed(choice, " ").paused and pressed(choice, "?").help and pressed(choice, "d").deep
    assert pressed(pressed(choice, "down"), "page up").offset == 0 and pressed(choice, "page down").offset == 10
    assert pressed(choice, "x") == choice
    assert (other_interval(1.0, "+"), other_interval(1.0, "-"), other_interval(1.0, "x")) == (0.5, 2.0, 1.0)
