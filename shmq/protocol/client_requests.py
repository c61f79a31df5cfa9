"""The requests that both wires carry, each made in one place, and what their answers say.

    topics      made or changed, deleted, listed
    groups      made, deleted; their members
    clients     heartbeats and goodbyes
    messages    the one at a place in the log, which only TCP is asked for

A request of which one wire alone knows stands with what asks it. All have RocketMQ's fields on the control socket, too,
so a leader on another host takes them as they are.
"""

from __future__ import annotations

from shmq.errors import RemoteError
from shmq.protocol.body import ConsumerList, HeartbeatData, SubscriptionGroupConfig, decode_body, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.failure import Answer, error_in, reply_of
from shmq.protocol.route import DEFAULT_TOPIC

_NO_MEMBERS = "no consumer for this group"  # how RocketMQ says that a list is empty


# -- topics
def topic_change(
    name: str, *, read_queues: int, write_queues: int, perm: int, attributes: str, only_if_missing: bool = False
) -> Command:
    """Return the request that creates a topic or changes it; `only_if_missing` is ours, for brokers of this host."""
    ext = {
        "topic": name,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(read_queues),
        "writeQueueNums": str(write_queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }
    if only_if_missing:
        ext["onlyIfMissing"] = "true"
    return Command(code=Request.UPDATE_AND_CREATE_TOPIC, ext=ext)


def topic_table() -> Command:
    """Return the request for the settings of all topics of a broker."""
    return Command(code=Request.GET_ALL_TOPIC_CONFIG)


def topic_deletion(name: str) -> Command:
    """Return the request that deletes a topic at a broker."""
    return Command(code=Request.DELETE_TOPIC_IN_BROKER, ext={"topic": name})


# -- groups
def group_creation(name: str) -> Command:
    """Return the request that creates a consumer group; harmless if it exists."""
    return Command(code=Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(SubscriptionGroupConfig(name)))


def group_deletion(name: str) -> Command:
    """Return the request that deletes a consumer group and its offsets."""
    ext = {"groupName": name, "removeOffset": "true", "cleanOffset": "true"}
    return Command(code=Request.DELETE_SUBSCRIPTIONGROUP, ext=ext)


def member_list(group: str, topic: str = "") -> Command:
    """Return the request for the members of a group; our brokers name those that share a `topic` if one is given."""
    ext = {"consumerGroup": group, "topic": topic} if topic else {"consumerGroup": group}
    return Command(code=Request.GET_CONSUMER_LIST_BY_GROUP, ext=ext)


def member_ids(answer: Answer) -> list[str]:
    """Return the client ids of a group, sorted; [] when it has no members.

    Raises:
        ShmqError: there is no answer, or the broker refused for another reason.
    """
    error = error_in(answer)
    if isinstance(error, RemoteError) and error.remark.startswith(_NO_MEMBERS):
        return []
    return sorted(decode_body(reply_of(answer).body or b"{}", ConsumerList).consumerIdList)


# -- clients
def heartbeat(data: HeartbeatData) -> Command:
    """Return the request that registers a client as a member of its groups."""
    return Command(code=Request.HEART_BEAT, body=encode_body(data))


def goodbye(client_id: str, consumer_group: str = "", producer_group: str = "") -> Command:
    """Return the request by which a client leaves a group as a consumer, as a producer, or as both."""
    groups = {"consumerGroup": consumer_group, "producerGroup": producer_group}
    ext = {"clientID": client_id} | {role: group for role, group in groups.items() if group}
    return Command(code=Request.UNREGISTER_CLIENT, ext=ext)


# -- messages
def message_view(log_position: int) -> Command:
    """Return the request for the message at a place in a broker's log, whichever topic it is of."""
    return Command(code=Request.VIEW_MESSAGE_BY_ID, ext={"offset": str(log_position)})
