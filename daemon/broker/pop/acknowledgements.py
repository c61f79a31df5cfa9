"""Serves what a client says about popped messages: that they are done, or that it needs more time.

They are ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151) and CHANGE_MESSAGE_INVISIBLETIME (200053).

    request    the receipt's checkpoint          answered    follows
    ack        not settled                       0           never comes again
    ack        settled, or came again already    0           nothing, as in RocketMQ
    change     not settled                       0           invisible for so long from now, under a new receipt
    change     settled, or came again already    208         nothing: a late one must not make a copy
    either     offset outside the queue          208         nothing

Where the topic that was popped counts what is on disk only, these answers wait for the disk too: also for what was said
before, for an answer may be asked for again.

Clients say in which topic a message lies as they know it: some only by the retry flag of the receipt, old ones for one
flag only. So any name counts that the group's messages of the topic may lie under, and the receipt decides.

An ordered pop has no checkpoint: its receipt counts as long as it is the last pop of its queue. What is acknowledged in
order moves the group's progress, and lets the next one pop.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from shmq.daemon.broker.pop.header import invisible_ms_of
from shmq.daemon.broker.pop.order import OrderedPop
from shmq.daemon.broker.pop.state import PopState, ack_record
from shmq.daemon.broker.tables import Tables, Topic
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.header_fields import INT64_MAX, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, WhenDurable, serves
from shmq.errors import ProtocolError, RemoteError
from shmq.message import origin_topic, popped_topic
from shmq.protocol.body import decode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.pop import ORDER_REVIVE_QUEUE, BatchAck, BatchAcks, Receipt, parse_receipt
from shmq.protocol.system_topics.pop_records import CheckpointRecord, PopKey, QueueKey

_ACKS_MAX = 1024  # entries of one batch; each is one pop's


class Acknowledgements(Part):
    """Settles what was popped.

    Args:
        arrived: tells those who wait for messages in queues: an ordered queue may be popped again.
        due_soon: returns what has to be done about messages that are visible again before the next tick.
        when_durable: answers a call when the log is on disk up to a position, where a topic asks for that.
    """

    def __init__(
        self,
        tables: Tables,
        state: PopState,
        *,
        arrived: Callable[[Sequence[int], int], Sequence[Effect]],
        due_soon: Callable[[int], Sequence[Effect]],
        when_durable: WhenDurable,
    ) -> None:
        self._tables = tables
        self._state = state
        self._arrived = arrived
        self._due_soon = due_soon
        self._when_durable = when_durable

    @serves(Request.ACK_MESSAGE)
    def _ack(self, call: Call) -> Answer:
        group, receipt = text_of(call.ext, "consumerGroup"), parse_receipt(text_of(call.ext, "extraInfo"))
        self._state.catch_up(call.now_ms)
        topic, queue_id, offset = self._message(call, group, receipt, beyond=1)
        if receipt.is_ordered:
            queues = self._ack_ordered(QueueKey(group, topic.name, queue_id), topic, [offset], receipt.pop_ms, call)
            return self._written(call, Answer(effects=self._arrived(queues, call.now_ms)), (group, topic.name))
        self._settle(PopKey(group, topic.name, queue_id, receipt.first_offset, receipt.pop_ms), [offset], call.now_ms)
        return self._written(call, Answer(), (group, topic.name))

    @serves(Request.BATCH_ACK_MESSAGE)
    def _ack_batch(self, call: Call) -> Answer:
        acks = decode_body(call.command.body, BatchAcks).acks
        if not acks:
            return Answer(code=Response.NO_MESSAGE)
        if len(acks) > _ACKS_MAX:
            raise ProtocolError(f"{len(acks)} acknowledgements in one request; {_ACKS_MAX} are possible")
        wanted = [(ack, ack.offsets) for ack in acks]  # a fault in one of them changes nothing
        self._state.catch_up(call.now_ms)
        # Waiting pops are served when all are written: what they get is not lost with an error of a later one.
        queues = dict.fromkeys(queue for ack, offsets in wanted for queue in self._ack_one(ack, offsets, call))
        effects = self._arrived(tuple(queues), call.now_ms) if queues else ()
        return self._written(call, Answer(effects=effects), *((ack.c, ack.t) for ack in acks))

    def _written(self, call: Call, answer: Answer, *popped: tuple[str, str]) -> Answer:
        """Return the answer to what is written now, about messages of these groups and topics."""
        topics = dict.fromkeys(origin_topic(group, topic) for group, topic in popped)
        return self._when_durable(call, answer, self._state.end, *topics)

    def _ack_one(self, ack: BatchAck, offsets: Sequence[int], call: Call) -> Sequence[int]:
        """Settle messages of one pop; return the queue (by index) that may be popped again, if one may."""
        topic = self._topic(ack.c, ack.t, ack.r, ack.q, ack.so, ack.pt)
        if topic is None or not 0 <= ack.q < topic.read_queues:
            return ()  # as RocketMQ: the others of the batch count
        if ack.rq == ORDER_REVIVE_QUEUE:
            return self._ack_ordered(QueueKey(ack.c, topic.name, ack.q), topic, offsets, ack.pt, call)
        self._settle(PopKey(ack.c, topic.name, ack.q, ack.so, ack.pt), offsets, call.now_ms)
        return ()

    def _settle(self, key: PopKey, offsets: Iterable[int], now_ms: int) -> None:
        found = self._state.checkpoints.get(key)
        if found is not None:
            self._state.settle(found, offsets, now_ms)

    def _topic(
        self, group: str, name: str, retry_flag: str, queue_id: int, first_offset: int, pop_ms: int
    ) -> Topic | None:
        """Return where a message lies: what the receipt says of the topic, or of the name where that was popped."""
        said = popped_topic(group, origin_topic(group, name), retry_flag)
        for each in (said, popped_topic(group, name, retry_flag), name):
            if PopKey(group, each, queue_id, first_offset, pop_ms) in self._state.checkpoints:
                return self._tables.topic(each)
        return self._tables.topic(said) or self._tables.topic(name)

    def _message(self, call: Call, group: str, receipt: Receipt, *, beyond: int = 0) -> tuple[Topic, int, int]:
        """Topic, queue id and offset of a request.

        Raises:
            RemoteError: there is no such topic, queue or message.
        """
        name, queue_id = text_of(call.ext, "topic"), number_of(call.ext, "queueId", least=-INT64_MAX)
        topic = self._topic(group, name, receipt.retry_flag, queue_id, receipt.first_offset, receipt.pop_ms)
        if topic is None:
            raise RemoteError(Response.TOPIC_NOT_EXIST, f"topic[{name[:127]}] not exist, apply first please!")
        if not 0 <= queue_id < topic.read_queues:
            raise RemoteError(
                Response.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}]",
            )
        offset = number_of(call.ext, "offset", least=-INT64_MAX)
        low, high = self._tables.queue_bounds(topic.queues[queue_id])
        if not low <= offset < high + beyond:
            raise RemoteError(
                Response.NO_MESSAGE, f"offset is illegal, key:{name}@{queue_id}, commit:{offset}, store:{low}~{high}"
            )
        return topic, queue_id, offset

    # -- more time

    @serves(Request.CHANGE_MESSAGE_INVISIBLETIME)
    def _change(self, call: Call) -> Answer:
        group, receipt = text_of(call.ext, "consumerGroup"), parse_receipt(text_of(call.ext, "extraInfo"))
        invisible_ms = invisible_ms_of(call.ext, least=0)
        self._state.catch_up(call.now_ms)
        topic, queue_id, offset = self._message(call, group, receipt)
        queue = QueueKey(group, topic.name, queue_id)
        if receipt.is_ordered:
            return self._change_ordered(queue, offset, receipt, invisible_ms, call)
        found = self._state.checkpoints.get(PopKey(*queue, receipt.first_offset, receipt.pop_ms))
        if found is None or offset not in found.unsettled:
            raise RemoteError(Response.NO_MESSAGE, f"message {offset} of {topic.name}, queue {queue_id} is not popped")
        pop_ms = self._state.new_pop_ms([(queue, offset)])
        new = CheckpointRecord(
            so=offset,
            pt=pop_ms,
            it=invisible_ms,
            q=queue_id,
            t=topic.name,
            c=group,
            d=[0],
            n=1,
            bn=receipt.broker,
        )
        self._state.write([new, ack_record(found.key, [offset])], call.now_ms)
        answer = Answer(ext=_new_time(pop_ms, invisible_ms, receipt), effects=self._due_soon(call.now_ms))
        return self._written(call, answer, (group, topic.name))

    # -- ordered pops

    def _ack_ordered(
        self, queue: QueueKey, topic: Topic, offsets: Sequence[int], pop_ms: int, call: Call
    ) -> Sequence[int]:
        found = self._last_pop(queue, pop_ms)
        if found is None:
            return ()  # popped again since, or settled
        record = found.record
        bits = record.cm
        for index, offset in enumerate(record.o):
            if offset in offsets:
                bits |= 1 << index
        if bits == record.cm:
            return ()
        self._state.write([msgspec.structs.replace(record, cm=bits)], call.now_ms)
        index = topic.queues[queue.queue_id]
        found = self._last_pop(queue, pop_ms)
        group = self._tables.group(queue.group)
        if found is not None and group is not None:
            slot = self._tables.offset_put(group, index)
            committed = self._tables.committed(slot)
            if record.o[0] <= committed <= record.o[-1]:  # else it was reset, and that counts
                self._tables.set_committed(slot, max(committed, found.next_offset))
        return (index,)

    def _change_ordered(self, queue: QueueKey, offset: int, receipt: Receipt, invisible_ms: int, call: Call) -> Answer:
        found = self._last_pop(queue, receipt.pop_ms)
        if found is None or offset not in found.record.o:
            raise RemoteError(Response.NO_MESSAGE, f"message {offset} of {queue.topic} is not popped")
        visible_ms = self._tables.clock_ms + invisible_ms
        times = {**found.record.ot, offset: visible_ms}
        self._state.write([msgspec.structs.replace(found.record, ot=times)], call.now_ms)
        answer = Answer(ext=_new_time(receipt.pop_ms, max(0, visible_ms - receipt.pop_ms), receipt))
        return self._written(call, answer, (queue.group, queue.topic))

    def _last_pop(self, queue: QueueKey, pop_ms: int) -> OrderedPop | None:
        found = self._state.ordered.get(queue)
        return found if found is not None and found.record.pt == pop_ms else None


def _new_time(pop_ms: int, invisible_ms: int, receipt: Receipt) -> dict[str, str]:
    return {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(receipt.revive_queue)}
