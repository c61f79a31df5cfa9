"""A wish to cut a log, or to begin it elsewhere, ends with its reason, and is never carried out on another log."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from shmq.daemon.ha.slave import own_log as module
from shmq.daemon.ha.slave.master_state import MasterState
from shmq.daemon.ha.slave.own_log import OwnLog
from shmq.daemon.keeper.attachment import _first_copy
from shmq.errors import StoreError
from shmq.options.broker import Options
from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.shm.place import prepare_runtime
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout
from shmq.store.lineage.beginning import wish_beginning
from shmq.store.lineage.cutting import tails, wish_cut
from shmq.store.lineage.epochs import Epoch, load_epochs, store_epochs
from tests.bindings.live_store import LiveStore
from tests.ha.slave.test_following import OURS, THEIRS, Peer, Slave, broker, slave, welcome  # noqa: F401
from tests.ha.slave.test_master_tables import Master
from tests.ha.station.test_station import Stationed, live, stationed  # noqa: F401
from tests.ha.test_switch import switch_of
from tests.keeper.conftest import SMALL, Running
from tests.tables.rows import every_row

FOLLOWS = {"role": "slave", "master": "127.0.0.1:1", "master_ha": "127.0.0.1:2"}
Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the keeper of one store, cold."""
    running: list[Running] = []

    def started(**values: Any) -> Running:
        for before in running:
            before.end()
        options = Options(
            broker_name=f"test-{secrets.token_hex(4)}",
            runtime_dir=str(tmp_path / "run"),
            store=str(tmp_path / "store"),
            **SMALL,
            **values,
        )
        prepare_runtime(options.place, mode=0o700, gid=-1)
        running.append(Running(options))
        return running[-1]

    yield started
    for each in running:
        each.end()


def layout_of(running: Running) -> StoreLayout:
    return running.attached.files.layout


def own_log_of(running: Running) -> OwnLog:
    return OwnLog(running.store, layout_of(running), cast(Any, running.events))


def wished(layout: StoreLayout) -> list[Path]:
    return [path for path in (layout.cut, layout.beginning) if path.exists()]


def wish(layout: StoreLayout, end: int) -> None:
    wish_cut(layout, 0, 3, end=end, drops=True)
    wish_beginning(layout, 0)


def refuse(*_: object, **__: object) -> None:
    raise StoreError("no space left on the device")


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def written(start: Start) -> tuple[int, int]:
    """A log with a record before and one behind the first end that is returned."""
    master = start()
    master.send("orders", b"judged")
    judged = master.store.log_end
    master.send("orders", b"stored since")
    return judged, int(master.store.log_end)


def test_a_slaves_log_is_cut_that_is_the_one_that_was_judged(start: Start) -> None:
    judged, end = written(start)
    following = start(**FOLLOWS)
    own_log_of(following).cut_at(judged, 3, "a master")
    assert following.store.retired
    again = start(**FOLLOWS)
    assert again.store.log_end == judged and len(again.events.named("log.cut")) == 1
    assert [tail.end for tail in tails(layout_of(again))] == [end]


