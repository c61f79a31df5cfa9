"""The first page: the verdict with its findings, what flows, what waits; and the same for machines.

/               as `shmq health` says it
/health.json    the very document of `shmq health --json`
/trends.json    the last hour, for the charts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shmq.figures.verdict import Finding, Verdict, by_severity
from shmq.tools.console.rendering import Renderer
from shmq.tools.console.source import Look
from shmq.tools.console.trends import Trends

GROUPS_SHOWN_MAX = 6


class OverviewPages:
    """The overview and what its scripts ask for."""

    def __init__(self, look: Callable[[], Look], trends: Trends, renderer: Renderer) -> None:
        self._look = look
        self._trends = trends
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        return [
            Route("/", self.overview),
            Route("/health.json", self.health),
            Route("/trends.json", self.trends),
        ]

    def overview(self, request: Request) -> Response:
        """Show how the broker is."""
        look = self._look()
        snapshot = look.snapshot
        told = [finding for finding in by_severity(look.report.findings) if not _is_quiet(finding)]
        behind = sorted((group for group in look.groups if group.lag), key=lambda group: -group.lag)
        return self._renderer.page(
            request,
            "overview.html",
            look=look,
            snapshot=snapshot,
            findings=[finding for finding in told if finding.verdict is not Verdict.OK],
            well=[finding for finding in told if finding.verdict is Verdict.OK],
            totals=totals_of(look),
            behind=behind[:GROUPS_SHOWN_MAX],
        )

    def health(self, request: Request) -> Response:
        """Answer what `shmq health --json` prints."""
        return JSONResponse(self._look().report.document())

    def trends(self, request: Request) -> Response:
        """Answer the samples of the last hour."""
        return JSONResponse(self._trends.columns())


def totals_of(look: Look) -> dict[str, Any]:
    """Return the sums that the tiles show; what the broker keeps for itself is stored, but is no user's lag."""
    groups, hidden = look.groups, look.hidden_topics
    return {
        "topics": sum(1 for topic in look.snapshot.topics if topic.name not in hidden),
        "groups": len(groups),
        "members": sum(len(group.members) for group in groups),
        "messages": sum(topic.messages for topic in look.snapshot.topics),
        "lag": sum(group.lag for group in groups),
        "in_flight": sum(group.in_flight for group in groups),
        "oldest": max((group.oldest for group in groups if group.oldest is not None), default=None),
        "clients": sum(1 for client in look.snapshot.clients if client.client_id),
    }


def _is_quiet(finding: Finding) -> bool:
    """Whether it is good news of a single group: the page of groups has them all."""
    return finding.check == "group" and finding.verdict is Verdict.OK
