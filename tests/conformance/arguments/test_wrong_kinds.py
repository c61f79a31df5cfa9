"""What is of a wrong kind is refused by an error of ours that says so, on this host and over TCP alike."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.tables.rows import every_row

NO_TEXT = (1, -1, 2**70, b"b", float("nan"), object(), True, 1.5)
NO_NAME = (*NO_TEXT, None, [], {}, "")
NO_COUNT = (None, -1, 0, 2**70, "text", b"b", [], {}, float("nan"), object(), 1.5)
NO_SECONDS = (None, "text", b"b", [], {}, float("nan"), object())
NO_BODY = (None, 1, "text", [], {}, 1.5, object())

Call = Callable[[shmq.Connection, Any], object]

REFUSED: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "connect.name": (lambda mq, bad: shmq.connect(mq.url, name=bad), (*NO_TEXT, [], {}, "", "a b", "a@b", "x" * 65)),
    "subscribe.topic": (lambda mq, bad: mq.subscribe(bad, group="g"), NO_NAME),
    "subscribe.group": (lambda mq, bad: mq.subscribe("orders", group=bad), NO_NAME),
    "subscribe.tags": (lambda mq, bad: mq.subscribe("orders", group="g", tags=bad), (*NO_TEXT, [1], [b"b"])),
    "subscribe.where": (lambda mq, bad: mq.subscribe("orders", group="g", where=bad), (*NO_TEXT, [], {}, "")),
    "subscribe.model": (lambda mq, bad: mq.subscribe("orders", group="g", model=bad), NO_NAME),
    "subscribe.start": (
        lambda mq, bad: mq.subscribe("orders", group="g", start=bad),
        (-1, b"b", [], {}, 1.5, ""),
    ),
    "simple_consumer.invisible": (
        lambda mq, bad: mq.simple_consumer("orders", group="g", invisible=bad),
        (None, 0, -1, 2**70, "text", b"b", [], {}, float("nan"), object()),
    ),
    "pull_consumer.tags": (lambda mq, bad: mq.pull_consumer("orders", tags=bad), NO_TEXT),
    "pull_consumer.where": (lambda mq, bad: mq.pull_consumer("orders", where=bad), NO_TEXT),
    "listener.tags": (lambda mq, bad: mq.listener("orders", group="g", tags=bad), NO_TEXT),
    "listener.where": (lambda mq, bad: mq.listener("orders", group="g", where=bad), NO_TEXT),
    "browse.topic": (lambda mq, bad: mq.browse(bad), NO_NAME),
    "browse.tags": (lambda mq, bad: mq.browse("orders", tags=bad), NO_TEXT),
    "browse.where": (lambda mq, bad: mq.browse("orders", where=bad), NO_TEXT),
    "browse.key": (lambda mq, bad: mq.browse("orders", key=bad), NO_TEXT),
    "browse.id": (lambda mq, bad: mq.browse("orders", id=bad), NO_TEXT),
    "browse.since": (lambda mq, bad: mq.browse("orders", since=bad), (*NO_TEXT, "", "text")),
    "browse.limit": (lambda mq, bad: mq.browse("orders", limit=bad), NO_COUNT),
    "browse.queue_id": (lambda mq, bad: mq.browse("orders", queue_id=bad), ("text", b"b", [], {}, 1.5, object())),
    "browse.offset": (lambda mq, bad: mq.browse("orders", queue_id=0, offset=bad), (-1, "text", b"b", [], 1.5)),
    "recall": (lambda mq, bad: mq.recall(bad), (None, 1, b"b", [], {}, 1.5, object(), "text")),
    "request.timeout": (lambda mq, bad: mq.request("orders", b"x", timeout=bad), NO_SECONDS[1:]),
}


@pytest.fixture(scope="module")
def connections() -> Any:
    with (
        Broker(tcp=True) as broker,
        broker.connect() as local,
        shmq.connect(f"rocketmq://{broker.name_server}") as remote,
    ):
        local.admin.create_topic("orders", queues=1)
        yield {"local": local, "tcp": remote}


@pytest.mark.parametrize("way", ["local", "tcp"])
@every_row("call", REFUSED)
def test_a_wrong_kind_is_refused_by_an_error_of_ours(connections: Any, way: str, call: str) -> None:
    make, wrong = REFUSED[call]
    for bad in wrong:
        with pytest.raises(shmq.ShmqError) as caught:
            make(connections[way], bad)
        assert str(caught.value), bad


@pytest.mark.parametrize("way", ["local", "tcp"])
def test_consumers_say_what_they_cannot_wait_for(connections: Any, way: str) -> None:
    mq = connections[way]
    takers = [mq.simple_consumer("orders", group=f"take-{way}").receive, mq.pull_consumer("orders").poll]
    for take in takers:
        for bad in NO_COUNT:
            with pytest.raises(shmq.UsageError, match="asks for no message"):
                take(max=bad, wait=0)
        for bad in NO_SECONDS:
            with pytest.raises(shmq.UsageError, match="is no time to wait"):
                take(max=1, wait=bad)


@pytest.mark.parametrize("way", ["local", "tcp"])
def test_a_body_that_is_none_is_refused_before_a_wait(connections: Any, way: str) -> None:
    with connections[way].producer() as producer:
        for bad in (None, 1, [], {}, 1.5, object()):
            with pytest.raises(TypeError, match="a body is bytes"):
                producer.send_nowait("orders", bad)


@pytest.mark.parametrize("way", ["local", "tcp"])
def test_a_transaction_is_for_a_topic_and_has_a_body_of_bytes(connections: Any, way: str) -> None:
    with connections[way].producer(group=f"half-{way}") as producer:
        for bad in NO_NAME:
            with pytest.raises(shmq.UsageError):
                producer.transaction(bad, b"x")
        for bad in NO_BODY:
            with pytest.raises(TypeError, match="a body is bytes"):
                producer.transaction("orders", bad)
