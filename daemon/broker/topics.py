"""Topics that come into being without an administrator: RocketMQ's own, and those that are sent to.

A topic that does not exist is made in the image of the default topic the client names, TBW102: only if that has the
inherit permission, with its permissions but that one, and with as many queues as the client wants and it has.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Topic, Topics
from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.errors import ShmqError
from shmq.message import (
    PERM_ALL,
    PERM_INHERIT,
    PERM_READ_WRITE,
    QUEUES_MAX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    TRACE_TOPIC,
    check_topic,
    missing_topic,
    pop_names,
)
from shmq.protocol.request_reply import REPLY_QUEUES, reply_topic
from shmq.protocol.system_topics import transaction

AUTO_CREATE_TOPIC = "TBW102"
_UNIT_FLAG, UNIT_RETRY_FLAG = 1, 2
_RETRY_QUEUES = 1


class _SystemTopic(NamedTuple):
    name: str
    queues: int
    perm: int


def _system_topics(settings: BrokerSettings) -> Iterator[_SystemTopic]:
    yield _SystemTopic("SELF_TEST_TOPIC", 1, PERM_READ_WRITE)
    if settings.auto_create:
        yield _SystemTopic(AUTO_CREATE_TOPIC, settings.default_queues, PERM_ALL)
    yield _SystemTopic("BenchmarkTest", QUEUES_MAX, PERM_READ_WRITE)
    yield _SystemTopic(settings.cluster, 16, PERM_ALL)
    yield _SystemTopic(settings.broker_name, 1, PERM_ALL)
    yield _SystemTopic("OFFSET_MOVED_EVENT", 1, PERM_READ_WRITE)
    yield _SystemTopic(SCHEDULE_TOPIC, DelayLevels(settings.delay_levels).count, PERM_READ_WRITE)
    # A stock broker makes it when it first looks for open transactions.
    yield _SystemTopic(transaction.HALF_TOPIC, transaction.QUEUES, PERM_READ_WRITE)
    if not settings.auto_create:  # else who traces makes it, as at a stock broker
        yield _SystemTopic(TRACE_TOPIC, 1, PERM_READ_WRITE)
    yield _SystemTopic(reply_topic(settings.cluster), REPLY_QUEUES, PERM_READ_WRITE)


def system_topic_names(settings: BrokerSettings) -> frozenset[str]:
    """Return the names no administrator may give to a topic, the broker's and its cluster's among them."""
    own = {topic.name for topic in _system_topics(settings)} if settings.serves_tcp else set[str]()
    return SYSTEM_TOPICS | own


def make_system_topics(tables: Topics, settings: BrokerSettings) -> list[str]:
    """Create the topics a RocketMQ broker has from its start; return a sentence for each that could not be.

    One that exists is left as an administrator made it; but TBW102 always has the permission that auto-creation needs,
    and none to inherit when that is off.
    """
    reports: list[str] = []
    for wanted in _system_topics(settings):
        topic = tables.topic(wanted.name)
        if topic is not None and (wanted.name != AUTO_CREATE_TOPIC or topic.perm == wanted.perm):
            continue
        try:
            check_topic(wanted.name)
            _put(tables, wanted.name, wanted.queues, wanted.perm, 0)
        except ShmqError as error:
            # A broker name may hold a dot, and tables may be small; neither keeps clients from working.
            reports.append(f"the topic {wanted.name} was not made: {error}")
    forbidden = tables.topic(AUTO_CREATE_TOPIC)
    if forbidden is not None and not settings.auto_create and forbidden.perm & PERM_INHERIT:
        _put(tables, AUTO_CREATE_TOPIC, forbidden.write_queues, PERM_READ_WRITE, forbidden.flags)
    return reports


def find_topic(tables: Topics, name: str, *, broker_name: str, is_typed: bool = True) -> Topic:
    """Return a live topic.

    Args:
        is_typed: whether a human may have typed the name, so that it is worth looking at all others for a similar one.

    Raises:
        TopicNotFound: there is none; the hint names what may have been meant.
    """
    topic = tables.topic(name)
    if topic is not None:
        return topic
    names, then = tables.topic_names() if is_typed else (), f"create it with: shmq topic create {name[:127]}"
    raise missing_topic(name, f'on broker "{broker_name}"', names, then)


def create_by_send(
    tables: Topics, name: str, default_topic: str, queues_wanted: int, *, is_unit_mode: bool
) -> Topic | None:
    """Return the topic a send to a missing one creates, None when it may not be created.

    Raises:
        SegmentFull: no room for another topic.
    """
    is_retry = name.startswith(RETRY_PREFIX)
    flags = (UNIT_RETRY_FLAG if is_retry else _UNIT_FLAG) if is_unit_mode else 0
    image = tables.topic(default_topic)
    if image is not None and image.perm & PERM_INHERIT:
        queues = max(1, min(queues_wanted, image.write_queues))
        return _put(tables, name, queues, image.perm & ~PERM_INHERIT, flags)
    return _put(tables, name, _RETRY_QUEUES, PERM_READ_WRITE, flags) if is_retry else None


def ensure_topic(tables: Topics, name: str, *, queues: int) -> Topic:
    """Return a topic of the broker's own making, created if it is not there.

    Raises:
        SegmentFull: no room for another topic.
    """
    return tables.topic(name) or _put(tables, name, queues, PERM_READ_WRITE, 0)


def widen_topic(tables: Topics, name: str, *, queues: int) -> None:
    """Give a topic of the broker's own making at least so many queues, if there is one."""
    topic = tables.topic(name)
    if topic is not None and min(topic.read_queues, topic.write_queues) < queues:
        _put(tables, name, queues, topic.perm, topic.flags)


def delete_retries(tables: Topics, is_over: Callable[[str, str], bool]) -> None:
    """Delete the retry topics of those groups and topics that are over: a group of that name begins anew."""
    for name in tables.topic_names():
        group, topic = pop_names(name)
        if group and is_over(group, topic):
            tables.topic_delete(name)


def _put(tables: Topics, name: str, queues: int, perm: int, flags: int) -> Topic:
    tables.topic_put(name, read_queues=queues, write_queues=queues, perm=perm, flags=flags, kind=0)
    topic = tables.topic(name)
    assert topic is not None
    return topic
