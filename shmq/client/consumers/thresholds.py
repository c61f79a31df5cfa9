"""When a consumer takes no more of a queue: RocketMQ's pullThresholdForQueue, pullThresholdSizeForQueue and
consumeConcurrentlyMaxSpan. Whoever holds messages counts them.
"""

from __future__ import annotations

from typing import Final

COUNT_MAX: Final = 1000
BYTES_MAX: Final = 100 << 20
SPAN_MAX: Final = 2000


def is_full(count: int, size_bytes: int, span: int) -> bool:
    """Say whether to pause a queue of which so much is taken and not settled.

    Args:
        span: how far the newest message taken is ahead of the oldest one not settled; 0 where order keeps it small.
    """
    return count >= COUNT_MAX or size_bytes >= BYTES_MAX or span > SPAN_MAX
