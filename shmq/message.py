"""Names of topics, groups and connections: what one may look like, which RocketMQ keeps for itself, what was meant.

Invariant: a name that passed `check_topic`, `check_group` or `check_connection_name` is ASCII, needs no escaping in a
path, and fits its table.
"""

from __future__ import annotations

from collections.abc import Iterable

from shmq.errors import GroupNotFound, InvalidName, PermissionDenied, TopicNotFound, UsageError

TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 255
CONNECTION_NAME_BYTES_MAX = 64  # a client id with it has less than 255, which is all that brokers take
QUEUES_MAX = 1024  # of one topic; bounds what one administration request can make the tables hold

PERM_READ, PERM_WRITE = 4, 2
PERM_READ_WRITE = PERM_READ | PERM_WRITE
PERM_INHERIT = 1  # others are made in its image: TBW102 has it, and the topics of a cluster's and a broker's name
PERM_ALL = PERM_READ_WRITE | PERM_INHERIT

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
CONSUMER_GROUP_BYTES_MAX = TOPIC_BYTES_MAX - len(RETRY_PREFIX)  # %RETRY%group is a topic
RETRY_TOPIC = "RETRY_TOPIC"  # property of what comes again: the topic it was sent to
DEAD_LETTER_REASON = "SHMQ_REASON"  # property of a dead letter: in words, where our own client gave the message up

# Retry flags of POP: in the topic itself, in %RETRY%group_topic, or in %RETRY%group+topic. Copies are stored under the
# last name, for no group and no topic has a "+"; the one before is that of other groups too, and only read.
POP_NORMAL, POP_RETRY_OLD, POP_RETRY = "0", "1", "2"
_POP_SEPARATORS = {POP_RETRY_OLD: "_", POP_RETRY: "+"}

_ALPHABET = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

# Topics a RocketMQ broker creates for itself; a client may neither create nor delete them.
SYSTEM_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # of message traces; any tracing client may make it
# The broker trusts what lies in these, so a send to them by name is refused, by the broker too.
KEPT_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_SHMQ_STAGED",
        "rmq_sys_SHMQ_TABLES",
    }
)
_KEPT_TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
_SYSTEM_TOPIC_PREFIXES = ("RMQ_SYS_", "rmq_sys_")
_WAITING_TOPICS = frozenset({"SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC"})
_WAITING_TOPIC_PREFIXES = ("RMQ_SYS_TRANS_", "rmq_sys_")
_REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

_CANDIDATES_MAX = 200  # names compared letter by letter for one suggestion; keeps a wrong name cheap to answer


def check_topic(name: str) -> str:
    """Return the topic name unchanged.

    Raises:
        InvalidName: empty, longer than 127 bytes, or with a character outside `%|a-zA-Z0-9_-`; the "+" in the retry
            topic of a group and a topic is none of theirs.
    """
    if isinstance(name, str) and (popped := pop_names(name)[1]):
        _check_name("topic", name.replace("+", "_"), TOPIC_BYTES_MAX)
        check_topic(popped)
        return name
    return _check_name("topic", name, TOPIC_BYTES_MAX)


def check_group(name: str) -> str:
    """Return the group name unchanged.

    Raises:
        InvalidName: empty, longer than 255 bytes, or with a character outside `%|a-zA-Z0-9_-`.
    """
    return _check_name("group", name, GROUP_BYTES_MAX)


def check_consumer_group(name: str) -> str:
    """Return the name of a group that consumes unchanged: retries and dead letters have topics with its name.

    Clients of RocketMQ may have longer ones. They consume, and what they give back is stored nowhere, as in RocketMQ.

    Raises:
        InvalidName: empty, longer than 120 bytes, or with a character outside `%|a-zA-Z0-9_-`.
    """
    return _check_name("group", name, CONSUMER_GROUP_BYTES_MAX)


