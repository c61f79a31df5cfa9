"""Counts for people: totals that outlive the broker's logic, and the present numbers of things.

They go to whatever keeps them (`Figures`): the counters of the bridge process, or nothing.

    GROUP_GET_NUMS topic@group       rocketmq_messages_out      a look at the traffic, once a second
    GROUP_GET_SIZE topic@group       rocketmq_throughput_out
    SNDBCK_PUT_NUMS topic@group      shmq_redeliveries
    END_TRANSACTION, answered        rocketmq_commit_messages, rocketmq_rollback_messages
    at each tick                     connections, open transactions, timers, pops, held pulls, conflicts
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shmq.daemon.broker.groups.consumer_group import Origin
from shmq.daemon.broker.groups.registry import Presence
from shmq.daemon.broker.statistics.statistics import SENT_BACK
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.requests import Answer, Call, Handler, Part
from shmq.protocol.codes import Request, Response
from shmq.protocol.system_topics import transaction

Labels = tuple[tuple[str, str], ...]

_SYSTEM_GROUP = "CID_RMQ_SYS_"

_OF_STATISTICS = {
    "GROUP_GET_NUMS": "rocketmq_messages_out",
    "GROUP_GET_SIZE": "rocketmq_throughput_out",
    SENT_BACK: "shmq_redeliveries",
}
_SETTLED = {
    transaction.COMMIT: "rocketmq_commit_messages",
    transaction.ROLLBACK: "rocketmq_rollback_messages",
}


class Figures(Protocol):
    """Where figures are kept; the names are those of `shmq.metrics.catalogue`."""

    def count(self, family: str, value: int = 1, labels: Labels = ()) -> None:
        """Add to a total."""

    def show(self, family: str, values: Mapping[Labels, int]) -> None:
        """Say how many there are, of each kind; kinds that are not named are no more."""


class NoFigures:
    """Keeps nothing."""

    def count(self, family: str, value: int = 1, labels: Labels = ()) -> None:
        """Forget it."""

    def show(self, family: str, values: Mapping[Labels, int]) -> None:
        """Forget it."""


class BrokerFigures(Part):
    """Counts for one broker's logic."""

    def __init__(self, figures: Figures, presence: Presence) -> None:
        self._figures = figures
        self._registry, self._connections, _ = presence
        self._states: dict[str, Callable[[], int]] = {}
        self._totals: dict[str, tuple[Callable[[], int], int]] = {}
        self._of_groups: dict[str, Callable[[], Mapping[tuple[str, str], int]]] = {}
        self._conflicts: dict[str, int] = {}

    def state(self, family: str, read: Callable[[], int]) -> None:
        """Have a number shown at each tick."""
        self._states[family] = read

    def of_groups(self, family: str, read: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Have numbers by topic and group shown at each tick."""
        self._of_groups[family] = read

    def total(self, family: str, read: Callable[[], int]) -> None:
        """Have what a number grew by added to a total at each tick."""
        self._totals[family] = read, read()

    def told(self, name: str, key: str, value: int) -> None:
        """Take note of one addition to RocketMQ's statistics."""
        family = _OF_STATISTICS.get(name)
        if family is not None:
            topic, _, group = key.partition("@")
            self._figures.count(family, value, (("consumer_group", group), ("topic", topic)))

    def settling(self, handler: Handler) -> Handler:
        """Return a handler of END_TRANSACTION that counts what it settled."""

        def counted(call: Call) -> Answer | None:
            answer = handler(call)
            state = call.command.ext.get("commitOrRollback", "")
            family = _SETTLED.get(int(state)) if state.isascii() and state.isdecimal() else None
            if family is not None and answer is not None and answer.code == Response.SUCCESS:
                self._figures.count(family)
            return answer

        return counted

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Show what there is now."""
        figures = self._figures
        for family, read in self._states.items():
            figures.show(family, {(): read()})
        for family, look in self._of_groups.items():
            found = look()
            figures.show(
                family,
                {(("consumer_group", group), ("topic", topic)): count for (topic, group), count in found.items()},
            )
        for family, (read, before) in self._totals.items():
            if (now := read()) > before:
                figures.count(family, now - before)
            self._totals[family] = read, now
        transports = Counter("shm" if each.is_local else "tcp" for each in self._connections.values())
        figures.show("shmq_connections", {(("transport", name),): transports[name] for name in ("shm", "tcp")})
        figures.show("rocketmq_producer_connections", self._producers())
        figures.show("rocketmq_consumer_connections", self._consumers())
        return ()

    def _producers(self) -> dict[Labels, int]:
        found: Counter[Labels] = Counter()
        clients = {
            (client_id, member.origin)
            for members in self._registry.producers().values()
            for client_id, member in members.items()
        }
        for _, origin in clients:
            found[_origin(origin)] += 1
        return found

    def _consumers(self) -> dict[Labels, int]:
        found: Counter[Labels] = Counter()
        for group in self._registry.consumer_groups():
            about = (
                ("consume_mode", "push" if group.consume_type == "CONSUME_PASSIVELY" else "pull"),
                ("consumer_group", group.name),
                ("is_system", "true" if group.name.startswith(_SYSTEM_GROUP) else "false"),
            )
            for member in group.members.values():
                found[(*about, *_origin(member.origin))] += 1
            self._count_conflicts(group.name, group.conflicts)
        return found

    def _count_conflicts(self, group: str, conflicts: int) -> None:
        before = self._conflicts.get(group, 0)
        if conflicts > before:
            self._figures.count("shmq_subscription_conflicts", conflicts - before, (("consumer_group", group),))
        self._conflicts[group] = conflicts


def end_transaction_counted(handlers: dict[int, Handler], figures: BrokerFigures) -> None:
    """Put the counting in front of the handler, where there is one."""
    if Request.END_TRANSACTION in handlers:
        handlers[Request.END_TRANSACTION] = figures.settling(handlers[Request.END_TRANSACTION])


def _origin(origin: Origin) -> Labels:
    return (
        ("language", origin.language.name.lower()),
        ("protocol_type", "shm" if origin.is_local else "remoting"),
        ("version", str(origin.version)),
    )
