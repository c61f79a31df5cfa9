"""Measures a send while many groups sleep on its topic, and when the last of them has its message.

Each group is one consumer in a process of its own, forked from one process that has loaded everything, so five hundred
of them are there in seconds. Each notes in shared memory when it got what, for the sender.

    board   for each group: number of the last message it has 8 | when that came 8, CLOCK_MONOTONIC
            at the end: how many groups may begin 8

(1) One group is measured first, beside the same number of processes that have not begun; then all.
(2) Before each send every group has had the message before it, and time to fall asleep.
(3) A process whose parent is gone ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
import traceback
from collections.abc import Sequence

import shmq
from shmq.measurement.measure import Meet, Role, clock, median, numbered_body, run_roles

_WORD = 8
_ENTRY = 2 * _WORD
_SETTLE_SECONDS = 0.02  # above any spinning: every group is asleep
_LOOK_SECONDS = 0.001
_WAIT_SECONDS = 1.0
_READY_SECONDS_MAX = 100.0
_BODY_BYTES = 256
_TOGETHER = 16  # groups that connect at the same time; more would wait longer for the broker than clients do
_STOP = 1 << 62


class _Board:
    """The messages that the groups have received."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self._words = memoryview(mmap.mmap(-1, _ENTRY * (groups + 1))).cast("Q")

    def allow(self, groups: int) -> None:
        """Let so many groups begin."""
        self._words[2 * self.groups] = groups

    @property
    def allowed(self) -> int:
        """How many groups may have begun; `_STOP` when all have to end."""
        return self._words[2 * self.groups]

    def note(self, group: int, number: int) -> None:
        """A group has message `number`; number 1 is that it is ready for others."""
        self._words[2 * group + 1] = clock()
        self._words[2 * group] = number

    def await_noted(self, groups: int, number: int) -> int:
        """Wait until so many groups have a message; return when the last of them got it."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while missing := [group for group in range(groups) if self._words[2 * group] < number]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(missing)} of {groups} groups did not get message {number} in time")
            time.sleep(_LOOK_SECONDS)
        return max(self._words[2 * group + 1] for group in range(groups))


def sleeping_groups(url: str | None = None, *, groups: int = 100, sends: int = 50) -> dict[str, float]:
    """Measure sends to groups that sleep.

    Returns:
        one_us and many_us (median time of send() with one group asleep and with all), ratio, and last_us (median time
        until the last group has the message).
    """
    (figures,) = run_roles([Role(_measure, (url, groups, sends))], 2 * _READY_SECONDS_MAX)
    return dict(figures)


def _measure(meet: Meet, url: str | None, groups: int, sends: int) -> dict[str, float]:
    topic = f"bench-{secrets.token_hex(4)}"
    board = _Board(groups)
    with shmq.connect(url) as mq:
        mq.admin.create_topic(topic, queues=1)
    children = [_start(board, url, topic, group) for group in range(groups)]
    try:
        meet()
        with shmq.connect(url) as mq, mq.producer() as producer:
            one, _ = _sends(producer, topic, board, 1, range(2, 2 + sends))
            many, last = _sends(producer, topic, board, groups, range(2 + sends, 2 + 2 * sends))
    finally:
        board.allow(_STOP)
        for child in children:
            os.waitpid(child, 0)
    return {"one_us": one, "many_us": many, "ratio": many / one, "last_us": last}


def _sends(
    producer: shmq.Producer, topic: str, board: _Board, groups: int, numbers: Sequence[int]
) -> tuple[float, float]:
    """Median microseconds of a send, and until the last group had what was sent."""
    for ready in range(1, groups + _TOGETHER, _TOGETHER):
        board.allow(min(ready, groups))
        board.await_noted(min(ready, groups), 1)
    costs, lasts = [], []
    for number in numbers:
        body = numbered_body(number, _BODY_BYTES)
        time.sleep(_SETTLE_SECONDS)
        began = clock()
        producer.send(topic, body)
        costs.append((clock() - began) / 1000)
        lasts.append((board.await_noted(groups, number) - began) / 1000)
    return median(costs), median(lasts)


def _start(board: _Board, url: str | None, topic: str, group: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _receive(board, url, topic, group)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _receive(board: _Board, url: str | None, topic: str, group: int) -> None:
    parent = os.getppid()
    while board.allowed <= group:
        time.sleep(_SETTLE_SECONDS)
    if board.allowed == _STOP:
        return
    with shmq.connect(url) as mq, mq.subscribe(topic, group=f"bench-{group}", start="last") as subscription:
        while not subscription.queues:
            subscription.receive(1, wait=_LOOK_SECONDS)
        board.note(group, 1)
        while board.allowed != _STOP and os.getppid() == parent:
            for message in subscription.receive(1, wait=_WAIT_SECONDS):
                board.note(group, int.from_bytes(message.body[:_WORD], "little"))
                message.ack()
