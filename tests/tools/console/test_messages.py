"""Messages are found by id, key, time and place, shown as text, JSON and bytes, and followed; none can write a page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from shmq.shm.core import Receipt
from shmq.testing import SharedBroker
from shmq.tools.console.pages.messages import BODY_BYTES_MAX, TAIL_MAX, forms_of, hex_lines, one_line
from tests.tools.console.conftest import Site

HOSTILE = "<script>alert(1)</script>\"><img src=x onerror=alert(2)>'{{ 7 * 7 }}"


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


def send(broker: SharedBroker, topic: str, count: int = 1, **named: object) -> list[Receipt]:
    with broker.connect() as mq:
        return [mq.send(topic, b"body %d" % number, **named) for number in range(count)]  # type: ignore[arg-type]


def bodies(words: str) -> list[str]:
    return re.findall(r"body (?!\d+-)\d+", words)


def test_the_newest_come_first(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    send(shmq_shared_broker, topic, 30)
    assert bodies(site.words("/messages", topic=topic, limit=5)) == [
        f"body {number}" for number in (29, 28, 27, 26, 25)
    ]
    assert "there may be more" in site.words("/messages", topic=topic, limit=5)
    assert len(bodies(site.words("/messages", topic=topic, limit=500))) == 30


def test_messages_are_found_by_what_they_have(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    send(shmq_shared_broker, topic, 3, key="apple", tag="fruit", properties={"amount": "200"}, queue_id=0)
    receipt = send(shmq_shared_broker, topic, 1, key="leek", tag="veg", properties={"amount": "5"}, queue_id=1)[0]
    hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for wanted, count in (
        ({"key": "apple"}, 3),
        ({"tags": "veg"}, 1),
        ({"where": "amount > 100"}, 3),
        ({"since": "-1h"}, 4),
        ({"since": hour}, 0),
        ({"until": hour, "tags": "fruit || veg"}, 4),
        ({"queue": "0"}, 3),
        ({"queue": "0", "offset": "2"}, 1),
        ({"id": receipt.message_id}, 1),
    ):
        assert len(bodies(site.words("/messages", topic=topic, **wanted))) == count, wanted
    assert len(bodies(site.words("/messages", id=receipt.message_id))) == 1
    assert "No message fits." in site.words("/messages", topic=topic, key="nothing")


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"topic": "no-such"}, 404),
        ({"topic": "{topic}", "since": "yesterday-ish"}, 400),
        ({"topic": "{topic}", "queue": "minus one"}, 400),
        ({"topic": "{topic}", "where": "amount >"}, 409),
        ({"id": "0" * 32}, 404),
    ],
)
def test_what_cannot_be_found_is_said(
    site: Site, shmq_shared_broker: SharedBroker, topic: str, wanted: dict[str, str], status: int
) -> None:
    send(shmq_shared_broker, topic)
    asked = {name: text.format(topic=topic) for name, text in wanted.items()}
    assert "This did not work" in site.words("/messages", status, **asked)


def test_a_message_is_shown_as_json_text_and_bytes(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    body = json.dumps({"fruit": "äpple", "count": [1, 2]}, ensure_ascii=False).encode()
    with shmq_shared_broker.connect() as mq:
        receipt = mq.send(topic, body, key="k1", properties={"origin": "test"})
    path = f"/messages/{topic}/{receipt.message_id}"
    words = site.words(path)
    assert '{ "fruit": "äpple", "count": [ 1, 2 ] }' in words
    assert "origin test" in words and "intact True" in words and receipt.message_id in words
    assert body.decode() in site.words(path, view="text")
    assert "00000000 7b 22 66 72 75 69 74 22 3a 20 22 c3 a4 70 70 6c" in site.words(path, view="hex")
    answer = site.client.get(f"{path}/body")
    assert answer.content == body
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_bytes_that_are_no_text_are_shown_as_bytes(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    with shmq_shared_broker.connect() as mq:
        receipt = mq.send(topic, b"\xff\xfe\x00\x01<script>")
    assert "ff fe 00 01" in site.words("/messages", topic=topic)
    page = site.page(f"/messages/{topic}/{receipt.message_id}")
    assert "ff fe 00 01 3c" in page and "....&lt;script&gt;" in page


def test_nothing_of_a_message_becomes_part_of_a_page(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    with shmq_shared_broker.connect() as mq:
        receipt = mq.send(
            topic, HOSTILE.encode(), key=HOSTILE.replace(" ", ""), tag="a<b>", properties={"x<y>": HOSTILE}
        )
    for page in (
        site.page("/messages", topic=topic),
        site.page(f"/messages/{topic}/{receipt.message_id}"),
        site.page(f"/messages/{topic}/{receipt.message_id}", view="hex"),
        site.page("/messages", 404, topic=HOSTILE),
        site.page("/topics", q=HOSTILE),
        site.page("/messages/tail", topic=HOSTILE),
    ):
        assert "alert(1)" in page or "61 6c 65 72 74" in page or "alert" in page
        assert "<script>" not in page and "<img src=x" not in page and 'onerror=alert(2)>"' not in page
        assert "{{ 7" in page or "49" not in page


def test_the_tail_gives_what_comes_and_nothing_twice(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    send(shmq_shared_broker, topic, 3)
    begin = site.client.get("/messages/tail.json", params={"topic": topic}).json()
    assert begin["messages"] == [] and begin["passed"] == 0
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, HOSTILE.encode(), tag="t", keys=["k1", "k2"])
    told = site.client.get("/messages/tail.json", params={"topic": topic, "from": begin["from"]}).json()
    (message,) = told["messages"]
    assert (message["body"], message["tag"], message["keys"]) == (HOSTILE, "t", ["k1", "k2"])
    again = site.client.get("/messages/tail.json", params={"topic": topic, "from": told["from"]}).json()
    assert again["messages"] == []
    assert site.page("/messages/tail", topic=topic)


def test_what_is_too_fast_for_the_tail_is_counted(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    send(shmq_shared_broker, topic, 1, queue_id=0)
    begin = site.client.get("/messages/tail.json", params={"topic": topic}).json()
    send(shmq_shared_broker, topic, TAIL_MAX + 70, queue_id=0)
    told = site.client.get("/messages/tail.json", params={"topic": topic, "from": begin["from"]}).json()
    assert (len(told["messages"]), told["passed"]) == (TAIL_MAX, 70)
    assert told["messages"][-1]["body"] == f"body {TAIL_MAX + 69}"


def test_forms_of_bodies() -> None:
    assert list(forms_of(b"[1]")) == ["json", "text", "hex"]
    assert list(forms_of(b"[1")) == ["text", "hex"]
    assert list(forms_of(b"[" * 60_000)) == ["text", "hex"]
    assert list(forms_of(b"\x80")) == ["hex"]
    assert list(forms_of("ä".encode() * BODY_BYTES_MAX)) == ["text", "hex"]
    assert hex_lines(b"0123456789abcdefg").splitlines()[1].startswith("00000010  67")


def test_one_line_of_a_body() -> None:
    assert one_line(b"a\nb\tc\x1b[0m") == "a⏎b c [0m"
    assert one_line(b"\xff\x00") == "ff 00"
    assert one_line("ä".encode() * 80) == "ä" * 80
    assert one_line(b"x" * 159 + "ä".encode()[:1]) == "x" * 159
    assert one_line("a\u202eb".encode()) == "a b"  # letters that turn the line around
