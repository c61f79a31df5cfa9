"""Headers as bytes, in both encodings of the protocol, and whole commands through them.

    JSON     {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
              "serializeTypeCurrentRPC":"JSON","version":401}             "remark" only when there is one

    Values of extFields are strings in RocketMQ's own clients. The C++ and the Node client also write bare numbers and
    booleans, the C++ client a line end behind the object: both are read as RocketMQ's reader does, as the text that
    stands there; null is a field that is absent. What we write are strings only, as Java's reader needs them.

    binary   byte 0      2          3         5        9      13
             +-----------+----------+---------+--------+------+---------------------------+--------------------------+
             | code      | language | version | opaque | flag | int bytes, remark (UTF-8) | int bytes, ext fields    |
             +-----------+----------+---------+--------+------+---------------------------+--------------------------+
             ext fields = repeated { short key bytes, key, int value bytes, value }

Invariants:
 1. Decoding gives a Command or a ProtocolError, whatever the bytes are; what is only too long or too much names the
    request in a HeaderTooLarge, so that it can be answered.
 2. Lengths are signed on the wire; each is checked to lie between 0 and what remains before it is used.
 3. A decoded Command has int32 numbers, at most 128 ext fields, keys of 1..255 bytes, values of at most 32767 bytes;
    the property text of a send may fill the header, so that the sender hears what is wrong with it.
 4. Encoding what was decoded gives a header that decodes to the same Command.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated

import msgspec

from shmq.errors import ProtocolError, UsageError
from shmq.protocol.codes import Codec, Language
from shmq.protocol.command import Command
from shmq.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, Frame, FrameDecoder, encode_frame
from shmq.typed_json import decoder

EXT_FIELDS_MAX = 128
EXT_KEY_BYTES_MAX = 255
EXT_VALUE_BYTES_MAX = 32767  # a full property text travels in one value
_PROPERTY_TEXTS = ("i", "properties")

_FIXED = Struct(">hBhii")  # code, language, version, opaque, flag
_KEY = Struct(">h")
_INT = Struct(">i")
_INT32_MAX = (1 << 31) - 1
_INT16_MAX = (1 << 15) - 1

_LANGUAGES: dict[int | str, Language] = {key: lang for lang in Language for key in (lang.value, lang.name)}

_Int32 = Annotated[int, msgspec.Meta(ge=-_INT32_MAX - 1, le=_INT32_MAX)]


class HeaderTooLarge(ProtocolError):
    """More than a header may hold; `command` is the request without its fields."""

    def __init__(self, reason: str, command: Command) -> None:
        super().__init__(reason)
        self.command = command


class _Excess(ProtocolError):
    """The same, where the request is not known."""


class _JsonHeader(msgspec.Struct, omit_defaults=False):
    """Field names and order are the wire's."""

    code: _Int32 = 0
    extFields: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    flag: _Int32 = 0
    language: str = Language.JAVA.name
    opaque: _Int32 = 0
    remark: str | msgspec.UnsetType | None = msgspec.UNSET
    serializeTypeCurrentRPC: str = Codec.JSON.name
    version: _Int32 = 0


class _JsonEnvelope(msgspec.Struct):
    """A header without its fields, which are passed over without a look."""

    code: _Int32 = 0
    flag: _Int32 = 0
    opaque: _Int32 = 0
    version: _Int32 = 0


class _LooseJsonHeader(msgspec.Struct):
    """A header whose field values may be anything scalar; read only when the strict form does not fit."""

    code: _Int32 = 0
    extFields: dict[str, msgspec.Raw] | None = None
    flag: _Int32 = 0
    language: str | int = Language.JAVA.name
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


_decoder = decoder(_JsonHeader)
_envelope_decoder = decoder(_JsonEnvelope)
_loose_decoder = decoder(_LooseJsonHeader)
_text_decoder = decoder(str)
_encoder = msgspec.json.Encoder()


