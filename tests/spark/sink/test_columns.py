"""The sink's columns: which may be there, and what a row of them becomes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shmq.errors import UsageError
from shmq.spark.sink.columns import column_names, rows_of

TYPES: dict[str, Any] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "numbers": ArrayType(IntegerType()),
    "struct": StructType([StructField("a", IntegerType())]),
}


def schema(text: str) -> StructType:
    """A schema of these types, without a Spark that would parse it."""
    return StructType([StructField(name, TYPES[kind]) for name, kind in map(str.split, text.split(", "))])


def test_second_names_mean_the_first_and_order_is_free() -> None:
    assert column_names(schema("key string, value binary, sharding_key string, tags string"), has_topic=True) == (
        "keys", "body", "message_group", "tag",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "has_topic", "words"),
    [
        ("bodi binary", True, ["bodi", "did you mean body", "drop('bodi')"]),
        ("tag string", True, ["needs a column body", "to_json"]),
        ("body struct", True, ["column body", "binary or string", "to_json"]),
        ("body binary, queue_id bigint", True, ["queue_id", "int, not bigint", "cast('int')"]),
        ("body binary, properties string", True, ["properties", "map<string,string>"]),
        ("body binary, deliver_at string", True, ["deliver_at", "timestamp", "cast('timestamp')"]),
        ("body binary, keys int", True, ["string or array<string>, not int", ".cast('string')"]),
        ("body binary, keys numbers", True, ["string or array<string>, not array<int>", ".cast('array<string>')"]),
        ("body binary, value binary", True, ["value", "there twice"]),
        ("body binary", False, ["which topic", "option topic"]),
        ("body binary, delay_level int, deliver_at timestamp", True, ["exclude"]),
    ],
)
def test_a_wrong_schema_names_the_column_and_the_cure(columns: str, has_topic: bool, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        column_names(schema(columns), has_topic=has_topic)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_row_becomes_a_send_and_null_is_not_said() -> None:
    moment = datetime(2026, 11, 20, 8, 0, 0, 123_000, tzinfo=UTC)
    batch = pyarrow.record_batch(
        {
            "body": pyarrow.array(["a", "b"]),
            "topic": ["x", None],
            "keys": pyarrow.array([["k1", "k2"], None], pyarrow.list_(pyarrow.string())),
            "properties": pyarrow.array([[("p", "1")], None], pyarrow.map_(pyarrow.string(), pyarrow.string())),
            "deliver_at": pyarrow.array([moment, None], pyarrow.timestamp("us", "UTC")),
            "tag": ["t", ""],
        }
    )
    first, second = rows_of(batch, tuple(batch.schema.names), "elsewhere")
    assert first == (
        "x",
        b"a",
        {"keys": ["k1", "k2"], "properties": {"p": "1"}, "deliver_at": moment.timestamp(), "tag": "t"},
    )
    assert second == ("elsewhere", b"b", {})


def test_null_and_empty_inside_a_row_are_not_given() -> None:
    strings, pairs = pyarrow.list_(pyarrow.string()), pyarrow.map_(pyarrow.string(), pyarrow.string())
    rows: list[tuple[Any, Any, dict[str, Any]]] = [
        (
            ["a", None, "", "b"],
            [("p", None), ("q", "1"), ("r", "")],
            {"keys": ["a", "b"], "properties": {"q": "1"}},
        ),
        ([None, ""], [("p", None)], {}),
        ([], [], {}),
        (None, None, {}),
    ]
    batch = pyarrow.record_batch(
        [
            pyarrow.array([b"x"] * len(rows), pyarrow.binary()),
            pyarrow.array([keys for keys, _, _ in rows], strings),
            pyarrow.array([properties for _, properties, _ in rows], pairs),
        ],
        ["body", "keys", "properties"],
    )
    assert [row.arguments for row in rows_of(batch, tuple(batch.schema.names), "t")] == [wanted for *_, wanted in rows]
    for text, wanted in (("", {}), (None, {}), ("a", {"keys": ["a"]})):
        one = pyarrow.record_batch([pyarrow.array([b"x"]), pyarrow.array([text], pyarrow.string())], ["body", "keys"])
        assert [row.arguments for row in rows_of(one, ("body", "keys"), "t")] == [wanted]


@pytest.mark.parametrize(
    ("body", "topic", "words"), [(None, "x", ["null", "filter"]), ("b", None, ["no topic", "option topic"])]
)
def test_a_row_without_body_or_topic_is_refused(body: str | None, topic: str | None, words: list[str]) -> None:
    batch = pyarrow.record_batch(
        {"body": pyarrow.array([body], pyarrow.string()), "topic": pyarrow.array([topic], pyarrow.string())}
    )
    with pytest.raises(UsageError) as caught:
        list(rows_of(batch, ("body", "topic"), None))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_options_give_columns_of_any_name_a_meaning() -> None:
    named = {"keyColumn": "order_id", "orderBy": "customer"}
    columns = column_names(schema("body string, customer bigint, order_id string"), has_topic=True, named=named)
    assert columns == ("body", "message_group", "keys")
    both = {"keyColumn": "tag", "orderBy": "tag"}
    assert column_names(schema("body string, tag string"), has_topic=True, named=both) == (
        "body",
        "tag keys message_group",
    )
    batch = pyarrow.record_batch({"body": ["a", "b"], "n": pyarrow.array([7, None], pyarrow.int64())})
    assert [each.arguments for each in rows_of(batch, ("body", "keys message_group"), "t")] == [
        {"keys": ["7"], "message_group": "7"},
        {},
    ]


@pytest.mark.parametrize(
    ("columns", "named", "words"),
    [
        ("body string, order_id string", {"keyColumn": "order"}, ["keyColumn", "no such column", "order_id"]),
        ("body string, at timestamp", {"orderBy": "at"}, ["orderBy", "timestamp", "cast('string')"]),
        ("body string, keys string, n string", {"keyColumn": "n"}, ["n", "there twice", "keys"]),
        ("body string, n string", {}, ["no column n"]),
    ],
)
def test_a_column_that_cannot_have_the_meaning_is_named(columns: str, named: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        column_names(schema(columns), has_topic=True, named=named)
    assert all(word in str(caught.value) for word in words), str(caught.value)
