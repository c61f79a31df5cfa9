"""Taking back timed messages: RECALL_MESSAGE (370), and the keys of what was taken back.

A recall says which message never to deliver, whether or not there is one. Checks come in RocketMQ's order.

    handle   ── topic, broker, time ──▶ a record in the timer topic, TIMER_DEL_UNIQKEY = topic+UNIQ_KEY, the same time
    answer   ── msgId = UNIQ_KEY

RocketMQ answers this only when it is switched on (recallMessageEnable); here it always is.
"""

from shmq.daemon.broker.log import LOCAL_HOST, NewRecord, Storage
from shmq.daemon.broker.records.message_id import host_bytes
from shmq.daemon.broker.records.property_text import with_properties
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, WhenDurable
from shmq.delay_levels import REAL_QUEUE_ID, REAL_TOPIC
from shmq.errors import UsageError
from shmq.protocol.codes import Response
from shmq.timing import (
    CANCEL_BODY,
    CANCEL_TAG,
    CANCELLED_KEY,
    DELIVER_MS,
    OUT_MS,
    TIMER_TOPIC,
    UNIQUE_KEY,
    RecallHandle,
    cancel_key,
    code_of,
    out_ms,
)

CANCEL_SLACK_MS = 2000  # a handle of RocketMQ's says a time up to a second before the message is due
_ILLEGAL_OPERATION = 604
_EXT = {"MSG_REGION": "DefaultRegion"}


class CancelledTimers:
    """Which messages are not to be delivered, until the last question about them."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: str) -> bool:
        return key in self._due

    def add(self, key: str, due_ms: int) -> None:
        """Take a message back that is due then."""
        self._due[key] = due_ms

    def forget(self, time_ms: int) -> None:
        """Everything that was due before that time, and a little, is over."""
        over = [key for key, due_ms in self._due.items() if due_ms + CANCEL_SLACK_MS < time_ms]
        for key in over:
            del self._due[key]


class Recalls:
    """Serves recalls.

    Args:
        when_durable: answers a call when the log is on disk up to a position, where a topic asks for that.
    """

    def __init__(
        self, storage: Storage, settings: BrokerSettings, cancelled: CancelledTimers, *, when_durable: WhenDurable
    ) -> None:
        self._tables, self._log, self._arrived = storage
        self._settings = settings
        self._cancelled = cancelled
        self._when_durable = when_durable

    def serve(self, call: Call) -> Answer:
        """Take a message back."""
        topic = text_of(call.ext, "topic")
        if self._tables.topic(topic) is None:
            return _refusal(Response.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic[:127]}] not exist")
        try:
            handle = RecallHandle.decode(call.ext.get("recallHandle", ""))
        except UsageError:
            return _refusal(_ILLEGAL_OPERATION, "recall handle is invalid")
        if topic != handle.topic:
            return _refusal(_ILLEGAL_OPERATION, "recall failed, topic not match")
        if self._settings.broker_name != handle.broker_name:
            return _refusal(_ILLEGAL_OPERATION, "recall failed, broker service not available")
        left_ms = handle.deliver_ms - self._tables.clock_ms
        if not 0 < left_ms < self._settings.timer_max_delay_seconds * 1000 + CANCEL_SLACK_MS:
            return _refusal(_ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        timers = ensure_topic(self._tables, TIMER_TOPIC, queues=1)
        end = self._store(call, handle, timers)
        key = cancel_key(handle.topic, handle.unique_key)
        self._cancelled.add(key, handle.deliver_ms)
        answer = self._when_durable(call, Answer(ext={**_EXT, "msgId": handle.unique_key}), end, topic)
        answer.effects = [*answer.effects, *self._arrived((timers.queues[0],), call.now_ms)]
        return answer

    def _store(self, call: Call, handle: RecallHandle, topic: Topic) -> int:
        """Store the record of a recall; return the log position behind it."""
        now_ms = self._tables.clock_ms
        properties = {
            CANCELLED_KEY: cancel_key(handle.topic, handle.unique_key),
            UNIQUE_KEY: handle.unique_key,
            DELIVER_MS: str(handle.deliver_ms),
            "BORN_TIMESTAMP": str(now_ms),
            "PGROUP": call.ext.get("producerGroup") or None,
            "TAGS": CANCEL_TAG,
            OUT_MS: str(out_ms(handle.deliver_ms)),
            REAL_TOPIC: handle.topic,
            REAL_QUEUE_ID: "0",
        }
        remote = call.connection.remote
        record = NewRecord(
            CANCEL_BODY,
            with_properties(b"", properties),
            born_ms=now_ms,
            born_host=host_bytes(remote) if remote is not None else LOCAL_HOST,
            tag_code=code_of(handle.deliver_ms, cancels=True),
        )
        return self._log.append(topic, 0, record).end


def _refusal(code: int, remark: str) -> Answer:
    return Answer(code=code, remark=remark, ext=dict(_EXT))
