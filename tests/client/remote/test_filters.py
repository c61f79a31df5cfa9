"""Our client over TCP, at a broker that does not filter by SQL92: it hears so when it subscribes, and goes on."""

from collections.abc import Iterator

import pytest

import shmq
from shmq.protocol.codes import Request
from shmq.testing import Broker


@pytest.fixture
def mq() -> Iterator[shmq.Connection]:
    """A connection to a broker with enablePropertyFilter=false."""
    with Broker(tcp=True) as broker, broker.connect() as local:
        local.admin.create_topic("orders", queues=2)
        local._live().wire.control.request(Request.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=false\n")
        with shmq.connect(f"rocketmq://{broker.name_server}", timeout=60.0) as connection:
            yield connection


def test_a_subscription_is_refused_with_what_the_broker_lacks(mq: shmq.Connection) -> None:
    with pytest.raises(shmq.RemoteError, match="does not support consumer to filter message by SQL92") as caught:
        mq.subscribe("orders", group="eu", where="region = 'eu'")
    assert "enablePropertyFilter=true" in caught.value.hint
    mq.send("orders", b"42 apples", tag="fruit")
    with mq.subscribe("orders", group="eu", tags="fruit") as subscription:
        assert [message.body for message in subscription.receive(wait=60)] == [b"42 apples"]


def test_a_pull_says_so_too(mq: shmq.Connection) -> None:
    mq.send("orders", b"42 apples")
    with (
        mq.pull_consumer("orders", where="region = 'eu'") as consumer,
        pytest.raises(shmq.RemoteError, match="does not support consumer to filter message by SQL92"),
    ):
        consumer.poll(10, 10.0)
