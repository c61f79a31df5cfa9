"""What must hold once faults are over: all of them, or all but a disk that stays full.

With such a disk, the broker that has it is relieved where it leads: no machine sees a disk that fills after an epoch
was begun. It is killed, or an operator has it hand over; then another one has to lead, and confirm.
"""

from __future__ import annotations

from shmq.daemon.ha.election.member import Role
from tests.ha.simulation.broker_model import STOP_MS, Broker
from tests.ha.simulation.checker import Violation
from tests.ha.simulation.group import Group

CALM_MS = 16_000  # how long a group may take to find together once all faults are over
LOOK_MS = 500
COMMAND_MS = STOP_MS + 600  # what a command may take: an orderly stop, and the start after it


def heal(group: Group, *, with_disks: bool = True) -> None:
    """End all faults; a disk that stays full is one of them only at the very end."""
    group.cut.clear()
    group.slow_ms = group.store_slow_ms = group.flush_slow_ms = 0
    group.ambush.end()
    group.lost_answers.clear()
    group.late_requests.clear()
    if group.store.is_down:
        group.store.come_up(renews=False)
    for broker in group.brokers.values():
        broker.is_filled = False
        broker.stays_full = broker.stays_full and not with_disks
        for host in (broker.core, broker.host):
            if host.is_stopped:
                group.world.resume(host)
        group.restart(broker)


def roles(group: Group) -> str:
    """Say what every broker does, and what the store has."""
    of_brokers = ", ".join(f"{b.uuid} {b.member.status(b.now)}" for b in group.brokers.values())
    return f"{of_brokers}; {group.store.view}"


def find_leader_beside_full_disk(group: Group) -> bool | None:
    """End all faults but that of a disk which stays full, and wait until another broker leads and confirms.

    Returns:
        None where no disk stays full, False where no other broker could be elected.

    Raises:
        Violation: one could be, and does not lead.
    """
    full = group.with_full_disk()
    if full is None:
        return None
    heal(group, with_disks=False)
    group.world.run(group.world.now + COMMAND_MS)
    others = [broker for broker in group.brokers.values() if broker is not full]
    is_relieved = False
    ends: dict[tuple[str, int], int] = {}
    until = group.world.now + CALM_MS
    while group.world.now < until:
        group.world.run(group.world.now + LOOK_MS)
        if any(_makes_progress(broker, len(others), ends) for broker in others):
            return True
        if full.leading and any(group.checker.can_be_elected(broker.uuid) for broker in others):
            until = until if is_relieved else group.world.now + CALM_MS
            is_relieved = True
            _relieve(full)
        for broker in group.brokers.values():
            group.restart(broker)
            if broker.host.is_stopped:
                heal(group, with_disks=False)
    if any(group.checker.can_be_elected(broker.uuid) for broker in others):
        raise Violation("blocked", f"the disk of {full.uuid} takes nothing, and {roles(group)}")
    return False


def _makes_progress(broker: Broker, disks: int, ends: dict[tuple[str, int], int]) -> bool:
    if broker.member.role is not Role.LEADING or not broker.may_append():
        return False
    end = ends.setdefault((broker.uuid, broker.leading), broker.log.end)
    return broker.confirmed > end or disks < broker.group.policy.in_sync_min


def _relieve(broker: Broker) -> None:
    if broker.group.world.chance.random() < 0.5:
        broker.kill(loses_unflushed=broker.group.world.chance.random() < 0.5)
        return
    broker.hand_over()
