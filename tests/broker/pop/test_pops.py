"""POP: what is handed out, what a client can ask, and waiting; what RocketMQ's client makes of the replies."""

from collections.abc import Mapping
from typing import Any

import pytest

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.figures import Labels, NoFigures
from shmq.daemon.broker.tables import QueueBounds
from shmq.errors import BrokerBusy
from shmq.properties import parse_properties
from shmq.protocol.codes import Request, Response
from tests.broker.pop.pop_client import INVISIBLE_MS, PopClient, messages_of
from tests.tables.rows import every_row


@pytest.fixture
def client(tables: Any, settings: BrokerSettings) -> PopClient:
    return PopClient(tables, settings)


@pytest.fixture
def wide(tables: Any, settings: BrokerSettings) -> PopClient:
    return PopClient(tables, settings, queues=4)


def test_a_pop_hands_out_messages_with_what_their_receipts_need(client: PopClient) -> None:
    client.put(b"a", b"b")
    reply = client.pop()
    assert (reply.code, reply.remark, reply.ext["restNum"]) == (0, "FOUND", "0")
    assert (reply.ext["startOffsetInfo"], reply.ext["msgOffsetInfo"]) == ("0 0 0", "0 0 0,1")
    assert reply.ext["popTime"] == str(client.tables.clock)
    assert (reply.ext["invisibleTime"], reply.ext["reviveQid"]) == (str(INVISIBLE_MS), "0")
    assert "orderCountInfo" not in reply.ext
    assert [message.body for message in messages_of(reply)] == [b"a", b"b"]


def test_a_popped_message_is_not_handed_out_again_while_it_is_invisible(client: PopClient) -> None:
    client.put(b"a")
    assert [message.body for message in client.popped()] == [b"a"]
    client.run(client.now_ms + INVISIBLE_MS - 1000)
    assert client.popped() == []
    assert client.retries() == []


def test_groups_pop_for_themselves(client: PopClient) -> None:
    client.put(b"a")
    assert [message.body for group in ("g", "h") for message in client.popped(consumerGroup=group)] == [b"a", b"a"]


def test_a_pop_of_any_queue_takes_from_all_of_them_and_begins_elsewhere_each_time(wide: PopClient) -> None:
    for queue_id in range(4):
        wide.put(*(b"%d-%d" % (queue_id, number) for number in range(3)), queue_id=queue_id)
    first, second = wide.popped(maxMsgNums=3), wide.popped(maxMsgNums=3)
    assert {message.receipt.queue_id for message in first} != {message.receipt.queue_id for message in second}
    rest = wide.popped()
    assert len({message.body for message in [*first, *second, *rest]}) == 12
    assert {message.receipt.queue_id for message in rest} == {0, 1, 2, 3} - {first[0].receipt.queue_id} - {
        second[0].receipt.queue_id
    }


def test_a_pop_of_one_queue_leaves_the_others_alone(wide: PopClient) -> None:
    for queue_id in range(4):
        wide.put(b"%d" % queue_id, queue_id=queue_id)
    assert [message.body for message in wide.popped(queueId=2)] == [b"2"]


def test_how_much_is_left_is_said(client: PopClient) -> None:
    client.put(*(b"%d" % number for number in range(10)))
    assert client.pop(maxMsgNums=3).ext["restNum"] == "7"


def test_messages_with_other_tags_are_passed_over_and_not_looked_at_again(client: PopClient) -> None:
    client.put(b"x", text="TAGS\x01veg\x02")
    client.put(b"y", text="TAGS\x01fruit\x02")
    client.put(b"z", text="TAGS\x01veg\x02")
    assert [message.body for message in client.popped(exp="fruit || nut")] == [b"y"]
    assert client.popped(exp="fruit || nut") == []
    assert client.committed() == 3


@pytest.mark.parametrize(("mode", "low", "high", "first"), [(0, 0, 3, 0), (1, 0, 3, 0), (0, 1, 3, 1), (1, 1, 3, 2)])
def test_a_new_group_begins_where_rocketmq_lets_it_begin(
    client: PopClient, mode: int, low: int, high: int, first: int
) -> None:
    client.put(*(b"%d" % number for number in range(high)))
    client.tables.bounds[client.topic().queues[0]] = QueueBounds(low, high)
    assert client.popped(initMode=mode)[0].receipt.offset == first


