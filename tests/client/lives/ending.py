"""What a program does when its main thread has ended: from a worker that is no daemon, and from a function of atexit.

python ending.py TOPIC URL…        prints "WHO URL HOW" for each message sent
"""

import asyncio
import atexit
import sys
import threading
from collections.abc import Iterator
from typing import Any

import shmq
import shmq.aio

TOPIC, URLS = sys.argv[1], sys.argv[2:]


def cut(mq: shmq.Connection) -> None:
    """Let a connection over TCP begin anew: every channel is gone, and the name server has to be asked again."""
    if mq.is_remote:
        wire: Any = mq._remote().wire
        for channel in list(wire.network._channels.values()):
            wire.network.soon(channel.close)
        wire.refresh(TOPIC)


def ways(url: str, before: dict[str, shmq.Connection]) -> Iterator[str]:
    """Send in every way there is, and name it."""
    with shmq.connect(url, timeout=30.0) as mq:
        mq.send(TOPIC, b"x")
    yield "connect"
    cut(before[url])
    before[url].send(TOPIC, b"x")
    yield "reconnect"

    async def main() -> None:
        async with shmq.aio.connect(url, timeout=30.0) as mq, mq.subscribe(TOPIC, group=f"g-{TOPIC}") as subscription:
            await mq.send(TOPIC, b"x")
            assert await subscription.receive(wait=60)

    asyncio.run(main())
    yield "asyncio"


def end(who: str, before: dict[str, shmq.Connection]) -> None:
    """Do all of it."""
    for url in URLS:
        for way in ways(url, before):
            print(who, url, way, flush=True)


def work(before: dict[str, shmq.Connection]) -> None:
    """Begin when the main thread has ended."""
    threading.main_thread().join()
    end("worker", before)
    for mq in before.values():
        mq.close()


if __name__ == "__main__":
    connections = [{url: shmq.connect(url, timeout=30.0) for url in URLS} for _ in range(2)]
    atexit.register(end, "atexit", connections[0])
    threading.Thread(target=work, args=connections[1:]).start()
