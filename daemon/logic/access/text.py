"""The subset of YAML that access files are written in, as strings, lists and dictionaries.

    block lists and maps by indentation, flow lists of plain values, quotes, comments; every value is text

What YAML has beyond that (anchors, tags, block text, flow maps, several documents) is refused with its line, because a
file of permissions must mean what a reader sees in it.
"""

import re
from typing import Any, NamedTuple

from shmq.errors import UsageError

DEPTH_MAX = 8

_KEY = re.compile(r"(?P<key>[A-Za-z0-9_.-]+):(?:\s+(?P<rest>.*))?")
_DOUBLE = re.compile(r'"(?P<text>[^"\\]*)"')
_SINGLE = re.compile(r"'(?P<text>(?:[^']|'')*)'")
_COMMENT = re.compile(r"(^|\s)#.*$")
_REFUSED_STARTS = ("&", "!", "|", ">", "{", "}", "]", "%", "@", "`")


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def read_access_text(text: str) -> Any:
    """Return the value of the text; None when it is empty.

    Raises:
        UsageError: a line that is not of the subset.
    """
    lines = [line for number, raw in enumerate(text.splitlines(), 1) if (line := _line(number, raw)) is not None]
    if not lines:
        return None
    reader = _Reader(lines)
    value = reader.block(lines[0].indent, 0)
    if reader.position < len(lines):
        raise _wrong(lines[reader.position], "its indentation fits nothing above it")
    return value


def _line(number: int, raw: str) -> _Line | None:
    stripped = raw.strip()
    if not stripped or stripped.startswith("#") or (number == 1 and stripped == "---"):
        return None
    indent = len(raw) - len(raw.lstrip(" "))
    line = _Line(number, indent, stripped)
    if "\t" in raw[: len(raw) - len(raw.lstrip())]:
        raise _wrong(line, "it is indented with a tab")
    return line


def _wrong(line: _Line, what: str) -> UsageError:
    # The text itself stays out: it may hold a secret key.
    return UsageError(f"line {line.number}: {what}")


class _Reader:
    """Recursive descent over the lines."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self.position = 0

    def _here(self, indent: int) -> _Line | None:
        line = self._lines[self.position] if self.position < len(self._lines) else None
        return line if line is not None and line.indent == indent else None

    def block(self, indent: int, depth: int) -> Any:
        """Read the list, map or value that starts here."""
        line = self._lines[self.position]
        if depth > DEPTH_MAX:
            raise _wrong(line, f"it is nested deeper than {DEPTH_MAX}")
        if _is_item(line):
            return self._list(indent, depth)
        if _KEY.fullmatch(line.text):
            return self._map(indent, depth)
        self.position += 1
        return _value(line, line.text)

    def _list(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while (line := self._here(indent)) is not None and _is_item(line):
            rest = line.text[1:].lstrip()
            if _COMMENT.sub("", rest):
                # What stands behind the dash is a block of its own, as deep as it stands.
                inner = indent + len(line.text) - len(rest)
                self._lines[self.position] = _Line(line.number, inner, rest)
                found.append(self.block(inner, depth + 1))
            else:
                self.position += 1
                found.append(self._deeper(indent, depth))
        return found

    def _map(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (line := self._here(indent)) is not None and not _is_item(line):
            match = _KEY.fullmatch(line.text)
            if match is None:
                raise _wrong(line, "neither a name with a colon nor an item")
            if match["key"] in found:
                raise _wrong(line, f"{match['key']} stands there twice")
            self.position += 1
            rest = _COMMENT.sub("", match["rest"] or "").strip()
            found[match["key"]] = _value(line, match["rest"]) if rest else self._under(indent, depth)
        return found

    def _under(self, indent: int, depth: int) -> Any:
        """What belongs to a name: a deeper block, or a list at its own depth."""
        line = self._here(indent)
        if line is not None and _is_item(line):
            return self._list(indent, depth + 1)
        return self._deeper(indent, depth)

    def _deeper(self, indent: int, depth: int) -> Any:
        line = self._lines[self.position] if self.position < len(self._lines) else None
        return self.block(line.indent, depth + 1) if line is not None and line.indent > indent else None


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _value(line: _Line, text: str) -> Any:
    text = text.strip()
    for pattern in (_DOUBLE, _SINGLE):
        match = pattern.match(text)
        if match is not None and not _COMMENT.sub("", text[match.end() :]).strip():
            return match["text"].replace("''", "'") if pattern is _SINGLE else match["text"]
    plain = _COMMENT.sub("", text).strip()
    if plain.startswith("[") and plain.endswith("]"):
        inner = plain[1:-1].strip()
        if "[" in inner or "]" in inner:
            raise _wrong(line, "a list within a list")
        return [_value(line, part) for part in inner.split(",")] if inner else []
    if not plain or plain.startswith((*_REFUSED_STARTS, "[", '"', "'")):
        raise _wrong(line, "a value of a form that is not read here")
    return plain
