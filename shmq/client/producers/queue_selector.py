"""Chooses the queue of each message by a producer's selector, and gives its id to the sender below.

    "round_robin"      as without a selector: queues take turns
    "key"              messages of one key go to one queue, in order; those without a key take turns
    "least_latency"    the queues of the broker that answered fastest; shared memory has but one, so they take turns
    a function         selector(queue_ids, candidate) -> one of queue_ids

`queue_id=` and `message_group=` of a send outweigh the selector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from shmq.client.keywords import queue_in_order
from shmq.client.kinds import check_text
from shmq.client.wire import MessageSender, Queues, Sends
from shmq.errors import UsageError
from shmq.shm.core import Receipt


class Candidate(NamedTuple):
    """A queue, as a selector may look at it."""

    topic: str
    body: Any
    tag: str | None
    key: str | None


QueueSelector: TypeAlias = str | Callable[[Sequence[int], Candidate], int]
NAMES: Final = ("round_robin", "key", "least_latency")


def check_selector(selector: QueueSelector | None) -> None:
    """Refuse an unknown selector.

    Raises:
        UsageError: neither a name of ours nor a function.
    """
    if selector is not None and selector not in NAMES and not callable(selector):
        raise UsageError(f"queue_selector={selector!r} does not exist", hint=f"{', '.join(NAMES)}, or a function")


def selecting(selector: QueueSelector | None, queues: Queues, sends: Sends, inner: MessageSender) -> MessageSender:
    """Return a sender that chooses queues; `inner` itself when there is nothing to choose."""
    if selector is None or selector == "round_robin":
        return inner
    return SelectingSender(selector, queues, sends, inner)


class SelectingSender:
    """A sender whose messages go to the queues a selector names."""

    def __init__(self, selector: QueueSelector, queues: Queues, sends: Sends, inner: MessageSender) -> None:
        self._selector = selector
        self._queues = queues
        self._sends = sends
        self._inner = inner

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        self._choose(topic, body, arguments)
        receipt: Receipt = self._inner.send(topic, body, **arguments)
        return receipt

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        self._choose(topic, body, arguments)
        self._inner.send_oneway(topic, body, **arguments)

    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        """Store all bodies into one queue; a function is asked once, about the first."""
        if bodies and self._selector != "key":
            self._choose(topic, bodies[0], arguments)
        receipts: list[Receipt] = self._inner.send_batch(topic, bodies, **arguments)
        return receipts

    def reserve(self, topic: str, size: int, **arguments: Any) -> Any:
        """Return memory for a body; a function sees no body, as there is none yet."""
        self._choose(topic, None, arguments)
        return self._inner.reserve(topic, size, **arguments)

    def _choose(self, topic: str, body: Any, arguments: dict[str, Any]) -> None:
        if arguments.get("queue_id") is not None or arguments.get("message_group") is not None:
            return
        key = arguments.get("key")
        if self._selector == "key" and key is None:
            return
        if self._selector == "least_latency":
            queue_id = self._sends.fastest_queue(topic)
            if queue_id is not None:
                arguments["queue_id"] = queue_id
            return
        queue_ids = self._queues.write_queues(topic)
        if not queue_ids:
            return  # the send says what is wrong with the topic
        if isinstance(self._selector, str):
            check_text("key", key)
            arguments["queue_id"] = queue_ids[queue_in_order(str(key), len(queue_ids))]
            return
        chosen = self._selector(queue_ids, Candidate(topic, body, arguments.get("tag"), key))
        if chosen not in queue_ids:
            raise UsageError(
                f"the queue selector chose {chosen!r} for topic {topic}, which has {list(queue_ids)}",
                hint="return one of the ids it is given",
            )
        arguments["queue_id"] = chosen
