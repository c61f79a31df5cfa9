"""`shmq query`: SQL over topics, run by DuckDB straight on the broker's segments.

Invariants:
1. Nothing is consumed, and nothing of the broker is changed.
2. With --jsonl and -o csv rows leave as they come; a table and --json need all of them first.
3. What a body holds cannot steer the reader's terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import click

from shmq.client.position import parse_moment
from shmq.errors import UsageError
from shmq.figures.quantity import plural
from shmq.tools.broker.memory import open_memory
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.terminal.output import Column, json_line, printable
from shmq.tools.terminal.standard_input import stdin_text

if TYPE_CHECKING:
    from shmq.tools.messages.topic_tables import TopicTables

_ROWS: Final = 1000
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "HUGEINT", "UINT", "UBIGINT", "DECIMAL", "DOUBLE", "FLOAT")
Columns = list[tuple[str, str]]


@click.command(cls=Command, short_help="SQL over topics.")
@click.argument("sql", metavar="QUERY")
@click.option("--since", metavar="TIME", help="Only messages stored then or later: -1h, or an ISO time.")
@click.option("--until", metavar="TIME", help="Only messages stored before.")
@pass_call
def query(call: Call, sql: str, since: str | None, until: str | None) -> None:
    """Run a query of DuckDB whose tables are topics; - reads it from stdin. Needs: pip install 'shmq[sql]'.

    \b
    shmq query "select tags, count(*) from orders group by tags"
    shmq query 'select decode(body) from "%DLQ%billing" limit 10'
    shmq query "copy (from orders) to 'orders.parquet'"
    """
    asked = stdin_text() if sql == "-" else sql
    if not asked.strip():
        raise UsageError("there is no query", hint='shmq query "select count(*) from TOPIC"')
    call.refuse_remote(
        "{url} is reached over TCP, and topics are queried in the broker's memory",
        hint="run it on the broker's host, with -u shmq://NAME",
    )
    kind = _tables()
    start, end = (None if text is None else _moment(text) for text in (since, until))
    with open_memory(call.url) as memory, closing(kind(memory, start or "earliest", end or "latest")) as tables:
        call.terminal.note(f"DuckDB runs: {asked.strip()}")
        _show(call, tables, asked)


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(parse_moment(text) / 1000, UTC)


def _tables() -> type[TopicTables]:
    try:
        from shmq.tools.messages.topic_tables import TopicTables
    except ImportError as error:
        raise UsageError(f"shmq query needs DuckDB and pyarrow: {error}", hint="pip install 'shmq[sql]'") from error
    return TopicTables


def _show(call: Call, tables: TopicTables, text: str) -> None:
    columns, batches = tables.run(text, _ROWS)
    names, terminal, count = _unique([name for name, _ in columns]), call.terminal, 0
    if terminal.style.form in ("jsonl", "csv"):
        for batch in batches:
            rows = [dict(zip(names, map(json_value, row), strict=True)) for row in batch]
            terminal.document(rows, rows=rows)
            count += len(rows)
    elif terminal.structured:
        rows = [dict(zip(names, map(json_value, row), strict=True)) for batch in batches for row in batch]
        kinds = [{"name": name, "type": kind} for name, (_, kind) in zip(names, columns, strict=True)]
        terminal.document({"columns": kinds, "rows": rows})
    else:
        lines = [[cell_text(value) for value in row] for batch in batches for row in batch]
        if columns:
            heads = [
                Column(printable(name.encode()), right=kind.startswith(_NUMBERS) or "INT" in kind)
                for name, kind in columns
            ]
            terminal.table(heads, lines)
        count = len(lines)
    terminal.say(plural(count, "row"))


def _head(name: str, kind: str) -> Column:
    return Column(printable(name.encode("utf-8", "surrogateescape")), right=kind.startswith(_NUMBERS))


def _unique(names: Sequence[str]) -> list[str]:
    """Names of which none comes twice: a, a_2, a_3."""
    found: list[str] = []
    for name in names:
        number, made = 1, name
        while made in found:
            number += 1
            made = f"{name}_{number}"
        found.append(made)
    return found


def json_value(value: Any) -> Any:
    """Return a value of DuckDB as JSON carries it.

    Bytes that are UTF-8 become text, others {"base64": …}; times with a zone are UTC; what JSON has no number for, such
    as NaN and decimals with a fraction, is text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_or_base64(bytes(value))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    return [json_value(item) for item in value] if isinstance(value, list | tuple) else str(value)


def _text_or_base64(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


def cell_text(value: Any) -> str:
    """Return a value of DuckDB as a cell of a table, on one line and without control characters."""
    if value is None:
        return "–"
    if isinstance(value, bytes | bytearray | memoryview):
        return printable(bytes(value)).replace("\t", "\\t")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    text = json_line(json_value(value)) if isinstance(value, dict | list | tuple) else str(value)
    return printable(text.encode("utf-8", "surrogateescape")).replace("\t", "\\t")
