"""A request that was refused in the middle, and is handled again, leaves what one undisturbed request leaves.

Each scene is run once as it is, then once for every change that its broker makes, which is refused: once so that the
broker itself handles the request again, once so that its sender does. Then once for every read of the log that fails.
What is stored, what the tables say and which notices went out are the same as without.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.message import retry_topic_of
from shmq.properties import encode_properties
from shmq.protocol.batch_body import pack_entry
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.pop import BatchAck, bit_set
from shmq.protocol.staged_rows import WHOLE, StagedPart
from shmq.protocol.system_topics import transaction
from tests.broker.pop.pop_client import PoppedMessage, messages_of
from tests.broker.unsteady import Unsteady

POINTS_MAX = 200
SEND = dict(zip("abcdefghjkm", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", "0", "false", "false"), strict=True))
Scene = Callable[[Unsteady], None]
SCENES: dict[str, Scene] = {}


def scene(play: Scene) -> Scene:
    SCENES[play.__name__.replace("_", " ").strip()] = play
    return play


def send(world: Unsteady, body: bytes = b"body", *, topic: str = "orders", **properties: str) -> Any:
    return world.insist(Request.SEND_MESSAGE_V2, {**SEND, "b": topic, "i": encode_properties(properties)}, body)


def member(world: Unsteady, *topics: str, group: str = "g") -> None:
    """Connection 2 is a member of a consumer group and of a producer group."""
    subscribed = [SubscriptionData(topic=topic, subString="*") for topic in topics]
    consumers = [ConsumerData(groupName=group, subscriptionDataSet=subscribed)] if topics else []
    beat = HeartbeatData(clientID="c2", consumerDataSet=consumers, producerDataSet=[ProducerData("shop")])
    world.send_request(Request.HEART_BEAT, {}, encode_body(beat), connection=2)


# ---- sends -----------------------------------------------------------------------------------------------------------


@scene
def a_send_that_makes_its_topic(world: Unsteady) -> None:
    world.begin()
    send(world, topic="new")


@scene
def a_batch(world: Unsteady) -> None:
    world.begin()
    world.insist(
        Request.SEND_BATCH_MESSAGE, {**SEND, "m": "true"}, b"".join(pack_entry(b"%d" % n, b"") for n in range(3))
    )


@scene
def a_message_of_a_level(world: Unsteady) -> None:
    world.begin()
    send(world, DELAY="1")
    world.pass_time(4000)


@scene
def messages_of_a_time_of_their_own_one_recalled(world: Unsteady) -> None:
    world.begin()
    moment = world.tables.clock + 2000
    first = send(world, b"1", TIMER_DELIVER_MS=str(moment), UNIQ_KEY="K1")
    send(world, b"2", TIMER_DELIVER_MS=str(moment), UNIQ_KEY="K2")
    world.insist(Request.RECALL_MESSAGE, {"topic": "orders", "recallHandle": first.ext["recallHandle"]})
    world.pass_time(6000)


# ---- retries ---------------------------------------------------------------------------------------------------------


def back(world: Unsteady, **changes: Any) -> None:
    (record,) = world.records("orders")
    ext = {"offset": record.log_position, "group": "g", "delayLevel": 0, "maxReconsumeTimes": 16}
    world.insist(Request.CONSUMER_SEND_MSG_BACK, {**ext, **changes})


@scene
def a_message_given_back(world: Unsteady) -> None:
    world.put(b"x")
    member(world, "orders", "%RETRY%g")
    world.tables.topic_delete("%RETRY%g")
    world.begin()
    back(world)
    world.pass_time(12_000)


@scene
def a_message_given_back_for_a_time(world: Unsteady) -> None:
    world.put(b"x")
    world.begin()
    back(world, delayMs=1700)
    world.pass_time(4000)


@scene
def a_message_given_back_as_a_dead_letter(world: Unsteady) -> None:
    world.put(b"x")
    world.begin()
    back(world, delayLevel=-1)


@scene
def a_retry_sent_after_its_last_try(world: Unsteady) -> None:
    world.begin()
    ext = {**SEND, "b": "%RETRY%g", "j": "16", "l": "16", "i": encode_properties({"ORIGIN_MESSAGE_ID": "O1"})}
    world.insist(Request.SEND_MESSAGE_V2, ext, b"x")


# ---- transactions ----------------------------------------------------------------------------------------------------


def half(world: Unsteady) -> dict[str, Any]:
    reply = send(world, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="U1")
    position = int(reply.ext["msgId"][16:], 16)
    return {"tranStateTableOffset": reply.ext["queueOffset"], "commitLogOffset": position, "transactionId": "U1"}


def end(world: Unsteady, named: dict[str, Any], state: int) -> None:
    fields = {"producerGroup": "shop", "commitOrRollback": state, "msgId": "U1", **named}
    world.insist(Request.END_TRANSACTION, fields, done="settled before")


@scene
def a_transaction_committed(world: Unsteady) -> None:
    world.begin()
    end(world, half(world), transaction.COMMIT)


@scene
def a_transaction_rolled_back(world: Unsteady) -> None:
    world.begin()
    end(world, half(world), transaction.ROLLBACK)


@scene
def a_transaction_that_is_asked_about_and_then_committed(world: Unsteady) -> None:
    member(world)
    named = half(world)
    world.begin()
    world.pass_time(9000)
    end(world, named, transaction.COMMIT)


@scene
def transactions_that_their_producer_ended_by_itself(world: Unsteady) -> None:
    member(world)
    ended = [int(half(world)["tranStateTableOffset"]) for _ in range(8)]
    world._depth += 1
    for offset in ended:
        record = NewRecord(transaction.op_body(offset), transaction.OP_PROPERTIES)
        world.log.append(world.tables.topic(transaction.OP_TOPIC), transaction.QUEUE_ID, record)
    world._depth -= 1
    world.begin()
    world.pass_time(9000)
    assert not world.told, "no member is asked"


@scene
def a_transaction_that_is_given_up_and_resumed(world: Unsteady) -> None:
    world.settings.transaction_checks_max = 0
    half(world)
    world.begin()
    world.pass_time(12_000)
    (expired,) = world.records(transaction.GIVEN_UP_TOPIC)
    world.settings.transaction_checks_max = 15
    name = f"{expired.store_host.hex()}{expired.log_position:016x}".upper()
    world.insist(Request.RESUME_CHECK_HALF_MESSAGE, {"msgId": name})


# ---- POP -------------------------------------------------------------------------------------------------------------


def pop_fields(world: Unsteady, **changes: Any) -> dict[str, Any]:
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 3000}
    more = {"pollTime": 0, "bornTime": world.now_ms, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false"}
    return {**fields, **more, **changes}


def pop(world: Unsteady, **changes: Any) -> list[PoppedMessage]:
    return messages_of(world.insist(Request.POP_MESSAGE, pop_fields(world, **changes)))


@scene
def a_pop_and_its_acknowledgement(world: Unsteady) -> None:
    world.put(b"a", b"b")
    world.begin()
    for message in pop(world):
        world.insist(Request.ACK_MESSAGE, message.settling("g"))
    world.pass_time(2000)


@scene
def popped_messages_that_come_again(world: Unsteady) -> None:
    world.put(b"a", b"b", b"c")
    world.begin()
    assert len(pop(world)) == 3
    world.pass_time(9000)
    assert len(world.records(retry_topic_of("g", "orders"))) == 3


@scene
def popped_messages_that_are_dead(world: Unsteady) -> None:
    world.tables.group_set(world.tables.group_put("g"), b'{"retryMaxTimes":0}')
    world.put(b"a", b"b", b"c")
    world.begin()
    assert len(pop(world)) == 3
    world.pass_time(9000)


@scene
def another_invisible_time(world: Unsteady) -> None:
    world.put(b"a")
    world.begin()
    (message,) = pop(world, invisibleTime=60_000)
    world.insist(
        Request.CHANGE_MESSAGE_INVISIBLETIME, {**message.settling("g"), "invisibleTime": 1000}, done="is not popped"
    )
    world.pass_time(6000)


@scene
def ordered_pops_acknowledged_together_while_another_waits(world: Unsteady) -> None:
    world.add_topic("second")
    world.put(b"a", b"b")
    world.begin(-1)
    send(world, b"c", topic="second")
    send(world, b"d", topic="second")
    fields = {"order": "true", "maxMsgNums": 1, "invisibleTime": 60_000}
    acks = []
    for topic in ("orders", "second"):
        (message,) = pop(world, topic=topic, **fields)
        receipt = message.receipt
        acks.append(
            BatchAck(
                c="g", t=topic, r="0", so=receipt.first_offset, rq=receipt.revive_queue, pt=receipt.pop_ms,
                it=60_000, q=0, b=bit_set(0, [0]),
            )
        )  # fmt: skip
    world.send_request(Request.POP_MESSAGE, pop_fields(world, pollTime=10_000, **fields), connection=2)
    world.begin()
    body = encode_body({"brokerName": "default", "acks": acks})
    world.insist(Request.BATCH_ACK_MESSAGE, {}, body)
    world.pass_time(3000)
    (reply,) = world.replies[2, 1]
    if not reply.body:  # an empty answer, so it asks again
        pop(world, **fields)


# ---- staged rows -----------------------------------------------------------------------------------------------------


def stage(world: Unsteady, chunk: int, topic: str = "orders", **fields: Any) -> None:
    rows = b"".join(
        pack_entry(b"%d%d" % (chunk, n), encode_properties({"UNIQ_KEY": f"R{chunk}{n}"}).encode()) for n in range(3)
    )
    ext = {"writer": "w", "batch": 1, "unit": WHOLE, "partition": 0, "attempt": "A", "chunk": chunk, "topic": topic}
    world.insist(Request.STAGE_ROWS, {**ext, "queueId": 0, **fields}, rows)


def pull(world: Unsteady, offset: int) -> tuple[int, int]:
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": offset, "maxMsgNums": 32}
    more = {"commitOffset": 0, "suspendTimeoutMillis": 15_000, "subVersion": 0, "expressionType": "TAG", "sysFlag": 2}
    return world.send_request(Request.PULL_MESSAGE, {**fields, **more}, connection=2)


@scene
def rows_committed_while_a_pull_waits(world: Unsteady) -> None:
    member(world, "orders")
    world.begin()
    stage(world, 0)
    stage(world, 1)
    pull(world, 0)
    body = msgspec.json.encode([StagedPart(0, "A", 2)])
    ext = {"writer": "w", "batch": 1, "unit": WHOLE, "rows": 6, "checksum": 0}
    while int(world.insist(Request.COMMIT_ROWS, ext, body).ext["left"]):
        world.pass_time(10)
    world.pass_time(3000)


@scene
def rows_that_wait_for_their_time_and_rows_dropped(world: Unsteady) -> None:
    world.begin()
    rows = b"".join(
        pack_entry(
            b"%d" % n,
            encode_properties({"UNIQ_KEY": f"R{n}", "TIMER_DELIVER_MS": str(world.tables.clock + 1000 * n)}).encode(),
        )
        for n in range(1, 4)
    )
    ext = {"writer": "w", "batch": 1, "unit": WHOLE, "partition": 0, "chunk": 0, "topic": "orders", "queueId": 0}
    for attempt in "ABC":
        world.insist(Request.STAGE_ROWS, {**ext, "attempt": attempt, "delayed": "true"}, rows)
    for attempt in "BC":
        world.insist(Request.DROP_ROWS, {"writer": "w", "batch": 1, "unit": WHOLE, "attempt": attempt})
    commit = {"writer": "w", "batch": 1, "unit": WHOLE, "rows": 3, "checksum": 0}
    world.insist(Request.COMMIT_ROWS, commit, msgspec.json.encode([StagedPart(0, "A", 1)]))
    world.pass_time(5000)


# ---- progress, groups, topics ----------------------------------------------------------------------------------------


@scene
def progress_committed_and_cloned(world: Unsteady) -> None:
    world.put(b"a", b"b")
    world.begin()
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 1}
    world.insist(Request.UPDATE_CONSUMER_OFFSET, ext)
    world.insist(Request.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h", "topic": "", "offline": "true"})


def wide(world: Unsteady) -> None:
    world._depth += 1
    world.tables.topic_put("wide", read_queues=3, write_queues=3, perm=6, flags=0, kind=0)
    world.tables.group_put("g")
    world._depth -= 1


@scene
def progress_reset_over_many_queues(world: Unsteady) -> None:
    wide(world)
    member(world, "wide")
    world.begin()
    world.insist(
        Request.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "wide", "group": "g", "timestamp": -1, "isForce": "true"}
    )


@scene
def locks_of_many_queues(world: Unsteady) -> None:
    wide(world)
    world.begin()
    queues = [{"brokerName": "default", "queueId": queue_id, "topic": "wide"} for queue_id in range(3)]
    world.insist(Request.LOCK_BATCH_MQ, {}, encode_body({"consumerGroup": "g", "clientId": "c", "mqSet": queues}))


@scene
def a_heartbeat_of_several_groups(world: Unsteady) -> None:
    world.begin()
    consumers = [
        ConsumerData(groupName=group, subscriptionDataSet=[SubscriptionData(topic="orders", subString="*")])
        for group in ("g1", "g2")
    ]
    for _ in range(2):  # it is said every 30 s
        world.insist(Request.HEART_BEAT, {}, encode_body(HeartbeatData(clientID="c1", consumerDataSet=consumers)))


@scene
def a_topic_made_and_changed(world: Unsteady) -> None:
    member(world, "new")
    world.begin()
    ext = {"topic": "new", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
    ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    world.insist(Request.UPDATE_AND_CREATE_TOPIC, {**ext, "attributes": "+shmq.flush=SYNC"})


@scene
def a_list_of_topics(world: Unsteady) -> None:
    member(world, "new1")
    world.begin()
    configs = [{"topicName": f"new{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in range(1, 4)]
    world.insist(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, encode_body({"topicConfigList": configs}))


@scene
def a_list_of_groups(world: Unsteady) -> None:
    world.begin()
    configs = [{"groupName": f"g{n}", "retryMaxTimes": n} for n in range(1, 4)]
    world.insist(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, encode_body({"groupConfigList": configs}))


@scene
def a_topic_and_a_group_deleted(world: Unsteady) -> None:
    world.add_topic("gone")
    world.tables.group_put("gone")
    world.begin()
    world.insist(Request.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})
    world.insist(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "gone"})


@scene
def how_a_group_asks(world: Unsteady) -> None:
    world.begin()
    body = encode_body({"topic": "orders", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 1})
    world.insist(Request.SET_MESSAGE_REQUEST_MODE, {}, body)


# ---- the rule --------------------------------------------------------------------------------------------------------


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [f"{name}:\n  {wanted[name]}\n  {found[name]}" for name in wanted if wanted[name] != found[name]]


def disturbed(settings: BrokerSettings, make: Callable[[int], Unsteady]) -> tuple[int, list[str]]:
    """Play each scene once for every place it can be disturbed at; return how many there are, and what differs."""
    count, wrong = 0, []
    for name, play in SCENES.items():
        calm = Unsteady(settings)
        play(calm)
        wanted = calm.state()
        for point in range(POINTS_MAX):
            world = make(point)
            try:
                play(world)
            except Exception as error:
                if world.refused is None:
                    raise
                wrong.append(f"{name}, point {point}, {world.refused}: {error!r}")
                continue
            if world.refused is None:
                break
            count += 1
            wrong += [f"{name}, point {point}, {world.refused}: {line}" for line in differences(wanted, world.state())]
            assert all(len(replies) == 1 for replies in world.replies.values()), "a request is answered once"
        else:
            raise AssertionError(f"{name} has more than {POINTS_MAX} points")
    return count, wrong


@pytest.mark.parametrize("is_parked", [True, False], ids=["parked", "answered"])
def test_a_change_that_is_refused_and_asked_for_again_leaves_what_one_undisturbed_request_leaves(
    settings: BrokerSettings, is_parked: bool
) -> None:
    count, wrong = disturbed(settings, lambda point: Unsteady(settings, point, is_parked=is_parked))
    assert wrong == [] and count > 150


def test_a_read_that_fails_in_the_middle_leaves_what_one_undisturbed_request_leaves(settings: BrokerSettings) -> None:
    count, wrong = disturbed(settings, lambda point: Unsteady(settings, point, of_reads=True))
    assert wrong == [] and count > 50


def test_a_request_whose_answer_was_lost_and_that_is_sent_again_changes_nothing_more(settings: BrokerSettings) -> None:
    count, wrong = disturbed(settings, lambda point: Unsteady(settings, lose_at=point))
    assert wrong == [] and count > 20


def test_a_note_about_a_pull_that_the_log_has_no_room_for_does_not_hold_the_pull_up(settings: BrokerSettings) -> None:
    world = Unsteady(settings, 0, is_parked=True)
    world.put(b"x")
    member(world, "orders")
    world.begin()
    key = pull(world, 99)
    assert world.refused == "append" and [reply.code for reply in world.replies[key]] == [Response.PULL_OFFSET_MOVED]
