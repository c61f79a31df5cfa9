"""Requests and replies: one answer to each, on both transports and across them."""

from collections.abc import Callable

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import TRANSPORTS, Named, url_of


@pytest.mark.parametrize("answering", TRANSPORTS)
def test_each_request_gets_its_own_reply_over_either_way(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named, answering: str
) -> None:
    with shmq.connect(url_of(broker, answering), timeout=60.0) as other:
        other.replier(topic, group=named("prices"), threads=2)(
            lambda message: b"re:" + message.body + (message.tag or "").encode()
        )
        other.start()
        replies = [mq.request(topic, b"%d" % number, tag="t", timeout=40.0) for number in range(5)]
    assert [reply.body for reply in replies] == [b"re:%dt" % number for number in range(5)]
    assert {reply.properties["MSG_TYPE"] for reply in replies} == {"reply"}


def test_without_an_answer_the_requester_gets_the_error_in_time(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(shmq.RequestTimeout, match=topic) as late:
        mq.request(topic, b"unanswered", timeout=0.2)
    assert late.value.hint


def test_a_request_whose_requester_gave_up_disturbs_no_later_one(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], topic: str, named: Named
) -> None:
    asked: list[bytes] = []
    with pytest.raises(shmq.RequestTimeout):
        mq.request(topic, b"too late", timeout=0.1, queue_id=0)
    other = connect()
    other.replier(topic, group=named("prices"))(lambda message: asked.append(message.body) or b"re:" + message.body)
    other.start()
    assert mq.request(topic, b"in time", timeout=40.0, queue_id=0).body == b"re:in time"
    # Between hosts clocks may differ, so over TCP a replier gives a request some more time.
    assert asked == ([b"too late", b"in time"] if mq.is_remote else [b"in time"])
