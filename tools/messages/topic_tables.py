"""Topics as tables of DuckDB, and what DuckDB refuses as errors of ours.

    query ─▶ names of tables in it ─▶ those that are topics are registered, with their ranges fixed
    scan  ─▶ the columns it needs, and no others, out of the segments

Invariants:
    1. All tables of a query are fixed before it begins: what comes meanwhile is in none of them, and a topic that is
       read twice shows the same messages both times.
    2. Nothing but topics, what the query makes, and files that it names can be read: no variable of this program.
    3. What stops the reading of a topic is raised as it was, and not as the text that DuckDB makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb
from pyarrow.dataset import Dataset, Scanner

from shmq.client.batches import TopicPlan, wish_of
from shmq.client.position import PositionLike
from shmq.errors import ShmqError, UsageError
from shmq.message import missing_topic
from shmq.shm.core import columns_names

if TYPE_CHECKING:
    from shmq.tools.broker.memory import Memory

_CURES = (
    (duckdb.ParserException, 'see https://duckdb.org/docs/stable/sql/introduction, and quote names: "%RETRY%group"'),
    (
        duckdb.BinderException,
        "columns: shmq query 'describe TOPIC'; text of a body: decode(body), its size: octet_length",
    ),
    (duckdb.OutOfMemoryException, "select fewer columns, aggregate, or begin the query with: set memory_limit='8GB';"),
)


class TopicTable(Dataset):  # type: ignore[misc]
    """A topic as DuckDB scans it: it says which columns it wants, and may scan again."""

    def __init__(self, plan: TopicPlan) -> None:
        self._plan = plan
        self.failure: ShmqError | None = None

    @property
    def schema(self) -> Any:
        """All columns of a topic."""
        return self._plan.schema(columns_names())

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_settings: Any) -> Any:
        """Return a scanner of these columns, of the rows that pass; called by DuckDB."""
        said = str(filter)  # a filter does not tell its columns; one too many is read where a text holds its name
        known = columns_names()
        needed = [name for name in known if columns is None or name in columns or (filter is not None and name in said)]
        reader = self._plan.reader(tuple(needed or ("queue_offset",)))
        return Scanner.from_batches(self._noted(reader), schema=reader.schema, columns=columns, filter=filter)

    def _noted(self, batches: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from batches
        except ShmqError as error:
            self.failure = error
            raise


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """Let Ctrl-C be one, by whichever of its errors DuckDB says that it came."""
    try:
        yield
    except (RuntimeError, duckdb.InterruptException) as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


class TopicTables:
    """A DuckDB in memory whose tables are the topics of a broker."""

    def __init__(self, memory: Memory, start: PositionLike, end: PositionLike) -> None:
        self._memory = memory
        self._start, self._end = start, end
        self._topics = memory.topic_names()
        self._tables: dict[str, TopicTable] = {}
        self._database = duckdb.connect()
        self._database.execute("set python_enable_replacements=false")

    def close(self) -> None:
        """Let go of the tables and of what the query made in memory."""
        self._database.close()

    def run(self, query: str, rows_max: int) -> tuple[list[tuple[str, str]], Iterator[list[tuple[Any, ...]]]]:
        """Run a query; return (name, type) of its columns, and its rows in lists of at most `rows_max`.

        Raises:
            TopicNotFound: it names a table that is neither a topic nor anything else.
            UsageError: DuckDB refuses it; the text says why and where.
            ShmqError: a topic cannot be read any more.
        """
        wanted = self._wanted(query)
        for topic in sorted(wanted & set(self._topics)):
            self._add(topic)
        try:
            with _heeding_interrupts():
                cursor = self._database.execute(query)
        except duckdb.Error as error:
            raise self._explained(error, wanted) from error
        columns = [(str(name), str(kind)) for name, kind, *_ in cursor.description or ()]
        return columns, self._rows(cursor, rows_max)

    def _rows(self, cursor: Any, rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while True:
                with _heeding_interrupts():
                    rows = cursor.fetchmany(rows_max)
                if not rows:
                    return
                yield rows
        except duckdb.Error as error:
            raise self._explained(error, set()) from error

    def _wanted(self, query: str) -> set[str]:
        """The tables that a query names, each as its topic is called if it is one."""
        try:
            named = {
                str(name)
                for statement in self._database.extract_statements(query)
                for name in self._database.get_table_names(statement.query)
            }
        except duckdb.Error:  # it is wrong, and DuckDB says how when it runs; or PIVOT, which names no tables
            return {topic for topic in self._topics if topic.lower() in query.lower()}
        return {self._topic_of(name) for name in named}

    def _topic_of(self, name: str) -> str:
        """The topic that a table means: names of SQL have no case, names of topics do."""
        alike = [topic for topic in self._topics if topic.lower() == name.lower()]
        return name if name in alike or len(alike) != 1 else alike[0]

    def _add(self, topic: str) -> None:
        clash = next((other for other in self._tables if other.lower() == topic.lower()), None)
        if clash is not None:
            raise UsageError(
                f"topics {clash} and {topic} are one name in SQL, which has no case", hint="query one of them at a time"
            )
        store = self._memory.store
        wish = wish_of(topic, start=self._start, end=self._end)
        plan = TopicPlan(self._memory.instance, store, store.topic_find(topic), wish)
        table = self._tables[topic] = TopicTable(plan)
        self._database.register(topic, table)

    def _explained(self, error: duckdb.Error, wanted: set[str]) -> ShmqError:
        """The error of a query, in our words where it was ours."""
        for table in self._tables.values():
            if table.failure is not None:
                return table.failure
        text = str(error)
        found = re.search(r"Table with name (\S+) does not exist", text)
        if isinstance(error, duckdb.CatalogException) and found is not None:
            name = next((name for name in wanted if name.lower() == found[1].strip('"').lower()), found[1])
            return missing_topic(name, f'on broker "{self._memory.broker_name}"', self._topics, "shmq topic list")
        cure = next(
            (cure for kind, cure in _CURES if isinstance(error, kind)), "the text above says what is wrong, and where"
        )
        return UsageError(f"DuckDB: {text}", hint=cure)
