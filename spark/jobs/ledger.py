"""The ledger of a producer: one JSON line for every message a broker acknowledged, for `reconcile --ledger`.

    {"topic": "orders", "queue_id": 0, "queue_offset": 17, "message_id": "C0A8…", "key": "4711", "crc32": 3632233996}

Only topic and one of (queue_id with queue_offset), message_id, key are needed; crc32 is zlib's of the body as it was
given. Parquet files with columns of these names are read too. A producer flushes its line before the next send:
what is not in the ledger was not acknowledged.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shmq import Receipt

COLUMNS: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "message_id": "string",
    "key": "string",
    "crc32": "bigint",
}


def ledger_line(receipt: Receipt, body: bytes, *, key: str | None = None) -> str:
    """Return the line for a message that was acknowledged, with its line end."""
    document: dict[str, Any] = {
        "topic": receipt.topic,
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.offset,
        "message_id": receipt.message_id,
        "crc32": zlib.crc32(body),
    }
    if key is not None:
        document["key"] = key
    return json.dumps(document) + "\n"


def check_files(paths: Sequence[str]) -> None:
    """Check that ledgers are where they are said to be; Spark's own wildcards and schemes are left to it.

    Raises:
        UsageError: one is not.
    """
    for path in paths:
        plain = path.removeprefix("file://")
        if "://" not in plain and not set("*?[{") & set(plain) and not Path(plain).exists():
            raise UsageError(f"there is no ledger {path}", hint="--ledger FILE, as shmq.spark.jobs.ledger writes it")


def read_ledger(spark: SparkSession, paths: list[str]) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the ledger, and the columns that say which message a line is about.

    Raises:
        UsageError: no file of it can be read, or it does not say which messages it is about.
    """
    from pyspark.errors import AnalysisException

    parquet = [path for path in paths if path.endswith(".parquet")]
    lines = [path for path in paths if path not in parquet]
    frames = []
    try:
        if lines:
            ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            frames.append(spark.read.schema(ddl).json(lines))
        if parquet:
            found = spark.read.parquet(*parquet)
            typed = [
                f"cast({name if name in found.columns else 'null'} AS {kind}) AS {name}"
                for name, kind in COLUMNS.items()
            ]
            frames.append(found.selectExpr(*typed))
    except AnalysisException as error:
        raise UsageError(f"the ledger cannot be read: {str(error).splitlines()[0]}", hint="--ledger FILE") from None
    frame = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    counts = frame.selectExpr(*(f"count({name}) AS {name}" for name in COLUMNS), "count(*) AS lines").first()
    assert counts is not None
    for names in (("topic", "queue_id", "queue_offset"), ("message_id",), ("topic", "key")):
        if counts["lines"] and all(counts[name] == counts["lines"] for name in names):
            return frame, names
    if not counts["lines"]:
        return frame, ("message_id",)
    raise UsageError(
        "the ledger does not say which messages it is about",
        hint="every line needs topic with queue_id and queue_offset, or message_id, or topic with key",
    )
