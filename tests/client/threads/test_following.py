"""Consumers that threads open at once on a host that follows."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.following import members as members_module
from shmq.client.following.copying import Copying
from shmq.client.following.members import FollowingMembers
from shmq.client.spec import ConsumerSpec
from tests.interruption import by_another_thread, met_everywhere

BILLING = ConsumerSpec("orders", "billing")
SHIPPING = ConsumerSpec("orders", "shipping")


class Share:
    """A share, as far as those who made it know it: it keeps its reader."""

    def __init__(self, reader: object = None) -> None:
        self.reader = reader


class LeaderGroups:
    """The groups of the leader: everything is taken."""

    questions = SimpleNamespace(offset_max=None)
    of_its_own, of_a_copy = "what it sends", "the copy"

    def beat(self) -> None: ...

    def drain(self) -> None: ...

    def watch(self, watcher: object) -> None: ...

    def register(self, producer_groups: object, specs: object) -> None: ...

    def adopt(self, reader: object, on_left: object) -> Share:
        return Share(reader)

    def open(self, owner: object, spec: ConsumerSpec, on_left: object) -> Any:
        return self.of_its_own, Share()

    def assignment(self, spec: ConsumerSpec) -> str:
        return "the leader's"


class OwnGroups(LeaderGroups):
    """The groups of this host."""

    def reader(self, owner: object, spec: ConsumerSpec) -> Any:
        return self.of_a_copy

    def assignment(self, spec: ConsumerSpec) -> Any:
        return "this host's", []


class Opening:
    """One thread opens a consumer while another one opens its own."""

    def __init__(self) -> None:
        groups = LeaderGroups()
        session = SimpleNamespace(members=groups, wire=SimpleNamespace(alive=True))
        leader: Any = SimpleNamespace(
            follows=True,
            owns_groups=True,
            copying=Copying(is_up_to_date=True),
            session=session,
            has=lambda known: known is groups,
        )
        wire: Any = SimpleNamespace(store=SimpleNamespace(retired=False), instance=SimpleNamespace(generation=1))
        here: Any = OwnGroups()
        self.members = FollowingMembers(wire, here, leader)
        self.shares: dict[ConsumerSpec, object] = {}

    def open(self, spec: ConsumerSpec, *beside: ConsumerSpec) -> None:
        self.members.register([], [*beside, spec])
        owner: Any = None
        _, self.shares[spec] = self.members.open(owner, spec, lambda _: None)

    def action(self) -> None:
        self.open(BILLING)

    def other(self) -> None:
        by_another_thread(lambda: self.open(SHIPPING, BILLING), unless_held=self.members._starting)

    def check(self) -> None:
        self.members._over.set()
        assert {str(self.members.assignment(spec)) for spec in self.shares} == {"the leader's"}


class Registration(Opening):
    """One thread registers the consumers of before while another one opens its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open(BILLING)

    def action(self) -> None:
        self.members.register([], [BILLING])


@pytest.mark.parametrize("meeting", [Opening, Registration])
def test_consumers_that_are_opened_at_once_read_for_the_leader(
    meeting: type[Opening], monkeypatch: pytest.MonkeyPatch
) -> None:
    lookouts: list[threading.Thread] = []

    def started(thread: threading.Thread) -> threading.Thread:
        lookouts.append(thread)
        return thread

    monkeypatch.setattr(members_module, "started", started)
    count = met_everywhere(meeting)
    assert count > 5
    assert len(lookouts) == count + 1, "one of each connection"
