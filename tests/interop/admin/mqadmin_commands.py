"""Owns which mqadmin commands are compared, how their output is made comparable, and what may differ.

It does not know how a command is run. In the words of a command {k} is the broker's name, {b} its address, {oid} and
{uid} the two ids of the first message.

    SAME       the same lines, in any order, after `comparable`
    FIELDS     a list of settings or figures: every name the stock broker prints, except those in the entry, is printed
    DIFFERENT  deliberately otherwise, with the reason
"""

from __future__ import annotations

import re

TOPIC = "AdminTopic"
GROUP = "AdminGroup"
PRODUCER = "AdminProducer"

SAME = [
    "topicList",
    "topicList -c",
    f"topicRoute -t {TOPIC}",
    "topicRoute -t NoSuchTopic",
    f"topicClusterList -t {TOPIC}",
    f"topicStatus -t {TOPIC}",
    "brokerConsumeStats -b {b}",
    f"consumerProgress -g {GROUP}",
    "consumerProgress",
    f"consumerConnection -g {GROUP}",
    "consumerConnection -g NoGroup",
    f"producerConnection -g {PRODUCER} -t {TOPIC}",
    f"consumerStatus -g {GROUP}",
    "queryMsgById -i {oid}",
    f"queryMsgByKey -t {TOPIC} -k k0",
    f"queryMsgByUniqueKey -t {TOPIC} -i {{uid}}",
    f"queryMsgByOffset -t {TOPIC} -b {{k}} -i 0 -o 0",
    f"printMsg -t {TOPIC}",
    f"printMsgByQueue -t {TOPIC} -a {{k}} -i 1 -p true -d true",
    f"queryCq -t {TOPIC} -q 0 -i 0",
    f"sendMessage -t {TOPIC} -p hello -b {{k}} -i 3",
    f"consumeMessage -t {TOPIC} -b {{k}} -i 0 -o 0 -c 1",
    f"updateTopicPerm -t {TOPIC} -p 4 -c DefaultCluster",
    f"updateTopicPerm -t {TOPIC} -p 6 -c DefaultCluster",
    "updateSubGroup -c DefaultCluster -g MadeGroup",
    "getConsumerConfig -g MadeGroup",
    "deleteSubGroup -c DefaultCluster -g MadeGroup",
    f"updateOrderConf -t {TOPIC} -v {{k}}:4 -m put",
    f"updateOrderConf -t {TOPIC} -m get",
    f"updateOrderConf -t {TOPIC} -m delete",
    "updateKvConfig -s AdminSpace -k key -v value",
    "deleteKvConfig -s AdminSpace -k key",
    "wipeWritePerm -b {k}",
    "addWritePerm -b {k}",
    f"allocateMQ -t {TOPIC} -i a",
    f"cloneGroupOffset -s {GROUP} -d AdminClone -t {TOPIC}",
    f"resetOffsetByTime -g {GROUP} -t {TOPIC} -s 0",
    "sendMsgStatus -b {k} -c 2",
    "clusterList",
    "cleanExpiredCQ -b {b}",
    "cleanUnusedTopic -b {b}",
    "deleteExpiredCommitLog -b {b}",
    "deleteTopic -c DefaultCluster -t MadeTopic",
]

WORDS_OF_5 = {"queryMsgById": ["-t", TOPIC]}
"""What mqadmin 5.3.3 wants beside the words of 4.9.8."""

_POOLS = r".*[tT]hread.*|.*Socket.*|.*Semaphore.*|.*WaterMark|.*Executor.*|.*Nums?|.*Queue.*"
_FILES = ".*[pP]ath|rocketmqHome"
FIELDS = {
    "brokerStatus -b {b}": r"commitLogDiskRatio_.*",
    "getNamesrvConfig": f"{_POOLS}|{_FILES}|clusterTest|productEnvName|useEpollNativeSelector|listenPort|server.*",
}
"""Command -> names that we do not print."""

DIFFERENT = {
    "getBrokerConfig -b {b}": "prints what shmq has; most settings of the stock broker are about its threads and files",
    "updateBrokerConfig -b {b} -k flushDiskType -v ASYNC_FLUSH": "refused: settings are changed by accounts only",
}

SERVED_FOR_5 = {
    f"topicStatus -t {TOPIC}",
    f"consumerProgress -g {GROUP}",
    f"cloneGroupOffset -s {GROUP} -d AdminClone -t {TOPIC}",
}
"""Commands of 5.3.3 that ask what a 4.9 broker does not know (351, 352), and that we serve."""

UNKNOWN_TO_4 = re.compile(r"^MessageTrack .*trackType=(UNKNOWN|CONSUMED)")
"""Lines that 5.3.3 makes of an answer a 4.9 broker does not have; ours says CONSUMED."""

PENDING: dict[str, str] = {}
"""Command -> what is missing; a strict xfail."""

_VARYING = (
    (r"\b(storeSize|physicSize)=\d+", r"\1=<size>"),
    (r"(Store Size: +)\d+", r"\1<size>"),
    (r"\b[0-9A-F]{32,64}\b", "<id>"),
    (r"\d{4}-\d\d-\d\d[ #T]\d\d:\d\d:\d\d[.,:]?\d*", "<time>"),
    (r"\b1[6-9]\d{11}\b", "<time>"),
    (r"\bV4_9_[78]\b", "<version>"),
    (r"\b\d+\.\d+\.\d+\.\d+@\d+#\d+", "<client id>"),
    (r"\brt=\d+ms", "rt=<ms>"),
    (r"\b(CLUSTERING|BROADCASTING) +\d+ ", r"\1 <rate> "),  # messages a second, of the last minute's samples
    (r"\b\d+\.\d+\b(?!\.)", "<figure>"),
    (r"(?m) +(true|false)$", ""),  # the last column of clusterList 5.3.3, which a 4.9 broker has no figure for
    (r"\|N,Nms", "|0,0ms"),
    (r"\(\d+,\d+ms", "(<load>"),
    (r"\bbodyCRC=\d+", "bodyCRC=<crc>"),
    (r"commitLogOffset=\d+|CommitLog Offset: +\d+|physicOffset=\d+", "<position>"),
    (r"\[\{|\},\{|\}\]", "\n"),  # queues in JSON come in the order of their hashes
    (r"(?m)^\s*at .*$|\.\.\. \d+ more", ""),
)


def comparable(text: str, replaced: dict[str, str]) -> list[str]:
    """Return the lines of an output, sorted, without what is a matter of time, address or size."""
    for value, mark in replaced.items():
        text = text.replace(value, mark)
    text = re.sub(r"/?127\.0\.0\.1:\d+", "<client>", text)
    for pattern, mark in _VARYING:
        text = re.sub(pattern, mark, text)
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip())


def names(text: str) -> set[str]:
    """Return what stands before the colon or the equals sign of each line."""
    return {re.split(r"\s*[:=]", line.strip(), maxsplit=1)[0] for line in text.splitlines() if re.search(r"[:=]", line)}
