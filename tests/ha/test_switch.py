"""Switches by hand, with real processes: a slave becomes the master, a master a slave, and nothing is lost unsaid."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.addresses import parse_address
from shmq.daemon.bridge.sockets.tcp_listener import VIP_DISTANCE
from shmq.daemon.ha import switching
from shmq.daemon.ha.leader import UNKNOWN
from shmq.daemon.ha.meeting import Side, side_bytes
from shmq.daemon.ha.slave.master_state import MasterState
from shmq.daemon.ha.stream import pack_header, pack_refusal, pack_welcome
from shmq.daemon.ha.switching import Switching
from shmq.daemon.ha.trust import WITHOUT_SECRET
from shmq.daemon.switched import as_switched
from shmq.errors import StoreError, UsageError
from shmq.figures.verdict import Verdict
from shmq.metrics.report import MetricsReport
from shmq.options.broker import Options
from shmq.shm.access import Access
from shmq.shm.addresses import read_addresses
from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.shm.liveness import signal_proven
from shmq.shm.place import prepare_runtime
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lineage.cutting import tails
from shmq.store.lineage.epochs import EPOCH_MAX, Epoch, load_epochs, store_epochs
from shmq.store.lineage.standing import Role, configured_text, store_role
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha import pair
from tests.ha.pair import assert_equal, bodies_of, log_end, send, settled_end, stop_threads
from tests.ha.seen import findings_of, until_told
from tests.keeper.conftest import SMALL, Running
from tests.ports import free_ports
from tests.shm.looking import looking
from tests.tools.json_schema import check


def cluster(broker: Broker, *words: str, fails: bool = False) -> dict[str, Any]:
    """What `shmq cluster` says about a broker."""
    command = [sys.executable, "-m", "shmq", "-u", broker.url, "--json", "cluster", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == fails, (done.stdout, done.stderr, broker.log[-3000:])
    document: dict[str, Any] = json.loads(done.stderr if fails else done.stdout)
    return document


def promote(broker: Broker, *words: str) -> dict[str, Any]:
    """Make it the master; `cluster status` says so."""
    began = time.monotonic()
    done = cluster(broker, "promote", *words)
    check("cluster-promote", done)
    assert 0 < done["seconds"] < time.monotonic() - began
    shown = cluster(broker, "status")
    check("cluster-status", shown)
    epoch = load_epochs(layout_of(broker))[-1]
    assert (shown["role"], shown["standing"], shown["leader"], shown["master"]) == ("master", "leads", "", None)
    assert (shown["epoch"], done["log_end"]) == (done["epoch"], epoch.start) and shown["epoch"] == epoch.number
    [finding] = findings_of(broker, "role")
    assert finding.verdict is Verdict.OK and f"leads, epoch {epoch.number}" in finding.what
    assert metrics_of(broker, "shmq_leads", "shmq_epoch") == [1, epoch.number]
    return done


def metrics_of(broker: Broker, *names: str) -> list[float]:
    report = MetricsReport(broker.place)
    try:
        values = report.samples().values
    finally:
        report.close()
    return [sum(values[name].values()) for name in names]


def ha_of(broker: Broker) -> str:
    return read_addresses(broker.place.ha_path)["ha"]


def fixed() -> dict[str, Any]:
    """Ports that stay through a switch, as those of hosts do."""
    return {
        "tcp": True,
        "listen": f"127.0.0.1:{free_ports(-VIP_DISTANCE)}",
        "ha_listen": f"127.0.0.1:{free_ports()}",
    }


def slave_of(master: Broker) -> Broker:
    where = {"master": master.broker_address, "master_ha": ha_of(master)}
    return Broker(name=master.name, role="slave", **where, **fixed())


def read(broker: Broker, count: int, group: str) -> list[int]:
    """What a new group reads; the broker's bridge may be on its way."""

    def found() -> list[int]:
        try:
            return bodies_of(broker.url, count, group)
        except shmq.BrokerNotRunning:
            return []

    return list(eventually(found, lambda: broker.log[-2000:]))


