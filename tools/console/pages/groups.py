"""The list of consumer groups, and one group: lag, members and their subscriptions, conflicts, departed members."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.figures.snapshot import Group
from shmq.figures.verdict import Finding
from shmq.message import dead_letter_topic, is_system_group
from shmq.tools.broker.view import group_not_found
from shmq.tools.console.listing import listing_of
from shmq.tools.console.rendering import Renderer
from shmq.tools.console.source import Look
from shmq.tools.top.rates import GroupRow


class GroupLine(NamedTuple):
    """One line of the list: a group, and how fast it goes on."""

    group: Group
    rates: GroupRow


_COLUMNS: dict[str, Callable[[GroupLine], object]] = {
    "members": lambda line: line.rates.members,
    "topics": lambda line: line.rates.topics,
    "lag": lambda line: line.group.lag,
    "ready": lambda line: line.group.ready,
    "flight": lambda line: line.group.in_flight,
    "out": lambda line: line.rates.out_rate,
    "oldest": lambda line: line.group.oldest,
}


class GroupPages:
    """Groups, as the look shows them."""

    def __init__(self, look: Callable[[], Look], renderer: Renderer) -> None:
        self._look = look
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        return [Route("/groups", self.groups), Route("/groups/{group}", self.group)]

    def groups(self, request: Request) -> Response:
        """List groups; those of the broker itself where they are asked for."""
        look = self._look()
        everything = request.query_params.get("all") == "1"
        lines = [GroupLine(*pair) for pair in zip(look.snapshot.groups, look.picture.groups, strict=True)]
        shown = [line for line in lines if everything or not is_system_group(line.group.name)]
        listing = listing_of(request, shown, _COLUMNS, name=lambda line: line.group.name, sort="-lag")
        hidden_count = sum(1 for line in lines if is_system_group(line.group.name))
        return self._renderer.page(
            request, "groups.html", listing=listing, everything=everything, hidden_count=hidden_count
        )

    def group(self, request: Request) -> Response:
        """Show one group."""
        look, name = self._look(), request.path_params["group"]
        group = look.snapshot.group(name)
        if group is None:
            names = [each.name for each in look.snapshot.groups]
            raise group_not_found(name, look.snapshot.broker.name, names)
        rates = next(row for row in look.picture.groups if row.name == name)
        findings = [one for one in look.report.findings if _is_about(one, name)]
        refused = [one for one in look.snapshot.refused if one.group == name]
        has_letters = look.snapshot.topic(dead_letter_topic(name)) is not None
        return self._renderer.page(
            request,
            "group.html",
            group=group,
            rates=rates,
            findings=findings,
            refused=refused,
            has_letters=has_letters,
        )


def _is_about(finding: Finding, group: str) -> bool:
    return finding.subject == group and finding.check == "group"
