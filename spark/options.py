"""The options of the source: their names, defaults and what may stand together. Case does not matter in names.

    where   store = shmq://NAME, a name, or a runtime directory        $SHMQ_URL, else the broker "default"
            store = rocketmq://HOST:9876, or nameserver HOST:9876      over TCP; broker, where there are several
    what    topic | topics "a,b" | topicPattern (regular expression)   view, queueIds "0,1", tags "A || B"
            assign {"orders": [0, 2], "paid": [1]}
    from    startingOffsets earliest | latest | committed | JSON       or startingTimestamp, startingOffsetsByTimestamp
    until   endingOffsets latest | JSON                                or endingTimestamp, endingOffsetsByTimestamp
    JSON    {"orders": {"0": 17, "1": -2}}, a broker's name may stand above the queues; -2 earliest, -1 latest
            by timestamp the same, with milliseconds since 1970
    stream  maxOffsetsPerTrigger, maxBytesPerTrigger, minOffsetsPerTrigger, maxTriggerDelay "15m", commitGroup
    how     minPartitions, maxBytesPerPartition, parallelism, batchRows, batchBytes, includeProperties, verifyCrc,
            failOnDataLoss, leaseSeconds, access

Rules: (1) an unknown option is an error with the nearest name, never ignored;
(2) what is wrong is said on the driver, with the option, the value and the cure;
(3) the object is plain data: it travels to executors.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shmq.client.place import remote_place
from shmq.client.spec import parse_tags
from shmq.errors import UsageError
from shmq.message import check_consumer_group, check_topic, nearest
from shmq.shm.core import COLUMN_BATCH_BYTES_MAX, COLUMN_ROWS_MAX
from shmq.spark.option_values import checked, known, moment_ms, number, seconds, size, split, truth, wrong
from shmq.spark.schema import VIEWS, refused

AUTO: Final = "auto"
SHM: Final = "shm"
REMOTE: Final = "remote"
REMOTE_SCHEME: Final = "rocketmq://"
EARLIEST: Final = -2
LATEST: Final = -1
Offsets = dict[str, dict[int, int]]  # topic -> queue id -> offset, EARLIEST or LATEST

NAMES: Final = (
    "store", "access", "nameserver", "broker",
    "topic", "topics", "topicPattern", "assign", "view", "queueIds", "tags", "keys", "pushdown", "startingOffsets",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets",
    "endingTimestamp", "endingOffsetsByTimestamp", "group",
    "minPartitions", "maxBytesPerPartition", "parallelism", "batchRows", "batchBytes", "includeProperties", "verifyCrc",
    "failOnDataLoss", "leaseSeconds", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "commitGroup",
)  # fmt: skip
_FOREIGN: Final = {
    "subscribe": "topic or topics",
    "subscribepattern": "topicPattern",
    "kafka.bootstrap.servers": "store or nameserver",
    "brokers": "nameserver, and broker where there are several",
    "namesrv": "nameserver",
    "namesrvaddr": "nameserver",
    "kafka.group.id": "group for startingOffsets=committed, commitGroup to tell one: the source is no member of any",
    "groupidprefix": "commitGroup, to commit offsets for a group: the source is no member of any",
    "maxrecordsperpartition": "maxBytesPerPartition or minPartitions",
    "path": "option('topic', …); there is no path to load",
    "includeheaders": "includeProperties",
    "topic.pattern": "topicPattern",
}
QUEUE_VIEWS: Final = frozenset(("messages", "index", "index_stats"))
_ONLY_STREAMS: Final = (
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroup",
)  # fmt: skip
_BATCH_PARTITION_BYTES: Final = 1 << 30  # as much as a log file has; a task costs 55 ms before its first row
_STREAM_PARTITION_BYTES: Final = 128 << 20
_BATCH_BYTES: Final = 2 << 20  # still in the cache of a processor when it is sent on


def is_remote(store: str | None) -> bool:
    """Say whether option `store` leads over TCP."""
    return store is not None and store.lower().startswith(REMOTE_SCHEME)


def full_url(text: str | None) -> str | None:
    """Return the URL that option `store` means."""
    if text is None or "://" in text:
        return text
    return f"shmq://{text}"


@dataclass(frozen=True)
class Options:
    """The options of one `load()`. Offsets are counts of messages, times milliseconds, sizes bytes."""

    store: str | None = None
    access: str = "auto"
    nameserver: str | None = None
    broker: str | None = None
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    view: str = "messages"
    queue_ids: tuple[int, ...] = ()
    queue_filter: tuple[int, ...] | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    pushdown: bool = False
    start: str | Offsets = "earliest"
    start_ms: int | None = None
    start_times: Offsets | None = None
    start_strategy: str = "error"
    end: str | Offsets = "latest"
    end_ms: int | None = None
    end_times: Offsets | None = None
    group: str | None = None
    partition_min: int = 0
    partition_bytes_max: int = _BATCH_PARTITION_BYTES
    parallelism: int = 0
    batch_rows: int = 8192
    batch_bytes: int = _BATCH_BYTES
    include_properties: bool = False
    verify_crc: bool | None = None  # None: of the records that are read
    fail_on_data_loss: bool = True
    lease_seconds: float = 600.0
    offsets_per_trigger: int = 0
    bytes_per_trigger: int = 0
    offsets_min: int = 0
    trigger_delay_seconds: float = 900.0
    commit_group: str | None = None

    def matches(self, topic: str) -> bool:
        """Whether a topic was asked for by name or by pattern; without either all are."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return not self.topics or topic in self.topics

    def wanted_queues(self, topic: str) -> tuple[int, ...]:
        """Return the queue ids of a topic that were asked for; none means all."""
        return self.assigned.get(topic, self.queue_ids)