class CommandDecoder:
    """Bytes of one peer in, commands out."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frames = FrameDecoder(frame_bytes_max=frame_bytes_max)

    @property
    def buffered_bytes(self) -> int:
        """Bytes fed and not taken."""
        return self.frames.buffered_bytes

    def feed(self, data: bytes) -> None:
        """Append bytes of the stream."""
        self.frames.feed(data)

    def take(self) -> Command | None:
        """Return the next complete command, or None until more bytes are fed.

        Raises:
            ProtocolError: the peer broke the format. A broken header leaves the framing intact, but names no request
                that could be answered, so there is no use in going on.
        """
        frame = self.frames.take()
        return decode_header(frame) if frame is not None else None


def encode_command(command: Command) -> bytes:
    """Return the frame of a command, in the header encoding it asks for.

    Raises:
        UsageError: a field that the wire cannot carry.
    """
    _check_ext(command.ext, UsageError)
    try:
        header = _encode_json(command) if command.codec == Codec.JSON else _encode_binary(command)
    except UnicodeEncodeError as error:
        raise UsageError(f"a header field holds {error.object[error.start]!a}, which UTF-8 cannot carry") from error
    return encode_frame(command.codec, header, command.body)


def decode_header(frame: Frame) -> Command:
    """Return the command of a frame.

    Raises:
        HeaderTooLarge: the header breaks a limit; the sender can get an answer.
        ProtocolError: the header is not what its encoding promises.
    """
    try:
        if len(frame.header) > HEADER_BYTES_MAX:
            raise _Excess(f"a header of {len(frame.header)} bytes; {HEADER_BYTES_MAX} are allowed")
        if frame.codec == Codec.JSON:
            return _decode_json(frame.header, frame.body)
        return _decode_binary(frame.header, frame.body)
    except _Excess as excess:
        raise HeaderTooLarge(str(excess), _envelope(frame)) from None


def _envelope(frame: Frame) -> Command:
    if frame.codec == Codec.BINARY:
        if len(frame.header) < _FIXED.size:
            raise ProtocolError(f"a binary header of {len(frame.header)} bytes; {_FIXED.size} are fixed")
        code, _, version, opaque, flag = _FIXED.unpack_from(frame.header)
        return Command(code, opaque=opaque, flag=flag, version=version, codec=Codec.BINARY)
    try:
        found = _envelope_decoder.decode(frame.header)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a JSON header: {error}") from error
    return Command(found.code, opaque=found.opaque, flag=found.flag, version=found.version, codec=Codec.JSON)


def _encode_json(command: Command) -> bytes:
    return _encoder.encode(
        _JsonHeader(
            code=command.code,
            extFields=command.ext or msgspec.UNSET,
            flag=command.flag,
            language=command.language.name,
            opaque=command.opaque,
            remark=command.remark if command.remark is not None else msgspec.UNSET,
            version=command.version,
        )
    )


def _decode_json(header: bytes, body: bytes) -> Command:
    fields: _JsonHeader | _LooseJsonHeader
    try:
        try:
            fields = _decoder.decode(header)
            ext = fields.extFields or {}
        except msgspec.ValidationError:
            fields = _loose_decoder.decode(header)
            ext = _texts(fields.extFields or {})
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a JSON header: {error}") from error
    _check_ext(ext, _Excess)
    return Command(
        code=fields.code,
        opaque=fields.opaque,
        flag=fields.flag,
        ext=ext,
        body=body,
        remark=fields.remark or None,
        language=_LANGUAGES.get(fields.language, Language.OTHER),
        version=fields.version,
        codec=Codec.JSON,
    )


def _texts(values: dict[str, msgspec.Raw]) -> dict[str, str]:
    """Return scalar values as the text that stands on the wire; null is left out."""
    if len(values) > EXT_FIELDS_MAX:
        raise _Excess(f"{len(values)} ext fields; {EXT_FIELDS_MAX} are allowed")
    ext: dict[str, str] = {}
    for key, raw in values.items():
        value = bytes(raw)
        if value.startswith(b'"'):
            ext[key] = _text_decoder.decode(value)
        elif value.startswith((b"{", b"[")):
            raise ProtocolError(f"the ext field {key[:EXT_KEY_BYTES_MAX]!a} is neither text nor a number")
        elif value != b"null":
            ext[key] = value.decode()
    return ext


def _encode_binary(command: Command) -> bytes:
    for name, number in (("code", command.code), ("version", command.version)):
        if not -_INT16_MAX - 1 <= number <= _INT16_MAX:
            raise UsageError(f"{name} {number} does not fit a binary header", hint="use the JSON encoding")
    ext = bytearray()
    for key, value in command.ext.items():
        key_bytes, value_bytes = key.encode(), value.encode()
        ext += _KEY.pack(len(key_bytes)) + key_bytes + _INT.pack(len(value_bytes)) + value_bytes
    remark = (command.remark or "").encode()
    fixed = _FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag)
    return b"".join((fixed, _INT.pack(len(remark)), remark, _INT.pack(len(ext)), ext))


def _decode_binary(header: bytes, body: bytes) -> Command:
    if len(header) < _FIXED.size:
        raise ProtocolError(f"a binary header of {len(header)} bytes; {_FIXED.size} are fixed")
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    remark, position = _take(header, _FIXED.size, _INT, len(header))
    ext_bytes, position = _take(header, position, _INT, len(header))
    if position != len(header):
        raise ProtocolError(f"{len(header) - position} bytes behind a binary header")
    ext = _short_fields(ext_bytes)
    if ext is None:
        ext = _any_fields(ext_bytes)
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        ext=ext,
        body=body,
        remark=_text(remark) or None,
        language=_LANGUAGES.get(language, Language.OTHER),
        version=version,
        codec=Codec.BINARY,
    )


def _short_fields(data: bytes) -> dict[str, str] | None:
    """Read ext fields of which nothing needs a second look: few, short, and in ASCII; None where one does.

    Every pull passes here, and half its time in the broker was the reading of its header.
    """
    if len(data) > EXT_VALUE_BYTES_MAX or not data.isascii():
        return None
    text, end, position = data.decode("ascii"), len(data), 0
    key_bytes, value_bytes = _KEY.unpack_from, _INT.unpack_from
    ext: dict[str, str] = {}
    for _ in range(EXT_FIELDS_MAX):
        if position + 6 >= end:
            break
        (count,) = key_bytes(data, position)
        value_at = position + 2 + count + 4
        if not 0 < count <= EXT_KEY_BYTES_MAX or value_at > end:
            return None
        key = text[position + 2 : value_at - 4]
        (count,) = value_bytes(data, value_at - 4)
        position = value_at + count
        if count < 0 or position > end:
            return None
        ext[key] = text[value_at:position]
    return ext if position == end else None


def _any_fields(data: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    position = 0
    for _ in range(EXT_FIELDS_MAX + 1):
        if position == len(data):
            break
        key, position = _take(data, position, _KEY, EXT_KEY_BYTES_MAX)
        value, position = _take(data, position, _INT, HEADER_BYTES_MAX)
        ext[_text(key)] = _text(value)
    else:
        raise _Excess(f"more than {EXT_FIELDS_MAX} ext fields")
    _check_ext(ext, _Excess)
    return ext


def _take(data: bytes, position: int, length: Struct, bytes_max: int) -> tuple[bytes, int]:
    """Read a length and that many bytes; the length is judged before a byte is touched."""
    start = position + length.size
    if start > len(data):
        raise ProtocolError(f"a length field at byte {position} of a part of {len(data)} bytes")
    (count,) = length.unpack_from(data, position)
    if not 0 <= count <= min(bytes_max, len(data) - start):
        raise ProtocolError(
            f"length {count} at byte {position}; {len(data) - start} bytes follow, {bytes_max} are allowed"
        )
    return data[start : start + count], start + count


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a header field is not UTF-8 at its byte {error.start}") from error


def _check_ext(ext: dict[str, str], error: type[ProtocolError] | type[UsageError]) -> None:
    """Hold both encodings and both directions to the same limits."""
    if len(ext) > EXT_FIELDS_MAX:
        raise error(f"{len(ext)} ext fields; {EXT_FIELDS_MAX} are allowed")
    # A character takes at most four bytes, so most keys and values need no encoding to be judged.
    for key, value in ext.items():
        is_short = 4 * len(key) <= EXT_KEY_BYTES_MAX or len(key.encode(errors="replace")) <= EXT_KEY_BYTES_MAX
        if not key or not is_short:
            raise error(f"an ext key of {len(key)} characters; 1 to {EXT_KEY_BYTES_MAX} bytes are allowed")
        if 4 * len(value) <= EXT_VALUE_BYTES_MAX or key in _PROPERTY_TEXTS:
            continue
        if len(value.encode(errors="replace")) > EXT_VALUE_BYTES_MAX:
            raise error(f"the ext field {key!a} is longer than {EXT_VALUE_BYTES_MAX} bytes")
