"""A command's output: data goes to stdout, everything said about it to stderr, never mixed.

    form     document(value, rows)                       say, note, warn
    text     the caller prints tables                    stderr, unless -q
    wide     as text, tables with all their columns      stderr, unless -q
    json     value, indented                             silent: stderr carries at most one JSON error object
    jsonl    each row, or value, on one line             silent
    csv      each row, or value, under one line of names stderr, unless -q

Invariants:
1. Nothing but data is ever written to stdout.
2. Colour and progress appear on terminals only, and never with NO_COLOR; FORCE_COLOR forces colour, not progress.
3. A reader that closes its end of the pipe ends the command quietly (`ReaderGone`).
4. A stdout that takes no more, as on a full disk, ends it with an error (`OutputLost`); what is said to a stderr like
   that is lost, and the command goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar

from shmq.errors import ShmqError, StoreError
from shmq.tools.terminal.exit_code import exit_code_of
from shmq.tools.terminal.width import padded, width_of

Thing = TypeVar("Thing")


class ReaderGone(Exception):
    """The reader of our stdout has closed it; nothing is left to write for."""


class OutputLost(Exception):
    """Our stdout takes no more; `__cause__` says why."""


@dataclass
class Style:
    """The style of this call's output: set by the global options."""

    form: str = "text"  # text, wide, json, jsonl or csv
    quiet: bool = False
    verbose: int = 0
    color: bool = True
    csv_names: tuple[str, ...] = ()  # the names already written above the rows


@dataclass(frozen=True)
class Column:
    """Head of one table column; numbers are set flush right, `wide` ones appear only where they are asked for."""

    title: str
    right: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Field(Generic[Thing]):
    """One column of a table of things: its head as in `Column`, and how its cell is made of a thing."""

    title: str
    text: Callable[[Thing], str]
    right: bool = False
    wide: bool = False


