"""A message leaves as exactly what was asked for, and cannot steer the terminal of who reads it."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import UsageError
from shmq.tools.messages import text
from tests.tables.rows import every_row


@dataclass
class Given:
    body: bytes = b"42 apples"
    topic: str = "orders"
    queue_id: int = 3
    offset: int = 1881
    tag: str | None = "fruit"
    key: str | None = "17"
    keys: list[str] = field(default_factory=lambda: ["17"])
    properties: dict[str, str] = field(default_factory=lambda: {"TAGS": "fruit", "KEYS": "17", "region": "eu"})
    message_group: str | None = None
    born_ms: int = 1_763_625_667_112
    store_ms: int = 1_763_625_667_113
    message_id: str = "7F000001"
    attempt: int = 1


def test_the_body_form_is_the_body_and_a_newline() -> None:
    assert text.render_body(Given(body=b"\x00\xff")) == b"\x00\xff\n"


def test_the_pretty_form_says_when_where_and_what() -> None:
    line = text.render_pretty(Given(), escape=True).decode()
    assert line.endswith("  q3@1881  fruit  key=17  region=eu  42 apples\n")
    assert "TAGS" not in line and "attempt" not in line
    assert "attempt=2" in text.render_pretty(Given(attempt=2), escape=True).decode()


@given(st.binary(max_size=64), st.text(max_size=16))
def test_no_control_character_of_a_message_reaches_a_terminal(body: bytes, tag: str) -> None:
    line = text.render_pretty(Given(body=body, tag=tag, properties={"a": tag}), escape=True).decode()
    assert line.endswith("\n") and "\x1b" not in line
    assert all(character.isprintable() or character == "\t" for character in line[:-1])


def test_the_pretty_form_in_a_pipe_leaves_the_body_alone() -> None:
    assert text.render_pretty(Given(body=b"\x1b[31m\xff"), escape=False).endswith(b"  \x1b[31m\xff\n")


@every_row(
    ("format_", "data"),
    [
        (r"%T %k %s\n", b"1763625667113 17 42 apples\n"),
        ("%t[%p]@%o", b"orders[3]@1881"),
        (r"%S %K %h %g %i\t%%", b"9 2 region=eu fruit 7F000001\t%"),
        (r"\x41\0\\", b"A\0\\"),
        ("", b""),
        ("ä%s", "ä42 apples".encode()),
    ],
)
def test_formats_mean_what_they_mean_to_kcat(format_: str, data: bytes) -> None:
    assert text.format_renderer(format_)(Given()) == data


@pytest.mark.parametrize("format_", ["%", "%q", r"\q", "\\", r"\x4"])
def test_an_unknown_field_or_escape_is_refused_with_the_known_ones(format_: str) -> None:
    with pytest.raises(UsageError) as refused:
        text.format_renderer(format_)
    assert "%s" in refused.value.hint or r"\n" in refused.value.hint


def test_what_is_missing_in_a_format_is_empty() -> None:
    assert text.format_renderer("[%k][%K][%g][%h]")(Given(key=None, tag=None, properties={})) == b"[][0][][]"


def test_json_carries_raw_numbers_and_utc() -> None:
    document = text.message_document(Given())
    assert document["offset"] == 1881 and document["size_bytes"] == 9
    assert document["stored"] == "2025-11-20T08:01:07.113Z"
    assert document["properties"] == {"region": "eu"}
    assert document["body"] == "42 apples" and "body_base64" not in document


@given(st.binary(max_size=64))
def test_every_body_comes_back_out_of_json(body: bytes) -> None:
    import base64

    line = text.render_json_line(Given(body=body))
    assert line.count(b"\n") == 1
    document = json.loads(line)
    if document["body"] is None:
        assert base64.b64decode(document["body_base64"]) == body
    else:
        assert document["body"].encode() == body
