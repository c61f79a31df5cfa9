"""RocketMQ's dialect of JSON: maps whose keys are numbers or objects, without quotes.

    {"offsetTable":{0:15,1:7}}                                               keys that are numbers
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{...}}}       keys that are objects

Everything else is standard JSON, written compact and with sorted names, because clients of RocketMQ cut some bodies
apart by hand. The reader also takes single quotes and bare names, as RocketMQ's own reader does.

Invariants:
 1. Reading gives a value or a ProtocolError; nesting deeper than `DEPTH_MAX` and numbers beyond 64 bits are refused.
 2. `loads(dumps(v)) == v` for values made of dict, list, str, int, bool, None, finite float and MessageQueue keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shmq.errors import ProtocolError, UsageError
from shmq.typed_json import convert_plain

DEPTH_MAX = 64

_INT64_DIGITS_MAX = 20
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![0-9A-Za-z_.])")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = {quote: re.compile(rf"[^\\{quote}\x00-\x1f]*") for quote in "\"'"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}
_WORDS = {"true": True, "false": False, "null": None}

_encoder = msgspec.json.Encoder(order="sorted")


class MessageQueue(msgspec.Struct, frozen=True, order=True):
    """One queue of one topic on one broker; RocketMQ uses it as the key of maps."""

    brokerName: str
    queueId: int
    topic: str


_MESSAGE_QUEUE_FIELDS = set(MessageQueue.__struct_fields__)


def dumps(value: Any) -> bytes:
    """Return a value in the dialect, compact, names sorted. Structs are written as objects.

    Raises:
        UsageError: a type the dialect cannot carry.
    """
    try:
        return b"".join(_pieces(value))
    except (TypeError, UnicodeEncodeError) as error:
        raise UsageError(f"no JSON for this value: {error}") from error


def _pieces(value: Any) -> list[bytes]:
    if isinstance(value, Mapping):
        pieces = [b"{"]
        for key in _sorted_keys(value):
            pieces += (_key(key), b":", *_pieces(value[key]), b",")
        return [*(pieces[:-1] if len(pieces) > 1 else pieces), b"}"]
    if isinstance(value, (list, tuple)):
        pieces = [b"["]
        for item in value:
            pieces += (*_pieces(item), b",")
        return [*(pieces[:-1] if len(pieces) > 1 else pieces), b"]"]
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is no JSON number")
    return [_encoder.encode(value)]


def _sorted_keys(value: Mapping[Any, Any]) -> list[Any]:
    """Sort by kind first: numbers and names in one map are legal and cannot be compared."""
    return sorted(value, key=lambda key: (type(key).__name__, key))


def _key(key: Any) -> bytes:
    if isinstance(key, bool) or not isinstance(key, (str, int, MessageQueue)):
        raise TypeError(f"a map key of type {type(key).__name__}")
    return _encoder.encode(key)


def loads(data: bytes) -> Any:
    """Return the value of a body in the dialect. Objects become dicts; a key that was an object a MessageQueue.

    Raises:
        ProtocolError: not the dialect, too deep, or a number too long.
    """
    try:
        reader = _Reader(data.decode())
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the body is not UTF-8 at its byte {error.start}") from error
    value = reader.value(0)
    reader.skip_space()
    if reader.position != len(reader.text):
        raise reader.error("more behind the value")
    return value


class _Reader:
    """Recursive descent over one text; every method leaves `position` behind what it read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def error(self, what: str) -> ProtocolError:
        return ProtocolError(f"JSON at character {self.position}: {what}")

    def skip_space(self) -> None:
        self.position = self._end(_SPACE)

    def value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self.error(f"nested deeper than {DEPTH_MAX}")
        start = self._peek()
        if start == "{":
            return self._object(depth)
        if start == "[":
            return self._list(depth)
        if start in ('"', "'"):
            return self._string(start)
        if start == "-" or start.isdigit():
            return self._number()
        name = self._name()
        if name not in _WORDS:
            raise self.error(f"{name!r} is no value")
        return _WORDS[name]

    def _object(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}

        def entry() -> None:
            key = self._object_key(depth)
            self._expect(":")
            found[key] = self.value(depth + 1)

        self._items("}", entry)
        return found

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._items("]", lambda: found.append(self.value(depth + 1)))
        return found

    def _items(self, closing: str, item: Callable[[], None]) -> None:
        """Read what stands between the bracket at `position` and its partner, separated by commas."""
        self.position += 1
        if self._peek() == closing:
            self.position += 1
            return
        while True:
            item()
            if self._peek() == closing:
                self.position += 1
                return
            self._expect(",")

    def _object_key(self, depth: int) -> str | int | MessageQueue:
        start = self._peek()
        if start in ('"', "'"):
            return self._string(start)
        if start == "-" or start.isdigit():
            number = self._number()
            if isinstance(number, int):
                return number
            raise self.error("a fraction as a key")
        if start != "{":
            return self._name()
        fields = self.value(depth + 1)
        if set(fields) != _MESSAGE_QUEUE_FIELDS:
            raise self.error("an object as a key that is no message queue")
        try:
            return convert_plain(fields, MessageQueue)
        except msgspec.ValidationError as error:
            raise self.error(f"a message queue as a key: {error}") from error

    def _string(self, quote: str) -> str:
        self.position += 1
        pieces: list[str] = []
        while True:
            end = self._end(_PLAIN[quote])
            pieces.append(self.text[self.position : end])
            self.position = end
            stop = self.text[end : end + 1]
            if stop == quote:
                self.position += 1
                return "".join(pieces)
            if stop != "\\":
                raise self.error("an open string or a control character in it")
            pieces.append(self._escape())

    def _escape(self) -> str:
        letter = self.text[self.position + 1 : self.position + 2]
        if letter in _ESCAPES:
            self.position += 2
            return _ESCAPES[letter]
        high = self._code_unit()
        if 0xDC00 <= high < 0xE000:
            raise self.error("the second half of a surrogate pair without the first")
        if not 0xD800 <= high < 0xDC00:
            return chr(high)
        low = self._code_unit()
        if not 0xDC00 <= low < 0xE000:
            raise self.error("the first half of a surrogate pair without the second")
        return chr(0x10000 + (high - 0xD800 << 10) + (low - 0xDC00))

    def _code_unit(self) -> int:
        digits = self.text[self.position + 2 : self.position + 6]
        if self.text[self.position : self.position + 2] != "\\u" or not re.fullmatch("[0-9a-fA-F]{4}", digits):
            raise self.error("an unknown escape")
        self.position += 6
        return int(digits, 16)

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.position)
        if match is None:
            raise self.error("no number")
        self.position = match.end()
        if match.group(1) is None and match.group(2) is None:
            # The text is bounded before int() sees it: its cost grows with the square of the digits.
            number = int(match.group()) if len(match.group()) <= _INT64_DIGITS_MAX else 1 << 63
            if not -(1 << 63) <= number < 1 << 63:
                raise self.error("a number beyond 64 bits")
            return number
        fraction = float(match.group())
        if not math.isfinite(fraction):
            raise self.error("a number beyond every float")
        return fraction

    def _name(self) -> str:
        end = self._end(_NAME)
        name = self.text[self.position : end]
        if not name:
            raise self.error("no value or key")
        self.position = end
        return name

    def _peek(self) -> str:
        self.skip_space()
        return self.text[self.position : self.position + 1]

    def _expect(self, letter: str) -> None:
        if self._peek() != letter:
            raise self.error(f"{letter!r} is missing")
        self.position += 1

    def _end(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.position)
        return match.end() if match is not None else self.position