def is_writable(broker: Broker) -> bool:
    with looking(broker) as store:
        return store.read_only == 0 and not store.retired


def layout_of(broker: Broker) -> StoreLayout:
    return StoreLayout(broker.store, Access(-1))


def assert_standing_age(broker: Broker, began: float) -> None:
    """It has stood as it does since `began` at most, in all that shows it."""

    def is_since() -> bool:
        ages = [
            cluster(broker, "status")["standing_age"],
            findings_of(broker, "role")[0].measures["standing_age"].value,
            *metrics_of(broker, "shmq_standing_seconds"),
        ]
        return all(0 <= age <= time.monotonic() - began for age in ages)

    eventually(is_since, lambda: str(cluster(broker, "status")))


@pytest.mark.slow
def test_a_slave_of_a_dead_master_is_promoted_where_it_stands() -> None:
    began = time.monotonic()
    with Broker(**fixed()) as master, slave_of(master) as slave:
        send(master, range(20))
        end = settled_end(master, slave)
        with slave.connect() as mq:
            address = master.broker_address
            master.kill_daemon()
            with pytest.raises(shmq.NotMaster, match=address):
                mq.producer().send("orders", b"no")
            assert_standing_age(slave, began)
            began = time.monotonic()
            done = promote(slave)
            assert (done["epoch"], done["log_end"], done["missing_bytes"]) == (1, end, 0)
            assert mq.producer().send("orders", b"20").log_position >= end  # the same attachment
        assert_standing_age(slave, began)
        assert [tuple(epoch) for epoch in load_epochs(layout_of(slave))] == [(0, 0), (1, end)]
        assert read(slave, 21, "readers") == list(range(21))
        cluster(slave, "promote", fails=True)
        slave.restart()
        send(slave, range(21, 23))
        assert read(slave, 23, "others") == list(range(23))


def follow(broker: Broker, master: Broker) -> None:
    """Start a broker that is stopped again, as another's slave."""
    where = {"master": master.broker_address, "master_ha": ha_of(master)}
    broker._settings |= {"role": "slave", "in_sync_min": 1, **where}
    broker.start()


@pytest.mark.slow
def test_an_old_master_that_comes_back_is_cut_where_the_new_one_began_and_keeps_its_tail() -> None:
    with Broker(**fixed()) as old, slave_of(old) as new:
        send(old, range(20))
        end = settled_end(old, new)
        pause(old)
        send(old, range(100, 110))  # these the slave never gets
        lost_end = log_end(old)
        old.kill_daemon()
        assert promote(new)["log_end"] == end
        send(new, range(20, 30))
        follow(old, new)
        assert_equal(new, old)
        [tail] = tails(layout_of(old))
        assert (tail.begin, tail.end, tail.epoch) == (end, lost_end, 1)
        assert load_epochs(layout_of(old)) == load_epochs(layout_of(new))
        assert read(old, 30, "readers") == list(range(30))
        send(new, range(30, 40))
        assert_equal(new, old)


def pause(broker: Broker) -> None:
    """Nothing is shipped any more."""
    stop_threads(broker.processes["replication"].pid)


def go_on(broker: Broker) -> None:
    """What was paused goes on."""
    signal_proven(broker.processes["replication"], signal.SIGCONT)


