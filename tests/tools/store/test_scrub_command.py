"""`shmq store scrub` asks the keeper for a pass, waits for it, and says what it found; health goes on saying it."""

import os

from shmq.store.layout import file_name
from shmq.testing import Broker
from tests.tools.shell import Shell


def test_a_pass_that_was_asked_for_finds_what_is_wrong_and_health_says_so() -> None:
    with Broker(default_queues=1) as broker:
        shell = Shell(broker.url)
        with broker.connect() as mq:
            for number in range(1000):
                mq.send("orders", b"%d" % number)
        document = shell.json("store-scrub", "store", "scrub", "--now")
        assert (document["damages"], document["units_rebuilt"], document["position"]) == (0, 0, -1)
        path = broker.store / "consumequeue/orders/0" / file_name(0)
        with path.open("r+b") as file:
            file.seek(4000)
            file.write(os.urandom(4000))
        found = shell.run("store", "scrub", "--now")
        assert found.status == 1 and b"200 rewritten units" in found.out
        assert shell.json("store-scrub", "store", "scrub", status=1)["units_rebuilt"] == 200
        assert "200 units" in shell.run("health").out.decode()
