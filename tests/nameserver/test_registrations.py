"""A registrar and a name server, both ours and without sockets, that lose, refuse and forget what is on its way."""

from __future__ import annotations

import json
import random

from shmq.daemon.logic.effects import Reply
from shmq.daemon.nameserver.registrar import REGISTER_INTERVAL_MS, Connect, Cut, RegistrarEffect, Send
from shmq.daemon.nameserver.registration import GONE, QueueEntry, Version
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from tests.nameserver.desk import Desk
from tests.nameserver.test_registrar import QUEUES, new_registrar, sent, topics_of
from tests.tables.rows import every_row

NAMES = "abcdefgh"


class Registrations:
    """One broker whose topics come, change and go, at one name server.

    Attributes:
        is_complete: the name server has taken all topics, and has lost or refused nothing since then.
    """

    def __init__(self, seed: int) -> None:
        self._chance, self._desk, self._registrar = random.Random(seed), Desk(), new_registrar()
        self._topics: dict[str, QueueEntry] = {}
        self._waiting: list[Command] = []
        self._connection_id = self._version = self._now_ms = 0
        self.is_complete = False

    def step(self) -> None:
        """Do one thing."""
        self._now_ms += self._chance.choice((0, 1, 400, 5_000))
        (action,) = self._chance.choices(
            (self._change, self.answer, self._refuse, self._lose, self._forget), (9, 7, 4, 1, 1)
        )
        action()
        self._take(self._registrar.tick(self._now_ms))

    def pass_interval(self) -> None:
        """Let the time pass after which everything is sent again."""
        self._now_ms += REGISTER_INTERVAL_MS
        self._take(self._registrar.tick(self._now_ms))

    def answer(self) -> None:
        """Let the name server answer all that is on its way."""
        while self._waiting:
            request = self._waiting.pop(0)
            self.is_complete |= topics_of(request) >= self._topics.keys()
            (reply, *_) = self._desk.server.handle(self._connection_id, request, self._now_ms)
            assert isinstance(reply, Reply)
            self._take(self._registrar.answered("ns:9876", reply.command, self._now_ms))
        if self.is_complete:
            self.check()

    def check(self) -> None:
        """The name server has the topics of now."""
        client = self._desk.connect()
        for name, queue in self._topics.items():
            route = self._desk.route(client, name)
            assert (route.code == Response.SUCCESS) == (queue != GONE), name
            if queue != GONE:
                assert json.loads(route.body)["queueDatas"][0]["readQueueNums"] == queue.read_queues

    def _change(self) -> None:
        more = QUEUES._replace(read_queues=self._chance.randint(1, 8))
        self._topics[self._chance.choice(NAMES)] = self._chance.choice((GONE, QUEUES, more))
        self._version += 1
        mark = Version(timestamp=self._now_ms, counter=self._version)
        self._take(self._registrar.announce(dict(self._topics), mark, self._now_ms))

    def _refuse(self) -> None:
        if self._waiting:
            reply = self._waiting.pop(0).reply(Response.SYSTEM_ERROR)
            self._take(self._registrar.answered("ns:9876", reply, self._now_ms))
            self.is_complete &= bool(self._waiting)  # everything, once more

    def _lose(self) -> None:
        if self._connection_id:
            self._hang_up()
            self._take(self._registrar.lost("ns:9876", "", self._now_ms))

    def _forget(self) -> None:
        """Another process takes leave in the broker's name."""
        if self._connection_id:
            other = new_registrar()
            other.announce({}, Version(), 0)
            other.connected("ns:9876", "", 0)
            (goodbye,) = sent(other.stop())
            self._desk.server.handle(self._connection_id, goodbye, self._now_ms)
            self.is_complete = False

    def _hang_up(self) -> None:
        self._desk.server.disconnected(self._connection_id, self._now_ms)
        self._connection_id, self.is_complete = 0, False
        self._waiting.clear()

    def _take(self, effects: list[RegistrarEffect]) -> None:
        if Connect("ns:9876") in effects:
            self._connection_id = self._desk.connect("10.0.0.1")
            effects = self._registrar.connected("ns:9876", "", self._now_ms)
        if Cut("ns:9876") in effects:
            self._hang_up()
        self._waiting += [effect.command for effect in effects if isinstance(effect, Send)]


@every_row("seed", range(40))
def test_whatever_happens_on_the_way_a_name_server_ends_with_the_topics_of_now(seed: int) -> None:
    """As soon as all is answered, and where it has lost them when everything is sent again."""
    run = Registrations(seed)
    for _ in range(60):
        run.step()
    for _ in range(3):
        run.answer()
        run.pass_interval()
    run.answer()
    assert run.is_complete
    run.check()
