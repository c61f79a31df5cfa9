"""What groups commit on a slave while its master is dead: the master has it when it comes again."""

from __future__ import annotations

import pytest

from shmq.protocol.codes import Request
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import ask, assert_equal, bodies_of, offsets_of, send
from tests.ha.test_switch import fixed, slave_of

pytestmark = pytest.mark.slow
COUNT = 40


def test_a_master_that_comes_again_has_what_was_committed_on_its_slave() -> None:
    with Broker(**fixed(), default_queues=1) as master, slave_of(master) as slave:
        send(master, range(COUNT))
        bodies_of(master.url, COUNT, "both")
        send(master, range(COUNT, COUNT + 2))
        assert_equal(master, slave)
        bodies_of(slave.url, COUNT + 2, "beside")
        assert offsets_of("beside", master) == [COUNT + 2]  # at once: it is the master's group
        eventually(lambda: offsets_of("both", slave) == [COUNT], lambda: str(offsets_of("both", slave)))
        master.kill_daemon()
        eventually(lambda: "ha.master_lost" in slave.log, lambda: slave.log[-2000:])
        of_queue = {"topic": "orders", "queueId": "0"}
        for group, offset in (("both", COUNT + 2), ("remote", 7)):
            reply = ask(
                slave, Request.UPDATE_CONSUMER_OFFSET, consumerGroup=group, commitOffset=str(offset), **of_queue
            )
            assert reply.code == 0, reply
        bodies_of(slave.url, COUNT + 2, "local")
        master.restart()
        for group, offset in (("both", COUNT + 2), ("remote", 7), ("local", COUNT + 2)):
            eventually(
                lambda group=group, offset=offset: offsets_of(group, master) == [offset],
                lambda group=group: f"{group} {offsets_of(group, master)} {slave.log[-2000:]}",
            )