def test_an_orderly_switch_loses_nothing_and_goes_back_again() -> None:
    with Broker(**fixed()) as first, slave_of(first) as second:
        send(first, range(20))
        settled_end(first, second)
        said = cluster(second, "promote", fails=True)
        assert "is alive" in said["error"] and "demote" in said["hint"]
        with first.connect() as mq:
            producer = mq.producer()
            producer.send("orders", b"20")
            end = log_end(first)
            assert demote(first, second)["log_end"] == end
            with pytest.raises((shmq.NotMaster, shmq.BrokerNotRunning)):
                producer.send("orders", b"no")
        eventually(lambda: follows(first), lambda: first.log[-2000:])
        assert settled_end(first, second) == end
        shown = until_told(first, lambda told: told.standing == "follows")
        assert (shown.role, shown.leader) == ("slave", second.broker_address)
        assert promote(second)["missing_bytes"] == 0
        send(second, range(21, 30))
        assert_equal(second, first)
        assert tails(layout_of(first)) == []
        demote(second, first)
        eventually(lambda: follows(second), lambda: second.log[-2000:])
        assert promote(first)["epoch"] == 2
        send(first, range(30, 40))
        assert_equal(first, second)
        until_told(
            second, lambda told: (told.standing, told.epoch, told.leader) == ("follows", 2, first.broker_address)
        )
        assert metrics_of(second, "shmq_leads", "shmq_epoch") == [0, 2]
        assert read(second, 40, "readers") == list(range(40))


def demote(broker: Broker, master: Broker) -> dict[str, Any]:
    address = eventually(lambda: read_addresses(master.place.addresses_path).get("broker"), lambda: master.log[-2000:])
    done = cluster(broker, "demote", "--master", address, "--master-ha", ha_of(master))
    check("cluster-demote", done)
    return done


def follows(broker: Broker) -> bool:
    try:
        with looking(broker) as store:
            return store.read_only == READ_ONLY_FOLLOWER and not store.retired
    except shmq.ShmqError:
        return False  # the segments are made anew just now


@pytest.mark.slow
def test_a_master_whose_slave_ships_no_log_stays_the_master_unless_it_is_forced() -> None:
    with Broker(**fixed()) as master, pair.slave_of(master) as slave:
        send(master, range(20))
        settled_end(master, slave)
        said = cluster(master, "demote", "--master", slave.broker_address, fails=True)
        assert "no broker ships its log at" in said["error"] and "--ha-listen" in said["hint"]
        send(master, range(20, 30))
        check("cluster-demote", cluster(master, "demote", "--master", slave.broker_address, "--force"))
        eventually(lambda: follows(master), lambda: master.log[-2000:])


@pytest.mark.slow
def test_who_is_promoted_again_at_once_has_what_the_other_one_stored_meanwhile() -> None:
    with Broker(**fixed()) as first, slave_of(first) as second:
        send(first, range(20))
        settled_end(first, second)
        demote(first, second)
        promote(second)
        send(second, range(20, 60))
        demote(second, first)  # the first one is only just starting as its slave
        done = promote(first)
        assert (done["missing_bytes"], done["master_answered"], done["forced"]) == (0, True, False)
        assert done["epoch"] == 2
        send(first, range(60, 70))
        assert_equal(first, second)
        assert tails(layout_of(first)) == tails(layout_of(second)) == []
        assert read(first, 70, "readers") == list(range(70))


def test_a_program_that_has_a_log_file_of_before_a_demotion_is_no_reason_to_take_it_back() -> None:
    """A file that was renewed then is none that another program has removed; the new one holds what was sent since."""
    with Broker(**fixed()) as first, slave_of(first) as second:
        send(first, range(10))
        settled_end(first, second)
        with (first.store / "commitlog" / file_name(0)).open("rb"):
            demote(first, second)
            promote(second)
            demote(second, first)
            promote(first)
            send(first, range(10, 20))
            with first.connect():  # this process has mapped what the next keeper finds
                signal_proven(first.processes["supervisor"])
                signal_proven(first.processes["keeper"])
                first.kill_daemon()
                first.restart()
        assert "file.saved" not in first.log
        assert read(first, 20, "readers") == list(range(20))