@pytest.mark.parametrize("committed", [99, 0])
def test_progress_outside_the_queue_is_moved_into_it(client: PopClient, committed: int) -> None:
    client.put(*(b"%d" % number for number in range(5)))
    queue = client.topic().queues[0]
    client.tables.bounds[queue] = QueueBounds(2, 5)
    client.tables.set_committed(client.tables.offset_put(client.tables.group_put("g"), queue), committed)
    assert [message.receipt.offset for message in client.popped()] == ([2, 3, 4] if committed == 0 else [])
    assert client.committed() == 5


def test_a_queue_that_a_local_member_reads_is_left_to_it(client: PopClient) -> None:
    client.put(b"a")
    slot = client.tables.offset_put(client.tables.group_put("g"), client.topic().queues[0])
    client.tables.owned.add(slot)
    assert client.pop().code == Response.POLLING_TIMEOUT
    client.tables.owned.clear()
    assert [message.body for message in client.popped()] == [b"a"]


def test_a_group_does_not_take_more_than_it_settles(tables: Any, settings: BrokerSettings) -> None:
    settings.popped_per_queue_max = 4
    client = PopClient(tables, settings)
    client.put(*(b"%d" % number for number in range(9)))
    taken = client.popped(maxMsgNums=4)
    assert client.popped() == []
    client.ack(taken[0])
    assert [message.body for message in client.popped(maxMsgNums=1)] == [b"4"]


def test_a_receipt_that_a_sender_put_into_its_message_is_not_handed_out(client: PopClient) -> None:
    client.put(b"a", text="POP_CK\x01forged\x02KEYS\x01k\x02")
    (message,) = client.popped()
    assert parse_properties(message.record.properties.decode()).keys() == {"KEYS", "__CRC32#"}
    assert client.ack(message).code == 0


