"""The offset a streaming query writes into its checkpoint: pure data, to JSON and back.

    {"v": 1, "end": {"orders/broker-a/0": 123}, "from": {"orders/broker-a/0": 100}, "born": {"orders": 4096}}

    end    first offset of each queue that is not in this batch
    from   where the batch begins: Spark asks for the initial offset again when batch 0 is repeated, and would read from
           there, so that what came in between were skipped; a batch is what its own end says
    born   log position at which each topic was made: a topic of the same name that was made later is another one

Rules: (1) no queue is ever left out of `end` that was in it: it would begin anew;
(2) text of another version is refused with both numbers, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shmq.spark.schema import refused

VERSION = 1
Key = tuple[str, int]  # topic, queue id


@dataclass(frozen=True)
class Progress:
    """Progress of a streaming query, queue by queue."""

    end: Mapping[Key, int]
    start: Mapping[Key, int] = field(default_factory=dict)
    born: Mapping[str, int] = field(default_factory=dict)

    def to_json(self, broker: str) -> dict[str, Any]:
        """Return what Spark stores as JSON."""
        return {
            "v": VERSION,
            "end": {_text(key, broker): offset for key, offset in sorted(self.end.items())},
            "from": {_text(key, broker): offset for key, offset in sorted(self.start.items())},
            "born": dict(sorted(self.born.items())),
        }


def progress_of(data: Any, broker: str) -> Progress:
    """Read what a checkpoint holds.

    Raises:
        UsageError: it is of another version, of another broker, or no offset of ours.
    """
    written_for, found = parsed_progress(data)
    if written_for not in (broker, ""):
        raise refused(
            f"the checkpoint is of broker {written_for}, option store leads to {broker}",
            "a checkpoint belongs to one broker: take a new checkpoint location",
        )
    return found


def parsed_progress(data: Any) -> tuple[str, Progress]:
    """Read an offset, and return it behind the broker it is of; "" when it names no queue.

    Raises:
        UsageError: it is of another version, of several brokers, or no offset of ours.
    """
    if not isinstance(data, dict) or data.get("v") != VERSION:
        version = data.get("v") if isinstance(data, dict) else data
        raise refused(
            f"the checkpoint's offset has version {version!r}, this source reads {VERSION}",
            "run the query with the shmq that wrote it, or take a new checkpoint location",
        )
    try:
        brokers = {_parts(text)[1] for text in (*data["end"], *data["from"])}
        if len(brokers) > 1:
            raise ValueError(f"brokers {sorted(brokers)}")
        found = Progress(
            {_key(text): int(offset) for text, offset in data["end"].items()},
            {_key(text): int(offset) for text, offset in data["from"].items()},
            {str(topic): int(position) for topic, position in data["born"].items()},
        )
        return next(iter(brokers), ""), found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise refused(f"the checkpoint's offset is damaged: {error!r}", "take a new checkpoint location") from None


def _text(key: Key, broker: str) -> str:
    return f"{key[0]}/{broker}/{key[1]}"


def _parts(text: str) -> tuple[str, str, str]:
    topic, broker, queue_id = text.split("/")
    return topic, broker, queue_id


def _key(text: str) -> Key:
    topic, _, queue_id = _parts(text)
    return topic, int(queue_id)
