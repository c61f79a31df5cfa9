"""Two ends of a peer, opened in two processes, and the two measurements of every peer.

A peer module defines how its ends are opened; the loops are those of
`shmq.measurement.measure`, so all peers and shmq run
the same Python around their own calls.

(1) The consumer's end is open before a producer sends, and has heard every producer before any sends a second message:
    iceoryx2 drops what overflows a connection that its subscriber has not opened yet.
(2) The warm-up checks every body; the timed part checks count, first and last.
(3) No role closes its end before all are done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from shmq.measurement.measure import (
    Meet,
    Receive,
    Role,
    Send,
    check_body,
    half_trips_us,
    messages_per_second,
    numbered_body,
    ping,
    plain_body,
    pong,
    receive_all,
    run_roles,
    send_all,
)

WARM_UP_MESSAGES = 2000
WARM_UP_TRIPS = 500


def _as_it_is(received: Any) -> Any:
    return received


@dataclass(frozen=True)
class Peer:
    """The calls that open a peer; every callable is importable by name, because the ends live in other processes.

    Attributes:
        place: what both ends need to find each other, made by the parent and cleaned up by it.
        content: bytes of what `receive` returned, for the checks; None when nothing but a signal travels.
        pace: messages per second to expect roughly; only sets how many are sent.
    """

    name: str
    place: Callable[[int], AbstractContextManager[Any]]
    ping_end: Callable[[Any], tuple[Send, Receive]]
    pong_end: Callable[[Any], tuple[Send, Receive]]
    sender: Callable[[Any], Send] | None = None
    receiver: Callable[[Any], Receive] | None = None
    content: Callable[[Any], Any] | None = _as_it_is
    pace: int = 100_000


def _produce(meet: Meet, peer: Peer, place: Any, warm_up: int, count: int, size: int) -> int:
    assert peer.sender is not None
    meet()  # the receiver is open
    send = peer.sender(place)
    send(numbered_body(0, size))
    meet()  # every producer is heard
    for number in range(1, warm_up):
        send(numbered_body(number, size))
    meet()
    started = send_all(send, count, size)
    meet()
    return started


def _consume(meet: Meet, peer: Peer, place: Any, producers: int, warm_up: int, count: int, size: int) -> int:
    assert peer.receiver is not None and peer.content is not None
    receive = peer.receiver(place)
    meet()
    bodies = [numbered_body(number, size) for number in range(warm_up)]
    for _ in range(producers):
        check_body(peer.content(receive()), bodies[:1])
    meet()
    for number in range((warm_up - 1) * producers):
        check_body(peer.content(receive()), bodies if producers > 1 else [bodies[number + 1]])
    meet()
    ended, first, last = receive_all(receive, count * producers)
    check_body(peer.content(first), [numbered_body(0, size)])
    check_body(peer.content(last), [numbered_body(count - 1, size)])
    meet()
    return ended


def throughput(peer: Peer, producers: int, effort: float, size: int = 256) -> dict[str, float]:
    """Messages per second from `producers` processes to one consumer, one call per message on both sides."""
    count = max(1000, int(peer.pace * effort / producers))
    warm_up = WARM_UP_MESSAGES // producers
    with peer.place(size) as place:
        roles = [Role(_produce, (peer, place, warm_up, count, size)) for _ in range(producers)]
        *started, ended = run_roles([*roles, Role(_consume, (peer, place, producers, warm_up, count, size))])
    return {"rate": messages_per_second(count * producers, started, ended)}


def _ping(meet: Meet, peer: Peer, place: Any, count: int, size: int, pause_ns: int) -> list[int]:
    meet()
    send, receive = peer.ping_end(place)
    meet()
    for number in range(WARM_UP_TRIPS):
        send(numbered_body(number, size))
        received = receive()
        if peer.content is not None:
            check_body(peer.content(received), [numbered_body(number, size)])
    times = ping(send, receive, plain_body(size), count, pause_ns)
    meet()
    return times


def _pong(meet: Meet, peer: Peer, place: Any, count: int, size: int) -> None:
    send, receive = peer.pong_end(place)
    meet()
    meet()
    for number in range(WARM_UP_TRIPS):
        received = receive()
        if peer.content is not None:
            check_body(peer.content(received), [numbered_body(number, size)])
        send(numbered_body(number, size))
    pong(send, receive, plain_body(size), count)
    meet()


def latency(peer: Peer, trips: int, size: int = 256, pause_us: int = 0) -> dict[str, float]:
    """Percentiles of half a round trip in microseconds; `pause_us` of idleness before each."""
    with peer.place(size) as place:
        pinging = Role(_ping, (peer, place, trips, size, pause_us * 1000))
        times, _ = run_roles([pinging, Role(_pong, (peer, place, trips, size))])
    return half_trips_us(times)
