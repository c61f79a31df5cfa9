"""A web service: POST /orders sends, a background listener handles, GET /orders/live shows orders as they come.

shmq serve
uvicorn --app-dir examples --timeout-graceful-shutdown 5 fastapi_app:app
curl -N localhost:8000/orders/live &
curl localhost:8000/orders --json '{"item": "apples", "quantity": 42}'
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, PositiveInt

import shmq
import shmq.aio


class Order(BaseModel):
    item: str
    quantity: PositiveInt


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect when the service starts; when it ends, let running handlers finish and leave the group."""
    async with shmq.aio.connect(name="orders-web") as mq:

        @mq.listener("orders", group="stock", threads=10)
        async def reserve(message: shmq.aio.Message) -> None:
            order = Order.model_validate_json(message.body)
            app.state.reserved[order.item] += order.quantity

        app.state.mq = mq
        await mq.start()
        yield


app = FastAPI(lifespan=lifespan)
app.state.reserved = Counter()


@app.post("/orders", status_code=202)
async def place(order: Order) -> dict[str, str]:
    receipt = await app.state.mq.send("orders", order.model_dump_json().encode(), key=order.item)
    return {"message_id": receipt.message_id}


@app.get("/reserved")
async def reserved() -> dict[str, int]:
    return dict(app.state.reserved)


@app.get("/orders/live")
async def live() -> Response:
    """Server-sent events. Broadcasting: each browser sees every order, and no group's lag grows."""

    async def events() -> AsyncIterator[str]:
        async with app.state.mq.subscribe("orders", model="broadcasting", start="end") as orders:
            yield ": listening\n\n"  # what is sent from here on is seen
            async for message in orders:
                yield f"id: {message.message_id}\ndata: {message.body.decode()}\n\n"
                await message.ack()

    return StreamingResponse(events(), media_type="text/event-stream")


@app.exception_handler(shmq.BrokerBusy)
@app.exception_handler(shmq.BrokerNotRunning)
async def unavailable(request: object, error: Exception) -> Response:
    """The broker is away or full: the client is to try again."""
    return Response(str(error), status_code=503, headers={"Retry-After": "1"})
