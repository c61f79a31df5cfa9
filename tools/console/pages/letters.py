"""Pages of dead letters, looked at, sent again, exported, deleted; and of single messages sent again.

Sending again makes new messages; the dead letter stays where it is until it is deleted. Nothing is sent or deleted
before a page has said how many messages that are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.client.administration.admin import DEAD_LETTERS_MAX
from shmq.errors import UsageError
from shmq.message import DEAD_LETTER_PREFIX, dead_letter_topic
from shmq.tools.console.pages.messages import Row, row_of
from shmq.tools.console.rendering import Renderer, done
from shmq.tools.console.source import Look
from shmq.tools.messages.dlq_command import chosen_letters, letter_document, letters_of
from shmq.tools.messages.lookup import find_message
from shmq.tools.messages.message_command import send_again
from shmq.tools.terminal.output import json_line

if TYPE_CHECKING:
    import shmq
    from shmq.client.administration.admin import DeadLetter

SHOWN_MAX = 200


class Letter(NamedTuple):
    """One dead letter as a line."""

    row: Row
    origin_topic: str
    reason: str


class LetterPages:
    """Dead letters of all groups."""

    def __init__(
        self,
        look: Callable[[], Look],
        connect: Callable[[], shmq.Connection],
        changed: Callable[[], None],
        renderer: Renderer,
    ) -> None:
        self._look = look
        self._connect = connect
        self._changed = changed
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        group, message = "/dead-letters/{group}", "/messages/{topic}/{message_id}/resend"
        return [
            Route("/dead-letters", self.groups),
            Route(group, self.letters),
            Route(f"{group}/export", self.export),
            Route(f"{group}/resend", self.ask_resend, methods=["GET"]),
            Route(f"{group}/resend", self.resend, methods=["POST"]),
            Route(f"{group}/purge", self.ask_purge, methods=["GET"]),
            Route(f"{group}/purge", self.purge, methods=["POST"]),
            Route(message, self.ask_send_again, methods=["GET"]),
            Route(message, self.send_again, methods=["POST"]),
        ]

    def groups(self, request: Request) -> Response:
        """List the groups that have dead letters."""
        rows = [
            (topic.name.removeprefix(DEAD_LETTER_PREFIX), topic.messages)
            for topic in self._look().snapshot.topics
            if topic.name.startswith(DEAD_LETTER_PREFIX)
        ]
        return self._renderer.page(request, "dead_letters.html", rows=rows)

    def letters(self, request: Request) -> Response:
        """Show the dead letters of a group, the oldest first."""
        group = request.path_params["group"]
        with self._connect() as mq:
            letters = [_letter(each) for each in letters_of(mq, group, SHOWN_MAX)]
        return self._renderer.page(
            request, "letters.html", group=group, letters=letters, count=self._count(group, len(letters))
        )

    def export(self, request: Request) -> Response:
        """Answer the dead letters as `shmq dlq export` writes them."""
        group = request.path_params["group"]
        with self._connect() as mq:
            lines = [json_line(letter_document(each)) + "\n" for each in letters_of(mq, group, DEAD_LETTERS_MAX)]
        headers = {"content-disposition": f"attachment; filename*=UTF-8''dead-letters-{quote(group, safe='')}.jsonl"}
        return Response("".join(lines), media_type="application/x-ndjson", headers=headers)

    def ask_resend(self, request: Request) -> Response:
        """Say what would be sent again, and ask."""
        group, offsets = request.path_params["group"], _offsets(request.query_params.getlist("offset"))
        if not offsets and request.query_params.get("all") != "1":
            raise UsageError("no dead letter was chosen", hint="tick those that are to be sent again, or take all")
        with self._connect() as mq:
            letters = [_letter(each) for each in chosen_letters(mq, group, offsets, DEAD_LETTERS_MAX)]
        return self._renderer.page(request, "resend.html", group=group, letters=letters, offsets=offsets)

    def resend(self, request: Request) -> Response:
        """Send them again: what was shown, whatever died since."""
        group, form = request.path_params["group"], request.state.form
        offsets = _offsets(form.get("offset", "").split())
        if not offsets:
            raise UsageError("no dead letter was chosen", hint="tick those that are to be sent again")
        with self._connect() as mq:
            letters = chosen_letters(mq, group, offsets, DEAD_LETTERS_MAX)
            for letter in letters:
                letter.resend()
        return self._done(group, "resent", len(letters))

    def ask_purge(self, request: Request) -> Response:
        """Say how many dead letters would be deleted, and ask."""
        group = request.path_params["group"]
        with self._connect() as mq:
            mq.admin.groups[group]
        return self._renderer.page(request, "purge.html", group=group, count=self._count(group, 0))

    def purge(self, request: Request) -> Response:
        """Delete them."""
        group = request.path_params["group"]
        count = self._count(group, 0)
        with self._connect() as mq:
            mq.admin.delete_topic(dead_letter_topic(group))
        self._changed()
        return done("/dead-letters", "purged", count)

    def ask_send_again(self, request: Request) -> Response:
        """Show the message that would be sent again, and ask."""
        with self._connect() as mq:
            row = row_of(find_message(mq, request.path_params["topic"], request.path_params["message_id"]))
        return self._renderer.page(request, "send_again.html", row=row)

    def send_again(self, request: Request) -> Response:
        """Send it again, and show the new one."""
        topic = request.path_params["topic"]
        with self._connect() as mq:
            receipt = send_again(mq, find_message(mq, topic, request.path_params["message_id"]))
        self._changed()
        return done(f"/messages/{quote(topic, safe='')}/{quote(receipt.message_id, safe='')}", "resent", 1)

    def _count(self, group: str, otherwise: int) -> int:
        topic = self._look().snapshot.topic(dead_letter_topic(group))
        return otherwise if topic is None else max(otherwise, topic.messages)

    def _done(self, group: str, what: str, count: int) -> Response:
        self._changed()
        return done(f"/dead-letters/{quote(group, safe='')}", what, count)


def _letter(letter: DeadLetter) -> Letter:
    return Letter(row_of(letter.message), letter.origin_topic, letter.reason)


def _offsets(texts: Iterable[str]) -> tuple[int, ...]:
    wrong = [text for text in texts if not text.isascii() or not text.isdigit() or len(text) > 18]
    if wrong:
        raise UsageError(f"{wrong[0]!r:.40} is no offset", hint="a number from 0 on")
    return tuple(dict.fromkeys(map(int, texts)))