def check_popping(group: str, topic: str) -> None:
    """Refuse a group and a topic whose names are too long together for the topic of the messages that come again.

    Raises:
        InvalidName: they have more than 119 characters, or one of them cannot be.
    """
    more = len(retry_topic_of(check_consumer_group(group), check_topic(topic))) - TOPIC_BYTES_MAX
    if more > 0:
        size = len(group) + len(topic)
        raise InvalidName(
            f"the names of group {group[:32]}... and topic {topic[:32]}... have {size} characters, {size - more} are "
            "allowed where a broker hides what was taken",
            hint=f"shorten one of them by {more}",
        )


def check_connection_name(name: str) -> str:
    """Return the name of a connection, which ends its client id, unchanged.

    Raises:
        InvalidName: empty, longer than 64 bytes, or with a character outside `%|a-zA-Z0-9_-`.
    """
    return _check_name("connection", name, CONNECTION_NAME_BYTES_MAX)


def _check_name(kind: str, name: str, bytes_max: int) -> str:
    if not isinstance(name, str):
        raise InvalidName(f"a {kind} name is a str, not {type(name).__name__}", hint=f'pass the name as "my_{kind}"')
    if not name:
        raise InvalidName(
            f"the {kind} name is empty", hint=f"use 1 to {bytes_max} of the characters a-z A-Z 0-9 _ - % |"
        )
    wrong = sorted(set(name) - _ALPHABET)
    if wrong:
        shown = " ".join(ascii(character) for character in wrong[:8])
        raise InvalidName(
            f"the {kind} name {name[:bytes_max]!a} holds {shown}",
            hint="use only the characters a-z A-Z 0-9 _ - % |",
        )
    if len(name) > bytes_max:
        raise InvalidName(
            f"the {kind} name {name[:32]}... has {len(name)} characters, {bytes_max} are allowed",
            hint=f"shorten it by {len(name) - bytes_max}",
        )
    return name


def is_system_topic(name: str) -> bool:
    """Say whether the broker itself owns the topic of this name."""
    return name in SYSTEM_TOPICS or name.startswith(_SYSTEM_TOPIC_PREFIXES)


def refuse_system_topic(name: str) -> None:
    """Refuse to create, change or delete a topic that the broker itself owns.

    Raises:
        UsageError: it is one.
    """
    if is_system_topic(name):
        raise UsageError(f'topic "{name}" is the broker\'s own', hint="choose another name")


def check_open_topic(name: str) -> None:
    """Let pass what is no topic that the broker keeps for itself.

    Raises:
        PermissionDenied: it is one.
    """
    if name in KEPT_TOPICS or name.startswith(_KEPT_TOPIC_PREFIX) or any(pop_names(name)):
        raise PermissionDenied(
            f'topic "{name}" is the broker\'s own: no client may send to it by name',
            hint='send to a topic of yours; delayed messages are send("orders", body, delay=60), '
            "transactions producer.transaction()",
        )


def is_waiting_topic(name: str) -> bool:
    """Say whether messages of other topics wait in the topic of this name, or what the broker notes about them."""
    return name in _WAITING_TOPICS or name.startswith(_WAITING_TOPIC_PREFIXES)


def is_system_group(name: str) -> bool:
    """Say whether a group is one of the broker's own, whose offsets may be other things than queue offsets."""
    return name.startswith("CID_RMQ_SYS_")


def is_hidden_topic(name: str, perm: int) -> bool:
    """Whether lists leave a topic out unless everything is asked for: the broker's own, and those of redelivery."""
    return is_broker_topic(name, perm) or name.startswith(RETRY_PREFIX)


def is_broker_topic(name: str, perm: int) -> bool:
    """Say whether a broker made a topic for itself; those named as a cluster or a broker show by permission."""
    return is_system_topic(name) or name.endswith(_REPLY_TOPIC_SUFFIX) or bool(perm & PERM_INHERIT)


def retry_topic(group: str) -> str:
    """Return the topic that carries a group's redeliveries."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic that keeps what a group gave up on."""
    return DEAD_LETTER_PREFIX + group


def retry_topic_of(group: str, topic: str) -> str:
    """Return the topic of a group's redeliveries of one topic: if it is popped, or members do not all read alike."""
    return popped_topic(group, topic, POP_RETRY)


