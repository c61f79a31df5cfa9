"""What a broker does that was elected, or follows, when a part of it fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmq.daemon.ha.elected.station import Station
from shmq.daemon.ha.slave.following import Following
from shmq.daemon.switched import Switched
from shmq.errors import StoreError
from shmq.options.broker import Options
from shmq.shm.access import Access
from shmq.shm.core import READ_ONLY_FOLLOWER, ReplicaStore
from shmq.store.layout import StoreLayout
from shmq.store.lineage.epochs import FIRST, load_epochs
from tests.bindings.live_store import LiveStore
from tests.deadline import eventually
from tests.keeper.conftest import Events

LEADER = "10.0.0.5:10911/10.0.0.5:10912"


@pytest.fixture
def live() -> Iterator[LiveStore]:
    with LiveStore() as store:
        ReplicaStore(store.store).follow("10.0.0.5:10911")
        yield store


class Broken:
    """Follows nothing: the first thing it does is a defect."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(master_end=0)
        self.stopping = threading.Event()

    def run(self) -> None:
        raise IndexError("a defect")

    def stop(self) -> None:
        pass


class Stationed:
    """A station that follows with a store of its own."""

    def __init__(self, live: LiveStore) -> None:
        self.live, self.events = live, Events()
        self.ended: list[Exception | None] = []
        self.layout = StoreLayout(live.path, Access(-1))
        options = Options(etcd=("127.0.0.1:2379",), group_role="sync-master", role="slave", ha_listen="127.0.0.1:10912")
        self.station = Station(
            cast(Any, SimpleNamespace(instance_path=live.path / "none")),
            Switched(options, "elected sync-master"),
            self.layout,
            cast(Any, live.store),
            cast(Any, self.events),
            follower=lambda options, elected: cast(Following, Broken()),
            say=lambda store, message: None,
            changed=lambda reason: None,
            ended=lambda: self.ended.append(None),
            failed=self.ended.append,
        )


@pytest.fixture
def stationed(live: LiveStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stationed]:
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    stationed = Stationed(live)
    yield stationed
    assert stationed.station.close()


def test_a_thread_that_ends_by_a_defect_ends_its_process(stationed: Stationed) -> None:
    """The leader may stay for months, and nothing would be copied any more."""
    assert stationed.station.follow("2" * 32, LEADER, 3)
    eventually(lambda: stationed.ended, lambda: stationed.events)
    assert isinstance(stationed.ended[0], IndexError), "it counts as a death"


def test_a_leader_that_the_disk_does_not_let_be_noted_is_asked_for_again(stationed: Stationed) -> None:
    stationed.layout.role.mkdir()
    assert not stationed.station.follow("2" * 32, LEADER, 3)
    assert not stationed.station.follow("2" * 32, LEADER, 3)
    assert len(stationed.events.named("ha.not_followed")) == 1
    stationed.layout.role.rmdir()
    assert stationed.station.follow("2" * 32, LEADER, 3)


def test_a_promotion_that_the_disk_refuses_is_said_and_changes_nothing(live: LiveStore, stationed: Stationed) -> None:
    stationed.layout.role.mkdir()
    with pytest.raises(StoreError):
        stationed.station.promote(4, "elected")
    assert live.store.standing == READ_ONLY_FOLLOWER and load_epochs(stationed.layout) == FIRST
    assert stationed.station.role == "slave"
    assert "ha.promotion_failed" in str(stationed.events), stationed.events
