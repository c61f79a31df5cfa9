"""Two programs that go on while the master of their broker changes; README's "Two hosts" starts them.

    python examples/two_programs.py send 3000       sends the numbers from 0 on, each until it is acknowledged
    python examples/two_programs.py receive 3000    ends when it has each of them

Both speak to the broker of their own host, whichever leads. A number whose answer got lost is sent once more, so it
may come twice; none is missing.
"""

import sys
import time

import shmq

TOPIC, GROUP = "numbers", "counters"
PAUSE_SECONDS = 0.005


def send(count: int) -> None:
    number, began, refused = 0, time.monotonic(), 0
    while number < count:
        try:
            with shmq.connect(timeout=2.0) as mq:
                while number < count:
                    mq.send(TOPIC, b"%d" % number)
                    number += 1
                    time.sleep(PAUSE_SECONDS)
                    if number % 500 == 0:
                        print(
                            f"{time.monotonic() - began:5.1f} s  {number} acknowledged, {refused} refused", flush=True
                        )
        except shmq.ShmqError as error:  # no host leads just now
            refused += 1
            print(f"{time.monotonic() - began:5.1f} s  {error}", flush=True)
            time.sleep(0.2)
    print(f"all {count} acknowledged", flush=True)


def receive(count: int) -> None:
    missing = {b"%d" % number for number in range(count)}
    while missing:
        try:
            with shmq.connect(timeout=2.0) as mq, mq.subscribe(TOPIC, group=GROUP, start="earliest") as messages:
                while missing:
                    for message in messages.receive(32, 1.0):
                        missing.discard(bytes(message.body))
                        message.ack()
        except shmq.ShmqError as error:
            print(error, flush=True)
            time.sleep(0.2)
    print(f"all {count} received", flush=True)


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](int(sys.argv[2]))
