"""Answers to plain sends that are written, and wait in this process for the disk.

`SendPath` stores the sends of a connection and writes their answers in one call; where the messages count on the disk
only, all that came of that call is one entry here. Nothing is done for a message by itself.

    hold ──▶ entries, each log position above that of the one before ──▶ release, up to the durable end: one pass,
                                                                         one write for a connection
                 │ after the timeout, or once a flush has failed: the same answers, but FLUSH_DISK_TIMEOUT,
                 │ or FLUSH_SLAVE_TIMEOUT where the disk has it and the slaves have not
                 │ the lease of the log is over: other answers, that it is stored and in doubt
                 └ the connection is gone: its answers are dropped

Invariants:
 1. An answer goes out once: as it is when the log is on disk up to the end of its entry and may be acknowledged, else
    with that code.
 2. Answers of one connection go out in the order of their log positions.
 3. What is held of a connection is bounded: it is not read while it has more than `BridgeLimits.write_bytes_high`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol

from shmq.daemon.bridge.send_path import Held
from shmq.daemon.broker.sends.unavailable import in_doubt
from shmq.daemon.logic.requests import Answer
from shmq.protocol.codes import Response
from shmq.protocol.frame import FrameDecoder
from shmq.protocol.header import decode_header, encode_command


class Waiter(Protocol):
    """A connection whose answers are held."""

    def released(self, answers: bytes, held_bytes: int) -> None:
        """Send the answers; `held_bytes` are held no more."""


class Entry(NamedTuple):
    """What came of one call for one connection; the last two are for counting."""

    held: Held
    until: float
    waiter: Waiter
    code: int
    began_ns: int


class HeldAnswers:
    """The held answers of one bridge.

    Attributes:
        timeout: seconds after which a sender gets FLUSH_DISK_TIMEOUT in place of its answer.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._entries: deque[Entry] = deque()

    @property
    def wanted_end(self) -> int | None:
        """The log position that lets the first entry go; None when there is none."""
        return self._entries[0].held.end if self._entries else None

    def hold(self, waiter: Waiter, held: Held, now: float, *, code: int, began_ns: int) -> None:
        """Keep what has to wait; its end is above those that are held already."""
        self._entries.append(Entry(held, now + self.timeout, waiter, code, began_ns))

    def take_durable(self, durable_end: int) -> list[Entry]:
        """Take the entries that the disk has got."""
        entries, taken = self._entries, []
        while entries and entries[0].held.end <= durable_end:
            taken.append(entries.popleft())
        return taken

    def take_late(self, now: float) -> list[Entry]:
        """Take the entries that have waited for too long."""
        entries, taken = self._entries, []
        while entries and entries[0].until <= now:
            taken.append(entries.popleft())
        return taken

    def take_all(self) -> list[Entry]:
        """Take every entry: the disk will never have them."""
        taken, self._entries = list(self._entries), deque()
        return taken


def send(entries: Iterable[Entry], code: Response) -> tuple[()]:
    """Send the answers of some entries with this code, those of one connection together; no effects follow.

    Raises:
        ExceptionGroup: some could not be sent; the others are.
    """
    by_waiter: dict[Waiter, list[bytes]] = {}
    for entry in entries:
        by_waiter.setdefault(entry.waiter, []).append(entry.held.answers)
    failed = []
    for waiter, parts in by_waiter.items():
        answers = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            waiter.released(answers if code == Response.SUCCESS else b"".join(_with_code(answers, code)), len(answers))
        except Exception as error:  # the other waiters of this flush get their answers
            failed.append(error)
    if failed:
        raise ExceptionGroup("answers that were held", failed)
    return ()


def _with_code(answers: bytes, code: Response) -> Iterator[bytes]:
    """The same answers, saying that the message is stored but was not safe in time, that no slave has it, or that it is
    in doubt."""
    decoder = FrameDecoder()
    decoder.feed(answers)
    while (frame := decoder.take()) is not None:
        command = decode_header(frame)
        if code == Response.SERVICE_NOT_AVAILABLE:
            doubt = in_doubt(Answer())
            yield encode_command(replace(command, code=code, ext=doubt.ext, remark=doubt.remark))
        else:
            yield encode_command(replace(command, code=code))
