"""Looking for messages by a key: the questions that bring everything a broker has, page by page.

    shmq        fromPosition → the oldest records from there on, and `nextPosition`: where the next page begins, or 0
    RocketMQ    the newest 64 stored within a time, in no more than whole seconds: the next page ends where this began

Rules:
    (1) pages are asked for until enough was found or there are no more; no message is counted twice;
    (2) what a broker cannot be asked for (RocketMQ: more than 64 messages with one key in one second) is reported as
        a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from shmq.shm.core import Message

TIME_MS_MAX: Final = (1 << 63) - 1
PAGE_MAX: Final = 1000
NO_MORE: Final = 0
_ROCKETMQ_PAGE: Final = 64  # its maxMsgsNumBatch
_SECOND_MS: Final = 1000
_LOOKED_AT_MAX: Final = (
    20_000  # of a broker that answers with the newest first: they are held until the oldest is known
)


class KeyQuery(NamedTuple):
    """A question to the key index; times in ms, both included."""

    topic: str
    key: str
    is_unique: bool = False
    begin_ms: int = 0
    end_ms: int = TIME_MS_MAX
    from_position: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """The header fields of QUERY_MESSAGE."""
        fields = {
            "topic": self.topic,
            "key": self.key,
            "maxNum": str(PAGE_MAX),
            "beginTimestamp": str(self.begin_ms),
            "endTimestamp": str(self.end_ms),
        }
        return fields | ({"_UNIQUE_KEY_QUERY": "true"} if self.is_unique else {"fromPosition": str(self.from_position)})

    def wants(self, message: Message) -> bool:
        """Whether a message is an answer; the index only knows hashes and whole seconds."""
        if not self.begin_ms <= message.store_ms <= self.end_ms:
            return False
        if message.properties.get("UNIQ_KEY") == self.key:
            return True
        return not self.is_unique and self.key in message.keys


class KeyPages:
    """The pages of one broker; without I/O."""

    def __init__(self, query: KeyQuery, enough: int, wants: Callable[[Message], bool]) -> None:
        self.query = query
        self.found: list[Message] = []
        self.is_done = self.is_cut = False
        self._enough = enough
        self._wants = wants
        self._seen: set[int] = set()

    def take(self, messages: Sequence[Message], following: int | None) -> None:
        """Take a page, and see what to ask for next.

        Args:
            following: what the broker says of it; None when it says nothing.
        """
        new = [message for message in messages if message.log_position not in self._seen]
        self._seen.update(message.log_position for message in new)
        self.found += filter(self._wants, new)
        if self.query.is_unique or following == NO_MORE:
            self.is_done = True
        elif following is not None:
            self.query = self.query._replace(from_position=following)
            self.is_done = len(self.found) >= self._enough
        else:
            self._step_back(messages, is_new=bool(new))

    def _step_back(self, messages: Sequence[Message], *, is_new: bool) -> None:
        """Go on before the oldest message of a page; one that brought nothing new was a second's, as is all of it."""
        if not messages:
            self.is_done = True
            return
        end_ms = min(message.store_ms for message in messages)
        if not is_new:
            end_ms -= _SECOND_MS
            self.is_cut |= len(messages) >= _ROCKETMQ_PAGE
        if len(self._seen) >= _LOOKED_AT_MAX:
            self.is_done = self.is_cut = True
        self.is_done |= end_ms < self.query.begin_ms
        self.query = self.query._replace(end_ms=min(end_ms, self.query.end_ms))