@pytest.mark.slow
def test_one_that_is_behind_is_reported_and_not_promoted_before_it_has_all() -> None:
    with Broker(**fixed()) as first, slave_of(first) as second:
        send(first, range(20))
        settled_end(first, second)
        pause(second)
        send(first, range(20, 60))
        done = demote(first, second)
        assert done["behind_bytes"] > 0
        eventually(lambda: follows(first), lambda: first.log[-2000:])
        go_on(second)
        assert promote(second)["missing_bytes"] == 0
        assert read(second, 60, "readers") == list(range(60))


@pytest.mark.slow
def test_a_slave_that_never_heard_of_its_master_is_promoted_by_force_alone_in_an_epoch_of_its_own() -> None:
    with Broker(**fixed()) as master, slave_of(master) as slave:
        send(master, range(5))
        end = settled_end(master, slave)
        master.kill_daemon()
        slave.restart()
        said = cluster(slave, "promote", fails=True)
        assert "not heard of it" in said["error"] and "--force" in said["hint"]
        assert not is_writable(slave)
        done = promote(slave, "--force")
        assert (done["epoch"], done["log_end"]) == (2, end)
        assert (done["missing_bytes"], done["master_answered"], done["forced"]) == (0, False, True)


@pytest.mark.parametrize("is_alive", [True, False], ids=["segments-living", "segments-gone"])
@pytest.mark.slow
def test_a_promotion_that_was_noted_and_not_carried_out_is_finished_at_the_next_start(is_alive: bool) -> None:
    with Broker(**fixed()) as master, slave_of(master) as slave:
        send(master, range(5))
        end = settled_end(master, slave)
        where = slave._settings
        note = Role(configured_text("slave", where["master"], where["master_ha"]), "master", epoch=1)
        master.kill_daemon()
        with slave.connect() if is_alive else contextlib.nullcontext():  # an attached process keeps the segments
            slave.kill_daemon()
            store_role(layout_of(slave), note)
            slave.start()
            assert [tuple(epoch) for epoch in load_epochs(layout_of(slave))] == [(0, 0), (1, end)]
            until_told(slave, lambda told: (told.role, told.standing, told.epoch) == ("master", "leads", 1))
            send(slave, range(5, 8))
        assert read(slave, 8, "readers") == list(range(8))


# ---- a switch that the disk refuses in the middle --------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def started(**values: Any) -> Running:
        name = f"test-{secrets.token_hex(4)}"
        options = Options(
            broker_name=name, runtime_dir=str(tmp_path / "run"), store=str(tmp_path / "store"), **SMALL, **values
        )
        prepare_runtime(options.place, mode=0o700, gid=-1)
        running.append(Running(options))
        return running[-1]

    yield started
    for each in running:
        each.end()


def switch_of(broker: Running, master: MasterState | None, calls: list[str], me: Side = UNKNOWN) -> Switching:
    return Switching(
        broker.options.place,
        as_switched(broker.options),
        broker.attached.files.layout,
        broker.store,
        broker.events,  # type: ignore[arg-type]
        stop_following=lambda: calls.append("stopped"),
        copy_offsets=lambda: None,
        note_known_pops=lambda: None,
        master=master,
        slowest_slave=lambda: None,
        ended=lambda: calls.append("begins again"),
        trust=WITHOUT_SECRET,
        me=me,
    )


def refuse(*_: object) -> None:
    raise StoreError("no space left on the device")


