"""Looking for messages: QUERY_MESSAGE (12) by key or unique key, VIEW_MESSAGE_BY_ID (33) by log position.

One answer holds a bounded number of messages, and a search gives way to other requests after about a millisecond.

    asked -> found within a turn        answered at once
          -> not yet                    goes on a turn later, after all requests, the searches in turns
          -> the index is behind        begins when it has come to the end that the log had when it was asked
          -> its connection is gone     forgotten

The index follows the log by milliseconds, and a client looks for what it has just sent: a search waits for what was
stored before it, `INDEX_WAIT_MS` at most, for the disk of the index may be full.

Our own clients say `fromPosition`: they get the oldest records from that log position on instead of the newest, as many
as fit, and `nextPosition`: where to go on, or 0. So they can have all of them, in order.

RocketMQ hands out whatever the hash of the key led to and lets the client compare; here the broker compares first,
so no client sees records of other keys.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from shmq.daemon.broker.log import Found, KeyIndex, Log
from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord, is_queued, stored_record
from shmq.daemon.broker.tables import Queues
from shmq.daemon.logic.access.rights import Permission
from shmq.daemon.logic.effects import Effect, Wake
from shmq.daemon.logic.header_fields import INT32_MAX, INT64_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, later, serves
from shmq.protocol.codes import Request, Response

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_UNIQUE_COUNT_MAX = 32  # RocketMQ's defaultQueryMaxNum
_COUNT_MAX = 64  # its maxMsgsNumBatch
_PAGE_MAX = 1000
_NO_MORE = 0
_MISSING = "null"  # a field that is not there, as Java joins it into the key
_STEPS_PER_TURN = 10  # about a millisecond
_PAUSE_MS = 1
_SEARCHES_MAX = 256
INDEX_WAIT_MS = 2000
_NOTHING = Found((), 0, 0)
_BODY_BYTES_MAX = 4 << 20  # beyond the first record; a reply has to fit a frame


@dataclass(eq=False, slots=True)
class _Search:
    """One that goes on; `steps` yields None wherever it may pause, and begins when the index has come to `end`."""

    call: Call
    topic: str
    key: str
    steps: Iterator[Found | None]
    end: int
    page: int | None  # how many records of a page; None where the newest are asked for


class QueryRequests(Part):
    """Serves queries."""

    def __init__(self, tables: Queues, log: Log, index: KeyIndex) -> None:
        self._tables = tables
        self._log = log
        self._index = index
        self._searches: deque[_Search] = deque()

    @serves(Request.VIEW_MESSAGE_BY_ID)
    def _view(self, call: Call) -> Answer:
        position = number_of(call.ext, "offset", least=-INT64_MAX)
        record = self._log.record_at(position) if position >= 0 else None
        if record is not None and not call.rights.is_everything:
            record = self._judged(call, record)
        if record is None:
            return Answer(code=Response.SYSTEM_ERROR, remark=f"can not find message by the offset, {position}")
        return Answer(body=record)

    def _judged(self, call: Call, data: bytes) -> bytes | None:
        """The record, if the sender may consume its topic; None for what a sender has written into a message."""
        record = stored_record(data)
        if record is None or not is_queued(self._tables, record):
            return None
        call.rights.check(record.topic, Permission.SUB)
        return data

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Go on with the search that has waited longest."""
        if not self._searches:
            return ()
        search = self._searches.popleft()
        found = self._go_on(search, now_ms)
        effects: list[Effect] = []
        if found is None:
            self._searches.append(search)
        else:
            effects += later(search.call, self._answer(search, found))
        return [*effects, *([Wake(_PAUSE_MS)] if self._searches else [])]

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Drop the searches of a connection that is gone."""
        own = [search for search in self._searches if search.call.connection is connection]
        for search in own:
            self._searches.remove(search)
        return ()

    def _go_on(self, search: _Search, now_ms: int) -> Found | None:
        if search.end and now_ms < search.call.now_ms + INDEX_WAIT_MS and not self._index.has_reached(search.end):
            return None
        search.end = 0
        for found in islice(search.steps, _STEPS_PER_TURN):
            if found is not None:
                return found
        return None

    @serves(Request.QUERY_MESSAGE)
    def _query(self, call: Call) -> Answer:
        ext = call.ext
        topic, key = text_of(ext, "topic"), ext.get("key", _MISSING)
        wanted = number_of(ext, "maxNum", least=-INT32_MAX, most=INT32_MAX)
        begin_ms = number_of(ext, "beginTimestamp", least=-INT64_MAX)
        end_ms = number_of(ext, "endTimestamp", least=-INT64_MAX)
        is_unique = flag_of(ext, _UNIQUE_KEY_QUERY)
        oldest_from = number_of(ext, "fromPosition") if "fromPosition" in ext else None
        count = min(_UNIQUE_COUNT_MAX if is_unique else wanted, _COUNT_MAX if oldest_from is None else _PAGE_MAX)
        steps: Iterator[Found | None] = iter((_NOTHING,))
        if count > 0:
            begin_ms, end_ms = max(0, begin_ms), max(0, end_ms)
            steps = self._index.search(
                topic, key, begin_ms=begin_ms, end_ms=end_ms, count=count, oldest_from=oldest_from
            )
        end = self._index.wanted_end if count > 0 else 0
        search = _Search(call, topic, key, steps, end, None if oldest_from is None else count)
        found = self._go_on(search, call.now_ms)
        if found is not None:
            return self._answer(search, found)
        if len(self._searches) >= _SEARCHES_MAX:
            return Answer(code=Response.SYSTEM_BUSY, remark=f"{_SEARCHES_MAX} searches by key are under way")
        self._searches.append(search)
        return Answer(held=True, effects=(Wake(_PAUSE_MS),))

    def _answer(self, search: _Search, found: Found) -> Answer:
        if not found.positions:
            found = _NOTHING  # how far the index goes is said beside messages only
        answer = Answer(
            ext={
                "indexLastUpdateTimestamp": str(found.last_ms),
                "indexLastUpdatePhyoffset": str(found.last_position),
            }
        )
        body = bytearray()
        positions = sorted(set(found.positions))
        following = positions[-1] + 1 if search.page is not None and 0 < search.page <= len(positions) else _NO_MORE
        for position in positions:
            record = self._log.record_at(position)
            if record is None or not _matches(stored_record(record), search.topic, search.key):
                continue
            if body and len(body) + len(record) > _BODY_BYTES_MAX:
                following = position
                break
            body += record
        answer.body = bytes(body)
        if search.page is not None:
            answer.ext["nextPosition"] = str(following)
        if not body and (search.page is None or following == _NO_MORE):
            answer.code, answer.remark = Response.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
        return answer


def _matches(record: StoredRecord | None, topic: str, key: str) -> bool:
    if record is None or record.topic != topic:
        return False
    if property_of(record.properties, "UNIQ_KEY") == key:
        return True
    return key in (property_of(record.properties, "KEYS") or "").split(" ")
