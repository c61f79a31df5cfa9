"""The list of topics, and one topic: settings, queues, the groups that read it, its newest messages by a link."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.tools.broker.memory import Memory
from shmq.tools.console.listing import listing_of
from shmq.tools.console.rendering import Renderer
from shmq.tools.console.source import Look
from shmq.tools.top.rates import TopicRow

_COLUMNS: dict[str, Callable[[TopicRow], object]] = {
    "kind": lambda row: row.kind,
    "queues": lambda row: row.queues,
    "messages": lambda row: row.messages,
    "size": lambda row: row.size_bytes,
    "in": lambda row: row.in_rate,
    "out": lambda row: row.out_rate,
    "groups": lambda row: row.groups,
}


class TopicPages:
    """Topics, as memory shows them."""

    def __init__(
        self,
        look: Callable[[], Look],
        memory: Callable[[], AbstractContextManager[Memory]],
        renderer: Renderer,
    ) -> None:
        self._look = look
        self._memory = memory
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        return [Route("/topics", self.topics), Route("/topics/{topic}", self.topic)]

    def topics(self, request: Request) -> Response:
        """List topics; those that the broker keeps for itself where they are asked for."""
        look = self._look()
        everything = request.query_params.get("all") == "1"
        hidden = look.hidden_topics
        rows = [row for row in look.picture.topics if everything or row.name not in hidden]
        listing = listing_of(request, rows, _COLUMNS, name=lambda row: row.name)
        return self._renderer.page(
            request, "topics.html", listing=listing, everything=everything, hidden_count=len(hidden)
        )

    def topic(self, request: Request) -> Response:
        """Show one topic."""
        name = request.path_params["topic"]
        with self._memory() as memory:
            view = memory.topic(name)
            oldest_ms = memory.oldest_ms(view)
        look = self._look()
        rates = next((row for row in look.picture.topics if row.name == name), None)
        groups = []
        for group in look.snapshot.groups:
            queues = [queue for queue in group.queues if queue.topic == name]
            if queues or any(name in member.subscription for member in group.members):
                groups.append((group, queues))
        return self._renderer.page(
            request, "topic.html", topic=view, rates=rates, oldest_ms=oldest_ms, groups=groups, at=look.snapshot.at
        )
