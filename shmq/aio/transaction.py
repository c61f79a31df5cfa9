"""The asyncio twin of the transaction; everything that may wait runs in a thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmq.aio.offload import carried_out
from shmq.aio.opening import Opened
from shmq.client.transactions.transaction import Checker, TxState
from shmq.errors import UsageError

if TYPE_CHECKING:
    from shmq.client.transactions.transaction import Transaction as SyncTransaction
    from shmq.shm.core import Message, Receipt


class Transaction(Opened["SyncTransaction"]):
    """One message of a transaction: `async with p.transaction(…) as tx`, or `tx = await p.transaction(…)`."""

    async def __aexit__(self, *exc: Any) -> None:
        # A cancelled task must not leave in the middle what the broker would have to ask about.
        await carried_out(self._open_one.__exit__, *exc)

    @property
    def _open_one(self) -> SyncTransaction:
        if self._made is None:
            raise UsageError("the transaction has not begun", hint="async with p.transaction(…) as tx:")
        return self._made

    @property
    def id(self) -> str:
        """The message's id."""
        return self._open_one.id

    @property
    def state(self) -> TxState:
        """How it ended; UNKNOWN while it is open."""
        return self._open_one.state

    @property
    def receipt(self) -> Receipt | None:
        """Where the message is, once it is committed."""
        return self._open_one.receipt

    async def commit(self) -> Receipt:
        """Make the message visible and return where it is stored; see `shmq.Transaction.commit`."""
        return await carried_out(self._open_one.commit)

    async def rollback(self) -> None:
        """Never let the message be seen; see `shmq.Transaction.rollback`."""
        await carried_out(self._open_one.rollback)

    def __repr__(self) -> str:
        return repr(self._made) if self._made is not None else "<shmq.aio.Transaction not begun>"


def checker_for(loop: asyncio.AbstractEventLoop, function: Callable[[Message], Any]) -> Checker:
    """Return what a checker's thread calls for a function that may be a coroutine function of a loop."""
    if not inspect.iscoroutinefunction(function):
        return function

    def answer(message: Message) -> TxState:
        return TxState(asyncio.run_coroutine_threadsafe(function(message), loop).result())

    return answer
