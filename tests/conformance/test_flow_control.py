"""Flow control of listeners: one message that takes long lets the others go on, but not for ever."""

import threading
import time
from collections.abc import Callable
from typing import Any

import shmq
from shmq.client.options import HELD_SPAN_MAX
from tests.conformance.conftest import Named

Eventually = Callable[..., Any]
COUNT = HELD_SPAN_MAX + 1000
ON_THE_WAY = 100  # taken at once, or pulled at once, before anything is counted


def test_a_message_that_takes_long_holds_its_queue_up_at_two_thousand(
    mq: shmq.Connection, named: Named, eventually: Eventually
) -> None:
    topic = named("orders")
    mq.admin.create_topic(topic, queues=1)
    mq.send_batch(topic, [b"%d" % number for number in range(COUNT)])
    seen: set[bytes] = set()
    release = threading.Event()

    @mq.listener(topic, group=named("billing"), threads=4)
    def handle(message: shmq.Message) -> None:
        if message.body == b"0":
            assert release.wait(120)
        seen.add(message.body)

    mq.start()
    eventually(lambda: len(seen) >= HELD_SPAN_MAX - ON_THE_WAY)
    assert _stands_still(seen, eventually) <= HELD_SPAN_MAX + ON_THE_WAY
    release.set()
    eventually(lambda: len(seen) == COUNT)


def _stands_still(seen: set[bytes], eventually: Eventually) -> int:
    """Wait until nothing was added for half a second, and return how many there are."""
    last = (-1, 0.0)

    def still() -> bool:
        nonlocal last
        if len(seen) != last[0]:
            last = (len(seen), time.monotonic())
        return time.monotonic() - last[1] > 0.5

    eventually(still)
    return last[0]
