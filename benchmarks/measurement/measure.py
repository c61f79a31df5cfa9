"""The tools of every measurement: roles in processes of their own, the loops that are timed, and the statistics.

A loop receives the `send` and `receive` callables of one end, so shmq and every product it is compared with run through
the same Python.

    parent   run_roles([Role(produce, …), Role(consume, …)])
    child    open its end · meet() · warm up, every body checked · meet() · timed loop · meet() · return

(1) Each role is one spawned process; nothing but its arguments is inherited.
(2) Times are integer nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
(3) A percentile is an element of the sorted times (nearest rank), never an interpolation.
(4) No child outlives `run_roles`, whatever happens.
"""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

clock = time.monotonic_ns
Send = Callable[[bytes], object]
Receive = Callable[[], Any]

MEET_SECONDS_MAX = 120.0  # a role that waits longer for the others has lost one of them
LEAVE_SECONDS_MAX = 5.0  # a role that has answered needs no longer to end


@dataclass(frozen=True)
class Role:
    """One process of a measurement: `target(meet, *arguments)`; it must be importable by name."""

    target: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


class Meet:
    """A barrier all roles of one measurement pass together, with a deadline."""

    def __init__(self, barrier: Any) -> None:
        self._barrier = barrier

    def __call__(self) -> None:
        self._barrier.wait(MEET_SECONDS_MAX)


def _child(target: Callable[..., Any], barrier: Any, answer: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        answer.send((True, target(Meet(barrier), *arguments)))
    except BaseException:
        barrier.abort()
        answer.send((False, traceback.format_exc()))


def page_faults() -> int:
    """Return how many pages this process has touched that were not in its page table."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


def run_roles(roles: Sequence[Role], seconds_max: float = MEET_SECONDS_MAX) -> list[Any]:
    """Run every role in a process of its own and return their results in order.

    Raises:
        RuntimeError: a role failed; the text holds the first failing role's traceback.
        TimeoutError: a role did not answer within `seconds_max`.
    """
    context = get_context("spawn")
    barrier = context.Barrier(len(roles))
    processes: list[BaseProcess] = []
    answers: list[Connection] = []
    try:
        for role in roles:
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_child, args=(role.target, barrier, theirs, role.arguments))
            child.start()
            theirs.close()
            processes.append(child)
            answers.append(ours)
        results = _collect(answers, time.monotonic() + seconds_max)
        for process in processes:
            process.join(LEAVE_SECONDS_MAX)
        return results
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for connection in answers:
            connection.close()


def _collect(answers: list[Connection], deadline: float) -> list[Any]:
    results: dict[Connection, Any] = {}
    failures: list[str] = []
    while len(results) < len(answers) and not _is_decisive(failures):
        ready = wait([one for one in answers if one not in results], deadline - time.monotonic())
        if not ready:
            raise TimeoutError(f"{len(answers) - len(results)} of {len(answers)} roles did not answer in time")
        for one in ready:
            assert isinstance(one, Connection)
            try:
                succeeded, value = one.recv()
            except EOFError:
                succeeded, value = False, "a role's process died without an answer"
            results[one] = value
            if not succeeded:
                failures.append(value)
    if failures:
        raise RuntimeError(next((text for text in failures if "BrokenBarrierError" not in text), failures[0]))
    return [results[one] for one in answers]


def _is_decisive(failures: list[str]) -> bool:
    """Whether a cause is known: a broken barrier is only the echo of another role's failure."""
    return any("BrokenBarrierError" not in text for text in failures)


# ---- the timed loops --------------------------------------------------------------------------------


def numbered_body(number: int, size: int) -> bytes:
    """A body of `size` bytes that says which message it is."""
    return number.to_bytes(8, "little").ljust(size, b"\xa5")


def plain_body(size: int) -> bytes:
    """The body of every timed message but the first and the last."""
    return b"\x5a" * size


def check_body(body: Any, allowed: Sequence[bytes]) -> None:
    """Raise ValueError unless `body` is one of the allowed contents."""
    if bytes(body) not in allowed:
        raise ValueError(f"received {len(body)} bytes starting {bytes(body[:16])!r} that were not sent at this place")


def send_all(send: Send, count: int, size: int) -> int:
    """Send `count` bodies, the first and last of them numbered; returns when the first was sent."""
    first, plain, last = numbered_body(0, size), plain_body(size), numbered_body(count - 1, size)
    started = clock()
    send(first)
    for _ in range(count - 2):
        send(plain)
    send(last)
    return started


def receive_all(receive: Receive, count: int) -> tuple[int, Any, Any]:
    """Receive `count` messages; returns (when the last came, the first, the last)."""
    first = receive()
    for _ in range(count - 2):
        receive()
    last = receive()
    return clock(), first, last


def ping(send: Send, receive: Receive, body: bytes, count: int, pause_ns: int = 0) -> list[int]:
    """Round trip times of `count` messages in nanoseconds, in the order they happened.

    Args:
        pause_ns: sleep so long before each, so that the receiver has given up spinning.
    """
    times = [0] * count
    for number in range(count):
        if pause_ns:
            time.sleep(pause_ns / 1e9)
        started = clock()
        send(body)
        receive()
        times[number] = clock() - started
    return times


def pong(send: Send, receive: Receive, body: bytes, count: int) -> None:
    """Answer `count` messages with `body`."""
    for _ in range(count):
        receive()
        send(body)


# ---- statistics -------------------------------------------------------------------------------------


def percentile(ordered: Sequence[int], share: float) -> int:
    """The element of a sorted sequence below or at which `share` (0 … 1) of all elements lie (nearest rank)."""
    if not ordered:
        raise ValueError("no measurements to take a percentile of")
    rank = -(-share * len(ordered) // 1)  # ceiling
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def median(values: Sequence[float]) -> float:
    """The middle value; of an even number the lower of the two, so it was really measured."""
    if not values:
        raise ValueError("no measurements to take a median of")
    return sorted(values)[(len(values) - 1) // 2]


def half_trips_us(round_trips_ns: Sequence[int]) -> dict[str, float]:
    """p50, p90, p99, p99.9 and max of half the round trips, in microseconds."""
    ordered = sorted(round_trips_ns)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: percentile(ordered, share) / 2000 for name, share in shares.items()}


def messages_per_second(count: int, started_ns: Sequence[int], ended_ns: int) -> float:
    """Rate between the first send of any producer and the last receipt."""
    return count * 1e9 / (ended_ns - min(started_ns))