def pop_names(topic: str) -> tuple[str, str]:
    """Return group and topic whose `retry_topic_of` this is; two empty names for any other."""
    if "+" not in topic or not topic.startswith(RETRY_PREFIX) or len(topic) > TOPIC_BYTES_MAX:
        return "", ""
    group, _, popped = topic.removeprefix(RETRY_PREFIX).partition("+")
    return (group, popped) if group and popped else ("", "")


def popped_topic(group: str, topic: str, retry_flag: str) -> str:
    """Return the topic a popped message lies in, by the topic that was popped and the retry flag of its receipt."""
    separator = _POP_SEPARATORS.get(retry_flag)
    return topic if separator is None else f"{RETRY_PREFIX}{group}{separator}{topic}"


def origin_topic(group: str, topic: str) -> str:
    """Return the topic that `group` popped, by the one the message lies in; the way back from `popped_topic`."""
    prefix = popped_topic(group, "", pop_retry_flag(topic))
    return topic.removeprefix(prefix) or topic


def pop_retry_flag(topic: str) -> str:
    """Return the retry flag that says a message lies in this topic."""
    if not topic.startswith(RETRY_PREFIX):
        return POP_NORMAL
    return POP_RETRY if any(pop_names(topic)) else POP_RETRY_OLD


def missing_topic(name: str, place: str, names: Iterable[str], then: str) -> TopicNotFound:
    """Return the error for a topic that does not exist.

    Args:
        place: as in 'on broker "orders"'.
        names: of the topics that do; the hint names those that may have been meant.
        then: what to type, behind that.
    """
    return TopicNotFound(f'topic "{name[:TOPIC_BYTES_MAX]}" does not exist {place}', hint=_meant(name, names) + then)


def missing_group(name: str, place: str, names: Iterable[str], then: str) -> GroupNotFound:
    """Return the error for a group that does not exist; as `missing_topic`."""
    return GroupNotFound(f'group "{name[:GROUP_BYTES_MAX]}" does not exist {place}', hint=_meant(name, names) + then)


def _meant(name: str, names: Iterable[str]) -> str:
    near = " or ".join(f'"{other}"' for other in nearest(name, names))
    return f"did you mean {near}? " if near else ""


def nearest(name: str, names: Iterable[str], *, count_max: int = 3, slips_max: int = 3) -> list[str]:
    """Return up to `count_max` of `names` that `name` may be with few slips of typing, best first."""
    wanted = name.lower()[:GROUP_BYTES_MAX]
    distance_max = max(1, min(slips_max, len(wanted) // 3))
    letters = set(wanted)
    scored: list[tuple[int, str]] = []
    compared = 0
    for other in names:
        candidate = other.lower()
        if abs(len(candidate) - len(wanted)) > distance_max or len(letters ^ set(candidate)) > 2 * distance_max:
            continue
        compared += 1
        if compared > _CANDIDATES_MAX:
            break
        distance = _edit_distance(wanted, candidate, distance_max)
        if distance <= distance_max:
            scored.append((distance, other))
    return [other for _, other in sorted(scored)[:count_max]]


def _edit_distance(left: str, right: str, distance_max: int) -> int:
    """Count insertions, deletions, replacements and swaps of neighbours; exact up to `distance_max`, larger beyond."""
    far = distance_max + 1
    before = [far] * (len(right) + 1)
    row = [min(j, far) for j in range(len(right) + 1)]
    for i, letter in enumerate(left, 1):
        older, before, row = before, row, [far] * (len(right) + 1)
        row[0] = min(i, far)
        # Cells farther from the diagonal than the limit cannot come below it.
        for j in range(max(1, i - distance_max), min(len(right), i + distance_max) + 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != right[j - 1]))
            if i > 1 and j > 1 and letter == right[j - 2] and left[i - 2] == right[j - 1]:
                cost = min(cost, older[j - 2] + 1)
            row[j] = min(cost, far)
        if min(row) == far:
            return far
    return row[-1]
