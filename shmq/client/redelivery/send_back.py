"""Sending messages back to their broker, which stores a copy in %RETRY%group, due after RocketMQ's delays, or in
%DLQ%group; then the original is settled. So a retry outlives the process that failed, blocks no offset, and is the same
for members of this host and over TCP.

    after (seconds)   1  5  10  30  60  120 ... 7200     the next level that is not shorter; longer ones take the last
    level             1  2   3   4   5    6 ...   18     0: the broker takes 3 + reconsume times, -1: dead letter
    delayMs           the time itself, which our brokers keep to; RocketMQ's know levels only

Rules:
    (1) the original is settled only after the broker has confirmed the copy: nothing is lost, and our broker makes sure
        that no dead letter is there twice;
    (2) what would be due within a second, what an ordered or a broadcast consumer nacks, and what the broker does not
        take, is requeued by the member itself.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from shmq.client import options
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import LOG, Handed, Question, Wire
from shmq.errors import ConsumeError, ShmqError
from shmq.protocol.codes import Request
from shmq.protocol.failure import Answer, error_in
from shmq.shm.core import Message
from shmq.words import reason_text

DELAY_SECONDS: Final = (1.0, 5.0, *options.RETRY_DELAYS)
"""RocketMQ's delay levels 1 to 18."""
SHORTEST_DELAY: Final = DELAY_SECONDS[0]
BROKERS_CHOICE: Final = 0
DEAD_LETTER: Final = -1


def delay_level(after: float | None) -> int:
    """Return the level for a delay in seconds; None leaves it to the broker."""
    if after is None:
        return BROKERS_CHOICE
    return min(bisect.bisect_left(DELAY_SECONDS, after) + 1, len(DELAY_SECONDS))


def retry_ext(spec: ConsumerSpec, message: Message, after: float | None) -> dict[str, str]:
    """Return the fields of CONSUMER_SEND_MSG_BACK for a message that is to come again in `after` seconds."""
    ext = send_back_ext(spec, message, delay_level(after), "")
    if after is not None:
        ext["delayMs"] = str(math.ceil(after * 1000))
    return ext


def send_back_ext(spec: ConsumerSpec, message: Message, level: int, reason: str) -> dict[str, str]:
    """Return the fields of CONSUMER_SEND_MSG_BACK; RocketMQ passes over `attempt`, `reason` and `delayMs`."""
    ext = {
        "offset": str(message.log_position),
        "group": spec.group or "",
        "delayLevel": str(level),
        "originMsgId": message.offset_message_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "attempt": str(message.attempt),
        "reason": reason_text(reason),
    }
    if spec.attempts_max is not None:
        ext["maxReconsumeTimes"] = str(spec.attempts_max - 1)
    return ext


def send_back(broker: str, ext: dict[str, str]) -> Question:
    """Return the request by which a broker takes a message over."""
    return Question(broker, Request.CONSUMER_SEND_MSG_BACK, {**ext, "bname": broker})


class SendBack:
    """Sends messages of one consumer back to their brokers.

    On this host it waits for the answer. Over TCP it does not: the session keeps the message as handed over until the
    broker has answered, and a message that was refused is given to `refused`, on a thread of the wire.
    """

    def __init__(self, wire: Wire, spec: ConsumerSpec, hand_over: Callable[[Message], Handed | None]) -> None:
        """
        Args:
            hand_over: says that a broker is about to take a message over; None: its queue is another member's now.
        """
        self._wire = wire
        self._spec = spec
        self._hand_over = hand_over

    def retry(self, message: Message, after: float | None, *, refused: Callable[[Message], None]) -> bool:
        """Let the broker deliver a message again in `after` seconds, and settle it; False when the member has to."""
        spec = self._spec
        if spec.group is None or spec.model != "clustering" or spec.ordered:
            return False
        if after is not None and after < SHORTEST_DELAY:
            return False
        try:
            self._send(message, retry_ext(spec, message, after), refused)
        except ShmqError:
            return False  # the broker is away, or does not take it
        return True

    def dead_letter(self, message: Message, reason: str, *, refused: Callable[[Message], None]) -> None:
        """Let the broker store the dead letter of a message, and settle it.

        Raises:
            ShmqError: the broker is away, or cannot store it now.
        """
        if self._spec.group is None:
            raise ConsumeError(f"a consumer without a group has no dead-letter topic: {reason}")
        self._send(message, send_back_ext(self._spec, message, DEAD_LETTER, reason), refused)

    def _send(self, message: Message, ext: dict[str, str], refused: Callable[[Message], None]) -> None:
        handed = self._hand_over(message)
        if handed is None:
            return  # the reader that has its queue now delivers it
        question = send_back(handed.broker, ext)
        if self._wire.is_local:
            self._wire.request(question)
            handed.settle()
        else:
            answered = partial(_answered, message, handed, refused)
            self._wire.begin(question, answered)


def _answered(message: Message, handed: Handed, refused: Callable[[Message], None], answer: Answer) -> None:
    error = error_in(answer)
    if error is None:
        handed.settle()
        return
    handed.keep()
    LOG.warning(
        "message %s could not be handed back to broker %s, and is delivered again here: %s",
        message.message_id,
        handed.broker,
        error,
    )
    refused(message)
