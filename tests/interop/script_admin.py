"""Owns the second part of the scripted exchange: what mqadmin and consoles ask.

It does not know what the answers are; a stock broker says that.
"""

from __future__ import annotations

import json

from tests.interop.exchange import Step
from tests.interop.script_client import EMPTY_TOPIC, GROUP, TOPIC, topic_step

ONLINE = "DiffOnline"


def _group(name: str) -> bytes:
    return json.dumps({"groupName": name, "consumeEnable": True, "retryMaxTimes": 5, "retryQueueNums": 1}).encode()


TOPICS = [
    topic_step("create a topic again", TOPIC),
    topic_step("create a topic without a name", ""),
    topic_step("create a topic with illegal characters", "Diff$Topic"),
    topic_step("create a topic with too long a name", "T" * 128),
    topic_step("create TBW102", "TBW102"),
    topic_step("create the schedule topic", "SCHEDULE_TOPIC_XXXX"),
    topic_step("create a topic named as the broker's cluster", "DefaultCluster"),
    topic_step("create a topic without its permission", "DiffNoPerm", perm=None),
    topic_step("create a topic without its queues", "DiffNoQueues", readQueueNums=None),
    topic_step("create a topic with odd permissions", "DiffReadOnly", perm="4"),
    Step("all topics of the broker", 21, None),
    Step("system topics of the broker", 305, None),
    Step("offsets of a topic", 202, {"topic": TOPIC}),
    Step("offsets of an unknown topic", 202, {"topic": "DiffNothing"}, keeps_remark=True),
    Step("offsets of no topic", 202, {}),
    Step("who consumes a topic", 300, {"topic": TOPIC}),
    Step("who consumes an unknown topic", 300, {"topic": "DiffNothing"}),
    Step("units of a queue", 321, {"topic": TOPIC, "queueId": "0", "index": "0", "count": "2"}),
    Step("units of an unknown queue", 321, {"topic": "DiffNothing", "queueId": "0", "index": "0", "count": "2"}),
    Step("delete a topic", 215, {"topic": "DiffReadOnly"}),
    Step("delete an unknown topic in the broker", 215, {"topic": "DiffNothing"}),
    Step("delete a topic without a name", 215, {"topic": ""}),
    Step("delete no topic", 215, {}),
]

GROUPS = [
    Step("create a group", 200, None, _group(ONLINE)),
    Step("create a group with a broken body", 200, None, b"{broken"),
    Step("create a group without a body", 200, None),
    Step("all groups", 201, None),
    Step("connections of an absent group", 203, {"consumerGroup": "DiffAbsent"}, keeps_remark=True),
    Step("connections of no group", 203, {}),
    Step("connections of an absent producer group", 204, {"producerGroup": "DiffAbsent"}, keeps_remark=True),
    Step("all producers", 328, None),
    Step("progress of a group", 208, {"consumerGroup": GROUP}),
    Step("progress of a group in a topic", 208, {"consumerGroup": GROUP, "topic": TOPIC}),
    Step("progress of an unknown group", 208, {"consumerGroup": "DiffAbsent"}),
    Step("progress without a group", 208, {}),
    Step("time span of a group", 303, {"topic": TOPIC, "group": GROUP}),
    Step("time span in an unknown topic", 303, {"topic": "DiffNothing", "group": GROUP}, keeps_remark=True),
    Step("topics of a group", 343, {"group": GROUP}),
    Step("topics of an unknown group", 343, {"group": "DiffAbsent"}),
    Step("subscription of a group", 345, {"group": GROUP, "topic": TOPIC}),
    Step(
        "running information of an absent consumer",
        307,
        {"consumerGroup": GROUP, "clientId": "diff@9"},
        keeps_remark=True,
    ),
    Step(
        "consume directly with an absent consumer",
        309,
        {"consumerGroup": GROUP, "clientId": "diff@9", "msgId": "7F00000100002A9F0000000000000000"},
        keeps_remark=True,
    ),
    Step(
        "reset the offset of an absent group",
        222,
        {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"},
        keeps_remark=True,
    ),
    Step(
        "reset the offset in an unknown topic",
        222,
        {"topic": "DiffNothing", "group": GROUP, "timestamp": "0", "isForce": "true"},
        keeps_remark=True,
    ),
    Step("reset the offset without a time", 222, {"topic": TOPIC, "group": GROUP, "isForce": "true"}),
    Step("status of an absent group's consumers", 223, {"topic": TOPIC, "group": GROUP}, keeps_remark=True),
    Step("correction offsets", 308, {"compareGroup": GROUP, "topic": TOPIC, "filterGroups": "DiffNew"}),
    Step("clone offsets", 314, {"srcGroup": GROUP, "destGroup": "DiffClone", "topic": TOPIC, "offline": "true"}),
    Step(
        "clone offsets of an unknown topic",
        314,
        {"srcGroup": GROUP, "destGroup": "DiffClone", "topic": "DiffNothing", "offline": "true"},
    ),
    Step("all offsets", 43, None),
    Step("all delay offsets", 45, None),
    Step("delete a group", 207, {"groupName": ONLINE}),
    Step("delete an unknown group", 207, {"groupName": "DiffAbsent"}),
    Step("delete no group", 207, {}),
]

BROKER = [
    Step("broker configuration", 26, None),
    Step("update the broker with nothing", 25, None),
    Step("update a blacklisted key", 25, None, b"brokerConfigPath=/tmp/x\n", keeps_remark=True),
    Step("runtime information", 28, None),
    Step("statistics of a topic", 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
    Step("statistics that do not exist", 315, {"statsName": "DIFF_NUMS", "statsKey": TOPIC}, keeps_remark=True),
    Step(
        "statistics of an unknown topic",
        315,
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": "DiffNothing"},
        keeps_remark=True,
    ),
    Step("statistics without a key", 315, {"statsName": "TOPIC_PUT_NUMS"}),
    Step("consumption of the broker", 317, {"isOrder": "false"}),
    Step("consumption of the broker without order", 317, {}),
    Step("clean expired queues", 306, None),
    Step("clean unused topics", 316, None),
    Step("delete expired log files", 329, None),
    Step("resume the check of no half message", 323, {"msgId": "7F00000100002A9F0000000000000000"}),
    Step("time of the first message in another topic", 32, {"topic": EMPTY_TOPIC, "queueId": "1"}),
]

ADMIN_SCRIPT = [*TOPICS, *GROUPS, *BROKER]
