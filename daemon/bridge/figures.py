"""Counts how long a bridge's requests take, and the figures of its logic, in the bridge's own counters.

Every figure is written into counters in shared memory, where the exporter reads it; requests are counted by class.

    a request's turn ── handler ── reply        served: rocketmq_rpc_latency, shmq_request_latency by class
    … no reply, not oneway                      held: noted, counted with is_long_polling when its reply is sent
    plain sends or pulls, many in one call      each took as long as the call

Invariant: what is noted of held requests is bounded by what the logic holds; a connection takes its own along.
"""

import time
from collections.abc import Iterable, Mapping

from shmq.daemon.broker.statistics.figures import Labels
from shmq.daemon.logic.effects import Effect, Forward, Reply
from shmq.metrics.family import BEAT, FAST_BOUNDS, RPC_BOUNDS
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.request_table import REQUESTS
from shmq.shm.counters import Counter, Counters, Histogram

_HELD_MAX = 50_000
_BINARY = 1  # the codec byte of a frame
_CODEC_AT, _CODE_AT = 4, 8
_JSON_CODE = b'"code":'
_CODE_DIGITS = 6

_CLASSES = {
    "send": (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE),
    "pull": (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE),
    "pop": (Request.POP_MESSAGE, Request.PEEK_MESSAGE, Request.NOTIFICATION),
    "ack": (
        Request.ACK_MESSAGE,
        Request.BATCH_ACK_MESSAGE,
        Request.CHANGE_MESSAGE_INVISIBLETIME,
        Request.CONSUMER_SEND_MSG_BACK,
    ),
    "offset": (
        Request.QUERY_CONSUMER_OFFSET,
        Request.UPDATE_CONSUMER_OFFSET,
        Request.GET_MAX_OFFSET,
        Request.GET_MIN_OFFSET,
        Request.SEARCH_OFFSET_BY_TIMESTAMP,
    ),
    "heartbeat": (Request.HEART_BEAT, Request.UNREGISTER_CLIENT),
    "transaction": (Request.END_TRANSACTION,),
}
_CLASS_OF = {int(code): name for name, codes in _CLASSES.items() for code in codes}


def class_of(code: int) -> str:
    """Return the class of a request: what it is for, or who sends it."""
    spec = REQUESTS.get(code)
    return _CLASS_OF.get(code) or (spec.request_class.value if spec is not None else "unknown")


class BridgeFigures:
    """Counts for one bridge process; single-threaded. It keeps the figures of the logic as well (`Figures`)."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._rpc: dict[tuple[int, int, bool, bool, bool], Histogram] = {}
        self._by_class: dict[str, tuple[Histogram, Counter]] = {}
        self._totals: dict[tuple[str, Labels], Counter] = {}
        self._shown: dict[str, dict[Labels, Counter]] = {}
        self._beat = counters.counter(BEAT)
        self._held: dict[int, dict[int, tuple[int, int, bool]]] = {}  # connection -> opaque -> code, when, is local
        self._held_count = 0

    def beat(self) -> None:
        """Give a sign of life."""
        self._beat.set(time.monotonic_ns())

    # -- requests

    def served(
        self, connection_id: int, command: Command, effects: Iterable[Effect], began_ns: int, *, is_local: bool
    ) -> None:
        """Take note of a request whose effects are carried out."""
        if command.is_reply:
            return
        for effect in effects:
            if (
                isinstance(effect, (Reply, Forward))
                and effect.command.opaque == command.opaque
                and effect.connection_id == connection_id
            ):
                if isinstance(effect, Reply):  # what is forwarded, the primary bridge counts
                    self._observe(command.code, effect.command.code, began_ns, is_local=is_local)
                return
        if command.is_oneway:
            self._observe(command.code, Response.SUCCESS, began_ns, is_local=is_local, is_oneway=True)
        elif self._held_count < _HELD_MAX:
            held = self._held.setdefault(connection_id, {})
            self._held_count += command.opaque not in held
            held[command.opaque] = command.code, began_ns, is_local

    def answered(self, reply: Reply) -> None:
        """Take note of a reply; nothing when it is not that of a held request."""
        held = self._held.get(reply.connection_id)
        if held and (found := held.pop(reply.command.opaque, None)) is not None:
            self._held_count -= 1
            code, began_ns, is_local = found
            self._observe(code, reply.command.code, began_ns, is_local=is_local, is_held=True)

    def lost(self, connection_id: int) -> None:
        """A connection is gone, and what it waits for."""
        self._held_count -= len(self._held.pop(connection_id, ()))

    def plain(self, code: int, count: int, began_ns: int, *, answer: int = Response.SUCCESS) -> None:
        """Take note of plain sends or pulls that were served together."""
        spent_ns = time.monotonic_ns() - began_ns
        self._histogram((code, answer, False, False, False)).observe(spent_ns, count)
        self._class(class_of(code))[0].observe(spent_ns, count)

    def _observe(
        self,
        code: int,
        answer: int,
        began_ns: int,
        *,
        is_local: bool,
        is_held: bool = False,
        is_oneway: bool = False,
    ) -> None:
        spent_ns = time.monotonic_ns() - began_ns
        self._histogram((code, answer, is_held, is_oneway, is_local)).observe(spent_ns)
        latency, failed = self._class(class_of(code))
        if not is_held:
            latency.observe(spent_ns)
        if answer == Response.SYSTEM_ERROR:
            failed.add()

    def _histogram(self, key: tuple[int, int, bool, bool, bool]) -> Histogram:
        found = self._rpc.get(key)
        if found is None:
            code, answer, is_held, is_oneway, is_local = key
            found = self._rpc[key] = self._counters.histogram(
                "rocketmq_rpc_latency_milliseconds",
                RPC_BOUNDS,
                protocol_type="local" if is_local else "remoting",
                request_code=_name(Request, code),
                response_code=_name(Response, answer),
                is_long_polling="true" if is_held else "false",
                result="oneway" if is_oneway else "success",
            )
        return found

    def _class(self, name: str) -> tuple[Histogram, Counter]:
        found = self._by_class.get(name)
        if found is None:
            latency = self._counters.histogram("shmq_request_latency_seconds", FAST_BOUNDS, **{"class": name})
            found = self._by_class[name] = latency, self._counters.counter("shmq_requests_failed", **{"class": name})
        return found

    # -- of the logic

    def count(self, family: str, value: int = 1, labels: Labels = ()) -> None:
        found = self._totals.get((family, labels))
        if found is None:
            found = self._totals[family, labels] = self._counters.counter(family, **dict(labels))
        found.add(value)

    def show(self, family: str, values: Mapping[Labels, int]) -> None:
        shown = self._shown.setdefault(family, {})
        for labels, value in values.items():
            if labels not in shown:
                shown[labels] = self._counters.counter(family, **dict(labels))
            shown[labels].set(value)
        for labels in shown.keys() - values.keys():
            shown[labels].set(0)


def _name(names: type[Request] | type[Response], code: int) -> str:
    try:
        return names(code).name.lower()
    except ValueError:
        return "unknown" if names is Request else str(code)


def code_of(data: bytes) -> int:
    """Return the request code of the frame at the front, which the core has understood."""
    if data[_CODEC_AT] == _BINARY:
        return int.from_bytes(data[_CODE_AT : _CODE_AT + 2])
    at = data.find(_JSON_CODE) + len(_JSON_CODE)
    digits = data[at : at + _CODE_DIGITS].lstrip().split(b",")[0].split(b"}")[0].strip()
    return int(digits) if digits.isdigit() else Request.SEND_MESSAGE
