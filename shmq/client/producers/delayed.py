"""Sends with special keywords through shared memory: a delayed message is stored where it waits.

The broker delivers it (daemon/broker/timers/).

    delay_level=3         ─▶ SCHEDULE_TOPIC_XXXX, queue 2       unit: store time + 10 s
    delay=, deliver_at=   ─▶ rmq_sys_wheel_timer, queue 0       unit: due time
                             REAL_TOPIC, REAL_QID say where the message belongs

    send(topic, body, tag="t", delay_level=3)
      core ── special(topic, body, {"tag": "t", "delay_level": 3}) ──▶ SpecialSend ──▶ send of a second core producer

The topics where messages wait are the broker's own, and refused when a producer looks one up for its user. The second
producer is made for the first delayed message and may look up all of them.

Invariants:
    1. A local producer stores what a broker stores for the same message over TCP: the record in the topic where it
       waits, the receipt with the topic and queue the message is for, and the queue offset it waits at.
    2. What a user names is looked up by the first producer, so no topic of the broker's own is sent to by name.
    3. A level above the highest is the highest, 0 is no delay; a time that is over is no delay either, as in RocketMQ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shmq.client.keywords import is_delayed, late, queue_in_order, take_special
from shmq.client.kinds import refuse_wrong
from shmq.client.table_cache import TableCache
from shmq.delay_levels import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import ShmqError, UsageError
from shmq.message import PERM_WRITE
from shmq.properties import check_properties, encode_properties
from shmq.protocol.message_id import UniqueIds
from shmq.shm.core import UNIT_DELAY_BASE, Producer, Receipt, receipt_moved
from shmq.timing import DELAY_MS, DELIVER_MS, OUT_MS, TIMER_TOPIC, UNIQUE_KEY, RecallHandle, out_ms

if TYPE_CHECKING:
    from shmq.client.wire_shm.wire import ShmQueues, ShmWire
    from shmq.shm.core import Store

    PlainSend = Callable[..., Receipt | None]

_KEY_IS: Final = f"{UNIQUE_KEY}\x01"
_DUE_IS: Final = f"\x02{DELIVER_MS}\x01"
_OUT_IS: Final = f"\x02{OUT_MS}\x01"
_Places = dict[str, tuple[str, ...]]  # by topic, the text for each write queue; () where messages wait
_handle: Final[Callable[..., RecallHandle]] = tuple.__new__  # half the time of the call with names


class SpecialSend:
    """Takes the special sends of one local producer.

    It sends with producers of its own, made when they are needed: one that held the producer which holds it would keep
    it, and `keeps`, until the next collection of cycles.
    """

    __slots__ = ("_delayed", "_keeper", "_make_keeper", "_make_plain", "_plain", "_store", "_wire", "keeps")

    def __init__(
        self,
        wire: ShmWire,
        store: Store,
        queues: ShmQueues,
        make_plain: Callable[[], Producer],
        make_keeper: Callable[[], Producer],
        keeps: object,
    ) -> None:
        """`make_plain` makes what sends without special keywords, `make_keeper` what stores where messages wait.

        Both append into `store`, whose positions mean nothing in the one that comes after it.
        """
        self._wire = wire
        self._store = store
        self._make_plain = make_plain
        self._make_keeper = make_keeper
        self._plain: Producer | None = None
        self._keeper: Producer | None = None
        self._delayed = DelayedSend(wire, store, queues)
        self.keeps = keeps

    def __call__(self, topic: str, body: Any, arguments: dict[str, Any], is_oneway: bool) -> Receipt | None:
        """Store one message and return where; a one-way message returns nothing and does not wait for the disk."""
        plain = self._plain
        if plain is None:
            plain = self._plain = self._make_plain()
        send = plain.send_oneway if is_oneway else plain.send
        try:
            found = take_special(arguments)
        except ShmqError as error:
            raise error.with_traceback(None) from None  # its author sees the call, not the way inside
        if is_delayed(found):
            keeper = self._keeper
            if keeper is None:
                keeper = self._keeper = self._make_keeper()
            keep = keeper.send_oneway if is_oneway else keeper.send
            receipt = self._delayed.send(send, keep, topic, body, found, arguments)
            # It waits in a topic of the broker's, whose flush is not that of the topic it is for.
            if not is_oneway and not self._wire.wait_durable and self._wire.counts_on_disk(topic):
                self._store.wait_durable(self._store.log_end, self._wire.timeout)
            return receipt
        return send(topic, body, **arguments)


class DelayedSend:
    """Stores the delayed messages of one producer; any thread may use it."""

    __slots__ = ("_broker", "_ids", "_levels", "_max_delay_ms", "_places", "_queues", "_store", "_turn")

    def __init__(self, wire: ShmWire, store: Store, queues: ShmQueues) -> None:
        attachment = wire.control.attachment
        self._queues = queues
        self._store = store
        self._broker = wire.place.broker_name
        self._levels = DelayLevels(attachment.delay_levels)
        self._max_delay_ms = attachment.timer_max_delay_seconds * 1000
        self._ids = UniqueIds("127.0.0.1")
        self._turn = itertools.count()
        self._places: TableCache[tuple[str, ...]] = TableCache()

    def send(
        self,
        send: PlainSend,
        keep: PlainSend,
        topic: str,
        body: Any,
        found: Mapping[str, str],
        arguments: dict[str, Any],
    ) -> Receipt | None:
        """Let `keep` store one message where it waits, and return a receipt of the topic it is for, or None.

        A message that is due goes to its topic by `send`.

        Raises:
            UsageError: a queue the topic does not have, a property that is not the application's, a time that is
                farther away than the broker allows.
        """
        if DELAY in found:
            return self._send_by_level(keep, topic, body, found, arguments)
        now_ms = self._store.clock_ms
        if DELAY_MS in found:
            deliver_ms = now_ms + 1 + int(found[DELAY_MS])  # the millisecond that has begun does not count
        else:
            deliver_ms = int(found[DELIVER_MS])
            if deliver_ms < now_ms:  # the store's stamp may be from before the millisecond that has begun
                return send(topic, body, **arguments)
        if deliver_ms - now_ms > self._max_delay_ms + 1:
            raise late(self._max_delay_ms)
        known = self._places.of(self._store)
        queue_id, place = self._place(topic, known, arguments)
        unique_key = self._ids.next(now_ms)
        text = f"{_KEY_IS}{unique_key}{_DUE_IS}{deliver_ms}{_OUT_IS}{out_ms(deliver_ms)}{place}"
        if TIMER_TOPIC not in known:
            self._ensure(TIMER_TOPIC, known)
        if arguments:
            text += _own_text(arguments)
            stored = keep(TIMER_TOPIC, body, properties=text.encode(), queue_id=0, tag_code=deliver_ms, **arguments)
        else:
            stored = keep(TIMER_TOPIC, body, properties=text.encode(), queue_id=0, tag_code=deliver_ms)
        if stored is None:
            return None
        return receipt_moved(
            stored, topic, queue_id, _handle(RecallHandle, (topic, self._broker, deliver_ms, unique_key))
        )

    def _send_by_level(
        self, keep: PlainSend, topic: str, body: Any, found: Mapping[str, str], arguments: dict[str, Any]
    ) -> Receipt | None:
        known = self._places.of(self._store)
        queue_id, place = self._place(topic, known, arguments)
        level = self._levels.level_of(int(found[DELAY]))
        text = f"{DELAY}\x01{level}{place}{_own_text(arguments)}"
        self._ensure(SCHEDULE_TOPIC, known)
        code = UNIT_DELAY_BASE + self._levels.delay_ms(level)
        stored = keep(SCHEDULE_TOPIC, body, properties=text.encode(), queue_id=level - 1, tag_code=code, **arguments)
        return None if stored is None else receipt_moved(stored, topic, queue_id, None)

    def _ensure(self, topic: str, known: _Places) -> None:
        """Have a topic where messages wait.

        A broker that never had a delayed message may not have it yet; how many queues it has, it knows.
        """
        if topic not in known:
            if self._store.topic_find(topic) < 0:
                self._queues.put_topic(topic, queues=1, only_if_missing=True)
            known[topic] = ()

    def _place(self, topic: str, known: _Places, arguments: dict[str, Any]) -> tuple[int, str]:
        """Return the queue the message is for, chosen as the core chooses, and the text that says so."""
        places = known.get(topic)
        if not places:
            places = known[topic] = self._find_places(topic)
        queue_id = self._queue_id(topic, len(places), arguments) if arguments else next(self._turn) % len(places)
        return queue_id, places[queue_id]

    def _queue_id(self, topic: str, queues: int, arguments: dict[str, Any]) -> int:
        queue_id = arguments.pop("queue_id", None)
        if queue_id is not None:
            if type(queue_id) is not int or not 0 <= queue_id < queues:
                raise UsageError(
                    f"topic '{topic}' has {queues} write queues, so queue_id is 0 to {queues - 1}, not {queue_id!r}"
                )
            return queue_id
        message_group = arguments.get("message_group")
        if message_group is not None:
            return queue_in_order(message_group, queues)
        return next(self._turn) % queues

    def _find_places(self, topic: str) -> tuple[str, ...]:
        entry = self._store.topic(self._queues.resolve_open(topic))
        queues: int = entry["write_queues"] if entry["perm"] & PERM_WRITE else 0
        if not queues:
            raise UsageError(f"topic '{topic}' takes no messages: permission {entry['perm']}")
        return tuple(f"\x02{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE_ID}\x01{queue_id}\x02" for queue_id in range(queues))


def _own_text(arguments: dict[str, Any]) -> str:
    """Take the application's own properties out of the arguments, and return their text."""
    own = arguments.pop("properties", None)
    if not own:
        refuse_wrong({"properties": own})
        return ""
    check_properties(own)
    return encode_properties(own)
