"""Owns the checks of what a consumer is asked to do, for every way of asking.

It does not know connections; words in, a `ConsumerSpec` out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmq.client.consumer import ConsumerSpec, Model
from shmq.client.position import BEGIN, END, PositionLike, parse_position
from shmq.client.wanted import wanted_of
from shmq.errors import UsageError
from shmq.message import check_group, check_topic


def consumer_spec(
    topic: str,
    group: str | None,
    tags: str | Sequence[str] | None,
    model: Model,
    start: PositionLike | None,
    *,
    where: str | None = None,
    **rest: Any,
) -> ConsumerSpec:
    """Check what a consumer is asked to do.

    Raises:
        InvalidName, UsageError: a name, the model, the tags or the start do not exist.
        FilterSyntaxError: `where` is no expression.
    """
    check_topic(topic)
    if model not in ("clustering", "broadcasting"):
        raise UsageError(f"model={model!r} does not exist", hint='model="clustering" or model="broadcasting"')
    if group is not None:
        check_group(group)
    elif model == "clustering":
        raise UsageError(
            f'no group to read topic "{topic}" for',
            hint='subscribe(…, group="billing"), or model="broadcasting" to see every message without a group',
        )
    begin = BEGIN if model == "clustering" else END
    position = begin if start is None else parse_position(start)
    wanted = wanted_of(tags, where)
    return ConsumerSpec(topic, group, wanted.tags, model, position, where=wanted.where, **rest)
