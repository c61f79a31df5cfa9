"""The page of a message's trace, as clients recorded it: a table, and a picture of it in time.

The picture is drawn here, as shapes at computed places: a line a party, from the moment it began to the moment it was
done, the producer first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.errors import TopicNotFound
from shmq.protocol.system_topics.trace import END_TRANSACTION, PUB, SUB_AFTER, SUB_BEFORE, Trace
from shmq.tools.console.rendering import Renderer
from shmq.tools.messages.message_command import traces_of

if TYPE_CHECKING:
    import shmq

WIDTH, LANE_HEIGHT, TOP = 760, 46, 34
_LEFT, _RIGHT = 190, 40
_BAR_WIDTH_MIN = 8


class Bar(NamedTuple):
    """One step of a trace: where it is drawn, and what it says."""

    lane: str
    what: str
    x: int
    y: int
    width: int
    cost_ms: int
    after_ms: int
    succeeded: bool


class TracePages:
    """The page of traces."""

    def __init__(self, connect: Callable[[], shmq.Connection], renderer: Renderer) -> None:
        self._connect = connect
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where it is."""
        return [Route("/trace", self.trace)]

    def trace(self, request: Request) -> Response:
        """Show what was said about the message of an id or key."""
        wanted = request.query_params.get("id", "").strip()
        traces: list[Trace] | None = None
        if wanted:
            with self._connect() as mq:
                try:
                    traces = traces_of(mq, wanted)
                except TopicNotFound:  # no trace was stored yet
                    traces = []
        bars = bars_of(traces or ())
        height = TOP + LANE_HEIGHT * len(bars) + 8
        return self._renderer.page(
            request, "trace.html", wanted=wanted, traces=traces, bars=bars, width=WIDTH, height=height, left=_LEFT
        )


def bars_of(traces: Sequence[Trace]) -> list[Bar]:
    """Return the picture of a message's traces: a delivery begins with one record and ends with another."""
    afters = {each.request_id: each for each in traces if each.kind == SUB_AFTER}
    spans = []
    for each in traces:
        if each.kind == SUB_BEFORE:
            after = afters.get(each.request_id)
            cost_ms, succeeded = (after.cost_ms, after.succeeded) if after else (0, True)
            spans.append((each, "consumed" if after else "received", cost_ms, succeeded))
        elif each.kind in (PUB, END_TRANSACTION):
            what = "sent" if each.kind == PUB else "ended"
            spans.append((each, what, each.cost_ms, each.succeeded))
    if not spans:
        return []
    begin = min(each.time_ms for each, *_ in spans)
    end = max(each.time_ms + cost_ms for each, _, cost_ms, _ in spans)
    scale = (WIDTH - _LEFT - _RIGHT) / max(1, end - begin)
    bars = []
    for number, (each, what, cost_ms, succeeded) in enumerate(spans):
        width = max(_BAR_WIDTH_MIN, round(cost_ms * scale))
        x = min(_LEFT + round((each.time_ms - begin) * scale), WIDTH - _RIGHT - _BAR_WIDTH_MIN)
        bars.append(
            Bar(each.group, what, x, TOP + LANE_HEIGHT * number, width, cost_ms, each.time_ms - begin, succeeded)
        )
    return bars
