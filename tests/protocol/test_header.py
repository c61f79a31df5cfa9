"""Headers in both encodings: golden bytes, round trips, hostile fields."""

import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import ProtocolError, UsageError
from shmq.protocol.codes import Codec, Language, Request, Response
from shmq.protocol.command import FLAG_ONEWAY, FLAG_REPLY, Command, oneway
from shmq.protocol.frame import HEADER_BYTES_MAX, Frame, FrameDecoder
from shmq.protocol.header import (
    EXT_FIELDS_MAX,
    EXT_KEY_BYTES_MAX,
    EXT_VALUE_BYTES_MAX,
    CommandDecoder,
    HeaderTooLarge,
    decode_header,
    encode_command,
)
from tests.tables.rows import every_row

# The example of the reference, §2.1, and the live capture of §18.
JSON_ROUTE_REQUEST = (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)
BINARY_MAX_OFFSET_REPLY = bytes.fromhex(
    "0000 00 0199 00000009 00000001 00000000 0000000d 0006 6f6666736574 00000001 34".replace(" ", "")
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)


def commands(codec: Codec) -> st.SearchStrategy[Command]:
    short = INT16 if codec == Codec.BINARY else INT32
    return st.builds(
        Command,
        code=short,
        opaque=INT32,
        flag=INT32,
        ext=st.dictionaries(TEXT.filter(lambda key: 0 < len(key.encode()) <= EXT_KEY_BYTES_MAX), TEXT, max_size=8),
        body=st.binary(max_size=100),
        remark=st.none() | TEXT.filter(bool),
        language=st.sampled_from(Language),
        version=short,
        codec=st.just(codec),
    )


def decoded(data: bytes) -> Command:
    decoder = CommandDecoder()
    decoder.feed(data)
    command = decoder.take()
    assert command is not None and decoder.take() is None and decoder.buffered_bytes == 0
    return command


def binary(fixed: bytes = struct.pack(">hBhii", 30, 9, 409, 9, 1), remark: bytes = bytes(4), ext: bytes = b"") -> bytes:
    return fixed + remark + struct.pack(">i", len(ext)) + ext


