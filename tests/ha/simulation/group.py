"""Several brokers, their network, the coordination store and the names, on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shmq.daemon.ha.election.coordination import Answer, Grant, KeepAlive, Request, View
from shmq.daemon.ha.election.policy import Policy
from shmq.daemon.ha.election.registration import replaces
from tests.ha.simulation.ambush import Ambush
from tests.ha.simulation.broker_model import ANSWER_MS, Broker, Connection
from tests.ha.simulation.checker import Checker
from tests.ha.simulation.coordination_model import CoordinationModel
from tests.ha.simulation.world import World

REGISTER_MS = 700


class Group:
    """Brokers of one name.

    Attributes:
        cut: (from, to) through which nothing comes; "store" is the coordination store.
        slow_ms: what a message takes longer at most; store_slow_ms: what the store's requests and answers do.
        flush_slow_ms: what a flush takes longer at most.
        lost_answers: requests of a broker that will be done, and their answers lost.
        late_requests: requests of a broker that will be done late, many only after they were given up.
    """

    def __init__(self, seed: int, names: str, policy: Policy) -> None:
        self.world = World(seed)
        self.policy = policy
        self.store = CoordinationModel(self.world)
        self.checker = Checker(self.store, is_sync=policy.is_sync)
        self.cut: set[tuple[str, str]] = set()
        self.slow_ms = self.store_slow_ms = 0
        self.flush_slow_ms = self.world.chance.choice((0, 0, 0, 300))
        self.lost_answers: dict[str, int] = {}
        self.late_requests: dict[str, int] = {}
        self.is_loaded = True
        self.restarts_finished = True
        self.elections: list[tuple[int, str, int]] = []  # when, who, epoch
        self._number = 0
        self._route = 0
        self.brokers = {name: Broker(self, name) for name in names}
        self.ambush = Ambush(self, ANSWER_MS)
        self.store.watchers += [self.checker.stored, self._tell_watchers]
        for broker in self.brokers.values():
            broker.start()
            self.world.after(REGISTER_MS, None, self._register, broker)

    def next_number(self) -> int:
        """Number a record."""
        self._number += 1
        return self._number

    def flush_ms(self) -> int:
        """How long a flush takes."""
        return 2 + self.world.chance.randrange(10 + self.flush_slow_ms)

    def cut_ms(self) -> int:
        """How long it takes until a log is cut: a new generation begins, whose tail is copied."""
        return self.world.chance.choice((1, 20, 300, 1_200))

    # Faults that end by themselves

    def cut_for(self, ms: int, pairs: set[tuple[str, str]]) -> None:
        """Let nothing through for a while."""
        self.cut |= pairs
        self.world.after(ms, None, self.cut.difference_update, pairs)

    def stop_for(self, ms: int, broker: Broker, *, with_core: bool = True, clock_stands: bool = False) -> None:
        """Stop a broker's process, or all of its host, for a while."""
        if not broker.is_running or broker.host.is_stopped:
            return
        broker.host.is_stopped = True
        broker.core.is_stopped = with_core
        began = self.world.now if clock_stands else None
        self.world.after(ms, None, self._go_on, broker, broker.host.life, began)

    def _go_on(self, broker: Broker, life: int, began: int | None) -> None:
        if broker.host.life != life or not broker.host.is_stopped:
            return  # it goes on already, and its clock with it
        if began is not None:
            broker.clock_offset -= int((self.world.now - began) * broker.rate)
            broker.clock_stood = True
        for host in (broker.core, broker.host):
            if host.is_stopped:
                self.world.resume(host)

    def fill_for_good(self, broker: Broker) -> None:
        """Let a disk take nothing until the schedule ends: one disk of the group at most."""
        if self.with_full_disk() is None:
            broker.stays_full = True

    def with_full_disk(self) -> Broker | None:
        """The broker whose disk takes nothing until the schedule ends, if there is one."""
        return next((broker for broker in self.brokers.values() if broker.stays_full), None)

    # The store

    def ask(self, broker: Broker, request: Request, then: Callable[[Answer | None], None]) -> None:
        """Ask the store, as far as it can be reached; no broker waits for an answer for ever."""
        world = self.world
        world.after(ANSWER_MS, broker.host, then, None)
        if (broker.name, "store") in self.cut or self.store.is_down:
            return
        late = self.late_requests.get(broker.name, 0)
        if late:
            self.late_requests[broker.name] = late - 1
        ms = world.chance.randrange(6 * ANSWER_MS) if late else self._store_ms()
        ms += self.ambush.request_ms(broker, request)
        world.after(ms, None, self._do, broker, broker.host.life, request, then)

    def _do(self, broker: Broker, life: int, request: Request, then: Callable[[Answer | None], None]) -> None:
        if self.store.is_down:
            return
        answer = self.store.do(request)
        if broker.host.life != life:
            self.checker.forgets(broker.uuid)
        lost = self.lost_answers.get(broker.name, 0)
        if lost and not isinstance(request, Grant | KeepAlive):
            self.lost_answers[broker.name] = lost - 1
            return
        if broker.host.life == life and ("store", broker.name) not in self.cut:
            self.world.after(self._store_ms() + self.ambush.answer_ms(broker, request), broker.host, then, answer)

    def _store_ms(self) -> int:
        return 1 + self.world.chance.randrange(8 + self.store_slow_ms)

    def _tell_watchers(self, view: View) -> None:
        for broker in self.brokers.values():
            if broker.host.is_up and ("store", broker.name) not in self.cut and self.world.chance.random() < 0.9:
                self.world.after(1 + self.world.chance.randrange(20), broker.host, broker.seen, view)

    # The network

    def send(self, link: Connection, source: Broker, target: Broker, do: Callable[..., None], *arguments: Any) -> None:
        """Send over a connection: in order, or the connection is broken."""
        if (source.name, target.name) in self.cut:
            link.is_silent = True  # neither end knows; what comes later would come behind a gap
        link.is_broken = link.is_broken or not target.host.is_up
        if link.is_broken or link.is_silent:
            return
        world = self.world
        ms = 1 + world.chance.randrange(4)
        if self.slow_ms:
            ms += world.chance.randrange(self.slow_ms)
        at = max(world.now + ms, link.arrives[target])
        link.arrives[target] = at
        world.after(at - world.now, target.host, self._arrive, link, source, target, do, arguments)

    def _arrive(
        self, link: Connection, source: Broker, target: Broker, do: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if (source.name, target.name) in self.cut:
            link.is_silent = True
        elif not (link.is_broken or link.is_silent):
            do(*arguments)

    # What others see

    def led(self, broker: Broker, epoch: int) -> None:
        """A broker has begun an epoch."""
        self.elections.append((self.world.now, broker.name, epoch))

    def finished(self, broker: Broker) -> None:
        """A broker was stopped in order; it comes again."""
        self.world.after(0, None, partial(self._stop_and_start, broker, broker.host.life))

    def _stop_and_start(self, broker: Broker, life: int) -> None:
        if broker.host.life == life:
            broker.kill(loses_unflushed=False)
            if self.restarts_finished:
                self.world.after(500, None, self.restart, broker)

    def restart(self, broker: Broker) -> None:
        """Start a broker that is down."""
        if not broker.is_running:
            broker.start()

    def _register(self, broker: Broker) -> None:
        """A broker that believes that it leads says so to the names, also when it is mistaken."""
        self.world.after(REGISTER_MS, None, self._register, broker)
        if broker.is_running and not broker.core.is_stopped and broker.may_append():
            self.world.after(self.world.chance.choice((5, 50, 2_000)), None, self._registered, broker.leading)

    def _registered(self, epoch: int) -> None:
        if replaces(epoch, self._route):
            self._route = epoch
            self.checker.routes(epoch)
