"""What comes again, and when."""

from collections.abc import Callable
from typing import Any

from shmq.client.redelivery.redelivery import Schedule

Make = Callable[..., Any]


def test_a_given_back_message_comes_at_its_time_and_once(message: Make) -> None:
    schedule = Schedule()
    given = message(settled=True)
    schedule.requeue(given, 10.0)
    assert schedule.take_due(9.9) == []
    assert schedule.take_due(10.0) == [given]
    assert schedule.take_due(99.0) == []


def test_leased_messages_come_when_they_were_not_acknowledged(message: Make) -> None:
    schedule = Schedule()
    done, forgotten = message(offset=1), message(offset=2)
    schedule.lease([done, forgotten], 30.0)
    done.ack()
    assert schedule.take_due(30.0) == [forgotten]


def test_an_extension_outweighs_the_lease(message: Make) -> None:
    schedule = Schedule()
    slow = message()
    schedule.lease([slow], 30.0)
    schedule.extend(slow, 50.0)
    assert schedule.take_due(49.0) == []
    schedule.extend(slow, 40.0)
    assert schedule.take_due(50.0) == [slow]
    assert len(schedule) == 0


def test_an_extended_message_that_is_acknowledged_never_comes(message: Make) -> None:
    schedule = Schedule()
    slow = message()
    schedule.extend(slow, 50.0)
    slow.ack()
    assert schedule.take_due(60.0) == []


def test_giving_back_a_leased_message_brings_it_earlier_and_only_once(message: Make) -> None:
    schedule = Schedule()
    given = message()
    schedule.lease([given], 30.0)
    schedule.requeue(given, 5.0)
    given.settled = True
    assert schedule.take_due(5.0) == [given]
    given.settled = False
    assert schedule.take_due(30.0) == []


def test_a_redelivered_message_is_hidden_by_its_new_lease_only(message: Make) -> None:
    schedule = Schedule()
    given = message()
    schedule.lease([given], 30.0)
    schedule.requeue(given, 5.0)
    schedule.take_due(5.0)
    schedule.lease([given], 35.0)
    assert schedule.take_due(34.0) == []
    assert schedule.take_due(35.0) == [given]


def test_due_messages_come_oldest_first(message: Make) -> None:
    schedule = Schedule()
    late, early = message(offset=1), message(offset=2)
    schedule.requeue(late, 8.0)
    schedule.requeue(early, 4.0)
    assert schedule.next_due == 4.0
    assert schedule.take_due(10.0) == [early, late]


def test_pruning_lets_acknowledged_messages_go_and_keeps_the_rest(message: Make) -> None:
    schedule = Schedule()
    batch = [message(offset=offset) for offset in range(5)]
    given = message(offset=9, settled=True)
    schedule.lease(batch, 30.0)
    schedule.requeue(given, 20.0)
    for done in batch[:4]:
        done.ack()
    schedule.prune()
    assert len(schedule) == 2
    assert schedule.take_due(30.0) == [given, batch[4]]


def test_a_queue_that_is_forgotten_leaves_nothing(message: Make) -> None:
    schedule = Schedule()
    ours, theirs = message(0, 1), message(3, 1)
    schedule.lease([ours, theirs], 30.0)
    schedule.extend(theirs, 40.0)
    schedule.forget(3)
    assert schedule.take_due(99.0) == [ours]
