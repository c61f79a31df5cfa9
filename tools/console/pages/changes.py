"""Pages that change topics and groups: create, change, delete and send to a topic; reset, skip and delete a group.

Each is a page that asks (GET) and a form that acts (POST), and a page that says what was done. What takes something
away says first how many messages that are. Everything goes through the public connection, which refuses what cannot be.

    /create-topic   /topics/T/change   /topics/T/delete   /topics/T/send
    /groups/G/reset?topic=T&to=PLACE   /groups/G/delete
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.errors import UsageError
from shmq.figures.model import TOPIC_KINDS
from shmq.message import QUEUES_MAX
from shmq.tools.broker.memory import Memory
from shmq.tools.broker.view import on_topic
from shmq.tools.console.listing import number_of
from shmq.tools.console.rendering import Renderer, done
from shmq.words import keys_in

if TYPE_CHECKING:
    import shmq

PLACES = ("begin", "end", "-1h", "-1d")


class ChangePages:
    """Forms that change topics and groups.

    Args:
        changed: is called when something was changed, so that the next page looks anew.
    """

    def __init__(
        self,
        memory: Callable[[], AbstractContextManager[Memory]],
        connect: Callable[[], shmq.Connection],
        changed: Callable[[], None],
        renderer: Renderer,
    ) -> None:
        self._memory = memory
        self._connect = connect
        self._changed = changed
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        pairs = [
            ("/create-topic", self.ask_create, self.create),
            ("/topics/{topic}/change", self.ask_change, self.change),
            ("/topics/{topic}/delete", self.ask_delete, self.delete),
            ("/topics/{topic}/send", self.ask_send, self.send),
            ("/groups/{group}/reset", self.ask_reset, self.reset),
            ("/groups/{group}/delete", self.ask_delete_group, self.delete_group),
        ]
        asks = [Route(path, ask, methods=["GET"]) for path, ask, _ in pairs]
        return asks + [Route(path, act, methods=["POST"]) for path, _, act in pairs]

    # -- topics
    def ask_create(self, request: Request) -> Response:
        """Ask what topic to create."""
        return self._renderer.page(request, "create_topic.html", kinds=TOPIC_KINDS, queues_max=QUEUES_MAX)

    def create(self, request: Request) -> Response:
        """Create it."""
        form = request.state.form
        name, kind = form.get("name", "").strip(), form.get("kind", TOPIC_KINDS[0])
        with self._connect() as mq:
            if name in mq.admin.topics:
                raise UsageError(f'topic "{name}" exists already', hint="change it on its page")
            mq.admin.create_topic(name, queues=_count(form, "queues"), kind=kind)
        return self._done(f"/topics/{quote(name, safe='')}", "created")

    def ask_change(self, request: Request) -> Response:
        """Ask how many queues a topic is to have."""
        with self._memory() as memory:
            topic = memory.topic(request.path_params["topic"])
        return self._renderer.page(request, "change_topic.html", topic=topic, queues_max=QUEUES_MAX)

    def change(self, request: Request) -> Response:
        """Change it."""
        name, form = request.path_params["topic"], request.state.form
        with self._connect() as mq, self._memory() as memory:
            memory.topic(name)
            mq.admin.update_topic(name, queues=_count(form, "queues"), read_queues=_count(form, "read_queues"))
        return self._done(f"/topics/{quote(name, safe='')}", "changed")

    def ask_delete(self, request: Request) -> Response:
        """Say what goes with a topic, and ask."""
        with self._memory() as memory:
            topic = memory.topic(request.path_params["topic"])
            readers = sorted(on_topic(memory, topic.name))
        return self._renderer.page(request, "delete_topic.html", topic=topic, readers=readers)

    def delete(self, request: Request) -> Response:
        """Delete it."""
        with self._connect() as mq:
            mq.admin.delete_topic(request.path_params["topic"])
        return self._done("/topics", "topic-deleted")

    def ask_send(self, request: Request) -> Response:
        """Ask what to send."""
        with self._memory() as memory:
            topic = memory.topic(request.path_params["topic"])
        return self._renderer.page(request, "send.html", topic=topic)

    def send(self, request: Request) -> Response:
        """Send it, and show what is stored."""
        name, form = request.path_params["topic"], request.state.form
        body = form.get("body", "").replace("\r\n", "\n").encode()
        named: dict[str, Any] = {
            word: form[word].strip() for word in ("tag", "message_group") if form.get(word, "").strip()
        }
        keys = keys_in(form.get("keys", ""))
        with self._memory() as memory:
            memory.topic(name)
        with self._connect() as mq:
            receipt = mq.send(name, body, keys=keys or None, properties=_properties(form) or None, **named)
        return self._done(f"/messages/{quote(name, safe='')}/{quote(receipt.message_id, safe='')}", "sent")

    # -- groups
    def ask_reset(self, request: Request) -> Response:
        """Ask where a group is to go on, and say what that would do."""
        group, topic, to = (request.path_params["group"], *_target(request.query_params))
        with self._connect() as mq:
            one = mq.admin.groups[group]
            topics = sorted({entry.topic for entry in one.offsets})
            steps = one.reset(topic, to=to, dry_run=True) if topic and to else None
            members = one.members
        return self._renderer.page(
            request,
            "reset.html",
            group=group,
            topics=topics,
            topic=topic or next((name for name in topics if not name.startswith("%")), ""),
            to=to,
            steps=steps,
            again=sum(step.again for step in steps or ()),
            skipped=sum(step.skipped for step in steps or ()),
            members=members,
            places=PLACES,
        )

    def reset(self, request: Request) -> Response:
        """Let it go on there."""
        group, topic, to = (request.path_params["group"], *_target(request.state.form))
        with self._connect() as mq:
            steps = mq.admin.groups[group].reset(topic, to=to)
        again, skipped = sum(step.again for step in steps), sum(step.skipped for step in steps)
        return self._done(f"/groups/{quote(group, safe='')}", "reset", again, skipped)

    def ask_delete_group(self, request: Request) -> Response:
        """Say what goes with a group, and ask."""
        with self._connect() as mq:
            group = mq.admin.groups[request.path_params["group"]]
            lag, members = group.lag, group.members
        return self._renderer.page(request, "delete_group.html", group=group.name, lag=lag, members=members)

    def delete_group(self, request: Request) -> Response:
        """Delete it."""
        with self._connect() as mq:
            mq.admin.groups[request.path_params["group"]].delete()
        return self._done("/groups", "group-deleted")

    def _done(self, path: str, what: str, count: int = 0, other: int = 0) -> Response:
        self._changed()
        return done(path, what, count, other)


def _count(form: dict[str, str], name: str) -> int | None:
    """Return a number that may be left out."""
    text = form.get(name, "").strip()
    if not text:
        return None
    number = number_of(text, 0)
    if not 1 <= number <= QUEUES_MAX:
        raise UsageError(f"{text!r:.40} is no number of queues", hint=f"1 to {QUEUES_MAX}")
    return number


def _target(told: Any) -> tuple[str, str]:
    return told.get("topic", "").strip(), told.get("to", "").strip()


def _properties(form: dict[str, str]) -> dict[str, str]:
    """Return the properties of a field with one `name=value` a line."""
    found = {}
    for line in filter(str.strip, form.get("properties", "").splitlines()):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{line!r:.80} is no property", hint="one name=value a line")
        found[name.strip()] = value.strip()
    return found
