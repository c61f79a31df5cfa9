"""Option `keys`: which offsets of planned ranges hold messages with a key, by the broker's key index.

The index knows hashes; `browse` compares what it finds with the messages' real keys. The index follows the log by some
milliseconds: a message that is stored while the read is planned may not be in it yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shmq import connect
from shmq.spark.access.broker import Access, Range
from shmq.spark.options import REMOTE, Options, full_url, is_remote
from shmq.spark.schema import refused

_FOUND_MAX: Final = 64


def with_keys(access: Access, options: Options, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of ranges that hold messages with one of the keys, neighbours as one.

    Raises:
        ShmqError: the broker cannot be asked.
        UsageError: a key has more messages than a broker tells of.
    """
    remote = options.access == REMOTE or is_remote(options.store)
    url = access.where.remote if remote else full_url(options.store)
    offsets: dict[tuple[str, int], set[int]] = defaultdict(set)
    with connect(url) as mq:
        for topic in dict.fromkeys(each.topic for each in ranges):
            for key in options.keys:
                found = mq.browse(topic, key=key, limit=_FOUND_MAX)
                if len(found) == _FOUND_MAX:
                    raise refused(
                        f"option keys: {_FOUND_MAX} messages or more of topic {topic} have key {key!r}, and brokers "
                        "answer with no more",
                        f"""leave the option out and use filter("keys = '{key}'")""",
                    )
                for message in found:
                    offsets[topic, message.queue_id].add(message.offset)
    return [piece for each in ranges for piece in _pieces(each, offsets[each.topic, each.queue_id])]


def _pieces(whole: Range, offsets: set[int]) -> list[Range]:
    pieces: list[Range] = []
    for offset in sorted(offset for offset in offsets if whole.start <= offset < whole.end):
        if pieces and pieces[-1].end == offset:
            pieces[-1] = replace(pieces[-1], end=offset + 1)
        else:
            pieces.append(replace(whole, start=offset, end=offset + 1))
    return pieces
