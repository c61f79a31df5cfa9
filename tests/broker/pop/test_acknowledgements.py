"""What is done with popped messages: acknowledged, given more time, or come again; and what a killed broker's successor
knows of it. Hours pass in milliseconds."""

import contextlib
import itertools
from typing import Any

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.errors import BrokerBusy
from shmq.properties import parse_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.system_topics.pop_records import REVIVE_KNOWN_GROUP
from tests.broker.pop.pop_client import INVISIBLE_MS, PopClient

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
HOUR_MS = 3_600_000


@pytest.fixture
def client(tables: Any, settings: BrokerSettings) -> PopClient:
    return PopClient(tables, settings)


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def test_an_acknowledged_message_never_comes_again(client: PopClient) -> None:
    client.put(b"a", b"b")
    first, second = client.popped()
    assert client.ack(first).code == 0
    client.run(client.now_ms + 2 * INVISIBLE_MS)
    assert bodies(client.retries()) == [b"b"]
    assert client.ack(second).code == 0  # too late, and as in RocketMQ that is no failure


def test_a_message_comes_again_when_its_time_is_over_and_not_before(client: PopClient) -> None:
    client.put(b"a")
    begin = client.now_ms
    client.popped(invisibleTime=7300)
    client.run(begin + 7299)
    assert client.retries() == []
    client.run(begin + 7300)
    assert bodies(client.retries()) == [b"a"]


def test_what_comes_again_is_the_message_with_one_try_more_and_its_origin(client: PopClient) -> None:
    client.put(b"a", text="TAGS\x01fruit\x02KEYS\x01k\x02")
    (message,) = client.popped()
    client.run(client.now_ms + INVISIBLE_MS)
    (copy,) = client.retries()
    properties = parse_properties(copy.properties.decode())
    assert (copy.body, copy.reconsume_times) == (b"a", 1)
    assert (properties["TAGS"], properties["KEYS"], properties["RETRY_TOPIC"]) == ("fruit", "k", "orders")
    assert properties["1ST_POP_TIME"] == str(message.receipt.pop_ms)
    assert properties["ORIGIN_MESSAGE_ID"].endswith(f"{message.record.log_position:016X}")


