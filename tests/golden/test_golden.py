"""Frames of stock clients and servers are read as they were meant, and what we write instead says the same."""

import json
from typing import Any

from shmq.protocol.codes import Codec, Language, Request
from shmq.protocol.command import Command
from shmq.protocol.frame import encode_frame
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.protocol.request_table import REQUESTS, RequestClass, check_fields
from tests.golden.frames import Captured, read_all
from tests.tables.rows import every_row

FRAMES = read_all()
REQUESTS_SEEN = [frame for frame in FRAMES if not frame.is_reply]
every_frame = every_row("frame", FRAMES, ids=lambda frame: frame.name)
CLIENTS = {"java4", "java4-binary", "java5", "java5-binary", "go", "cpp", "node"}


def decoded(data: bytes) -> Command:
    decoder = CommandDecoder()
    decoder.feed(data)
    command = decoder.take()
    assert command is not None and decoder.buffered_bytes == 0
    return command


def client_of(frame: Captured) -> str:
    """The client of a file name `client-code-kind`."""
    return frame.name.rsplit("-request", 1)[0].split("-reply", 1)[0].rsplit("-", 1)[0]


def test_every_client_and_both_header_encodings_are_there() -> None:
    assert {client_of(frame) for frame in FRAMES} == CLIENTS
    for client in CLIENTS:
        own = [frame for frame in FRAMES if client_of(frame) == client]
        codes = {frame.expects["code"] for frame in own if not frame.is_reply}
        assert Request.HEART_BEAT in codes and Request.GET_ROUTEINFO_BY_TOPIC in codes, client
        assert codes & {Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2} and Request.PULL_MESSAGE in codes, client
        assert {"BINARY" if client.endswith("binary") else "JSON"} <= {frame.expects["codec"] for frame in own}


@every_frame
def test_a_captured_frame_says_what_an_independent_reader_reads(frame: Captured) -> None:
    command = decoded(frame.data)
    expects = frame.expects
    assert command.codec.name == expects["codec"]
    assert (command.code, command.opaque, command.flag) == (expects["code"], expects["opaque"], expects["flag"])
    assert (command.language, command.version) == (Language[expects["language"]], expects["version"])
    assert command.remark == expects["remark"]
    assert command.ext == expects["ext"]
    assert len(command.body) == expects["body_bytes"] and frame.data.endswith(command.body)


@every_frame
def test_what_we_write_for_it_is_read_as_the_same(frame: Captured) -> None:
    command = decoded(frame.data)
    written = encode_command(command)
    assert decoded(written) == command
    if command.codec is Codec.BINARY and not command.remark:
        assert len(written) == len(frame.data)  # only the order of fields is free
    if command.codec is Codec.JSON and command.language is Language.JAVA:
        ours, theirs = (json.loads(data[8 : len(data) - len(command.body)]) for data in (written, frame.data))
        assert ours == normal(theirs)


def normal(header: dict[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing, fill in what ali-ons leaves out, and quote what it does not quote."""
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in header.get("extFields", {}).items()
    }
    kept = {name: value for name, value in header.items() if value not in ("", None) and name != "extFields"}
    return {"serializeTypeCurrentRPC": "JSON", **kept, **({"extFields": texts} if texts else {})}


@every_frame
def test_a_frame_cut_at_every_byte_waits_for_the_rest(frame: Captured) -> None:
    decoder = CommandDecoder()
    for position in range(len(frame.data) - 1):
        decoder.feed(frame.data[position : position + 1])
        assert decoder.take() is None
    decoder.feed(frame.data[-1:])
    assert decoder.take() == decoded(frame.data)


@every_row("frame", REQUESTS_SEEN, ids=lambda frame: frame.name)
def test_every_request_of_a_stock_peer_fits_the_table(frame: Captured) -> None:
    command = decoded(frame.data)
    spec = REQUESTS[command.code]
    check_fields(command.code, command.ext)
    known = {field.name for field in spec.fields} | {"bname", "ns", "nsd", "oway", "lo", "ReqT", "_UNIQUE_KEY_QUERY"}
    assert set(command.ext) <= known | {"AccessKey", "Signature", "OnsChannel", "SecurityToken"}, frame.name
    from_client = frame.notes["direction"].startswith("client >")
    assert spec.asks == ("client" if from_client else "broker") or spec.request_class is RequestClass.INTERNAL


def test_the_same_command_may_come_in_either_encoding() -> None:
    for frame in REQUESTS_SEEN:
        command = decoded(frame.data)
        other = Codec.JSON if command.codec is Codec.BINARY else Codec.BINARY
        command.codec = other
        assert decoded(encode_command(command)) == command


def test_a_frame_that_lies_about_its_codec_is_no_command_of_the_other() -> None:
    for frame in FRAMES[:20]:
        (header_bytes,) = (int.from_bytes(frame.data[5:8], "big"),)
        header, body = frame.data[8 : 8 + header_bytes], frame.data[8 + header_bytes :]
        assert encode_frame(Codec(frame.data[4]), header, body) == frame.data
