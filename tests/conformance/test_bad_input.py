"""What cannot be is refused with what to do instead, and changes nothing; the same on both transports."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from tests.conformance.conftest import Named


@pytest.mark.parametrize(
    "arguments",
    [
        {"tag": "a|b"},
        {"properties": {"a\x01b": "1"}},
        {"properties": {"a\x02b": "1"}},
        {"properties": {"a": "1\x02"}},
        {"properties": {"": "1"}},
        {"queue_id": 99},
        {"queue_id": -1},
    ],
    ids=str,
)
def test_a_message_that_cannot_be_is_refused_and_not_stored(
    mq: shmq.Connection, topic: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises((shmq.ShmqError, ValueError)) as refused:
        mq.send(topic, b"x", **arguments)
    assert str(refused.value)
    assert mq.browse(topic) == []


@pytest.mark.parametrize("group", ["../billing", "..", "a/b", "a b", "", "a\x01b", "g" * 300])
def test_a_group_name_that_cannot_be_is_refused_and_makes_no_group(mq: shmq.Connection, topic: str, group: str) -> None:
    with pytest.raises(shmq.ShmqError) as refused:
        mq.subscribe(topic, group=group)
    assert refused.value.hint
    assert group not in list(mq.admin.groups)


@pytest.mark.parametrize("expression", ["region =", "AND", "a = 'x", "a BETWEEN 1", "(a = 1"])
def test_an_expression_that_is_none_is_refused_with_its_place(
    mq: shmq.Connection, topic: str, named: Named, expression: str
) -> None:
    with pytest.raises(shmq.FilterSyntaxError) as refused:
        mq.subscribe(topic, group=named("billing"), where=expression)
    assert refused.value.text is not None and refused.value.offset is not None


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_an_offset_that_is_not_stored_is_refused_and_moves_nothing(
    mq: shmq.Connection, topic: str, offset: int, eventually: Callable[..., Any]
) -> None:
    mq.send(topic, b"x", queue_id=0)
    with mq.pull_consumer(topic) as consumer:
        before = consumer.positions()
        with pytest.raises(shmq.ShmqError) as refused:
            consumer.seek(0, offset=offset)
        assert refused.value.hint
        assert consumer.positions() == before
