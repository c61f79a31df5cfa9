"""Reads without consuming: single messages, and whole topics as Arrow batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.edge import edge
from shmq.client.link import Link
from shmq.client.spec import wanted_of

if TYPE_CHECKING:
    import pyarrow

    from shmq.client.batches import Positions
    from shmq.client.search import Found
    from shmq.shm.core import Message


class Looking(Link):
    """A connection that looks at what is stored; see `Connection`."""

    __slots__ = ()

    @edge
    def browse(
        self,
        topic: str,
        *,
        key: str | None = None,
        id: str | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        limit: int = options.BROWSE_MAX,
    ) -> Found[Message]:
        """Look at stored messages without consuming them; return a list of them, the oldest first.

        Its attribute `is_cut` says whether there are more than `limit`; a broker of RocketMQ also cuts off more than 64
        messages that have one key and were stored in one second.

        Args:
            key: one of the message's keys, through the key index.
            id: offset message id or unique key.
            since: "-1h", an ISO time or a datetime; stored then or later.
            until: the same; stored then or earlier.
            queue_id: only this queue.
            offset: begin at this offset of `queue_id`.
            tags: "fruit || veg" or a list; None takes all messages.
            where: an SQL92 expression over properties.
            limit: at most so many, the oldest.

        Raises:
            TopicNotFound: there is no such topic.
            OffsetOutOfRange: the offset is not stored any more, or not yet.
        """
        from shmq.client.search import wish_of

        wanted = wanted_of(tags, where)
        wish = wish_of(topic, wanted=wanted, since=since, until=until, queue_id=queue_id, offset=offset, limit=limit)
        return self._live().search.browse(wish, key=key, message_id=id)

    @edge
    def arrow(
        self,
        topic: str,
        *,
        columns: Sequence[str] | None = None,
        start: Positions = "earliest",
        end: Positions = "latest",
        tags: str | Sequence[str] | None = None,
        batch_rows: int = 8192,
    ) -> pyarrow.RecordBatchReader:
        """Return a topic as a `pyarrow.RecordBatchReader`, read from this host's memory without consuming anything.

        DuckDB, polars and pandas read it as it is. Batches are made one by one when they are asked for, queue by queue
        in the order of offsets, at most 2 MiB of records each. They own their memory: they stay valid when the reader,
        the connection or the broker is gone. The reader may be read once, by one thread at a time, also after the
        connection was closed; until 10 minutes after its last batch retention leaves what it is going to read.

        Args:
            topic: any topic of the broker, "%RETRY%group" and "%DLQ%group" included.
            columns: names out of docs/arrow.md, in the order wanted: `body` binary, `queue_offset` int64,
                `store_timestamp` in microseconds, UTC, and so on. None takes all but the dear ones (msg_id,
                properties, born_host, store_host).
            start: "earliest", "latest", "-2h", an ISO time, a datetime; or `{queue_id: offset}`, where queues that are
                not named begin at the earliest message. Messages stored at or after a time.
            end: the same, exclusive; queues that are not named end at the latest message visible now.
            tags: "fruit || veg" or a list; None takes all messages.
            batch_rows: messages of one batch, 1 to 65,536.

        Raises:
            TopicNotFound: there is no such topic.
            OffsetOutOfRange: an offset is not stored any more, or not yet; while reading: retention has passed.
            CorruptionError: while reading: a message is damaged. The keeper gets a report of it.
            UsageError: the broker is reached over TCP, there is no such column or queue, or pyarrow is not installed.

        Example:
            >>> import duckdb                                                                  # doctest: +SKIP
            >>> orders = mq.arrow("orders", columns=["queue_offset", "body"], start="-1h")     # doctest: +SKIP
            >>> duckdb.sql("select count(*), sum(octet_length(body)) from orders")             # doctest: +SKIP
        """
        from shmq.client.batches import topic_reader, wish_of

        wish = wish_of(topic, start=start, end=end, tags=tags, batch_rows=batch_rows)
        return topic_reader(self._local(), wish, columns)
