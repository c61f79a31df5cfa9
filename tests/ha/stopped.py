"""A process of the old master's host that is stopped in the middle of something, and goes on after a switch.

python stopped.py RUNTIME_DIR URL append    appends until the core refuses; the test stops it inside the lock
python stopped.py RUNTIME_DIR URL reserve   stops itself with half of a body written in place, publishes the whole
python stopped.py RUNTIME_DIR URL group     stops itself with a message and its queue in its name, settles it

Each line that it prints is one fact: `ready`, then what came of it, `done` or the name of the error.
"""

import os
import signal
import sys
from pathlib import Path

import shmq
from shmq.shm.core import CoreError, Producer
from shmq.shm.instance import read_instance
from shmq.shm.presence import attach_presence
from shmq.shm.segment import open_store

BODY_BYTES = 200_000


def say(word: str) -> None:
    """Write one line at once."""
    os.write(1, f"{word}\n".encode())


def stop() -> None:
    """Stand still until another process lets this one go on."""
    say("ready")
    os.kill(os.getpid(), signal.SIGSTOP)


def append(runtime_dir: str, _: str) -> None:
    """Hold the append lock for a good part of the time."""
    instance = read_instance(Path(runtime_dir, "instance.json"))
    assert instance is not None
    store = open_store(instance, writable=True)
    attach_presence(instance)
    producer = Producer(store, resolve=store.topic_find)
    bodies = [b"stopped" * 30] * 512
    producer.send_batch("held", bodies, queue_id=1)
    say("ready")
    while True:
        producer.send_batch("held", bodies, queue_id=1)


def reserve(_: str, url: str) -> None:
    """Own a part of the log."""
    with shmq.connect(url) as mq, mq.producer().reserve("held", BODY_BYTES) as slot:
        half = BODY_BYTES // 2
        slot.view[:half] = b"A" * half
        stop()
        slot.view[half:] = b"B" * half


def group(_: str, url: str) -> None:
    """Own queues of a group."""
    with shmq.connect(url) as mq, mq.subscribe("orders", group="stopped", start="first") as subscription:
        [message] = subscription.receive(1, 30.0)
        stop()
        message.ack()


try:
    {"append": append, "reserve": reserve, "group": group}[sys.argv[3]](*sys.argv[1:3])
    say("done")
except (shmq.ShmqError, CoreError) as error:
    say(type(error).__name__)
