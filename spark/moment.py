"""Owns the points in time of options: milliseconds since the epoch, as the Kafka source takes them, or ISO 8601.

It does not know queues. A time without a zone is UTC, because driver and broker may live in different ones.
"""

from __future__ import annotations

from datetime import UTC, datetime

from shmq.spark.schema import refused


def moment_ms(option: str, text: str | None) -> int | None:
    """Return the milliseconds an option means, None when it was not given.

    Raises:
        UsageError: it is neither a number nor a time.
    """
    if text is None:
        return None
    clean = text.strip()
    if clean.isdecimal():
        return int(clean)
    try:
        moment = datetime.fromisoformat(clean)
    except ValueError:
        raise refused(
            f"option {option}={text!r} is not a time",
            "give milliseconds since 1970 or 2026-11-20T08:00:00Z",
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)
