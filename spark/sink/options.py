"""The options of the sink: their names, defaults and what may stand together. Case does not matter in names.

    where   store, access, nameserver                  as for the source
    what    topic                                      for rows without a column `topic`
    which   keyColumn, orderBy                         columns of any name for what people search for, and for the order
    how     guarantee at_least_once | idempotent | transactional     compression, timeoutMs, batchBytes, sendThreads
    again   writerId, batchId                          the writer and its batch: both are written once

Rules: (1) an unknown option is an error with the nearest name, never ignored;
(2) what is wrong is said on the driver, with the option, the value and the cure;
(3) the object is plain data: it travels to executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shmq.message import check_topic, is_system_topic, nearest
from shmq.spark.option_values import checked, known, number, size, wrong
from shmq.spark.options import AUTO, way
from shmq.spark.schema import refused

AT_LEAST_ONCE: Final = "at_least_once"
IDEMPOTENT: Final = "idempotent"
TRANSACTIONAL: Final = "transactional"
GUARANTEES: Final = (AT_LEAST_ONCE, IDEMPOTENT, TRANSACTIONAL)
_COMPRESSIONS: Final = ("none", "zlib", "lz4", "zstd")
NAMES: Final = (
    "store", "access", "nameserver", "topic", "guarantee", "writerId", "batchId", "compression", "timeoutMs",
    "batchBytes", "sendThreads", "keyColumn", "orderBy",
)  # fmt: skip
_ENGINES: Final = ("checkpointLocation",)  # Spark's own, which it hands on to every sink
_FOREIGN: Final = {
    "kafka.bootstrap.servers": "store or nameserver",
    "path": "option('topic', …); there is no path to save to",
    "topics": "topic, or a column topic",
    "namesrv": "nameserver",
    "queueid": "a column queue_id",
    "tag": "a column tag",
    "tags": "a column tag",
    "keys": "a column keys",
    "sendbatch": "batchBytes, or sendThreads",
    "brokers": "store or nameserver",
    "transactionalid": "writerId",
}
_WRITER = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class SinkOptions:
    """The options of one `save()` or `start()`."""

    store: str | None = None
    access: str = AUTO
    nameserver: str | None = None
    topic: str | None = None
    guarantee: str = AT_LEAST_ONCE
    writer_id: str | None = None
    batch_id: int | None = None
    compression: str = "none"
    timeout_ms: int = 10_000
    batch_bytes: int = 1 << 20
    send_threads: int = 16
    key_column: str | None = None
    order_by: str | None = None


def parse_sink_options(given: Mapping[str, str], *, stream: bool = False) -> SinkOptions:
    """Read the options of a `save()`, or of a streaming query's `start()`.

    Raises:
        UsageError: an unknown option, a value it cannot have, or two that exclude each other.
    """
    values = known(given, (*NAMES, *_ENGINES), _FOREIGN)
    guarantee = values.get("guarantee", AT_LEAST_ONCE)
    if guarantee not in GUARANTEES:
        raise wrong("guarantee", guarantee, f"one of {', '.join(GUARANTEES)}", near=nearest(guarantee, GUARANTEES))
    compression = values.get("compression", "none")
    if compression not in _COMPRESSIONS:
        raise wrong("compression", compression, f"one of {', '.join(_COMPRESSIONS)}")
    if compression != "none" and guarantee != AT_LEAST_ONCE:
        raise refused(f"guarantee {guarantee} stores bodies as they are", "leave option compression out")
    reached = way(values)
    return SinkOptions(
        store=reached["store"],
        access=reached["access"],
        nameserver=reached["nameserver"],
        topic=_topic(values.get("topic")),
        guarantee=guarantee,
        writer_id=_writer(values, guarantee, stream=stream),
        batch_id=number("batchId", values["batchId"], 0) if "batchId" in values else None,
        compression=compression,
        timeout_ms=number("timeoutMs", values.get("timeoutMs", "10000"), 1, 3_600_000),
        batch_bytes=size(values, "batchBytes", 1 << 20, 1, 2 << 20),
        send_threads=number("sendThreads", values.get("sendThreads", "16"), 1, 256),
        key_column=values.get("keyColumn"),
        order_by=values.get("orderBy"),
    )


def _topic(name: str | None) -> str | None:
    if name is not None:
        checked(check_topic, name, "topic")
        if is_system_topic(name):
            raise refused(f"option topic={name!r} is the broker's own", "another topic")
    return name


def _writer(values: Mapping[str, str], guarantee: str, *, stream: bool) -> str | None:
    writer = values.get("writerId")
    for name in ("writerId", "batchId"):
        if name in values and guarantee == AT_LEAST_ONCE:
            raise refused(f"option {name} says what is written once", "add option guarantee=transactional")
    if stream and "batchId" in values:
        raise refused("a streaming query has batch ids of its own", "leave option batchId out")
    if "batchId" in values and writer is None:
        raise refused("option batchId needs the writer that counts them", "add option writerId=…")
    if writer is not None and not _WRITER.fullmatch(writer):
        raise wrong("writerId", writer, "up to 64 letters, digits and . _ : -")
    return writer
