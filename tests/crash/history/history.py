"""What clients did and which answers they got, and which of it cannot be true.

    body      KIND-WRITER-NUMBER|filler       the filler follows from the name, so a changed byte is seen
    attempt   a send began: the message may be stored
    ack       the broker answered with queue and offset: the message is stored there for good
    loss      a send ended with an error that says nothing was stored

The names of anomalies are those of Jepsen's queue workloads:

    lost-write            acknowledged, and not stored
    inconsistent-offset   acknowledged at an offset where another message lies
    unexpected            stored, and never sent; or sent, and reported as certainly not stored
    corrupt               stored, and its body is not what was sent
    duplicate             stored more often than it was sent
    aborted-read          delivered, and its transaction was rolled back
    gap                   an offset below the queue's end that holds nothing and was not cleaned

Rule: what a call's answer did not settle may be stored or not; nothing follows from it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

Place = tuple[str, int, int]  # topic, queue id, queue offset


def body_of(name: str, size: int) -> bytes:
    """The body that belongs to a name: `size` bytes, or as many as the name needs."""
    head = name.encode() + b"|"
    block = hashlib.blake2b(head).digest()
    fill = max(0, size - len(head))
    return head + (block * (fill // len(block) + 1))[:fill]


def name_in(body: bytes) -> str | None:
    """The name of a body, or None when it is not what `body_of` made of that name."""
    head, bar, _ = body.partition(b"|")
    try:
        name = head.decode("ascii")
    except UnicodeDecodeError:
        return None
    return name if bar and body == body_of(name, len(body)) else None


@dataclass(frozen=True)
class Anomaly:
    """One thing that must not be."""

    kind: str
    what: str


@dataclass
class History:
    """The history of all clients of a run; any thread may write it."""

    attempts: set[str] = field(default_factory=set)
    acks: dict[str, Place | None] = field(default_factory=dict)  # None: acknowledged, the place is not known
    losses: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._acked = threading.Condition(self._lock)

    def attempt(self, name: str) -> None:
        """Say that a send begins; before it does."""
        with self._lock:
            self.attempts.add(name)

    def ack(self, name: str, place: Place | None) -> None:
        """Say that the broker answered."""
        with self._lock:
            self.acks[name] = place
            self._acked.notify_all()

    def loss(self, name: str) -> None:
        """Say that the answer was: certainly not stored."""
        with self._lock:
            self.losses.add(name)

    def wait_acks(self, more: int, seconds: float = 120.0) -> bool:
        """Wait until so many more messages were acknowledged; False when that took too long."""
        with self._lock:
            wanted = len(self.acks) + more
            return self._acked.wait_for(lambda: len(self.acks) >= wanted, seconds)

    def copy(self) -> History:
        """As it is now; acknowledgements first, so that none is of a message whose attempt is missing."""
        with self._lock:
            return History(set(self.attempts), dict(self.acks), set(self.losses))

    def acks_of(self, *kinds: str) -> dict[str, Place | None]:
        """The acknowledgements of messages of these kinds."""
        return {name: place for name, place in self.acks.items() if name.partition("-")[0] in kinds}


def stored_anomalies(
    stored: Mapping[Place, bytes],
    bounds: Mapping[tuple[str, int], tuple[int, int]],
    acks: Mapping[str, Place | None],
    history_later: History,
    *,
    damaged: Collection[Place] = (),
) -> list[Anomaly]:
    """Check what queues hold.

    Args:
        stored: body by place, of every message that can be read.
        bounds: offset_min and offset_max of each queue.
        acks: what was acknowledged when the moment came of which `stored` is.
        history_later: a history of the same run that ends later.
        damaged: places whose records cannot be read, and that are said to be so.
    """
    found: list[Anomaly] = []
    names: dict[Place, str] = {}
    for place, body in stored.items():
        name = name_in(body)
        if name is None:
            found.append(Anomaly("corrupt", f"{place}: {body[:60]!r}"))
        else:
            names[place] = name
            if name not in history_later.attempts:
                found.append(Anomaly("unexpected", f"{name} at {place} was never sent"))
            elif name in history_later.losses:
                found.append(Anomaly("unexpected", f"{name} at {place} was reported as not stored"))
    counted = Counter(names.values())
    found += [Anomaly("duplicate", f"{name} is stored {count} times") for name, count in counted.items() if count > 1]
    for name, place in acks.items():
        if place is None:
            if name not in counted:
                found.append(Anomaly("lost-write", f"{name} is stored nowhere"))
        elif place not in stored:
            found.append(Anomaly("lost-write", f"{name} is not at {place}"))
        elif place in names and names[place] != name:
            found.append(Anomaly("inconsistent-offset", f"{place} holds {names[place]}, acknowledged was {name}"))
    for (topic, queue_id), (first, end) in bounds.items():
        places = ((topic, queue_id, offset) for offset in range(first, end))
        missing = [place[2] for place in places if place not in stored and place not in damaged]
        if missing:
            found.append(Anomaly("gap", f"{topic}/{queue_id}: offsets {missing[:5]} of {first} to {end} hold nothing"))
    return found


def delivered_anomalies(delivered: Iterable[bytes], acks: Iterable[str], history: History) -> list[Anomaly]:
    """Check what a group was given after everything calmed down: all of it, and nothing else."""
    found: list[Anomaly] = []
    seen: set[str] = set()
    for body in delivered:
        name = name_in(body)
        if name is None:
            found.append(Anomaly("corrupt", f"delivered: {body[:60]!r}"))
        elif name not in history.attempts:
            found.append(Anomaly("unexpected", f"{name} was delivered and never sent"))
        elif name in history.losses:
            found.append(Anomaly("unexpected", f"{name} was delivered and reported as not stored"))
        elif name.startswith("back-"):
            found.append(Anomaly("aborted-read", f"{name} was delivered and had been rolled back"))
        else:
            seen.add(name)
    found += [Anomaly("lost-write", f"{name} was never delivered") for name in acks if name not in seen]
    return found
