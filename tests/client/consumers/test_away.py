"""A broker, or a leader, that is away for now breaks none of the jobs by which consumers come back to it."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from shmq.client.consumers.consumer import Consumer
from shmq.client.consumers.membership import Membership
from shmq.errors import BrokerNotRunning, NotMaster, RequestTimeout, ShmqError

AWAY = [
    NotMaster("this host follows, and who leads is not known now"),
    BrokerNotRunning("it is away"),
    RequestTimeout("no answer"),
]


def membership(session: Mock) -> tuple[Membership, Mock]:
    """That of a connection with one consumer."""
    made = Membership(
        Mock(), live=lambda: session, current=lambda: session, producer_groups=list, registered=lambda _: None
    )
    consumer = Mock(spec=Consumer)
    consumer.group, consumer._spec = "billing", Mock(group="billing")
    made.add(consumer)
    return made, consumer


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_sharing_the_queues_waits_for_the_next_time(error: ShmqError) -> None:
    session = Mock()
    made, consumer = membership(session)
    consumer._rebalance.side_effect = error
    made.rebalance("billing")
    session.members.register.side_effect = error
    made.rebalance(None, register=True)
    consumer._rebalance.assert_called_once()


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_every_consumer_begins_anew_where_the_registration_fails(error: ShmqError) -> None:
    session = Mock()
    made, consumer = membership(session)
    session.members.register.side_effect = error
    made.reattach(is_new=True)
    consumer._renew.assert_called_once()
    consumer._retake.side_effect = error
    made.reattach(is_new=False)