def test_what_cannot_be_written_down_is_not_handed_out(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.put(b"b")
    client.log.error = BrokerBusy("the append lock is held")
    assert client.pop().code == Response.SYSTEM_BUSY
    client.log.error = None
    assert [message.body for message in client.popped()] == [b"b"]


BAD = {
    "no messages": ({"maxMsgNums": 0}, Response.INVALID_PARAMETER),
    "more than 32": ({"maxMsgNums": 33}, Response.INVALID_PARAMETER),
    "a negative number": ({"maxMsgNums": -1}, Response.INVALID_PARAMETER),
    "a queue beyond": ({"queueId": 1}, Response.INVALID_PARAMETER),
    "a queue below": ({"queueId": -2}, Response.INVALID_PARAMETER),
    "no invisible time": ({"invisibleTime": 0}, Response.INVALID_PARAMETER),
    "a negative time": ({"invisibleTime": -5}, Response.INVALID_PARAMETER),
    "a time of years": ({"invisibleTime": 10**12}, Response.INVALID_PARAMETER),
    "no such topic": ({"topic": "nosuch"}, Response.TOPIC_NOT_EXIST),
    "a topic with dots": ({"topic": "../orders"}, Response.TOPIC_NOT_EXIST),
    "a group with dots": ({"consumerGroup": ".."}, Response.SUBSCRIPTION_GROUP_NOT_EXIST),
    "a long group": ({"consumerGroup": "g" * 120}, Response.INVALID_PARAMETER),
    "tags of separators": ({"exp": "||"}, Response.SUBSCRIPTION_PARSE_FAILED),
    "no number": ({"pollTime": "soon"}, Response.SYSTEM_ERROR),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_popped_is_refused_and_changes_nothing(client: PopClient, name: str) -> None:
    client.put(b"a")
    changes, code = BAD[name]
    end = client.log.end
    assert client.pop(**changes).code == code
    assert client.log.end == end
    assert client.tables.progress == {}


def test_a_group_that_may_not_consume_gets_the_reason(client: PopClient) -> None:
    client.tables.group_set(client.tables.group_put("g"), b'{"consumeEnable":false}')
    assert client.pop().code == Response.NO_PERMISSION


# -- waiting


def test_a_pop_waits_for_a_message_of_its_topic(wide: PopClient) -> None:
    assert wide.pop(pollTime=15_000) is None
    wide.put(b"a", queue_id=3, tells=True)
    (reply,) = wide.replies[1]
    assert [message.body for message in messages_of(reply)] == [b"a"]
    assert wide.broker.wanted.is_nothing


def test_a_waiting_pop_is_wanted_from_where_it_would_begin(wide: PopClient) -> None:
    wide.put(b"a", queue_id=1)
    wide.popped()
    version = wide.broker.wanted_version
    assert wide.pop(pollTime=15_000) is None
    assert wide.broker.wanted_version != version
    assert dict(wide.broker.wanted.queues) == {queue: int(n == 1) for n, queue in enumerate(wide.topic().queues)}


def test_when_its_time_is_over_a_pop_is_answered_that_there_is_nothing(client: PopClient) -> None:
    begin = client.now_ms
    assert client.pop(pollTime=5000) is None
    client.run(begin + 4000)
    assert client.replies.get(1) is None
    client.run(begin + 6000)
    assert [reply.code for reply in client.replies[1]] == [Response.POLLING_TIMEOUT]


@every_row("wait_ms", [1, 50, 300, 999, 1000, 1500, 4980])
def test_a_wait_ends_when_its_time_is_over_and_not_with_the_second(wide: PopClient, wait_ms: int) -> None:
    begun_ms, before = wide.now_ms, len(wide.replies.get(1, ()))
    assert wide.pop(pollTime=wait_ms) is None
    assert wide.pop(pollTime=wait_ms + 100) is None
    for over_ms, answered in ((wait_ms - 1, 0), (wait_ms + 20, 1), (wait_ms + 99, 1), (wait_ms + 120, 2)):
        wide.run(begun_ms + over_ms)
        answers = wide.replies.get(1, [])[before:]
        assert [answer.code for answer in answers] == [Response.POLLING_TIMEOUT] * answered, over_ms


def test_one_message_goes_to_one_of_those_who_wait_the_first(client: PopClient) -> None:
    assert client.pop(pollTime=15_000) is None
    assert client.pop(connection=2, pollTime=15_000) is None
    client.put(b"a", tells=True)
    assert [len(client.replies.get(connection, ())) for connection in (1, 2)] == [1, 0]
    client.put(b"b", tells=True)
    assert [message.body for message in messages_of(client.replies[2][0])] == [b"b"]


def test_a_message_that_comes_again_wakes_who_waits(client: PopClient) -> None:
    client.put(b"a")
    client.popped(invisibleTime=3000)
    assert client.pop(pollTime=15_000, connection=2) is None
    client.run(client.now_ms + 4000)
    (reply,) = client.replies[2]
    (message,) = messages_of(reply)
    assert (message.body, message.record.reconsume_times, message.record.topic) == (b"a", 1, "orders")


def test_messages_with_other_tags_do_not_end_a_wait(client: PopClient) -> None:
    assert client.pop(pollTime=15_000, exp="fruit") is None
    client.put(b"x", text="TAGS\x01veg\x02", tells=True)
    assert client.replies.get(1) is None
    client.put(b"y", text="TAGS\x01fruit\x02", tells=True)
    assert [message.body for message in messages_of(client.replies[1][0])] == [b"y"]


def test_what_a_gone_connection_waited_for_is_forgotten(client: PopClient) -> None:
    assert client.pop(pollTime=15_000) is None
    client.broker.disconnected(1, client.now_ms)
    assert client.broker.wanted.is_nothing


def test_no_pop_waits_when_too_many_do(tables: Any, settings: BrokerSettings) -> None:
    settings.held_pulls_per_connection_max = 1
    client = PopClient(tables, settings)
    assert client.pop(pollTime=15_000) is None
    assert client.pop(pollTime=15_000).code == Response.POLLING_FULL
    assert client.pop(pollTime=15_000, connection=2) is None


def test_a_topic_that_goes_away_ends_the_wait(client: PopClient) -> None:
    queue = client.topic().queues[0]
    assert client.pop(pollTime=5000) is None
    client.tables.topic_delete("orders")
    client.take_in(client.broker.arrived([queue], client.now_ms))
    assert [reply.code for reply in client.replies[1]] == [Response.TOPIC_NOT_EXIST]


# -- questions


def test_a_peek_shows_messages_and_takes_none(client: PopClient) -> None:
    client.put(b"a", b"b")
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": -1, "maxMsgNums": 1}
    reply = client.ask(Request.PEEK_MESSAGE, fields)
    assert (reply.code, reply.ext["restNum"], len(reply.body) > 0) == (0, "1", True)
    assert [message.body for message in client.popped()] == [b"a", b"b"]
    assert client.ask(Request.PEEK_MESSAGE, fields).code == Response.PULL_NOT_FOUND


def test_a_notification_says_whether_a_pop_would_bring_something(client: PopClient) -> None:
    fields = client.pop_fields()
    assert client.ask(Request.NOTIFICATION, fields).ext == {"hasMsg": "false", "pollingFull": "false"}
    assert client.ask(Request.NOTIFICATION, {**fields, "pollTime": 5000}) is None
    client.put(b"a", tells=True)
    assert [reply.ext["hasMsg"] for reply in client.replies[1]] == ["false", "true"]
    assert client.ask(Request.NOTIFICATION, fields).ext["hasMsg"] == "true"
    client.popped()
    assert client.ask(Request.NOTIFICATION, fields).ext["hasMsg"] == "false"


def test_a_notification_that_waited_for_nothing_says_so_at_its_time(client: PopClient) -> None:
    assert client.ask(Request.NOTIFICATION, {**client.pop_fields(), "pollTime": 5000}) is None
    client.run(client.now_ms + 6000)
    assert [(reply.code, reply.ext["hasMsg"]) for reply in client.replies[1]] == [(0, "false")]


def test_how_many_wait_can_be_asked(client: PopClient) -> None:
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": -1}
    assert client.ask(Request.POLLING_INFO, fields).ext == {"pollingNum": "0"}
    client.pop(pollTime=5000)
    client.pop(pollTime=5000, queueId=0)
    assert client.ask(Request.POLLING_INFO, fields).ext == {"pollingNum": "1"}


def test_a_pop_can_select_by_properties(client: PopClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    read = client.log.read

    def watched(*arguments: Any, **named: Any) -> Any:
        seen.append(named.get("where"))
        named.pop("where", None)
        return read(*arguments, **named)

    monkeypatch.setattr(client.log, "read", watched)
    client.put(b"a")
    assert client.popped(expType="SQL92", exp="size > 3")
    assert seen[-1] is not None
    assert client.pop(expType="SQL92", exp="size >").code == Response.SUBSCRIPTION_PARSE_FAILED
    assert client.pop(expType="OTHER", exp="x").code == Response.SYSTEM_ERROR


def test_what_is_popped_is_counted_by_topic_and_group_until_it_is_settled(
    tables: Any, settings: BrokerSettings
) -> None:
    figures = Shown()
    client = PopClient(tables, settings, figures=figures)
    client.put(b"a", b"b", b"c")
    client.popped(maxMsgNums=2)
    client.run(client.now_ms + 1)
    about = (("consumer_group", "g"), ("topic", "orders"))
    assert figures.last["rocketmq_consumer_inflight_messages"] == {about: 2}
    client.popped()
    client.run(client.now_ms + 1)
    assert figures.last["rocketmq_consumer_inflight_messages"] == {about: 3}


class Shown(NoFigures):
    """Keeps what was shown last."""

    def __init__(self) -> None:
        self.last: dict[str, dict[Labels, int]] = {}

    def show(self, family: str, values: Mapping[Labels, int]) -> None:
        self.last[family] = dict(values)


def test_groups_whose_names_add_up_to_one_name_get_each_their_own_whatever_a_sender_says(client: PopClient) -> None:
    """The first name, %RETRY%a_b_c, is that of `a` that pops `b_c`, and of `a_b` that pops `c`."""
    readers = {"b_c": "a", "c": "a_b"}
    for topic, group in readers.items():
        client.tables.topic_put(topic, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        for said in ("", "RETRY_TOPIC\x01c\x02", "RETRY_TOPIC\x01b_c\x02"):  # a sender says what it likes
            client.log.append(client.topic(topic), 0, NewRecord(f"{topic} {said}".encode(), said.encode()))
        assert len(client.popped(topic=topic, consumerGroup=group)) == 3
    client.run(client.now_ms + INVISIBLE_MS + 2000)
    for _ in range(2):
        for topic, group in readers.items():
            messages = client.popped(topic=topic, consumerGroup=group)
            assert [message.body.split()[0] for message in messages] == [topic.encode()] * 3
            assert all(message.tries for message in messages)
        client.run(client.now_ms + INVISIBLE_MS + 2000)
    for topic, group in readers.items():
        assert all(client.ack(message, group).code == 0 for message in client.popped(topic=topic, consumerGroup=group))
    client.run(client.now_ms + INVISIBLE_MS + 2000)
    assert not any(client.popped(topic=topic, consumerGroup=group) for topic, group in readers.items())
