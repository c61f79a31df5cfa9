"""Owns the files of this directory: one captured frame each, with where it came from and what it says.

It does not know shmq's codec: what a frame says was read by the few lines at the end, independently of it, so that the
tests compare two readers.

    # client: …            lines that tell how the frame was captured
    # expects: {…}         code, opaque, flag, language, version, remark, ext as JSON; body as its length
    hex digits, 32 bytes a line
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SUFFIX = ".frame"
_LINE_BYTES = 32
LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO")


@dataclass(frozen=True)
class Captured:
    """One frame; `data` is all of it, from its length on."""

    name: str
    notes: dict[str, str]
    expects: dict[str, Any]
    data: bytes

    @property
    def is_reply(self) -> bool:
        """Whether it answers a request."""
        return bool(self.expects["flag"] & 1)


def read_all() -> list[Captured]:
    """Return every captured frame, sorted by name."""
    return [_read(path) for path in sorted(HERE.glob(f"*{SUFFIX}"))]


def _read(path: Path) -> Captured:
    notes: dict[str, str] = {}
    digits: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            key, _, value = line[2:].partition(": ")
            notes[key] = value
        else:
            digits.append(line)
    return Captured(path.stem, notes, json.loads(notes.pop("expects")), bytes.fromhex("".join(digits)))


def write(name: str, notes: dict[str, str], data: bytes) -> None:
    """Keep a frame."""
    lines = [f"# {key}: {value}" for key, value in notes.items()]
    lines.append(f"# expects: {json.dumps(expectation(data), sort_keys=True)}")
    lines += [data[at : at + _LINE_BYTES].hex() for at in range(0, len(data), _LINE_BYTES)]
    (HERE / f"{name}{SUFFIX}").write_text("\n".join(lines) + "\n")


def expectation(data: bytes) -> dict[str, Any]:
    """Return what a frame of a stock peer says."""
    _, packed = struct.unpack_from(">iI", data)
    header = data[8 : 8 + (packed & 0xFFFFFF)]
    found = _json(header) if packed >> 24 == 0 else _binary(header)
    return found | {"body_bytes": len(data) - 8 - len(header)}


def _json(header: bytes) -> dict[str, Any]:
    fields = json.loads(header)
    ext = fields.get("extFields") or {}
    return {
        "codec": "JSON",
        "code": fields["code"],
        "opaque": fields["opaque"],
        "flag": fields["flag"],
        "language": fields["language"],
        "version": fields["version"],
        "remark": fields.get("remark") or None,
        "ext": {name: value if isinstance(value, str) else json.dumps(value) for name, value in ext.items()},
    }


def _binary(header: bytes) -> dict[str, Any]:
    code, language, version, opaque, flag, remark_bytes = struct.unpack_from(">hBhiii", header)
    remark, rest = header[17 : 17 + remark_bytes], header[17 + remark_bytes + 4 :]
    ext: dict[str, str] = {}
    while rest:
        (key_bytes,) = struct.unpack_from(">h", rest)
        (value_bytes,) = struct.unpack_from(">i", rest, 2 + key_bytes)
        value = rest[6 + key_bytes : 6 + key_bytes + value_bytes]
        ext[rest[2 : 2 + key_bytes].decode()] = value.decode()
        rest = rest[6 + key_bytes + value_bytes :]
    return {
        "codec": "BINARY",
        "code": code,
        "opaque": opaque,
        "flag": flag,
        "language": LANGUAGES[language],
        "version": version,
        "remark": remark.decode() or None,
        "ext": ext,
    }
