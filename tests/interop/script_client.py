"""Owns the first part of the scripted exchange: what clients ask, with right, wrong and odd fields.

It does not know what the answers are; a stock broker says that.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

from tests.interop.exchange import ONE_WAY, Step

TOPIC = "DiffTopic"
EMPTY_TOPIC = "DiffEmpty"
GROUP = "DiffGroup"
TIME = 1_700_000_000_000
FAR_FUTURE = 4_000_000_000_000
SEND_FIELDS = {
    "a": "DiffProducer",
    "b": TOPIC,
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": str(TIME),
    "h": "0",
    "i": "KEYS\x01k1\x02TAGS\x01red\x02UNIQ_KEY\x01DIFF0001\x02",
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "false",
}
LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is None."""
    return {name: value for name, value in fields.items() if value is not None}


def topic_step(name: str, topic: str, **changes: Any) -> Step:
    """A request to create a topic of four queues."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return Step(name, 17, without_none(fields | changes))


def _send(
    name: str, body: bytes = b"hello", *, code: int = 310, step: dict[str, Any] | None = None, **changes: Any
) -> Step:
    fields = without_none(SEND_FIELDS | changes)
    if code == 10:
        fields = {LONG_NAMES[key]: value for key, value in fields.items()}
    return Step(name, code, fields, body, **(step or {}))


def _batched(*bodies: bytes) -> bytes:
    records = [struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", 0) for body in bodies]
    return b"".join(struct.pack(">i", 4 + len(record)) + record for record in records)


def _pull(name: str, *, code: int = 11, keeps_remark: bool = True, **changes: Any) -> Step:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*"}
    fields |= {"subVersion": "0", "expressionType": "TAG"}
    return Step(name, code, without_none(fields | changes), keeps_remark=keeps_remark)


def _queue(name: str, code: int, topic: str | None = TOPIC, queue: str | None = "0", **more: str) -> Step:
    return Step(name, code, without_none({"topic": topic, "queueId": queue, **more}))


def _offset(name: str, code: int, **changes: Any) -> Step:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    return Step(name, code, without_none(fields | changes), keeps_remark=code == 14)


def heartbeat(
    client: str, *, producers: list[str] | None = None, group: str | None = None, topics: tuple[str, ...] = (TOPIC,)
) -> bytes:
    """The body of a heartbeat with producers or one clustering consumer group."""
    subscriptions = [
        {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": TIME,
            "tagsSet": [],
            "topic": topic,
        }
        for topic in topics
    ]
    consumer = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": group}
    consumer |= {"messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions, "unitMode": False}
    data = {"clientID": client, "consumerDataSet": [consumer] if group else []}
    return json.dumps(data | {"producerDataSet": [{"groupName": name} for name in producers or []]}).encode()


def _lock(client: str, queues: tuple[int, ...], topic: str = TOPIC) -> bytes:
    chosen = [{"brokerName": "{broker}", "queueId": queue, "topic": topic} for queue in queues]
    return json.dumps({"clientId": client, "consumerGroup": GROUP, "mqSet": chosen}).encode()


NAMES = [
    Step("route of TBW102", 105, {"topic": "TBW102"}, to="names"),
    Step("route of an unknown topic", 105, {"topic": "DiffNothing"}, to="names", keeps_remark=True),
    Step("route of an empty topic name", 105, {"topic": ""}, to="names"),
    Step("route without a topic", 105, {}, to="names"),
    Step("route without fields", 105, None, to="names"),
    Step("route for an old client", 105, {"topic": "TBW102"}, to="names", extra={"version": 317}),
    Step(
        "route in standard JSON",
        105,
        {"topic": "TBW102", "acceptStandardJsonOnly": "true"},
        to="names",
        extra={"version": 317},
    ),
    Step("cluster information", 106, None, to="names"),
    Step("put a value", 100, {"namespace": "DIFF", "key": "k", "value": "v"}, to="names"),
    Step("get a value", 101, {"namespace": "DIFF", "key": "k"}, to="names"),
    Step("list values", 219, {"namespace": "DIFF"}, to="names"),
    Step("delete a value", 102, {"namespace": "DIFF", "key": "k"}, to="names"),
    Step("get a deleted value", 101, {"namespace": "DIFF", "key": "k"}, to="names", keeps_remark=True),
    Step("list values of an unknown namespace", 219, {"namespace": "DIFFNO"}, to="names", keeps_remark=True),
    Step("put a value without its key", 100, {"namespace": "DIFF", "value": "v"}, to="names"),
    Step("all topics", 206, None, to="names"),
    Step("topics of the cluster", 224, {"cluster": "DefaultCluster"}, to="names"),
    Step("topics of an unknown cluster", 224, {"cluster": "DiffNoCluster"}, to="names"),
    Step("system topics", 304, None, to="names"),
    Step("unit topics", 311, None, to="names"),
    Step("unit subscription topics", 312, None, to="names"),
    Step("unit subscription topics that are not unit topics", 313, None, to="names"),
    Step("wipe the write permission of an unknown broker", 205, {"brokerName": "diff-absent"}, to="names"),
    Step("wipe without a broker", 205, {}, to="names"),
    Step("add the write permission of an unknown broker", 327, {"brokerName": "diff-absent"}, to="names"),
    Step("delete an unknown topic", 216, {"topic": "DiffNothing"}, to="names"),
    Step("name server configuration", 319, None, to="names"),
    Step("update the name server with nothing", 318, None, to="names"),
    Step("a code the name server does not know", 9999, None, to="names", may_be_silent=True),
]

SENDS = [
    topic_step("create the topic", TOPIC),
    topic_step("create the empty topic", EMPTY_TOPIC),
    _send("send"),
    _send("send with long names", code=10),
    _send("send without properties", i=None),
    _send("send with an empty body", b""),
    topic_step("create a topic of one queue", "DiffSingle", readQueueNums="1", writeQueueNums="1"),
    _send("send to any queue", b="DiffSingle", e="-1"),
    _send("send to a queue that is not there", e="77"),
    _send("send to a topic without a name", b=""),
    _send("send to a topic with illegal characters", b="Diff$Topic"),
    _send("send to a topic with too long a name", b="T" * 128),
    _send("send to the schedule topic", b="SCHEDULE_TOPIC_XXXX"),
    _send("send to the half topic", b="RMQ_SYS_TRANS_HALF_TOPIC"),
    _send("send to a new topic", b="DiffCreated"),
    _send("send to a new topic with two queues", b="DiffCreatedTwo", d="2", e="1"),
    _send("send to a new topic after an unknown one", b="DiffNotCreated", c="DiffNoDefault"),
    _send("send to the retry topic of an unknown group", b="%RETRY%DiffAbsent"),
    _send("send with one field", **{name: None for name in SEND_FIELDS if name != "a"}),
    Step("send with long names and one field", 10, {"producerGroup": "DiffProducer"}, b"hello"),
    _send("send with long names without a topic", code=10, b=None),
    _send("send with long names to a word as queue", code=10, e="first"),
    _send("send to a word as queue", e="first"),
    _send("send 5 MiB", b"x" * (5 << 20)),
    _send("send too many properties", i="big\x01" + "x" * 40_000 + "\x02"),
    _send("send a user flag and born time zero", h="7", g="0"),
    _send("send one way", step={"may_be_silent": True, "extra": {"flag": ONE_WAY}}),
    _send("send to an unknown queue one way", e="77", step={"may_be_silent": True, "extra": {"flag": ONE_WAY}}),
    _send("send a batch", _batched(b"b0", b"b1", b"b2"), code=320, m="true", i=""),
    _send("send a batch without messages", b"", code=320, m="true", i=""),
    _send("send a broken batch", b"\0\0\0\x40broken", code=320, m="true", i="", step={"may_be_silent": True}),
    _send("send a batch to a retry topic", _batched(b"b0"), code=320, m="true", i="", b="%RETRY%DiffGroup"),
    _send("send without fields of the dialect", step={"extra": {"serializeTypeCurrentRPC": None}}),
    _send("send from Go", step={"extra": {"language": "GO", "version": 317}}),
    _send("send from C++", step={"extra": {"language": "CPP", "version": 63}}),
    _send("send numbers instead of text", d=4, e=0, k=False, step={}),
    _send("send with a remark", step={"extra": {"remark": "a remark"}}),
    _send("send with an unknown key in the header", step={"extra": {"unknown": {"deep": [1]}}}),
]

OFFSETS = [
    replace(_queue("greatest offset", 30), until=("offset", "15")),
    _queue("greatest offset of an unknown topic", 30, "DiffNothing"),
    _queue("greatest offset of an unknown queue", 30, queue="99"),
    _queue("greatest offset without a queue", 30, queue=None),
    _queue("greatest offset of an empty queue", 30, EMPTY_TOPIC),
    _queue("least offset", 31),
    _queue("least offset of an unknown topic", 31, "DiffNothing"),
    _queue("least offset without a topic", 31, None),
    _queue("offset at the beginning of time", 29, timestamp="0"),
    _queue("offset in the far future", 29, timestamp=str(FAR_FUTURE)),
    _queue("offset at a time in an unknown topic", 29, "DiffNothing", timestamp="0"),
    _queue("offset without a time", 29),
    _queue("time of the first message", 32),
    _queue("time of the first message of an empty queue", 32, EMPTY_TOPIC),
    _queue("time of the first message of an unknown topic", 32, "DiffNothing"),
    _offset("offset of a new group", 14, consumerGroup="DiffNew"),
    _offset("offset in an unknown topic", 14, topic="DiffNothing"),
    _offset("offset without a group", 14, consumerGroup=None),
    _offset("commit an offset", 15, commitOffset="1"),
    _offset("offset after a commit", 14),
    _offset("commit a smaller offset", 15, commitOffset="0"),
    _offset("offset after a smaller commit", 14),
    _offset("commit without an offset", 15),
    _offset("commit in an unknown topic", 15, topic="DiffNothing", commitOffset="5"),
    _offset("commit a word", 15, commitOffset="five"),
]

PULLS = [
    _send("send to the last queue", e="3"),
    _send("send to the last queue again", e="3"),
    replace(_queue("greatest offset of the last queue", 30, queue="3"), until=("offset", "2")),
    _pull("pull"),
    _pull("pull one", maxMsgNums="1"),
    _pull("pull from the end", queueId="3", queueOffset="2", sysFlag="4"),
    _pull("pull far beyond the end", queueOffset="1000000"),
    _pull("pull from before the beginning", queueOffset="-5"),
    _pull("pull from an empty queue", topic=EMPTY_TOPIC),
    _pull("pull from an empty queue with an offset", topic=EMPTY_TOPIC, queueOffset="3"),
    _pull("pull from an unknown topic", topic="DiffNothing"),
    _pull("pull from a queue that is not there", queueId="99"),
    _pull("pull from a negative queue", queueId="-1"),
    _pull("pull by a tag", subscription="red"),
    _pull("pull by a tag without messages", subscription="DiffNoTag"),
    _pull("pull with a broken expression", subscription="|| ||"),
    _pull("pull by SQL", subscription="a = 1", expressionType="SQL92"),
    _pull("pull by SQL what is there", subscription="TAGS IS NOT NULL OR KEYS IS NULL", expressionType="SQL92"),
    _pull("pull by broken SQL", subscription="a >", expressionType="SQL92", keeps_remark=False),
    _pull("pull without a subscription of an absent group", sysFlag="0", consumerGroup="DiffAbsent"),
    _pull("pull without an offset", queueOffset=None, keeps_remark=False),
    _pull("pull without a group", consumerGroup=None, keeps_remark=False),
    _pull("pull and wait for nothing", queueId="3", queueOffset="2", sysFlag="6", suspendTimeoutMillis="100"),
    _pull("pull and commit", sysFlag="5", commitOffset="2"),
    _offset("offset after a pull that commits", 14),
    _pull("lite pull", code=361, sysFlag="20", keeps_remark=False),
]

GROUPS = [
    Step("heartbeat of a producer", 34, None, heartbeat("diff@1", producers=["DiffProducer"])),
    Step("heartbeat of a consumer", 34, None, heartbeat("diff@1", group=GROUP, topics=(TOPIC, f"%RETRY%{GROUP}"))),
    Step("heartbeat without a body", 34, None),
    Step("heartbeat with a broken body", 34, None, b"{broken"),
    Step("members of a group", 38, {"consumerGroup": GROUP}),
    Step("members of an absent group", 38, {"consumerGroup": "DiffAbsent"}, keeps_remark=True),
    Step("members without a group", 38, {}),
    _pull("pull as the heartbeat subscribed", sysFlag="0", subVersion=str(TIME)),
    _pull("pull with a subscription that is newer than the heartbeat", sysFlag="0", subVersion=str(TIME + 1)),
    _pull("pull a topic that the heartbeat did not name", sysFlag="0", topic=EMPTY_TOPIC),
    Step(
        "check a client's tags",
        46,
        None,
        json.dumps(
            {
                "clientId": "diff@1",
                "group": GROUP,
                "subscriptionData": {"topic": TOPIC, "subString": "a", "expressionType": "TAG"},
            }
        ).encode(),
    ),
    Step(
        "check a client's SQL",
        46,
        None,
        json.dumps(
            {
                "clientId": "diff@1",
                "group": GROUP,
                "subscriptionData": {"topic": TOPIC, "subString": "a = 1", "expressionType": "SQL92"},
            }
        ).encode(),
        keeps_remark=True,
    ),
    Step(
        "check a client's broken SQL",
        46,
        None,
        json.dumps(
            {
                "clientId": "diff@1",
                "group": GROUP,
                "subscriptionData": {"topic": TOPIC, "subString": "a > 'x'", "expressionType": "SQL92"},
            }
        ).encode(),
    ),
    Step("lock queues", 41, None, _lock("diff@1", (0, 1))),
    Step("lock the queues of another", 41, None, _lock("diff@2", (1, 2))),
    Step("unlock queues", 42, None, _lock("diff@1", (0, 1))),
    Step("lock with a broken body", 41, None, b"{broken"),
    Step("lock without a body", 41, None),
    Step(
        "send back a message that is not there",
        36,
        {"group": GROUP, "offset": "987654321", "delayLevel": "1"},
        keeps_remark=True,
    ),
    Step("send back for an unknown group", 36, {"group": "DiffAbsent", "offset": "0", "delayLevel": "1"}),
    Step("send back without an offset", 36, {"group": GROUP, "delayLevel": "1"}),
    Step("view what is no message", 33, {"offset": "987654321"}, keeps_remark=True),
    Step("view a negative position", 33, {"offset": "-1"}),
    Step("view without a position", 33, {}),
    Step(
        "query an unknown key",
        12,
        {"topic": TOPIC, "key": "DiffNoKey", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(FAR_FUTURE)},
        keeps_remark=True,
    ),
    Step("query without a key", 12, {"topic": TOPIC, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "1"}),
    Step("unregister a client", 35, {"clientID": "diff@1", "producerGroup": "DiffProducer", "consumerGroup": GROUP}),
    Step("unregister without a client", 35, {"producerGroup": "DiffProducer"}),
    Step("unregister a client of no groups", 35, {"clientID": "diff@9"}),
    Step("a code the broker does not know", 9999, None, keeps_remark=True),
    Step("a negative code", -5, None, keeps_remark=True),
]

CLIENT_SCRIPT = [*NAMES, *SENDS, *OFFSETS, *PULLS, *GROUPS]