def test_a_master_that_cannot_note_its_demotion_takes_messages_again(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, calls = start(), list[str]()
    broker.send("orders", b"before")
    with monkeypatch.context() as context:
        context.setattr(switching, "store_role", refuse)
        with pytest.raises(StoreError):
            switch_of(broker, None, calls).demote("127.0.0.1:1", "127.0.0.1:2", force=True)
    assert broker.store.standing == 0 and not broker.store.retired and calls == []
    assert broker.send("orders", b"behind").offset == 1
    switch_of(broker, None, calls).demote("127.0.0.1:1", "127.0.0.1:2", force=True)
    assert broker.store.retired and calls == ["begins again"]


# ---- what a master asks before it is demoted -------------------------------------------------------------------------

ME = Side("DefaultCluster", "orders", "1" * 32)


@contextlib.contextmanager
def saying(words: bytes | None) -> Iterator[str]:
    """The address of a replication port that answers every greeting so; None: it listens, and stands still."""

    def answer(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while words is not None:
                accepted, _ = listener.accept()
                with accepted:
                    accepted.recv(4096)
                    accepted.sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer, args=(listener,), daemon=True)
        answering.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        answering.join()


@pytest.mark.parametrize(
    ("words", "why", "cure"),
    [
        (None, "no broker ships its log at 127.0.0.1:", "--ha-listen 127.0.0.1:"),
        (pack_refusal("10.0.0.4 is not named by --ha-allow", "name it"), "10.0.0.4 is not named", "name it; or here"),
        (pack_welcome(side_bytes(ME)), "is this broker itself", "correct --master"),
    ],
    ids=["none", "refused", "itself"],
)
def test_a_master_is_not_demoted_to_a_broker_that_does_not_ship_it_a_log(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, words: bytes | None, why: str, cure: str
) -> None:
    monkeypatch.setattr(switching, "_RESTART_SECONDS", 0.0)
    broker, calls = start(), list[str]()
    with contextlib.ExitStack() as listening:
        address = f"127.0.0.1:{free_ports()}" if words is None else listening.enter_context(saying(words))
        with pytest.raises(UsageError, match=why) as refused:
            switch_of(broker, None, calls, ME).demote(address, address, force=False)
        assert cure in refused.value.hint
        assert broker.send("orders", b"it leads as before").offset == 0 and calls == []
        done = switch_of(broker, None, calls, ME).demote(address, address, force=True)
    assert done["master"] == address and broker.store.retired and calls == ["begins again"]


@pytest.mark.parametrize(
    "words", [pack_welcome(side_bytes(Side(store="2" * 32))), pack_header(0, 0), None], ids=["shmq", "stock", "silent"]
)
def test_a_master_is_demoted_to_a_broker_that_ships_or_may(start: Callable[..., Running], words: bytes | None) -> None:
    broker, calls = start(), list[str]()
    with saying(words) as address:
        switch_of(broker, None, calls, ME).demote(address, address, force=False)
    assert broker.store.retired and calls == ["begins again"]


def test_a_master_that_is_just_ending_is_no_stock_one() -> None:
    """It accepts and closes: it may be about to start again, and is waited for; a stock one speaks, or stays."""
    with saying(b"") as address, pytest.raises(ConnectionResetError):
        switching.ask_side(parse_address(address), WITHOUT_SECRET, ME)


def test_a_slave_that_cannot_note_its_promotion_begins_to_follow_again(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(1)
    master = MasterState("127.0.0.1")
    broker = start(role="slave", master=f"127.0.0.1:{ports}", master_ha=f"127.0.0.1:{ports + 1}")
    calls = list[str]()
    with monkeypatch.context() as context:
        context.setattr(switching, "store_role", refuse)
        with pytest.raises(StoreError):
            switch_of(broker, master, calls).promote(force=True)
    assert calls == ["stopped", "begins again"] and broker.store.standing == READ_ONLY_FOLLOWER
    done = switch_of(broker, master, calls).promote(force=True)
    assert broker.store.standing == 0 and done["forced"]


def test_behind_the_last_epoch_that_can_be_nothing_is_promoted_or_noted(start: Callable[..., Running]) -> None:
    broker, calls = start(role="slave", master="127.0.0.1:1"), list[str]()
    store_epochs(broker.attached.files.layout, (Epoch(EPOCH_MAX, 0),))
    with pytest.raises(StoreError, match="no epoch is left"):
        switch_of(broker, MasterState("127.0.0.1"), calls).promote(force=True)
    assert calls == ["stopped", "begins again"] and not broker.attached.files.layout.role.exists()