def ext_field(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


@given(commands(Codec.JSON) | commands(Codec.BINARY))
def test_a_command_survives_its_frame(command: Command) -> None:
    assert decoded(encode_command(command)) == command


def test_the_json_header_is_written_as_rocketmq_writes_it() -> None:
    command = Command(code=105, opaque=7, ext={"topic": "T"}, language=Language.JAVA, version=401)
    frame = encode_command(command)
    assert frame[8:] == JSON_ROUTE_REQUEST
    assert decode_header(Frame(Codec.JSON, JSON_ROUTE_REQUEST, b"")) == command


def test_the_binary_header_is_written_as_rocketmq_writes_it() -> None:
    command = Command(
        code=0, opaque=9, flag=1, ext={"offset": "4"}, language=Language.JAVA, version=409, codec=Codec.BINARY
    )
    assert encode_command(command)[8:] == BINARY_MAX_OFFSET_REPLY
    assert decode_header(Frame(Codec.BINARY, BINARY_MAX_OFFSET_REPLY, b"")) == command


def test_a_header_with_a_remark_has_it_between_opaque_and_the_serialize_type() -> None:
    command = Command(code=17, opaque=1, flag=1, remark="no", version=409)
    assert encode_command(command)[8:] == (
        b'{"code":17,"flag":1,"language":"PYTHON","opaque":1,"remark":"no",'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )


def test_a_client_that_leaves_fields_out_gets_rocketmqs_defaults() -> None:
    command = decode_header(Frame(Codec.JSON, b'{"code":34,"extFields":null,"remark":null,"surprise":[1,{}]}', b"b"))
    assert command == Command(code=34, language=Language.JAVA, version=0, body=b"b")
    go = decode_header(Frame(Codec.JSON, b'{"code":105,"language":"GO","version":317,"opaque":3,"flag":0}', b""))
    assert (go.language, go.version, go.opaque) == (Language.GO, 317, 3)


def test_bare_numbers_and_booleans_are_read_as_the_text_that_stands_there() -> None:
    # The C++ client's shape: its JSON writer ends with a line end and quotes neither numbers nor booleans.
    header = (
        b'{"code":310,"extFields":{"a":"g","d":4,"e":-1,"g":1700000000000123456,"k":false,"m":true,"x":1.50,"n":null},'
        b'"flag":0,"language":"CPP","opaque":8,"version":99}\n'
    )
    command = decode_header(Frame(Codec.JSON, header, b"b"))
    assert command.ext == {
        "a": "g", "d": "4", "e": "-1", "g": "1700000000000123456", "k": "false", "m": "true", "x": "1.50",
    }  # fmt: skip
    assert (command.code, command.opaque, command.language, command.version) == (310, 8, Language.CPP, 99)
    spaced = decode_header(Frame(Codec.JSON, b' {"extFields" : { "a" : 1 , "b" : "\\u00e4" } }\r\n ', b""))
    assert spaced.ext == {"a": "1", "b": "ä"}


def test_a_language_may_be_its_number() -> None:
    assert decode_header(Frame(Codec.JSON, b'{"language":9}', b"")).language == Language.GO
    assert decode_header(Frame(Codec.JSON, b'{"language":-1}', b"")).language == Language.OTHER


def test_an_unknown_language_is_other() -> None:
    assert decode_header(Frame(Codec.JSON, b'{"language":"COBOL"}', b"")).language == Language.OTHER
    fixed = struct.pack(">hBhii", 30, 200, 409, 9, 1)
    assert decode_header(Frame(Codec.BINARY, binary(fixed), b"")).language == Language.OTHER


@every_row(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"code":1}x',
        b'{"code":"1"}',
        b'{"code":1.5}',
        b'{"code":true}',
        b'{"code":null}',
        b'{"code":NaN}',
        b'{"code":2147483648}',
        b'{"opaque":-2147483649}',
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"extFields":{"a":1,"b":{}}}',
        b'{"extFields":{"a":1,"b":[]}}',
        b'{"extFields":{"a":1,"b":nul}}',
        b'{"extFields":{"a":1,"b":01}}',
        b'{"extFields":{"a":1,"b":NaN}}',
        b'{"extFields":{"a":1,"b":"\\ud800"}}',
        b'{"extFields":{"a":1,"b":"\xff"}}',
        b'{"extFields":{"a":1,"":2}}',
        b'{"language":1.5}',
        b'{"extFields":{"a":' + b"9" * (EXT_VALUE_BYTES_MAX + 1) + b"}}",
        json.dumps({"extFields": {f"k{n}": n for n in range(EXT_FIELDS_MAX + 1)}}).encode(),
        b'{"extFields":{"a":{"b":"c"}}}',
        b'{"extFields":[]}',
        b'{"extFields":{"":"x"}}',
        b'{"remark":"\\ud800"}',
        b'{"remark":"\xff"}',
        b'{"x":' + b"[" * 30000 + b"]" * 30000 + b"}",
        json.dumps({"extFields": {"k" * (EXT_KEY_BYTES_MAX + 1): "v"}}).encode(),
        json.dumps({"extFields": {"k": "v" * (EXT_VALUE_BYTES_MAX + 1)}}).encode(),
        json.dumps({"extFields": {"k": "ä" * (EXT_VALUE_BYTES_MAX // 2 + 1)}}, ensure_ascii=False).encode(),
        json.dumps({"extFields": {f"k{n}": "v" for n in range(EXT_FIELDS_MAX + 1)}}).encode(),
    ],
)
def test_a_wrong_json_header_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(Frame(Codec.JSON, header, b""))


def lying_lengths() -> list[bytes]:
    """Every length field of a binary header, with every lie of the list."""
    lies_int = [-1, -2, -(2**31), 2**31 - 1]
    lies_short = [-1, -2, -(2**15), 2**15 - 1]
    fixed = struct.pack(">hBhii", 30, 9, 409, 9, 1)
    none = bytes(4)
    key, value = b"key", b"value"
    headers = [fixed + struct.pack(">i", lie) + none for lie in [*lies_int, 5]]
    headers += [fixed + none + struct.pack(">i", lie) + ext_field(key, value) for lie in [*lies_int, 13, 15]]
    headers += [
        binary(ext=struct.pack(">h", lie) + key + struct.pack(">i", 5) + value) for lie in [*lies_short, 0, 2, 4, 12]
    ]
    headers += [binary(ext=struct.pack(">h", 3) + key + struct.pack(">i", lie) + value) for lie in [*lies_int, 4, 6]]
    return headers


@every_row("header", lying_lengths())
def test_a_lying_length_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(Frame(Codec.BINARY, header, b""))


def test_a_binary_header_ends_where_its_lengths_say() -> None:
    whole = binary(remark=struct.pack(">i", 2) + b"ok", ext=ext_field(b"a", b"1") + ext_field(b"b", b""))
    command = decode_header(Frame(Codec.BINARY, whole, b""))
    assert command.remark == "ok" and command.ext == {"a": "1", "b": ""}
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_header(Frame(Codec.BINARY, whole[:end], b""))
    with pytest.raises(ProtocolError, match="1 bytes behind"):
        decode_header(Frame(Codec.BINARY, whole + b"x", b""))


def test_the_binary_header_is_held_to_the_same_field_limits() -> None:
    most = [ext_field(f"k{n}".encode(), b"") for n in range(EXT_FIELDS_MAX)]
    assert len(decode_header(Frame(Codec.BINARY, binary(ext=b"".join(most)), b"")).ext) == EXT_FIELDS_MAX
    wrong = [
        b"".join([*most, ext_field(b"one-more", b"")]),
        ext_field(b"k", b"") * (EXT_FIELDS_MAX + 1),
        ext_field(b"k" * (EXT_KEY_BYTES_MAX + 1), b""),
        ext_field(b"k", b"v" * (EXT_VALUE_BYTES_MAX + 1)),
        ext_field(b"", b"v"),
        ext_field(b"k", b"\xff"),
        ext_field(b"\xff", b"v"),
    ]
    for ext in wrong:
        with pytest.raises(ProtocolError):
            decode_header(Frame(Codec.BINARY, binary(ext=ext), b""))


@given(st.binary(max_size=200), st.sampled_from(Codec))
def test_any_header_bytes_give_a_command_or_a_protocol_error(header: bytes, codec: Codec) -> None:
    try:
        command = decode_header(Frame(codec, header, b""))
    except ProtocolError:
        return
    assert decoded(encode_command(command)) == command


@given(commands(Codec.BINARY), st.data())
def test_a_damaged_header_gives_a_command_or_a_protocol_error(command: Command, data: st.DataObject) -> None:
    frames = FrameDecoder()
    frames.feed(encode_command(command))
    frame = frames.take()
    assert frame is not None
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_header(Frame(Codec.BINARY, bytes(header), b""))
    except ProtocolError:
        return


@every_row(
    "command",
    [
        Command(code=200050, codec=Codec.BINARY),
        Command(code=1, version=40000, codec=Codec.BINARY),
        Command(code=1, ext={"k": "\ud800"}),
        Command(code=1, ext={"k": "\ud800"}, codec=Codec.BINARY),
        Command(code=1, ext={"": "v"}),
        Command(code=1, ext={"k": "v" * (EXT_VALUE_BYTES_MAX + 1)}),
        Command(code=1, ext={f"k{n}": "v" for n in range(EXT_FIELDS_MAX + 1)}),
    ],
)
def test_what_the_wire_cannot_carry_is_refused_before_it_is_sent(command: Command) -> None:
    with pytest.raises(UsageError):
        encode_command(command)


def test_a_reply_repeats_opaque_and_encoding() -> None:
    request = Command(code=Request.GET_MAX_OFFSET, opaque=77, codec=Codec.BINARY, language=Language.GO, version=317)
    reply = request.reply(ext={"offset": "4"}, body=b"b")
    assert (reply.opaque, reply.flag, reply.codec, reply.code) == (77, FLAG_REPLY, Codec.BINARY, Response.SUCCESS)
    assert (reply.language, reply.version) == (Language.PYTHON, 409)
    assert reply.is_reply and not reply.is_oneway and not request.is_reply


def test_a_oneway_notice_asks_for_no_reply() -> None:
    notice = oneway(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, opaque=3)
    assert notice.flag == FLAG_ONEWAY and notice.is_oneway and not notice.is_reply
    assert notice.ext == {"consumerGroup": "g"} and notice.opaque == 3


@pytest.mark.parametrize("codec", list(Codec))
def test_the_property_text_of_a_send_may_be_longer_so_that_its_sender_gets_the_error(codec: Codec) -> None:
    sent = Command(code=310, ext={"i": "p" * (EXT_VALUE_BYTES_MAX + 1)}, codec=codec)
    frames = FrameDecoder()
    frames.feed(encode_command(sent))
    frame = frames.take()
    assert frame is not None and decode_header(frame).ext == sent.ext


@every_row("codec", Codec)
@every_row(
    "ext",
    [
        {"i": "x" * HEADER_BYTES_MAX},
        {"topic": "x" * 40_000},
        {f"f{number}": "" for number in range(EXT_FIELDS_MAX + 1)},
    ],
    ids=["header", "value", "fields"],
)
def test_what_is_too_large_still_says_which_request_it_was(codec: Codec, ext: dict[str, str]) -> None:
    if codec == Codec.JSON:
        header = msgspec.json.encode({"code": 11, "extFields": ext, "flag": 2, "opaque": 77, "version": 400})
    else:
        fields = b"".join(
            struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
            for key, value in ext.items()
        )
        header = struct.pack(">hBhiii", 11, 0, 400, 77, 2, 0) + struct.pack(">i", len(fields)) + fields
    with pytest.raises(HeaderTooLarge) as caught:
        decode_header(Frame(codec, header, b"body"))
    command = caught.value.command
    assert (command.code, command.opaque, command.version, command.codec) == (11, 77, 400, codec)
    assert command.is_oneway and not command.ext