def test_a_message_that_came_again_has_a_receipt_of_its_retry_topic(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.run(client.now_ms + INVISIBLE_MS)
    (again,) = client.popped()
    assert (again.topic, again.receipt.retry_flag, again.tries) == ("orders", "2", 1)
    assert client.ack(again).code == 0
    client.run(client.now_ms + 2 * INVISIBLE_MS)
    assert len(client.retries()) == 1


def test_i12_tries_grow_by_one_until_the_message_is_dead_exactly_once(client: PopClient) -> None:
    client.put(b"a")
    tries = []
    while found := client.popped():
        tries += [message.tries for message in found]
        client.run(client.now_ms + INVISIBLE_MS)
    assert tries == list(range(17))
    assert bodies(client.dead()) == [b"a"]
    assert [copy.reconsume_times for copy in client.retries()] == list(range(1, 17))
    client.run(client.now_ms + HOUR_MS)
    assert len(client.dead()) == 1


def test_a_group_says_after_how_many_tries_a_message_is_dead(client: PopClient) -> None:
    client.tables.group_set(client.tables.group_put("g"), b'{"retryMaxTimes":2}')
    client.put(b"a")
    count = 0
    while found := client.popped():
        count += len(found)
        client.run(client.now_ms + INVISIBLE_MS)
    assert (count, bodies(client.dead())) == (3, [b"a"])


def test_more_time_counts_from_now_and_comes_with_a_new_receipt(client: PopClient) -> None:
    client.put(b"a")
    (message,) = client.popped(invisibleTime=10_000)
    client.run(client.now_ms + 9000)
    reply = client.change(message, 30_000)
    assert (reply.code, reply.ext["invisibleTime"], reply.ext["reviveQid"]) == (0, "30000", "0")
    assert reply.ext["popTime"] == str(client.tables.clock)
    later = client.now_ms + 30_000
    client.run(later - 1)
    assert client.retries() == []
    client.run(later)
    assert len(client.retries()) == 1


def test_the_new_receipt_settles_and_the_old_one_does_not(client: PopClient) -> None:
    client.put(b"a")
    (message,) = client.popped()
    reply = client.change(message, 30_000)
    assert client.ack(message).code == 0
    assert client.change(message, 10_000).code == Response.NO_MESSAGE
    message.receipt = message.receipt._replace(first_offset=0, pop_ms=int(reply.ext["popTime"]), invisible_ms=30_000)
    assert client.change(message, 20_000).code == 0
    client.run(client.now_ms + INVISIBLE_MS)
    assert len(client.retries()) == 1


def test_no_more_time_at_all_brings_a_message_back_at_once(client: PopClient) -> None:
    client.put(b"a")
    (message,) = client.popped()
    client.change(message, 0)
    client.run(client.now_ms)
    assert bodies(client.popped()) == [b"a"]


def test_giving_back_a_message_that_came_again_makes_no_copy(client: PopClient) -> None:
    client.put(b"a")
    (message,) = client.popped()
    client.run(client.now_ms + INVISIBLE_MS)
    assert client.change(message, 1000).code == Response.NO_MESSAGE
    client.run(client.now_ms + 10_000)
    assert len(client.retries()) == 1


def test_several_messages_of_a_pop_are_acknowledged_with_one_request(client: PopClient) -> None:
    client.put(b"a", b"b", b"c")
    a, _, c = client.popped()
    assert client.batch_ack(a, c).code == 0
    client.run(client.now_ms + INVISIBLE_MS)
    assert bodies(client.retries()) == [b"b"]


BAD_ACKS = {
    "no topic": ({"topic": "nosuch"}, Response.TOPIC_NOT_EXIST),
    "a queue beyond": ({"queueId": 7}, Response.MESSAGE_ILLEGAL),
    "a negative queue": ({"queueId": -1}, Response.MESSAGE_ILLEGAL),
    "a far offset": ({"offset": 10**15}, Response.NO_MESSAGE),
    "a negative offset": ({"offset": -3}, Response.NO_MESSAGE),
    "no receipt": ({"extraInfo": "nothing"}, Response.SYSTEM_ERROR),
    "a receipt of letters": ({"extraInfo": "a b c d 0 e f g"}, Response.SYSTEM_ERROR),
    "a receipt with a far flag": ({"extraInfo": "0 1 1 0 9 default 0 0"}, Response.SYSTEM_ERROR),
}


@pytest.mark.parametrize("name", BAD_ACKS)
def test_an_acknowledgement_of_what_is_not_there_is_refused_and_changes_nothing(client: PopClient, name: str) -> None:
    client.put(b"a")
    (message,) = client.popped()
    changes, code = BAD_ACKS[name]
    end = client.log.end
    assert client.ack(message, **changes).code == code
    assert client.log.end == end
    client.run(client.now_ms + INVISIBLE_MS)
    assert len(client.retries()) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"acks":[]}', b'{"acks":[{"c":"g","t":"orders","b":"%%"}]}'])
def test_a_batch_of_acknowledgements_that_is_none_changes_nothing(client: PopClient, body: bytes) -> None:
    client.put(b"a")
    client.popped()
    end = client.log.end
    assert client.ask(Request.BATCH_ACK_MESSAGE, body=body).code != 0
    assert client.log.end == end


@pytest.mark.parametrize("invisible_ms", [-1, 8 * 24 * HOUR_MS])
def test_a_time_that_is_not_possible_is_refused(client: PopClient, invisible_ms: int) -> None:
    client.put(b"a")
    (message,) = client.popped()
    assert client.change(message, invisible_ms).code == Response.INVALID_PARAMETER
    client.run(client.now_ms + INVISIBLE_MS)
    assert len(client.retries()) == 1


def test_another_groups_receipt_settles_nothing(client: PopClient) -> None:
    client.put(b"a")
    (message,) = client.popped()
    assert client.ack(message, group="h").code == 0
    client.run(client.now_ms + INVISIBLE_MS)
    assert bodies(client.retries()) == [b"a"]