def parse_options(given: Mapping[str, str], *, stream: bool = False) -> Options:
    """Read the options of a `load()`.

    Args:
        stream: of a streaming query, which begins at the newest message if nothing else is said, and has no end.

    Raises:
        UsageError: an unknown option, a value it cannot have, or two that exclude each other.
    """
    values = known(given, NAMES, _FOREIGN)
    if stream:
        _check_stream(values)
    view = values.get("view", "messages")
    if view not in VIEWS:
        raise wrong("view", view, f"one of {', '.join(VIEWS)}", near=nearest(view, VIEWS))
    partition_bytes = _STREAM_PARTITION_BYTES if stream else _BATCH_PARTITION_BYTES
    options = Options(
        **way(values),
        view=view,
        **_topics(values, view),
        queue_ids=tuple(number("queueIds", part.strip(), 0) for part in split(values.get("queueIds", ""))),
        tags=_tags(values.get("tags")),
        keys=tuple(dict.fromkeys(split(values.get("keys", "")))),
        pushdown=truth(values, "pushdown", False),
        **_places(values, "latest" if stream else "earliest"),
        group=_group(values, "group"),
        partition_min=number("minPartitions", values.get("minPartitions", "0"), 0),
        partition_bytes_max=size(values, "maxBytesPerPartition", partition_bytes, 1 << 20, 1 << 50),
        parallelism=number("parallelism", values.get("parallelism", "0"), 0),
        batch_rows=number("batchRows", values.get("batchRows", "8192"), 1, COLUMN_ROWS_MAX),
        batch_bytes=size(values, "batchBytes", _BATCH_BYTES, 1, COLUMN_BATCH_BYTES_MAX),
        include_properties=truth(values, "includeProperties", False),
        verify_crc=truth(values, "verifyCrc", False) if "verifyCrc" in values else None,
        fail_on_data_loss=truth(values, "failOnDataLoss", True),
        lease_seconds=float(number("leaseSeconds", values.get("leaseSeconds", "600"), 0, 86_400)),
        offsets_per_trigger=number("maxOffsetsPerTrigger", values.get("maxOffsetsPerTrigger", "0"), 0),
        bytes_per_trigger=size(values, "maxBytesPerTrigger", 0, 0, 1 << 50),
        offsets_min=number("minOffsetsPerTrigger", values.get("minOffsetsPerTrigger", "0"), 0),
        trigger_delay_seconds=seconds(values, "maxTriggerDelay", 900.0),
        commit_group=_group(values, "commitGroup"),
    )
    if options.start == "committed" and options.group is None:
        raise refused("startingOffsets=committed needs the group whose offsets are meant", "add option group=…")
    return options


def ignored_in_batch(given: Mapping[str, str]) -> list[str]:
    """Return the options that mean something to streams only; a batch may have them, as in the Kafka source."""
    names = {name.lower() for name in given}
    return [name for name in _ONLY_STREAMS if name.lower() in names]


def way(values: Mapping[str, str]) -> dict[str, Any]:
    """Return how the broker is reached; addresses are checked, not tried.

    $SHMQ_URL stands for an option `store` that is missing, on the driver: workers have environments of their own.

    Raises:
        UsageError: no such way, an impossible address, or two that exclude each other.
    """
    access = values.get("access", AUTO).strip().lower()
    if access not in (AUTO, SHM, REMOTE):
        raise wrong("access", access, f"{AUTO}, {SHM} or {REMOTE}")
    store = values.get("store") or os.environ.get("SHMQ_URL") or None
    nameserver = values.get("nameserver") or None
    if "nameserver" in values and "store" not in values:
        store = None  # an option that names another broker outweighs the environment
    for name, text in (("store", store or ""), ("nameserver", nameserver or "")):
        if name == "nameserver" and text and not is_remote(text):
            text = REMOTE_SCHEME + text
        if is_remote(text):
            checked(remote_place, text, name)
    if store is not None and is_remote(store) and (access == SHM or nameserver is not None):
        other = f"access={SHM}" if access == SHM else "nameserver"
        raise refused(f"store={store.partition('?')[0]!r} and {other} exclude each other", "give one of them")
    return {"store": store, "access": access, "nameserver": nameserver, "broker": values.get("broker")}


