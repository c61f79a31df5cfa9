"""A message without a store, for what only looks at a message's place and state."""

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class StandIn:
    """The attributes of a received message that scheduling looks at."""

    queue_id: int
    offset: int
    attempt: int = 1
    settled: bool = False
    message_id: str = "id"

    def ack(self) -> None:
        self.settled = True


def message(queue_id: int = 0, offset: int = 0, **rest: Any) -> Any:
    """A stand-in where a Message is expected."""
    return StandIn(queue_id, offset, **rest)
