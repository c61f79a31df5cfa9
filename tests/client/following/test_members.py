"""Where the members of a host that follows belong: at the leader, unless this host takes nothing of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.following import members as members_module
from shmq.client.following.contact import GONE_SECONDS
from shmq.client.following.copying import Copying
from shmq.client.following.members import FollowingMembers
from shmq.client.spec import ConsumerSpec
from shmq.errors import NotMaster
from tests.client.threads.test_following import LeaderGroups, OwnGroups
from tests.tables.rows import every_row

BILLING = ConsumerSpec("orders", "billing")
THERE, HERE = "the leader's", "this host's"
COMMITTED = 7


class Share:
    """A share of this host's groups: one queue, whose offset is in shared memory."""

    def __init__(self) -> None:
        self.held = {0: SimpleNamespace(queue_id=0, queue_index=0, offset_slot=0)}


class Groups(OwnGroups):
    """The groups of this host."""

    def open(self, owner: object, spec: ConsumerSpec, on_left: object) -> Any:
        return "its reader", Share()


class Segments:
    """Those of this host, with one topic and one queue."""

    head = {"ack_rule": 0}  # noqa: RUF012
    retired = False

    def topic(self, name: str) -> dict[str, int]:
        return {"born_position": 0, "flush": 0}

    def queue(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(topic="orders")

    def offset_get(self, slot: int) -> int:
        return COMMITTED


class Leader:
    """A leader that answers, unless it is away; this host may refuse it."""

    follows = True

    def __init__(self) -> None:
        self.is_refused = self.is_away = False
        self.copying = Copying(is_up_to_date=True)
        self.groups = LeaderGroups()
        self.left = 0

    @property
    def owns_groups(self) -> bool:
        return not self.is_refused

    @property
    def session(self) -> Any:
        assert not self.is_refused, "a leader that is refused is asked for nothing"
        if self.is_away:
            raise NotMaster("it cannot be reached")
        return SimpleNamespace(members=self.groups, wire=SimpleNamespace(alive=True))

    def has(self, groups: object) -> bool:
        return groups is self.groups

    def leave(self) -> None:
        self.left += 1

    def introduce(self, producer_groups: object) -> None: ...


class Host:
    """A connection on a host that follows."""

    def __init__(self) -> None:
        self.leader: Any = Leader()
        wire: Any = SimpleNamespace(store=Segments(), instance=SimpleNamespace(generation=1))
        here: Any = Groups()
        self.members = FollowingMembers(wire, here, self.leader)

    def open(self) -> str:
        """Open the consumer, anew if it is open; return whose queues it gets."""
        self.members.register([], [BILLING])
        owner: Any = None
        self.reader, self.share = self.members.open(owner, BILLING, lambda _: None)
        found: Any = self.members.assignment(BILLING)
        return THERE if found == THERE else found[0]

    def renew(self) -> str:
        """Do what a reconnection does; return where the consumer is then."""
        return self.open() if self.members.renew() else "where it was"


def kept(host: Host) -> list[int]:
    """The offsets that are kept for another place."""
    return [each.offset for each in host.members._kept._kept.values()]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(members_module, "started", lambda thread: thread)  # which never looks
    return Host()


def test_members_of_a_host_that_follows_share_the_leaders_queues(host: Host) -> None:
    assert host.open() == THERE
    assert host.renew() == "where it was"


def test_members_of_a_host_that_refuses_its_leader_stay_with_its_own_groups(host: Host) -> None:
    host.leader.is_refused = True
    assert host.open() == HERE
    assert host.renew() == "where it was"


def test_members_leave_a_leader_that_is_refused_and_come_back_once_it_is_followed(host: Host) -> None:
    assert host.open() == THERE
    host.leader.is_refused = True
    assert host.renew() == HERE
    assert host.leader.left == 1, "else its heartbeats go on, and the leader counts on members that read here"
    host.leader.is_refused = False
    assert host.renew() == THERE


def test_members_of_a_host_that_is_cut_off_read_what_the_leader_sends_until_the_copy_is_up_to_date(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(members_module.time, "monotonic", lambda: now)
    assert host.open() == THERE and (host.reader, host.members.keeps_readers) == (Groups.of_a_copy, False)
    host.leader.copying = Copying(is_cut_off=True)
    assert host.renew() == "where it was"
    now += GONE_SECONDS
    assert host.renew() == "where it was", "it was not looked at meanwhile, so it may have been back"
    now += GONE_SECONDS - 0.1
    host.members._found()
    now += 0.1
    assert host.renew() == THERE and (host.reader, host.members.keeps_readers) == (LeaderGroups.of_its_own, True)
    assert host.leader.left == 0
    host.members.keep_progress()
    assert kept(host) == [], "other messages may come to stand where the copy ends"
    host.leader.copying = Copying()
    assert host.renew() == "where it was", "it catches up"
    host.leader.copying = Copying(is_up_to_date=True)
    assert host.renew() == THERE and host.reader == Groups.of_a_copy


@pytest.mark.parametrize("is_refused", [False, True])
def test_offsets_of_a_log_that_is_none_of_the_leaders_are_kept_for_no_other_place(host: Host, is_refused: bool) -> None:
    host.leader.is_refused, host.leader.is_away = is_refused, True
    assert host.open() == HERE
    host.members.keep_progress()
    assert kept(host) == ([] if is_refused else [COMMITTED])


@every_row("is_retired", [False, True])
def test_a_log_that_was_none_of_the_leaders_is_until_this_host_follows_in_the_same_segments(
    monkeypatch: pytest.MonkeyPatch, is_retired: bool
) -> None:
    monkeypatch.setattr(members_module, "started", lambda thread: thread)
    host = Host()
    host.leader.is_refused = True
    assert host.open() == HERE
    host.leader.is_refused = False
    monkeypatch.setattr(Segments, "retired", is_retired)  # given up, and those that came after them not mapped yet
    assert host.renew() == THERE
    assert kept(host) == ([] if is_retired else [COMMITTED])