def _topics(values: Mapping[str, str], view: str) -> dict[str, Any]:
    given = [name for name in ("topic", "topics", "topicPattern", "assign") if name in values]
    if len(given) > 1:
        raise refused(f"{' and '.join(given)} exclude each other", "give one of them")
    if not given and view in QUEUE_VIEWS:
        raise refused(
            f"view {view} needs to know which topics", 'add option topic="orders", topics, topicPattern or assign'
        )
    if "topicPattern" in values:
        try:
            re.compile(values["topicPattern"])
        except re.error as error:
            raise wrong("topicPattern", values["topicPattern"], f"a regular expression ({error})") from None
        return {"topic_pattern": values["topicPattern"]}
    if "assign" in values:
        assigned = _assigned(values)
        return {"topics": tuple(assigned), "assigned": assigned}
    names = split(values.get("topics", "")) if "topics" in values else [values["topic"]] if given else []
    if given and not names:
        raise wrong("topics", values["topics"], "names divided by commas")
    for name in names:
        checked(check_topic, name, given[0])
    return {"topics": tuple(dict.fromkeys(names))}


def _assigned(values: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """{"orders": [0, 2], "paid": [1]}."""
    if "queueIds" in values:
        raise refused("assign and queueIds exclude each other", "name the queues in assign")
    text = values["assign"]
    try:
        found = {topic: tuple(dict.fromkeys(queues)) for topic, queues in json.loads(text).items()}
        if (
            not found
            or not all(found.values())
            or any(type(q) is not int or q < 0 for qs in found.values() for q in qs)
        ):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise wrong("assign", text, 'JSON like {"orders": [0, 2], "paid": [1]}') from None
    for topic in found:
        checked(check_topic, topic, "assign")
    return found


def _places(values: Mapping[str, str], start: str) -> dict[str, Any]:
    for side in ("starting", "ending"):
        given = [name for name in (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp") if name in values]
        if len(given) > 1:
            raise refused(f"{' and '.join(given)} exclude each other", "give one of them")
    strategy = values.get("startingOffsetsByTimestampStrategy", "error")
    if strategy not in ("error", "latest"):
        raise wrong("startingOffsetsByTimestampStrategy", strategy, "error or latest")
    start_ms, end_ms = (moment_ms(name, values.get(name)) for name in ("startingTimestamp", "endingTimestamp"))
    if start_ms is not None and end_ms is not None and start_ms > end_ms:
        raise refused("startingTimestamp is later than endingTimestamp", "swap them")
    return {
        "start": _offsets(values, "startingOffsets", start, ("earliest", "latest", "committed")),
        "start_ms": start_ms,
        "start_times": _times(values, "startingOffsetsByTimestamp"),
        "start_strategy": strategy,
        "end": _offsets(values, "endingOffsets", "latest", ("latest",)),
        "end_ms": end_ms,
        "end_times": _times(values, "endingOffsetsByTimestamp"),
    }


def _offsets(values: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str | Offsets:
    text = values.get(name, default).strip()
    if text.lower() in words:
        return text.lower()
    return _by_queue(name, text, f'{", ".join(words)} or JSON like {{"orders": {{"0": 17, "1": -2}}}}', EARLIEST)


def _times(values: Mapping[str, str], name: str) -> Offsets | None:
    form = 'JSON like {"orders": {"0": 1795161600000}}, in milliseconds since 1970'
    return _by_queue(name, values[name], form, -sys.maxsize) if name in values else None


def _by_queue(name: str, text: str, form: str, least: int) -> Offsets:
    try:
        return {topic: _queue_numbers(queues, least) for topic, queues in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise wrong(name, text, form) from None


def _queue_numbers(queues: dict[str, Any], least: int) -> dict[int, int]:
    """{"0": 17} or, with the broker above it, {"broker-a": {"0": 17}}."""
    if len(queues) == 1 and isinstance(only := next(iter(queues.values())), dict):
        queues = only
    found: dict[int, int] = {}
    for queue_id, offset in queues.items():
        if type(offset) is not int or offset < least or int(queue_id) < 0:
            raise ValueError
        found[int(queue_id)] = offset
    return found


def _tags(text: str | None) -> tuple[str, ...]:
    try:
        return parse_tags(text)
    except UsageError as error:
        raise wrong("tags", str(text), f'tags like "paid || sent": {error}') from None


def _group(values: Mapping[str, str], name: str) -> str | None:
    group = values.get(name)
    if group is not None:
        checked(check_consumer_group, group, name)
    return group


def _check_stream(values: Mapping[str, str]) -> None:
    """Refuse the options that a streaming query cannot have."""
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if name in values:
            raise refused(
                f"a streaming query has no end, so option {name} is not possible", "leave it out, or use read"
            )
    for name in ("keys", "pushdown"):
        if name in values:
            raise refused(f"option {name} is for batches: a stream cannot look ahead", "use filter() on the stream")
    if values.get("view", "messages") not in QUEUE_VIEWS:
        raise refused(f"view {values['view']} does not stream", "stream messages, index or index_stats, or use read")
