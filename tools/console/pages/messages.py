"""Messages: the newest of a topic, those of a time, a key, an id or a place; one of them as text, JSON and bytes; the
live tail. Nothing is consumed.

    newest and tail     straight from memory, read only: from so many messages before the end of each queue
    everything else     `mq.browse`, through the public connection

The tail is asked again and again with the offsets where it ended (`0:12,1:7`). What came meanwhile beyond
`TAIL_MAX` messages is passed over, and the page says how many those were.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shmq.client.spec import wanted_of
from shmq.errors import UsageError
from shmq.figures.model import TopicInfo
from shmq.message import is_hidden_topic
from shmq.tools.broker.memory import Memory
from shmq.tools.console.listing import number_of
from shmq.tools.console.rendering import Renderer
from shmq.tools.messages.lookup import find_message
from shmq.tools.messages.message_command import full_document
from shmq.tools.messages.source import History
from shmq.tools.messages.text import body_of

if TYPE_CHECKING:
    import shmq
    from shmq.shm.core import Message

COUNTS = (20, 50, 100, 500)
BODY_SHOWN_BYTES = 160
BODY_BYTES_MAX = 64 << 10
TAIL_MAX = 200
HEX_LINE_BYTES = 16


class Row(NamedTuple):
    """One line of a list of messages: plain values, which outlive the mapping."""

    topic: str
    queue: int
    offset: int
    message_id: str
    time_ms: int
    tag: str
    keys: tuple[str, ...]
    attempt: int
    body_bytes: int
    body: str  # its begin, as one line


class MessagePages:
    """Messages, looked at."""

    def __init__(
        self,
        memory: Callable[[], AbstractContextManager[Memory]],
        connect: Callable[[], shmq.Connection],
        renderer: Renderer,
    ) -> None:
        self._memory = memory
        self._connect = connect
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        return [
            Route("/messages", self.messages),
            Route("/messages/tail", self.tail),
            Route("/messages/tail.json", self.tail_lines),
            Route("/messages/{topic}/{message_id}", self.message),
            Route("/messages/{topic}/{message_id}/body", self.body),
        ]

    def messages(self, request: Request) -> Response:
        """Show the messages that a form asks for."""
        asked = {name: text.strip() for name, text in request.query_params.items() if text.strip()}
        topic, count = asked.get("topic", ""), number_of(asked.get("limit"), COUNTS[1])
        limit = min(max(1, count), COUNTS[-1])
        names = self._topic_names()
        found = self._found(topic, asked, limit) if topic or "id" in asked else None
        return self._renderer.page(
            request,
            "messages.html",
            asked=asked,
            topic=topic,
            names=names,
            found=found,
            limit=limit,
            counts=COUNTS,
        )

    def _found(self, topic: str, asked: dict[str, str], limit: int) -> list[Row]:
        """Return messages, the newest first."""
        if "id" in asked:
            with self._connect() as mq:
                return [row_of(find_message(mq, topic or None, asked["id"]))]
        wanted: dict[str, Any] = {
            name: asked[name] for name in ("key", "since", "until", "tags", "where") if name in asked
        }
        if "queue" in asked:
            wanted["queue_id"] = _whole(asked, "queue")
        if "offset" in asked:
            wanted["offset"] = _whole(asked, "offset")
        if wanted.keys() - {"tags", "where"}:
            with self._connect() as mq:
                return [row_of(each) for each in mq.browse(topic, **wanted, limit=limit)[::-1]]
        with self._memory() as memory:
            view = memory.topic(topic)
            starts = {queue.queue_id: max(queue.offset_min, queue.offset_max - limit) for queue in view.queues}
            with closing(_history(memory, view, starts, wanted)) as history:
                history.keep_last(limit)
                return [row_of(each) for each in history.take(limit)[::-1]]

    def message(self, request: Request) -> Response:
        """Show one message with everything that is stored of it."""
        view = request.query_params.get("view", "")
        with self._connect() as mq:
            found = find_message(mq, request.path_params["topic"], request.path_params["message_id"])
            document, (body, _), row = full_document(found), body_of(found), row_of(found)
            properties = dict(found.properties)
        forms = forms_of(body)
        shown = view if view in forms else next(iter(forms))
        for name in ("body", "body_base64", "properties"):
            document.pop(name, None)
        return self._renderer.page(
            request,
            "message.html",
            message=row,
            properties=properties,
            document=document,
            forms=list(forms),
            shown=shown,
            text=forms[shown],
            body_bytes=len(body),
            is_cut=len(body) > BODY_BYTES_MAX,
        )

    def body(self, request: Request) -> Response:
        """Answer the very bytes of a body, as a file: a browser is not to show them."""
        with self._connect() as mq:
            found = find_message(mq, request.path_params["topic"], request.path_params["message_id"])
            (body, _), row = body_of(found), row_of(found)
        headers = {"content-disposition": f'attachment; filename="message-{row.queue}-{row.offset}.bin"'}
        return Response(body, media_type="application/octet-stream", headers=headers)

    def tail(self, request: Request) -> Response:
        """Show the page that follows a topic."""
        return self._renderer.page(
            request, "tail.html", topic=request.query_params.get("topic", ""), names=self._topic_names()
        )

    def tail_lines(self, request: Request) -> Response:
        """Answer what came since the offsets of the request; without them, where the topic ends now."""
        with self._memory() as memory:
            view = memory.topic(request.query_params.get("topic", ""))
            ends = {queue.queue_id: queue.offset_max for queue in view.queues}
            before = _offsets(request.query_params.get("from", "")) or ends
            share = max(1, TAIL_MAX // max(1, sum(ends[queue] > before.get(queue, 0) for queue in ends)))
            starts = {
                queue.queue_id: max(before.get(queue.queue_id, 0), queue.offset_max - share, queue.offset_min)
                for queue in view.queues
            }
            with closing(_history(memory, view, starts, {})) as history:
                rows = [row_of(each) for each in history.take(TAIL_MAX)]
                ends |= history.offsets
        passed = sum(max(0, starts[queue] - before.get(queue, 0)) for queue in starts)
        at = ",".join(f"{queue}:{offset}" for queue, offset in sorted(ends.items()))
        return JSONResponse({"from": at, "passed": passed, "messages": [row._asdict() for row in rows]})

    def _topic_names(self) -> list[str]:
        with self._memory() as memory:
            return [view.name for view in memory.topics() if not is_hidden_topic(view.name, view.perm)]


def _history(memory: Memory, view: TopicInfo, starts: dict[int, int], wanted: dict[str, Any]) -> History:
    return History(memory, view, starts, wanted_of(wanted.get("tags"), wanted.get("where")))


def _whole(asked: dict[str, str], name: str) -> int:
    number = number_of(asked[name], -1)
    if number < 0:
        raise UsageError(f"{asked[name]!r:.80} is no {name}", hint="a number from 0 on")
    return number


def _offsets(text: str) -> dict[int, int]:
    """Return the meaning of `0:12,1:7`; of anything else, nothing."""
    found = {}
    for part in text.split(","):
        queue, _, offset = part.partition(":")
        if queue.isascii() and queue.isdigit() and offset.isascii() and offset.isdigit():
            found[int(queue)] = int(offset)
    return found


def row_of(message: Message) -> Row:
    """Return a message as a line."""
    body, _ = body_of(message)
    return Row(
        topic=message.topic,
        queue=message.queue_id,
        offset=message.offset,
        message_id=message.message_id,
        time_ms=message.store_ms,
        tag=message.tag or "",
        keys=tuple(message.keys),
        attempt=message.attempt,
        body_bytes=len(body),
        body=one_line(body[:BODY_SHOWN_BYTES]) + ("…" if len(body) > BODY_SHOWN_BYTES else ""),
    )


def one_line(body: bytes) -> str:
    """Return bytes as one line: text with its controls made visible, else hexadecimal digits."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.start < len(body) - 3 or len(body) < BODY_SHOWN_BYTES:
            return body.hex(" ")
        text = body[: error.start].decode()  # a letter was cut through
    return "".join(map(_visible, text))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else "⏎" if letter == "\n" else " "


def forms_of(body: bytes) -> dict[str, str]:
    """Return a body in the forms it can be read in, the best one first; of a long one, its begin."""
    shown = bytes(body[:BODY_BYTES_MAX])
    forms: dict[str, str] = {}
    try:
        text = shown.decode(errors="strict" if len(body) <= BODY_BYTES_MAX else "ignore")
    except UnicodeDecodeError:
        return {"hex": hex_lines(shown)}
    if len(body) <= BODY_BYTES_MAX and text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            forms["json"] = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return {**forms, "text": text, "hex": hex_lines(shown)}


def hex_lines(body: bytes) -> str:
    """Return bytes as `hexdump -C` prints them."""
    lines = []
    for at in range(0, len(body), HEX_LINE_BYTES):
        part = body[at : at + HEX_LINE_BYTES]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {seen}")
    return "\n".join(lines)
