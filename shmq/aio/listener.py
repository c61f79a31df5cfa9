"""Listeners that are coroutine functions: tasks instead of threads, the same outcomes and the same lanes.

Invariants:
    (1) at most `threads` calls run at once; when the listeners stop, running calls get the drain time, and messages
        taken ahead are given back;
    (2) a call that we cancel, because it runs longer or because the listener's own task was cancelled, gives its
        message back at once; a CancelledError of the function's own is a failure like any other (`shmq/functions.py`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmq.aio.message import Message
from shmq.aio.offload import carried_out, submit
from shmq.aio.opening import Opening
from shmq.aio.receiving import Receiving
from shmq.client import options
from shmq.client.consumers.lanes import Lanes
from shmq.client.consumers.listener import PushConsumer, check_threads, log_end
from shmq.client.observers.observer import Call
from shmq.client.redelivery.redelivery import Action, settle, settle_failed
from shmq.client.spec import ConsumerSpec
from shmq.errors import UsageError
from shmq.functions import check_coroutine_function, finished

if TYPE_CHECKING:
    from shmq.client.connection import Connection as SyncConnection
    from shmq.shm.core import Message as SyncMessage

Function = Callable[[Any], Any]


class Listener:
    """One coroutine function and the tasks that run it."""

    def __init__(self, spec: ConsumerSpec, function: Function, *, threads: int, ordered: bool) -> None:
        count = check_threads(threads)
        check_coroutine_function(function)
        self.spec = spec._replace(ordered=ordered)
        self.function = function
        self._task_max = count
        self._lanes = Lanes(ordered=ordered)
        self._joining: Opening[PushConsumer] | None = None
        self._receiving: Receiving | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[None]] = set()  # calls that we have cancelled
        self._settling: set[asyncio.Future[bool]] = set()  # what asks a broker, in threads
        self._task: asyncio.Task[Any] | None = None
        self._stopping = False

    async def run(self, connection: SyncConnection) -> None:
        """Receive and call until stopped; the caller drains."""
        self._task, self._stopping = asyncio.current_task(), False
        consumer = PushConsumer(connection._consumer_context(), self.spec, self._lanes.forget)
        join = functools.partial(connection._add_consumer, consumer)
        self._joining = Opening(join, PushConsumer.close).begin()
        if await self._joining.wait() is None:
            return  # stopped meanwhile
        self._receiving = Receiving(consumer)
        fetching: asyncio.Task[list[SyncMessage]] | None = None
        try:
            while not consumer._stopped:
                self._start_calls(consumer)
                if fetching is None and self._lanes.waiting_count < self._task_max:
                    fetching = asyncio.create_task(self._receiving.fetch(self._task_max, None))
                waited = {*self._running, fetching} if fetching is not None else set(self._running)
                done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if fetching in done:
                    messages = fetching.result()
                    fetching = None
                    for message in messages:
                        self._lanes.offer(message)
                    changes = self._lanes.relieve({message.queue_id for message in messages}, consumer._spans())
                else:
                    changes = self._lanes.relieve((), consumer._spans())
                for queue_id, paused in changes.items():
                    consumer._pause(queue_id, paused=paused)
                self._collect(done)
        finally:
            if fetching is not None:
                fetching.cancel()

    def stop(self) -> None:
        """Take no further message."""
        self._stopping = True
        if self._receiving is not None:
            self._receiving.stop()

    async def drain(self, timeout: float) -> None:
        """Wait for running calls, cancel what runs longer, and leave the group."""
        self.stop()
        if self._running:
            _, self._late = await asyncio.wait(self._running, timeout=timeout)
            for task in self._late:
                task.cancel()
            await asyncio.sleep(0)  # they begin to give their messages back
        if self._settling:  # else `close` gives a message back that is just sent back, and it comes twice
            await asyncio.wait(self._settling, timeout=options.CLOSE_TIMEOUT)
        if self._receiving is not None:
            await carried_out(self._receiving.consumer.close)
        elif self._joining is not None:
            await self._joining.refuse()
        self._receiving = self._joining = None
        self._running.clear()

    def _start_calls(self, consumer: PushConsumer) -> None:
        while len(self._running) < self._task_max and (message := self._lanes.take()) is not None:
            self._running.add(asyncio.create_task(self._call(consumer, message)))

    def _collect(self, done: set[Any]) -> None:
        for task in done & self._running:
            self._running.discard(task)
            if not task.cancelled():
                task.result()  # raises what could not be settled

    async def _call(self, consumer: PushConsumer, message: SyncMessage) -> None:
        observer = consumer._context.observer
        if observer is None:
            consumed = await self._consume(consumer, message)
        else:
            with observer.calling(self.spec.group, message) as call:
                consumed = call.consumed = await self._consume(consumer, message, call)
        self._lanes.finish(message, consumed=consumed)

    async def _consume(self, consumer: PushConsumer, message: SyncMessage, call: Call | None = None) -> bool:
        try:
            outcome = finished(await self.function(Message(message)))
        except BaseException as error:
            if call is not None:
                call.error = error
            if self._is_ours(error):
                await self._carried_out(consumer._redelivery.nack, message, 0.0)
                raise
            return await self._carried_out(settle_failed, consumer._redelivery, self.spec.group, message, error)
        if outcome is Action.RECONSUME_LATER:
            return await self._carried_out(settle, consumer._redelivery, message, outcome)
        return settle(consumer._redelivery, message, outcome)

    async def _carried_out(self, call: Callable[..., bool], *given: Any) -> bool:
        """As `carried_out`; `drain()` waits for it, though the task that asked for it is cancelled."""
        future = submit(call, *given)
        self._settling.add(future)
        future.add_done_callback(self._settling.discard)
        return await asyncio.shield(future)

    def _is_ours(self, error: BaseException) -> bool:
        """Whether the current call was cancelled, and not by its function."""
        if not isinstance(error, asyncio.CancelledError):
            return False
        # Behind `stop()` the listener's task is cancelled by us, and running calls still have their drain time.
        is_cancelled = self._task is not None and self._task.cancelling() > 0 and not self._stopping
        return is_cancelled or asyncio.current_task() in self._late


class Listeners:
    """All listeners of an asyncio connection."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._tasks: dict[Listener, asyncio.Task[None]] = {}
        self._stopping = asyncio.Lock()
        self._is_run = False  # `run()` waits, and raises what ended a listener

    def add(self, listener: Listener) -> None:
        """Register a listener; `start()` starts it."""
        self._listeners.append(listener)

    async def start(self, connection: SyncConnection) -> None:
        """Start the listeners that do not run yet."""
        async with self._stopping:
            self._start(connection)

    def _start(self, connection: SyncConnection) -> None:
        if not self._listeners:
            raise UsageError(
                "there is no listener to run", hint='decorate one: @mq.listener("orders", group="billing")'
            )
        for listener in self._listeners:
            if listener not in self._tasks:
                task = self._tasks[listener] = asyncio.create_task(listener.run(connection))
                task.add_done_callback(functools.partial(self._ended, listener))

    def _ended(self, listener: Listener, task: asyncio.Task[None]) -> None:
        if self._is_run or listener not in self._tasks or task.cancelled() or task.exception() is None:
            return
        log_end(listener.spec, task.exception())
        # A member that reads nothing would keep its queues from the others.
        self._leaving = asyncio.create_task(listener.drain(options.CLOSE_TIMEOUT))

    async def run(self, connection: SyncConnection, timeout: float) -> None:
        """Start, wait until stopped or cancelled, and drain for `timeout` seconds."""
        await self.start(connection)
        self._is_run = True
        try:
            await asyncio.wait(set(self._tasks.values()), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_run = False
            failures = await asyncio.shield(self.stop(timeout))
        for failure in failures:
            raise failure

    async def stop(self, timeout: float) -> list[BaseException]:
        """Stop receiving, wait for running calls, give back the rest; returns what had ended listeners before."""
        async with self._stopping:  # a task that was cancelled may have left another stop going on
            return await self._stop(timeout)

    async def _stop(self, timeout: float) -> list[BaseException]:
        tasks, self._tasks = self._tasks, {}
        failures = []
        for listener, task in tasks.items():
            listener.stop()
            if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
                failures.append(failure)
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        await asyncio.gather(*(listener.drain(timeout) for listener in tasks))
        return failures
