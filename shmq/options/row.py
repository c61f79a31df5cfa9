"""One row of a table of options: what a setting is, and what people call it.

    field of the dataclass      file_bytes: int = option(1 << 30, "Size of a file.", name="file-size", value="SIZE")
    command line                --file-size SIZE   Size of a file.  [1G]
    configuration file          file-size = "1G"
    between our processes       {"file_bytes": 1073741824}

A row is the metadata of a field. One without help is a setting that people cannot give.

Rules: (1) the default is always allowed, even outside the range: it may stand for "none"; (2) a flag is named for what
it changes: a setting that is true by default is switched off by `no-…`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shmq.errors import UsageError

_ROW = "shmq.options.row"
_PATHS = frozenset({"FILE", "DIRECTORY"})
_SIZES = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k"))


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: its help, names and bounds.

    Attributes:
        help: one line for people.
        name: on the command line, behind the dashes, and in a file; that of the field, if no other is given.
        value: what stands for its value in the help. SIZE and TIME are amounts with a unit, of a field that counts
            bytes or milliseconds; FILE and DIRECTORY are paths, absolute in the field.
        shown: its default, in words for people.
        within: the least and the most.
        field: its name in the dataclass, and in JSON.
    """

    default: Any
    help: str = ""
    name: str = ""
    value: str = ""
    shown: str = ""
    within: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()
    field: str = ""

    @property
    def parameter(self) -> str:
        """Python's name of the option of the command line."""
        return self.name.replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Whether the option has no value: it stands for the other one than the default."""
        return isinstance(self.default, bool)

    @property
    def is_path(self) -> bool:
        """Whether the setting is a path."""
        return self.value in _PATHS

    def again(self) -> Any:
        """Return a field of another dataclass that is the same option."""
        return field(default=self.default, metadata={_ROW: self})

    def check(self, value: Any) -> None:
        """Take a value of the setting.

        Raises:
            UsageError: it is none of the choices, outside the range, or no absolute path.
        """
        if self.choices and value not in self.choices:
            raise UsageError(f"{self.field} is {value!r}, one of {', '.join(self.choices)} is known")
        if self.within is not None:
            least, most = self.within
            if type(value) is not int or not (least <= value <= most or value == self.default):
                raise UsageError(f"{self.field} is {value!r}, from {least} to {most} is possible")
        if self.is_path and value and not Path(value).is_absolute():
            raise UsageError(f"{self.field} is {value!r}, an absolute path is needed")


def option(
    default: Any,
    help: str,
    *,
    name: str = "",
    value: str = "",
    shown: str | None = None,
    within: tuple[int, int] | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Return a field that people can set; its option has the name of the field if no other is given."""
    shown = _shown(default, value) if shown is None else shown
    return Row(default, help, name, value, shown, within, choices).again()


def internal(default: Any, *, within: tuple[int, int] | None = None, choices: tuple[str, ...] = ()) -> Any:
    """Return a field that only tests and our own processes set."""
    return Row(default, within=within, choices=choices).again()


def rows_of(kind: Any) -> list[Row]:
    """Return the rows of a dataclass of options, in the order of its fields."""
    return [
        replace(row, field=each.name, name=row.name or each.name.replace("_", "-"))
        for each in fields(kind)
        if (row := each.metadata.get(_ROW)) is not None
    ]


def named_rows(kind: Any) -> dict[str, Row]:
    """Return the rows that people can set, by their names."""
    return {row.name: row for row in rows_of(kind) if row.help}


def settings_in(kind: Any, text: str) -> dict[str, Any]:
    """Return the fields that a JSON object names.

    Raises:
        UsageError: the text is no JSON object, or names a setting that does not exist.
    """
    try:
        data: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the options are not JSON: {error}") from error
    known = {each.name for each in fields(kind)}
    if not isinstance(data, dict) or not data.keys() <= known:
        unknown = sorted(data.keys() - known) if isinstance(data, dict) else [type(data).__name__]
        raise UsageError(f"there is no such option: {', '.join(unknown)}")
    return data


def _shown(default: Any, value: str) -> str:
    if isinstance(default, bool):
        return ""
    if value == "SIZE":
        return next(f"{default // size}{unit}" for size, unit in _SIZES if default % size == 0)
    return f"{default}ms" if value == "TIME" else str(default)