def test_what_cannot_come_again_now_comes_a_second_later(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.at(client.now_ms + INVISIBLE_MS)
    client.log.error = BrokerBusy("the append lock is held")
    client.tick()
    assert any("do not come again yet" in text for text in client.reports)
    client.log.error = None
    client.run(client.now_ms + 1000)
    assert bodies(client.retries()) == [b"a"]


def test_what_is_gone_does_not_hold_up_what_is_there(client: PopClient) -> None:
    client.put(b"a", b"b", b"c")
    client.popped()
    client.tables.bounds[client.topic().queues[0]] = QueueBounds(2, 3)
    client.run(client.now_ms + INVISIBLE_MS)
    assert bodies(client.retries()) == [b"c"]
    assert sum("is gone" in text for text in client.reports) == 2


def test_a_deleted_topic_or_group_ends_what_was_popped(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.popped(consumerGroup="h")
    client.tables.topic_delete("orders")
    client.run(client.now_ms + INVISIBLE_MS)
    assert client.tables.topic("%RETRY%g+orders") is None
    assert sum("gone with it" in text for text in client.reports) == 2


# -- a successor


def test_a_successor_knows_what_is_invisible_and_until_when(client: PopClient) -> None:
    client.put(b"a")
    begin = client.now_ms
    client.popped()
    client.at(begin + 20_000)
    client.start()
    assert client.popped() == []
    client.run(begin + INVISIBLE_MS - 1)
    assert client.retries() == []
    client.run(begin + INVISIBLE_MS)
    assert bodies(client.retries()) == [b"a"]


def test_a_receipt_outlives_the_broker_that_gave_it(client: PopClient) -> None:
    client.put(b"a", b"b")
    first, second = client.popped()
    client.start()
    assert client.ack(first).code == 0
    client.start()
    assert client.change(second, 1000).code == 0
    client.start()
    client.run(client.now_ms + 2000)
    assert bodies(client.retries()) == [b"b"]


def test_a_successor_does_not_give_more_than_the_whole_time_when_the_clock_was_set_back(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.skew_ms -= 5 * HOUR_MS
    client.at(client.now_ms)
    client.start()
    client.run(client.now_ms + INVISIBLE_MS)
    assert bodies(client.retries()) == [b"a"]


class Killed(Exception):
    """Instead of a signal: nothing after this happens."""


@pytest.mark.parametrize("step", range(8))
def test_a_kill_at_any_step_of_a_message_that_comes_again_loses_nothing_and_copies_nothing_twice(
    tables: Any, settings: BrokerSettings, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = PopClient(tables, settings)
    tables.group_set(tables.group_put("g"), b'{"retryMaxTimes":1}')
    client.put(b"a", b"b")
    client.popped()
    client.run(client.now_ms + INVISIBLE_MS)  # both are in the retry topic now
    again = client.popped()
    assert len(again) == 2
    steps = itertools.count()
    append, committed = client.log.append, tables.set_committed

    def one_more(act: Any, *arguments: Any) -> Any:
        if next(steps) == step:
            raise Killed
        return act(*arguments)

    monkeypatch.setattr(client.log, "append", lambda *arguments: one_more(append, *arguments))
    monkeypatch.setattr(tables, "set_committed", lambda *arguments: one_more(committed, *arguments))
    with contextlib.suppress(Killed):
        client.run(client.now_ms + INVISIBLE_MS)
    monkeypatch.undo()
    client.start()
    client.run(client.now_ms + 2000)
    assert sorted(bodies(client.dead())) == [b"a", b"b"]


@pytest.mark.parametrize("step", range(4))
def test_a_kill_at_any_step_of_a_pop_loses_nothing_and_hands_nothing_out_twice_at_a_time(
    tables: Any, settings: BrokerSettings, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = PopClient(tables, settings)
    client.put(b"a")
    steps = itertools.count()
    append, committed = client.log.append, tables.set_committed

    def one_more(act: Any, *arguments: Any) -> Any:
        if next(steps) == step:
            raise Killed
        return act(*arguments)

    monkeypatch.setattr(client.log, "append", lambda *arguments: one_more(append, *arguments))
    monkeypatch.setattr(tables, "set_committed", lambda *arguments: one_more(committed, *arguments))
    with contextlib.suppress(Killed):
        client.popped()
    monkeypatch.undo()
    is_out = client.tables.topic(REVIVE) is not None and bool(client.log.stored(client.topic(REVIVE), 0))
    client.start()
    assert bodies(client.popped()) == ([] if is_out else [b"a"])
    client.run(client.now_ms + INVISIBLE_MS)
    assert len(client.retries()) == 1


def test_the_log_of_checkpoints_stays_short_for_a_successor(client: PopClient) -> None:
    client.put(*(b"%d" % number for number in range(300)))
    client.popped(maxMsgNums=1, invisibleTime=HOUR_MS)  # held for an hour
    for _ in range(60):
        found = client.popped(maxMsgNums=4)
        for message in found:
            client.ack(message)
        client.run(client.now_ms + 30_000)
    revive = client.topic(REVIVE)
    group = client.tables.group("CID_RMQ_SYS_REVIVE_GROUP")
    done = client.tables.committed(client.tables.offset_slot(group, revive.queues[0]))
    assert len(client.log.stored(revive, 0)) - done < 120
    client.start()
    assert client.popped(maxMsgNums=1)[0].receipt.offset == 241
    client.run(client.now_ms + 2 * HOUR_MS)
    assert b"0" in bodies(client.retries())


def test_what_is_no_record_of_ours_in_the_revive_topic_is_passed_over(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    revive = client.topic(REVIVE)
    for text, body in ((b"ck", b"{"), (b"ck", b'{"so":-5}'), (b"ord", b'{"c":1}'), (b"other", b"x"), (b"ack", b"[]")):
        client.log.append(revive, 0, type(client.log.stored(revive, 0)[0])(body, b"TAGS\x01" + text + b"\x02"))
    client.start()
    client.run(client.now_ms + INVISIBLE_MS)
    assert bodies(client.retries()) == [b"a"]


def test_a_checkpoint_that_a_rocketmq_broker_left_comes_again(client: PopClient) -> None:
    client.put(b"a", b"b")
    client.popped()  # makes the revive topic
    clock = client.tables.clock
    left = (
        f'{{"bm":0,"bn":"default","c":"old","d":[0,1],"it":5000,"n":2,"pt":{clock},"q":0,"ro":0,"so":0,"t":"orders"}}'
    )
    done = f'{{"ao":1,"bn":"default","c":"old","pt":{clock},"q":0,"so":0,"t":"orders"}}'
    revive = client.topic(REVIVE)
    record = type(client.log.stored(revive, 0)[0])
    client.log.append(revive, 5, record(left.encode(), b"TAGS\x01ck\x02"))
    client.log.append(revive, 5, record(done.encode(), b"TAGS\x01ack\x02"))
    client.tables.group_put("old")
    client.run(client.now_ms + 6000)
    assert bodies(client.retries("old")) == [b"a"]


def _set_progress(client: PopClient, group: str, topic: str, offset: int) -> None:
    queue = client.topic(topic).queues[0]
    client.tables.set_committed(client.tables.offset_put(client.tables.group_put(group), queue), offset)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_new_master_goes_on_behind_the_pops_of_unknown_progress(client: PopClient, is_ordered: bool) -> None:
    client.put(*(b"%d" % number for number in range(9)))
    fields = {"maxMsgNums": 2, "order": str(is_ordered).lower()}
    for message in client.popped(**fields):
        client.ack(message)
    told = client.committed()
    first_untold = len(client.log.stored(client.topic(REVIVE), 0))
    for _ in range(2):
        for message in client.popped(**fields):
            client.ack(message)
    assert client.committed() == 6
    _set_progress(client, "g", "orders", told)
    _set_progress(client, REVIVE_KNOWN_GROUP, REVIVE, first_untold)
    client.start()
    client.tick()
    assert [message.body for message in client.popped(maxMsgNums=9)] == [b"6", b"7", b"8"]
    assert client.tables.group(REVIVE_KNOWN_GROUP) is None
    # What an operator sets back afterwards stays so after a start.
    _set_progress(client, "g", "orders", told)
    client.start()
    client.tick()
    assert client.committed() == told