def test_a_log_whose_first_page_cannot_be_read_is_cut_all_the_same(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That page is read to know where delayed messages begin."""
    judged, _ = written(start)
    following = start(**FOLLOWS)
    own_log_of(following).cut_at(judged, 3, "a master")
    following.end()
    monkeypatch.setattr(CommitLogFiles, "read", fail)
    layout = layout_of(following)
    assert _first_copy(CommitLogFiles(layout, SMALL["file_bytes"])) == 1


@every_row("drops", [False, True])
def test_a_log_that_has_grown_since_it_was_judged_is_neither_cut_nor_dropped(start: Start, drops: bool) -> None:
    judged, end = written(start)
    wish_cut(layout_of(start(**FOLLOWS)), 0, 3, end=judged, drops=drops)
    again = start(**FOLLOWS)
    assert again.store.log_end == end and tails(layout_of(again)) == []
    assert len(again.events.named("log.not_cut")) == 1 and wished(layout_of(again)) == []


def test_the_log_of_a_broker_that_follows_none_is_neither_cut_nor_begun_elsewhere(start: Start) -> None:
    _, end = written(start)
    wish(layout_of(start(**FOLLOWS)), end)
    master = start()
    assert master.store.log_end == end and wished(layout_of(master)) == []
    assert len(master.events.named("log.not_cut")) == 1
    assert master.store.message_at(0).body == b"judged"


def test_a_cut_that_has_begun_is_finished_whatever_the_broker_is(start: Start) -> None:
    """The files behind it are gone already, and the durable mark still says that they were on the disk."""
    judged, end = written(start)
    following = start(**FOLLOWS)
    layout = layout_of(following)
    store_epochs(layout, (Epoch(0, 0), Epoch(2, judged + 1)))
    wish_cut(layout, judged, 3, end=end)
    following.end()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError, match="cannot be cut"):
        patch.setattr(CommitLogFiles, "renew", fail)
        start(**FOLLOWS)
    assert wished(layout) == [layout.cut]
    master = start()
    assert master.store.log_end == judged and wished(layout) == [] and load_epochs(layout) == (Epoch(0, 0),)
    assert [tail.end for tail in tails(layout)] == [end]


@every_row("fails", ["wish_cut", "wish_beginning"])
def test_a_log_that_cannot_be_started_over_stays(start: Start, fails: str) -> None:
    _, end = written(start)
    following = start(**FOLLOWS)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(module, fails, refuse)
        own_log_of(following).start_over(4 * SMALL["file_bytes"], 3, "a master")
    assert not following.store.retired
    again = start(**FOLLOWS)
    assert again.store.log_end == end and again.store.message_at(0).body == b"judged"


def test_a_log_that_was_overtaken_is_given_up_and_begins_where_the_masters_does(start: Start) -> None:
    written(start)
    begin = 4 * SMALL["file_bytes"]
    following = start(**FOLLOWS)
    own_log_of(following).start_over(begin, 3, "a master")
    again = start(**FOLLOWS)
    assert (again.store.log_begin, again.store.log_end) == (begin, begin)
    assert wished(layout_of(again)) == [] and tails(layout_of(again)) == []


def test_a_slave_that_joins_a_master_wishes_nothing_any_more(
    slave: LiveStore,  # noqa: F811
    broker: Master,  # noqa: F811
) -> None:
    for log, is_ours in ((THEIRS, False), (OURS, True)):
        peer = Peer(welcome(slave, log))
        ours = Slave(slave, broker.address, peer.address)
        layout = ours.following._layout
        wish(layout, slave.store.log_end)
        ours.attempt()
        peer.close()
        assert (wished(layout) == []) is is_ours


def test_a_slave_that_is_promoted_wishes_nothing_any_more(start: Start) -> None:
    _, end = written(start)
    promoted = start(**FOLLOWS)
    layout = layout_of(promoted)
    wish(layout, end)
    done = switch_of(promoted, MasterState("127.0.0.1"), []).promote(force=True)
    assert wished(layout) == [] and promoted.store.standing == 0
    assert done["epoch"] == 5, "above 3, that of the master by whose log it was to be cut, and one left out"


def test_one_that_is_elected_wishes_nothing_any_more(live: LiveStore, stationed: Stationed) -> None:  # noqa: F811
    wish(stationed.layout, live.store.log_end)
    stationed.layout.role.mkdir()
    with pytest.raises(StoreError):
        stationed.station.promote(4, "elected")
    assert live.store.standing == READ_ONLY_FOLLOWER and wished(stationed.layout) == [], "before the note of it"
    stationed.layout.role.rmdir()


def test_a_cut_log_is_never_led_in_the_epoch_of_the_master_that_it_was_cut_for(start: Start) -> None:
    """Its own epochs behind the cut are gone with the records, and that master may be away before it is followed."""
    judged, _ = written(start)
    following = start(**FOLLOWS)
    store_epochs(layout_of(following), (Epoch(0, 0), Epoch(2, judged)))
    own_log_of(following).cut_at(judged, 3, "a master")
    cut = start(**FOLLOWS)
    assert load_epochs(layout_of(cut)) == (Epoch(0, 0),)
    state = MasterState("127.0.0.1")
    assert switch_of(cut, state, []).promote(force=True)["epoch"] > 3


def test_a_tail_that_is_damaged_keeps_none_from_leading_and_hides_no_other(start: Start) -> None:
    judged, _ = written(start)
    own_log_of(start(**FOLLOWS)).cut_at(judged, 3, "a master")
    cut = start(**FOLLOWS)
    damaged = layout_of(cut).tails / f"{0:020}-0"
    damaged.mkdir()
    (damaged / "shmq.tail").write_bytes(b"{")
    assert switch_of(cut, MasterState("127.0.0.1"), []).promote(force=True)["epoch"] == 5