class Terminal:
    """The stdout and stderr of one call.

    Streams are looked up at each use, because tests and `--detach` replace them.
    """

    def __init__(self, style: Style) -> None:
        self.style = style

    @property
    def structured(self) -> bool:
        """Whether the caller asked for data that programs read."""
        return self.style.form not in ("text", "wide")

    @property
    def _json(self) -> bool:
        return self.style.form in ("json", "jsonl")

    def document(self, value: Any, rows: Iterable[Any] | None = None) -> None:
        """Write `value` as one JSON document, or as lines of JSON or CSV: one for each of `rows` when given."""
        if self.style.form == "csv":
            self._csv([value] if rows is None else list(rows))
        elif self.style.form == "jsonl":
            lines = [value] if rows is None else rows
            self.data("".join(json_line(line) + "\n" for line in lines))
        else:
            import json

            self.data(json.dumps(value, ensure_ascii=False, indent=2) + "\n")

    def _csv(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            names, head = self.style.csv_names or tuple(rows[0]), not self.style.csv_names
            self.style.csv_names = names
            self.data(csv_text(names, rows, head=head))

    def data(self, text: str) -> None:
        """Write text to stdout; bytes that were no UTF-8 leave as they came."""
        self.write(text.encode("utf-8", "surrogateescape"))

    def write(self, data: bytes) -> None:
        """Write bytes to stdout and hand them to the reader now."""
        try:
            stream = sys.stdout.buffer
            stream.write(data)
            stream.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            raise OutputLost from error

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Write aligned columns under upper-case titles; nothing is cut off."""
        kept = [index for index, column in enumerate(columns) if not column.wide or self.style.form == "wide"]
        columns = [columns[index] for index in kept]
        lines = [[row[index] for index in kept] for row in rows]
        widths = [
            max([width_of(column.title), *(width_of(line[index]) for line in lines)])
            for index, column in enumerate(columns)
        ]
        head = _aligned([_upper(column.title) for column in columns], columns, widths)
        text = [self._styled(head, "1", sys.stdout)]
        text += [_aligned(line, columns, widths) for line in lines]
        self.data("\n".join(text) + "\n")

    def listing(self, fields: Sequence[Field[Thing]], things: Iterable[Thing]) -> None:
        """Write a table with one line for each thing."""
        columns = [Column(field.title, field.right, field.wide) for field in fields]
        self.table(columns, [[field.text(thing) for field in fields] for thing in things])

    def answer(self, value: Any, rows: Iterable[Any] | None = None, *, text: Callable[[], None]) -> None:
        """Write the document for programs, or let `text` write for people."""
        if self.structured:
            self.document(value, rows)
        else:
            text()

    def report(self, value: Any, rows: Iterable[Any] | None = None) -> None:
        """Write the document for programs; the text for people was written before."""
        if self.structured:
            self.document(value, rows)

    def line(self, text: str = "") -> None:
        """Write one line of text for people to stdout."""
        self.data(text + "\n")

    def say(self, text: str) -> None:
        """Talk on stderr, unless the caller wants quiet or JSON."""
        if not self.style.quiet and not self._json:
            self._talk(text)

    def note(self, text: str) -> None:
        """Talk on stderr, but only with -v."""
        if self.style.verbose:
            self.say(text)

    def warn(self, text: str) -> None:
        """Say what is suspicious without being an error."""
        self.say(self._styled("warning: ", "33", sys.stderr) + text)

    def fail(self, error: BaseException, status: int | None = None) -> int:
        """Report the error that ends this call on stderr; return its exit status, or the one given."""
        status = int(exit_code_of(error)) if status is None else status
        hint = getattr(error, "hint", "") or ""
        if self._json:
            self._end_with(json_line(error_document(error, status)))
            return status
        text = str(error).removesuffix(f"; {hint}") if hint else str(error)  # Spark's users see the text only
        lines = [self._styled("error: ", "1;31", sys.stderr) + (text or type(error).__name__)]
        if hint:
            lines.append(f"  do    {hint}")
        if self.style.verbose and isinstance(error, ShmqError):
            lines.append(f"  see   {error.doc_url}")
        self._end_with("\n".join(lines))
        return status

    def on_terminal(self, stream: IO[str] | None = None) -> bool:
        """Whether people watch this stream; stdout unless one is given."""
        try:
            return (stream or sys.stdout).isatty()
        except ValueError:  # closed
            return False

    def colored(self, stream: IO[str]) -> bool:
        """Whether escape sequences may be written to the stream."""
        if not self.style.color or "NO_COLOR" in os.environ:
            return False
        return bool(os.environ.get("FORCE_COLOR")) or self.on_terminal(stream)

    def wants_progress(self) -> bool:
        """Whether a progress bar may be drawn: on a terminal, and without --quiet."""
        return not self.style.quiet and not self.structured and self.on_terminal(sys.stderr)

    def _styled(self, text: str, code: str, stream: IO[str]) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colored(stream) else text

    def _end_with(self, text: str) -> None:
        """Say the last word, whose status counts also where no reader is left."""
        with contextlib.suppress(ReaderGone):
            self._talk(text)

    def _talk(self, text: str) -> None:
        try:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            forget(sys.stderr)
            raise ReaderGone from None
        except OSError:
            forget(sys.stderr)


def forget(stream: IO[str]) -> None:
    """Point a stream at nothing, or the interpreter complains about what it cannot write when it flushes at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def output_lost(error: OSError) -> StoreError:
    """Return what to say when stdout has taken no more."""
    return StoreError(
        f"stdout takes no more: {error.strerror}", hint="make room where it is written to, then run the command again"
    )


def json_line(value: Any) -> str:
    """Return the value as JSON on one line."""
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def csv_text(names: Sequence[str], rows: Iterable[dict[str, Any]], *, head: bool) -> str:
    """Return rows as lines of CSV, under their names if `head`; fields without a name are left out."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    if head:
        writer.writeheader()
    writer.writerows({name: _csv_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    """A list of plain values becomes words; what is nested deeper stays JSON."""
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return json_line(value) if isinstance(value, dict | list) else value


def error_document(error: BaseException, status: int) -> dict[str, Any]:
    """Return what a failed call writes to stderr in JSON mode."""
    known = error if isinstance(error, ShmqError) else ShmqError("")
    return {
        "code": known.code,
        "error": str(error) or type(error).__name__,
        "hint": known.hint,
        "type": type(error).__name__,
        "retryable": known.retryable,
        "exit": status,
    }


def printable(data: bytes) -> str:
    """Return bytes as text that cannot steer a terminal: control characters and broken UTF-8 become escapes."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\t" else _escaped(character) for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _upper(title: str) -> str:
    return title.replace("µ", "u").upper()  # the micro sign would become a Greek capital letter


def _aligned(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = [
        padded(cell, width, right=column.right) for cell, column, width in zip(cells, columns, widths, strict=True)
    ]
    return "  ".join(parts).rstrip()
