"""SQL92 filters: stock consumers at our broker, ours beside them, and the same selection as a stock broker's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from tests.deadline import eventually
from tests.interop.coverage import covers, on_pairs
from tests.interop.pair import Pair
from tests.interop.peers.java import ClientError
from tests.interop.peers.wire import Wire
from tests.interop.target import STOCK_5, Target

SEND, PULL, GET_MAX_OFFSET, CREATE_TOPIC, CHECK_CLIENT_CONFIG = 10, 11, 30, 17, 46
SUBSCRIPTION = 4
WHERE = "region = 'eu' AND qty BETWEEN 3 AND 6 AND price > 1.5"
SELECTED = {"3", "5"}


def properties(qty: int) -> dict[str, str]:
    return {"region": "eu" if qty % 2 else "us", "qty": str(qty), "price": f"{qty}.25"}


def local(target: Target) -> shmq.Connection:
    return shmq.connect(f"rocketmq://{target.name_server}", timeout=60.0)


@on_pairs("java-4", "java-5")
@covers("filter by SQL92")
def test_a_consumer_gets_what_its_expression_selects(pair: Pair) -> None:
    topic, producer, name = pair.new_topic(), pair.named("producer"), pair.named("consumer")
    pair.do("producer", name=producer, group=producer)
    for qty in range(8):
        pair.do("send", name=producer, topic=topic, bodies=[str(qty)], properties=properties(qty))
    pair.do("push", name=name, group=name, topic=topic, sql=WHERE)
    pair.client.expect(name, 2)
    for qty in (1, 4, 5):  # while it waits: only one of them wakes it
        pair.do("send", name=producer, topic=topic, bodies=[f"late {qty}"], properties=properties(qty))
    eventually(lambda: "late 5" in pair.bodies(name), "what comes later")
    pair.close("push-close", name)
    pair.close("producer-close", producer)
    assert pair.bodies(name) == SELECTED | {"late 5"}


@on_pairs("java-4", "java-5")
def test_a_wrong_expression_ends_the_start_of_a_consumer(pair: Pair) -> None:
    topic, name = pair.new_topic(), pair.named("consumer")
    with pytest.raises(ClientError) as caught:
        pair.do("push", name=name, group=name, topic=topic, sql="qty > 'many'")
    assert "CODE: 23" in str(caught.value) and "many" in str(caught.value)


def test_java_sends_and_python_selects_and_the_other_way_round(
    target: Target, client_of: Callable[[str], Any], named: Callable[[str], str]
) -> None:
    pair = Pair("java-5", client_of("java-5"), target, named)
    topic, producer, name, group = pair.new_topic(), named("producer"), named("consumer"), named("python")
    pair.do("producer", name=producer, group=producer)
    pair.do("push", name=name, group=name, topic=topic, sql="qty < 100 AND qty > 7")
    with local(target) as mq, mq.subscribe(topic, group=group, where=WHERE) as subscription:
        for qty in range(8):
            pair.do("send", name=producer, topic=topic, bodies=[str(qty)], properties=properties(qty))
        found: set[bytes] = set()

        def all_came() -> bool:
            for message in subscription.receive(wait=1.0):
                found.add(message.body)
                message.ack()
            return len(found) >= len(SELECTED)

        eventually(all_came, "what Java sent", timeout=60.0)
        assert found == {body.encode() for body in SELECTED}
        for qty in (7, 8, 100):
            mq.send(topic, b"from python %d" % qty, properties=properties(qty))
    pair.client.expect(name, 1)
    pair.close("push-close", name)
    pair.close("producer-close", producer)
    assert pair.bodies(name) == {"from python 8"}


def test_our_client_hears_from_any_broker_that_it_does_not_filter(target: Target, named: Callable[[str], str]) -> None:
    with local(target) as mq:
        topic = named("topic")
        mq.admin.create_topic(topic, queues=1)
        with pytest.raises(shmq.FilterSyntaxError, match="character 7"):
            mq.subscribe(topic, group=named("g"), where="qty > 'x'")
        with mq.subscribe(topic, group=named("g"), where="qty > 1"):
            pass  # nothing to say against it


# -- the same selection as a stock broker's

VALUES = (None, "5", "7", "x", "5.0", "6.5", "true", "TRUE", "-5", "3000000000", " 5", "NaN", "5x", "0x1p2", "1e1")
MESSAGES = [
    *({"a": value} for value in VALUES if value is not None),
    *({"a": first, "b": second} for first in ("5", "x", "6.5") for second in ("5", "x", "true", "-5", "7.0")),
    {"b": "5"}, {"b": "x"}, {"c": "ärger"}, {"a": "it's"}, {},
]  # fmt: skip
EXPRESSIONS = [
    "a = 5", "5 = a", "a <> 5", "a > 5", "a >= 5", "a < 5L", "a <= 5.0", "a > 5.5", "a = 5.0", "a = 3000000000",
    "a = -5", "a > -5", "-a = 5", "a = '5'", "'5' = a", "a <> 'x'", "a = TRUE", "a = FALSE", "TRUE = a", "a <> TRUE",
    "a = b", "a <> b", "a < b", "a >= b", "a IS NULL", "a IS NOT NULL", "b IS NULL AND a IS NOT NULL", "a", "NOT a",
    "NOT (a = 5)", "NOT a = 5", "NOT a = FALSE", "a BETWEEN 5 AND 7", "a NOT BETWEEN 5 AND 7", "a BETWEEN 5.0 AND 6.5",
    "a BETWEEN b AND 7", "6 BETWEEN a AND 7", "a IN ('5', 'x')", "a NOT IN ('5', 'x')", "a IN ('it''s')",
    "a = 'it''s'", "a = 5 OR b = 5", "b = 'x' OR a = 5", "a = 'x' AND b = 'x'", "a = 'x' OR a > 5", "a > 5 OR a = 'x'",
    "(a = 'x') = (b = 'x')", "(a = 'x') = TRUE", "(a = 'x') = 'true'", "'true' = (a = 'x')", "(a = 'x') = 5",
    "5 = (a = 'x')", "(a = 'x') = b", "b = (a = 'x')", "(a = 'x') IS NULL", "(a = 5) IS NOT NULL", "NULL", "TRUE",
    "FALSE OR a = '5'", "'5' = 5", "'x' = 5", "5 = 5.0", "'x' = 'x'", "5 > 3", "-5 > -7", "-TRUE IS NULL", "-a IS NULL",
    "a = -b", "-(a = 5) = b", "a < -b", "c = 'ärger'", "a = 5 -- why\n", "/* why */ a = 5", "A = 5",
    "a = 'x' AND (b = 'x' OR b = 'true') AND NOT b = 'y'", "a=5and b=5", "$ = 5", "a = 5. OR a = .5", "a = 5E0",
]  # fmt: skip
NEWER = [
    "a CONTAINS '5'", "a NOT CONTAINS '5'", "a STARTSWITH '5'", "a ENDSWITH '5'", "a NOT STARTSWITH 'x'",
    "a CONTAINS ''", "a NOT CONTAINS ''", "c CONTAINS 'är'", "5 CONTAINS '5'", "'x5' CONTAINS '5'",
    "(a = 5) CONTAINS 't'", "a NOT ENDSWITH 'x'",
]  # fmt: skip
# Refused by both, in 4.9 and 5.x.
REFUSED = [
    "", "a =", "a = NULL", "a > 'x'", "a > TRUE", "TRUE = 5", "5", "'x'", "-a", "a BETWEEN 7 AND 5", "a > (b = 5)",
    "a in (5)", "(a) = (NULL)", "a = 9223372036854775808", "a > 0.0", "a = 1E999", "NOT a IN ('x')", "a IS 5",
    "a = \"x\"", "a BETWEEN 1 OR 2", "a BETWEEN NULL AND 5", "a < b < 5", "(a = 1", "a = ü",
]  # fmt: skip


class Shelf:
    """A queue with all the messages at one broker, pulled with expressions."""

    def __init__(self, target: Target, topic: str) -> None:
        self._wire = Wire(target.broker_address)
        self._topic = topic
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        self._ask(CREATE_TOPIC, fields)
        for each in MESSAGES:
            text = "".join(f"{name}\x01{value}\x02" for name, value in each.items())
            sent = {"producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
            sent |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": text}
            assert self._ask(SEND, {**sent, "reconsumeTimes": "0", "unitMode": "false"}, b"x").code == 0
        eventually(
            lambda: self._ask(GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}).fields["offset"] == str(len(MESSAGES)),
            "all can be consumed",
        )

    def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Any:
        reply = self._wire.ask(code, fields, body)
        assert reply is not None
        return reply

    def selected(self, expression: str) -> list[int] | int:
        """Queue offsets of what an expression selects, or the code of the refusal."""
        found, offset = [], 0
        while True:
            reply = self._ask(PULL, self._pull_fields(expression, offset))
            if reply.code not in (0, 19, 20):
                return int(reply.code)
            found += list(_offsets(reply.body))
            if reply.code == 19 or int(reply.fields["nextBeginOffset"]) >= len(MESSAGES):
                return found
            offset = int(reply.fields["nextBeginOffset"])

    def checked(self, expression: str) -> int:
        """The code a consumer gets that asks before it starts."""
        wanted = {"topic": self._topic, "subString": expression, "expressionType": "SQL92", "subVersion": 1}
        body = json.dumps({"clientId": "c", "group": "shelf", "subscriptionData": wanted}).encode()
        return int(self._ask(CHECK_CLIENT_CONFIG, {}, body).code)

    def _pull_fields(self, expression: str, offset: int) -> dict[str, str]:
        return {
            "consumerGroup": "shelf",
            "topic": self._topic,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": expression,
            "subVersion": "1",
            "expressionType": "SQL92",
        }

    def close(self) -> None:
        self._wire.close()


def _offsets(body: bytes) -> Iterator[int]:
    at = 0
    while at < len(body):
        yield int.from_bytes(body[at + 20 : at + 28])
        at += int.from_bytes(body[at : at + 4])


@pytest.mark.parametrize("line", ["stock_4", "stock_5"])
def test_every_expression_selects_what_it_selects_at_a_stock_broker(
    request: pytest.FixtureRequest, ours: Target, named: Callable[[str], str], line: str
) -> None:
    stock: Target = request.getfixturevalue(line)
    topic = named("shelf")
    theirs, mine = Shelf(stock, topic), Shelf(ours, topic)
    expressions = [*EXPRESSIONS, *(NEWER if stock.kind == STOCK_5 else ())]
    found = {expression: (theirs.selected(expression), mine.selected(expression)) for expression in expressions}
    # Not by a pull: there a stock broker delivers everything when it cannot read the expression.
    refused = {expression: (theirs.checked(expression), mine.checked(expression)) for expression in REFUSED}
    theirs.close()
    mine.close()
    assert not {expression: both for expression, both in found.items() if both[0] != both[1]}
    assert {expression: both for expression, both in refused.items() if both != (23, 23)} == {}
    assert len({json.dumps(both) for both in found.values()}) > 20, "the messages tell the expressions apart"
