"""Decides which objects may go to another process, as by a process pool, and words the refusal of the others.

    values       receipts, figures, errors          are copied
    connections  and typed topics                   open anew there
    all else     messages, consumers, producers …   refuse to be pickled or copied, and name what to hand over instead

A copy of the last kind would share a reader, a lock or memory with its original, or be nothing but a handle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from shmq.errors import WrongKind

if TYPE_CHECKING:
    from shmq.bindings._core import Receipt


def stays_here(cure: str) -> Callable[..., NoReturn]:
    """Return the `__reduce_ex__` of a type that stays in its process, or what `copyreg` takes for one."""

    def refuse(thing: object, protocol: object = None) -> NoReturn:
        raise WrongKind(
            f"a {type(thing).__name__} belongs to this process and can be neither pickled nor copied", hint=cure
        )

    return refuse


def receipt_values(receipt: Receipt) -> tuple[Any, ...]:
    """Return what a receipt is made of."""
    place = receipt.topic, receipt.queue_id, receipt.offset, receipt.log_position, receipt.store_ms
    return *place, receipt.message_id, receipt.recall_handle
