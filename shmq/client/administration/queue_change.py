"""Decides how far a change of a topic's number of queues may go without hiding messages.

A queue that is no longer read hides its messages from every group, without an error. So the number falls in RocketMQ's
own order, one step at a time:

    8 queues asked down to 2        write 2, read 8      nothing new comes to queues 2 to 7; what they hold is read
    the same, when they are empty   write 2, read 2
    read queues asked down to 2     write 2, read 2      the answer says how many messages that hides

Invariants:
    1. A number of queues never hides a message; only a number of *read* queues does, and that is asked for by name.
    2. No queue is written that is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shmq.client.kinds import whole_in
from shmq.errors import UsageError
from shmq.message import QUEUES_MAX


class TopicQueues(NamedTuple):
    """The queues of a topic as each broker has them.

    Attributes:
        stored: messages by the number a broker gives its queue; with several brokers, of all together.
    """

    read_queues: int
    write_queues: int
    stored: Mapping[int, int]


class QueueChange(NamedTuple):
    """The queues that each broker reads and writes afterwards, and the messages that matter for it.

    Attributes:
        kept: messages in queues that are read but no longer written.
        hidden: messages in queues that are no longer read.
    """

    read_queues: int
    write_queues: int
    kept: int = 0
    hidden: int = 0


class TopicSettings(NamedTuple):
    """The settings a topic is to have on every broker; the one list of what can be set.

    Attributes:
        flush: None where the broker says when a message counts, or where it stays as it is.
        changes_kind: the topic exists, and is of another kind.
    """

    queues: QueueChange
    kind: str
    perm: int
    flush: str | None = None
    changes_kind: bool = False


def queue_count(name: str, count: int | None) -> int | None:
    """Return a number of queues that a topic can have; None stays None.

    Raises:
        UsageError: no topic can have it.
    """
    if count is None:
        return None
    number = whole_in(count, 1, QUEUES_MAX)
    if number is None:
        raise UsageError(f"a topic cannot have {name}={count!r:.80}", hint=f"{name} is 1 to {QUEUES_MAX}")
    return number


def change_queues(now: TopicQueues, *, queues: int | None = None, read_queues: int | None = None) -> QueueChange:
    """Return what a wish for `queues` or `read_queues` comes to; None leaves that number to the rules above.

    Raises:
        UsageError: a number that no topic can have, or queues that would be written and not read.
    """
    queues, read_queues = queue_count("queues", queues), queue_count("read_queues", read_queues)
    write = now.write_queues if queues is None else queues
    if read_queues is not None and read_queues < write:
        raise UsageError(
            f"{read_queues} queues to read are fewer than the {write} that are written: messages would be lost to all",
            hint=f"write fewer, too: queues={read_queues}, or --queues {read_queues}",
        )
    if read_queues is not None:
        read = read_queues
    elif queues is not None:
        held = [number + 1 for number, messages in now.stored.items() if messages and number < now.read_queues]
        read = max([write, *held])
    else:
        read = now.read_queues
    kept = sum(messages for number, messages in now.stored.items() if write <= number < read)
    hidden = sum(messages for number, messages in now.stored.items() if read <= number < now.read_queues)
    return QueueChange(read, write, kept, hidden)
