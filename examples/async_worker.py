"""Send and handle messages in asyncio: each operation is awaited. Ctrl-C ends it.

shmq serve
python examples/async_worker.py
"""

import asyncio
import contextlib

import shmq
import shmq.aio


async def main() -> None:
    async with shmq.aio.connect() as mq:
        await mq.send("orders", b"42 apples", tag="fruit")

        @mq.listener("orders", group="shipping", threads=100)  # up to a hundred tasks at once
        async def ship(message: shmq.aio.Message) -> None:
            await asyncio.sleep(0.01)
            print(message.tag, message.body, flush=True)

        await mq.run()  # until it is cancelled


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
