"""Tags as a filter of pulls: an expression `a || b` becomes the hashes that ConsumeQueue units carry.

Owns that step. It does not know messages; the client compares the tags themselves again, since hashes collide.
"""

from __future__ import annotations

from functools import lru_cache

from shmq.errors import FilterSyntaxError
from shmq.shm.core import tag_hash

TAG = "TAG"
_EVERYTHING = "*"
_EXPRESSIONS = 1024  # kept parsed; a consumer repeats its own with each pull. The caller bounds their length


@lru_cache(_EXPRESSIONS)
def hashes_of(expression: str) -> tuple[int, ...] | None:
    """Return the hashes of the tags an expression names; None for all messages.

    Raises:
        FilterSyntaxError: it consists of separators only.
    """
    if not expression or expression == _EVERYTHING:
        return None
    tags = [tag for part in expression.split("||") if (tag := part.strip())]
    if not tags:
        raise FilterSyntaxError(f"the subscription {expression[:64]!a} names no tag")
    return tuple(dict.fromkeys(map(tag_hash, tags)))
