"""The lock file of a running broker: made again and locked where it is gone; sends stop where another holds it."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.daemon.keeper.live.held_files import FileNews
from shmq.daemon.keeper.live.lock import LiveLock
from shmq.shm.access import Access
from shmq.shm.counters import LooseCounters
from shmq.store.layout import StoreLayout
from tests.keeper.conftest import Events
from tests.keeper.live.test_log import put_a_link
from tests.store.file_changes import directory, pipe
from tests.store.test_lock import STOCK_BROKER
from tests.tables.rows import every_row


def make_anew(path: Path) -> None:
    path.unlink()
    path.touch()


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "moved": lambda path: path.rename(path.with_name("moved")),
    "made anew": make_anew,
    "a link": put_a_link,
    "a directory": directory,
    "a FIFO": pipe,
}


def stock_broker(layout: StoreLayout) -> subprocess.Popen[str]:
    """A process that locks the file as a stock broker does; its line says whether it could."""
    return subprocess.Popen(
        [sys.executable, "-c", STOCK_BROKER, str(layout.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def is_free(layout: StoreLayout) -> bool:
    """Whether a stock broker can lock the file."""
    return stock_broker(layout).communicate()[0] != ""


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    layout = StoreLayout(tmp_path / "store", Access(-1))
    layout.prepare()
    return layout


def test_the_file_that_lies_there_is_locked_whatever_was_done_to_it(layout: StoreLayout) -> None:
    events, stopped = Events(), list[bool]()
    lock = LiveLock(layout, FileNews(LooseCounters(), events), stop_sends=lambda: stopped.append(True))  # type: ignore[arg-type]
    lock.round()
    assert events.lines == []

    @every_row("change", CHANGES)
    def each(change: str) -> None:
        events.lines.clear()
        CHANGES[change](layout.lock)
        lock.round()
        lock.round()
        assert [name for name, _ in events.lines] == ["file.restored"]
        assert not is_free(layout)

    each()
    assert not stopped
    lock.close()


def test_a_lock_file_that_may_not_be_opened_any_more_is_said_with_the_command(layout: StoreLayout) -> None:
    events = Events()
    lock = LiveLock(layout, FileNews(LooseCounters(), events), stop_sends=lambda: None)  # type: ignore[arg-type]
    lock.round()
    layout.lock.chmod(0)
    lock.round()
    lock.round()
    [(event, values)] = events.lines
    assert event == "file.access" and values["do"] == f"chmod 640 {layout.lock}"
    layout.lock.chmod(0o640)
    lock.round()
    lock.close()


def test_a_lock_that_this_broker_holds_by_inheritance_is_no_other_brokers(layout: StoreLayout) -> None:
    events, stopped = Events(), list[bool]()
    inherited = os.open(layout.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(inherited, fcntl.LOCK_EX)  # of a supervisor that has ended
    lock = LiveLock(layout, FileNews(LooseCounters(), events), stop_sends=lambda: stopped.append(True))  # type: ignore[arg-type]
    lock.round()
    assert not stopped and events.lines == []
    lock.close()
    os.close(inherited)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_another_broker_that_holds_a_new_file_of_that_name_stops_sends(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    if is_hidden:  # by /proc from our user
        monkeypatch.setattr(os.path, "exists", lambda path: not str(path).startswith("/proc/"))
    events, stopped = Events(), list[bool]()
    lock = LiveLock(layout, FileNews(LooseCounters(), events), stop_sends=lambda: stopped.append(True))  # type: ignore[arg-type]
    lock.round()
    layout.lock.unlink()
    stock = stock_broker(layout)
    assert stock.stdout and stock.stdout.readline() == "locked\n"
    lock.round()
    [(event, values)] = events.lines
    assert stopped and event == "file.lost" and f"pid {stock.pid}" in values["what"]
    stock.kill()
    stock.communicate()
    lock.round()
    assert events.lines[-1][0] == "file.restored" and not is_free(layout)
    lock.close()
