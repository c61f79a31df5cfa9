"""Forms change topics, groups and dead letters as the commands do, after a page has said how much that is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from shmq.testing import SharedBroker
from tests.tools.console.conftest import Site


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


def test_a_topic_is_created_changed_and_deleted(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    assert "name=" in site.page("/create-topic")
    assert "The topic was created." in site.submit("/create-topic", name=topic, kind="fifo", queues="3")
    with shmq_shared_broker.connect() as mq:
        info = mq.admin.topics[topic]
        assert (info.kind, info.write_queues) == ("fifo", 3)
        assert "exists already" in site.submit("/create-topic", 400, name=topic)
        assert "The topic was changed." in site.submit(f"/topics/{topic}/change", queues="5")
        assert mq.admin.topics[topic].write_queues == 5
        mq.send_batch(topic, [b"x"] * 7, message_group="a")
        assert "Messages that are deleted with it: 7 (" in site.words(f"/topics/{topic}/delete")
        assert topic in mq.admin.topics  # looking deletes nothing
        assert "deleted, with its messages" in site.submit(f"/topics/{topic}/delete")
        assert topic not in mq.admin.topics


@pytest.mark.parametrize(
    "fields",
    [{"name": ""}, {"name": "a b"}, {"name": "<script>"}, {"name": "x", "queues": "0"}, {"name": "x", "kind": "?"}],
)
def test_a_topic_that_cannot_be_is_refused(site: Site, fields: dict[str, str]) -> None:
    assert "This did not work" in site.submit("/create-topic", 400, **fields)


def test_a_change_of_what_does_not_exist_creates_nothing(site: Site, topic: str) -> None:
    for path in (f"/topics/{topic}/change", f"/topics/{topic}/send", f"/topics/{topic}/delete"):
        assert "does not exist" in site.submit(path, 404, queues="2", body="x")
    for path in (f"/groups/{topic}/reset", f"/groups/{topic}/delete", f"/dead-letters/{topic}/resend"):
        assert "does not exist" in site.submit(path, 404, topic=topic, to="end", offset="0")
    assert topic not in site.words("/topics", q=topic)


def test_a_message_is_sent_and_shown(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    site.submit("/create-topic", name=topic)
    words = site.submit(
        f"/topics/{topic}/send", body='{"a": 1}\r\nline', tag="t", keys="k1 k2", properties="region=eu\n\nnote=a=b"
    )
    assert "The message was sent." in words and "region eu" in words and "note a=b" in words
    with shmq_shared_broker.connect() as mq:
        (message,) = mq.browse(topic, key="k2")
        assert (bytes(message.body), message.tag) == (b'{"a": 1}\nline', "t")
    assert "is no property" in site.submit(f"/topics/{topic}/send", 400, body="x", properties="region")


def test_a_message_is_sent_again(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    with shmq_shared_broker.connect() as mq:
        receipt = mq.send(topic, b"once", key="k", properties={"region": "eu"})
        path = f"/messages/{topic}/{receipt.message_id}/resend"
        assert "Send 1 messages again?" in site.words(path)
        assert len(mq.browse(topic)) == 1
        assert "Messages sent again: 1." in site.submit(path)
        assert [(m.key, m.properties["region"]) for m in mq.browse(topic)] == [("k", "eu")] * 2


def test_a_group_is_reset_skipped_and_deleted(
    site: Site, shmq_shared_broker: SharedBroker, topic: str, group: str
) -> None:
    with shmq_shared_broker.connect() as mq:
        for number in range(9):
            mq.send(topic, b"%d" % number, queue_id=0)
        with mq.subscribe(topic, group=group) as subscription:
            for message in subscription.receive(4, wait=60):
                message.ack()
            assert "It has members" in site.words(f"/groups/{group}/reset")
            assert "stop its members" in site.submit(f"/groups/{group}/reset", 409, topic=topic, to="begin")
        one = mq.admin.groups[group]
        words = site.words(f"/groups/{group}/reset", topic=topic, to="begin")
        assert "Messages delivered again: 4. Messages left out: 0." in words
        assert one.lag.total == 5  # looking moves nothing
        assert "delivered again: 4, left out: 0" in site.submit(f"/groups/{group}/reset", topic=topic, to="begin")
        assert one.lag.total == 9
        assert "Messages left out: 9." in site.words(f"/groups/{group}/reset", topic=topic, to="end")
        assert "left out: 9" in site.submit(f"/groups/{group}/reset", topic=topic, to="end")
        assert one.lag.total == 0
        assert "This did not work" in site.submit(f"/groups/{group}/reset", 400, topic=topic, to="somewhere")
        assert f"Delete group {group}?" in site.words(f"/groups/{group}/delete")
        assert "The group was deleted." in site.submit(f"/groups/{group}/delete")
        assert group not in mq.admin.groups


def test_dead_letters_are_shown_sent_again_exported_and_deleted(
    site: Site, shmq_shared_broker: SharedBroker, topic: str, group: str
) -> None:
    with shmq_shared_broker.connect() as mq:
        for body in (b"first", b"second", b"<b>third</b>"):
            mq.send(topic, body, key="k", queue_id=0)
        with mq.subscribe(topic, group=group) as subscription:
            for message in subscription.receive(10, wait=60):
                subscription.reject(message, f"no <i>{message.body.decode()[:6]}")
        assert f"{group} 3" in site.words("/dead-letters")
        page = site.page(f"/dead-letters/{group}")
        assert "no &lt;i&gt;first" in page and "<b>third" not in page and "shown: 3 of 3" in page
        lines = [json.loads(line) for line in site.page(f"/dead-letters/{group}/export").splitlines()]
        assert [line["body"] for line in lines] == ["first", "second", "<b>third</b>"]
        offsets = re.findall(r'name="offset" value="(\d+)"', page)
        assert "Send 2 messages again?" in site.words(f"/dead-letters/{group}/resend", offset=offsets[1:])
        assert "Send 3 messages again?" in site.words(f"/dead-letters/{group}/resend", all=1)
        assert "no dead letter was chosen" in site.words(f"/dead-letters/{group}/resend", 400)
        assert len(mq.browse(topic)) == 3
        assert "Messages sent again: 2." in site.submit(f"/dead-letters/{group}/resend", offset=offsets[1:])
        assert sorted(bytes(m.body) for m in mq.browse(topic))[-2:] == [b"second", b"second"]
        assert "has no dead letter 77" in site.submit(f"/dead-letters/{group}/resend", 404, offset="77")
        assert "is no offset" in site.submit(f"/dead-letters/{group}/resend", 400, offset="-1")
        assert "Dead letters that are deleted: 3." in site.words(f"/dead-letters/{group}/purge")
        assert "Dead letters deleted: 3." in site.submit(f"/dead-letters/{group}/purge")
        assert mq.admin.dlq(group) == []


def test_a_console_that_is_read_only_offers_no_change(
    console_of: Callable[..., Site], shmq_shared_broker: SharedBroker, topic: str, group: str
) -> None:
    with shmq_shared_broker.connect() as mq, mq.subscribe(topic, group=group):
        mq.send(topic, b"x")
        site = console_of(read_only=True)
        for path in ("/topics", f"/topics/{topic}", f"/groups/{group}", f"/messages?topic={topic}", "/dead-letters"):
            page = site.page(path)
            assert 'method="post"' not in page and "Delete" not in page and "/create-topic" not in page
        for path in (f"/topics/{topic}/delete", f"/groups/{group}/delete", "/create-topic", f"/topics/{topic}/send"):
            assert "changes nothing" in site.submit(path, 403, name="other", body="x")
        assert len(mq.browse(topic)) == 1


def test_what_was_done_is_said_in_our_words_only(site: Site) -> None:
    assert "Dead letters deleted: 12." in site.words("/topics", done="purged", count=12)
    assert "hello" not in site.page("/topics", done="hello")
    assert "Dead letters deleted: 0." in site.words("/topics", done="purged", count="a <b>lot</b>")
