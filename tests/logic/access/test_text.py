"""The YAML that access files are written in is read as YAML reads it; the rest of YAML is refused with its line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.logic.access.text import read_access_text
from shmq.errors import UsageError
from tests.tables.rows import every_row

FILE = """\
---
# who may come from where
globalWhiteRemoteAddresses:
- 10.10.103.*     # the office
- "192.168.0.*"

accounts:
  - accessKey: RocketMQ
    secretKey: 'it''s # secret'
    whiteRemoteAddress:
    admin: false
    topicPerms:
    - topicA=DENY
    - topicB=PUB|SUB
    groupPerms: [groupA=DENY, "groupB=SUB"]
  -
    accessKey: rocketmq2
    topicPerms: []
    hash: a#b
"""


def test_a_file_of_rocketmq_is_read() -> None:
    assert read_access_text(FILE) == {
        "globalWhiteRemoteAddresses": ["10.10.103.*", "192.168.0.*"],
        "accounts": [
            {
                "accessKey": "RocketMQ",
                "secretKey": "it's # secret",
                "whiteRemoteAddress": None,
                "admin": "false",
                "topicPerms": ["topicA=DENY", "topicB=PUB|SUB"],
                "groupPerms": ["groupA=DENY", "groupB=SUB"],
            },
            {"accessKey": "rocketmq2", "topicPerms": [], "hash": "a#b"},
        ],
    }


@every_row(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n\n", None),
        ("a:\r\n  b: c\r\n", {"a": {"b": "c"}}),
        ("- - a\n  - b\n- c", [["a", "b"], "c"]),
        ("a: *.*\nb: '*'", {"a": "*.*", "b": "*"}),
        ("a: b:c", {"a": "b:c"}),
        ("- a: 1\n\n  # between\n  b: 2", [{"a": "1", "b": "2"}]),
    ],
)
def test_a_value_is_what_yaml_says(text: str, value: Any) -> None:
    assert read_access_text(text) == value


@every_row(
    ("text", "line"),
    [
        ("a: b\n   c: d", 2),
        ("a:\n  b: c\n d: e", 3),
        ("a: 1\na: 2", 2),
        ("a:\n\tb: c", 2),
        ("a: &x b", 1),
        ("a: !!python/object:os.system x", 1),
        ("a: |\n  text", 1),
        ("a: {b: c}", 1),
        ("a: [b, [c]]", 1),
        ("a: [b", 1),
        ('a: "b', 1),
        ("a: 'b' c", 1),
        ("a:\n" + "".join(" " * n + f"k{n}:\n" for n in range(1, 40)), 10),
    ],
)
def test_what_is_not_of_the_subset_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(UsageError, match=f"^line {line}: "):
        read_access_text(text)


@given(st.text(st.sampled_from("ab:-[]'\"# \n,*&|\t{}"), max_size=60))
def test_any_text_gives_a_value_or_a_usage_error(text: str) -> None:
    try:
        read_access_text(text)
    except UsageError as error:
        assert str(error).startswith("line ")
