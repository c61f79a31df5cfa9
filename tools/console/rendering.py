"""Templates made into pages: what every page is given, the language it speaks, and how numbers look.

Everything that a template prints is escaped unless the template says otherwise, and none does. A template that names
what it was not given is an error.

    language   the cookie, else what the browser accepts; ?lang=zh sets the cookie
    theme      the cookie, else what the system prefers; ?theme=dark sets the cookie
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from shmq.figures.quantity import age_text, count_text, iso_text, rate_text, size_text
from shmq.tools.console.listing import number_of
from shmq.tools.console.source import Look
from shmq.tools.console.texts import LANGUAGES, text_in
from shmq.version import __version__

HERE = Path(__file__).parent
THEMES = ("system", "light", "dark")
_YEAR_SECONDS = 365 * 24 * 3600
UNKNOWN = "–"
_PASSING = frozenset({"lang", "theme", "done", "count", "other"})  # parameters that no link of a page repeats


class Link(NamedTuple):
    """One entry of the navigation; `key` is what is typed after g."""

    path: str
    text: str
    key: str


NAVIGATION = (
    Link("/", "Overview", "o"),
    Link("/topics", "Topics", "t"),
    Link("/groups", "Groups", "g"),
    Link("/messages", "Messages", "m"),
    Link("/dead-letters", "Dead letters", "d"),
    Link("/timers", "Timers", "i"),
    Link("/transactions", "Transactions", "x"),
    Link("/trace", "Trace", "r"),
    Link("/processes", "Processes", "p"),
    Link("/broker", "Broker", "b"),
)


DONE = {
    "created": "The topic was created.",
    "changed": "The topic was changed.",
    "topic-deleted": "The topic was deleted, with its messages.",
    "sent": "The message was sent.",
    "reset": "The group goes on there; messages delivered again: {count}, left out: {other}.",
    "group-deleted": "The group was deleted.",
    "resent": "Messages sent again: {count}.",
    "purged": "Dead letters deleted: {count}.",
    "cancelled": "The message was taken back.",
    "asked": "A member of the producer group was asked.",
    "committed": "The transaction was committed.",
    "rolled-back": "The transaction was rolled back.",
}


def done(path: str, what: str, count: int = 0, other: int = 0) -> Response:
    """Return the answer to a form that did something: look at a page, which says so."""
    numbers = {name: value for name, value in (("count", count), ("other", other)) if value}
    mark = "&" if "?" in path else "?"
    return RedirectResponse(f"{path}{mark}{urlencode({'done': what, **numbers})}", 303)


def or_dash(shown: Callable[[Any], str | None]) -> Callable[[Any], str]:
    """Return the same for what may not be known."""

    def or_unknown(value: Any) -> str:
        text = None if value is None else shown(value)
        return UNKNOWN if text is None else text

    return or_unknown


def time_text(time_ms: int) -> str:
    """Return a time of this host with its day, in milliseconds."""
    moment = time.localtime(time_ms / 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", moment) + f".{time_ms % 1000:03d}"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=or_dash(count_text),
        size=or_dash(size_text),
        rate=or_dash(rate_text),
        age=or_dash(age_text),
        time=or_dash(time_text),
        iso=or_dash(iso_text),
        segment=lambda text: quote(text, safe=""),
    )
    return environment


class Renderer:
    """Makes pages.

    Args:
        read_only: whether pages offer no changes.
        asks_token: whether an unknown visitor is asked for a token.
        look: the broker, for the head of each page.
    """

    def __init__(self, look: Callable[[], Look], *, read_only: bool, asks_token: bool) -> None:
        self._look = look
        self._read_only = read_only
        self._asks_token = asks_token
        self._environment = _environment()

    def page(self, request: Request, template: str, status: int = 200, /, **given: Any) -> Response:
        """Return a page with the broker's name and verdict on it."""
        look = self._look()
        head = {"broker": look.snapshot.broker, "verdict": look.report.verdict.name, "at": look.snapshot.at}
        return self._answer(request, template, status, {**head, **given})

    def bare(self, request: Request, template: str, status: int = 200, /, **given: Any) -> Response:
        """Return a page that says nothing about the broker: it is shown before the token is checked."""
        return self._answer(request, template, status, {"broker": None, "verdict": "", "at": 0.0, **given})

    def _answer(self, request: Request, template: str, status: int, given: dict[str, Any]) -> Response:
        language, theme = language_of(request), theme_of(request)
        context = {
            "t": lambda text, /, **named: text_in(language, text, **named),
            "language": language,
            "languages": LANGUAGES,
            "theme": theme,
            "navigation": NAVIGATION,
            "path": request.url.path,
            "here": lambda **changes: _address(request, changes),
            "read_only": self._read_only,
            "done": _done_text(request, language),
            "asks_token": self._asks_token,
            "form_token": getattr(request.state, "form_token", ""),
            "version": __version__,
            **given,
        }
        response = HTMLResponse(self._environment.get_template(template).render(context), status)
        for name, value in (("lang", language), ("theme", theme)):
            if request.query_params.get(name) == value:
                response.set_cookie(f"shmq_{name}", value, max_age=_YEAR_SECONDS, httponly=True, samesite="strict")
        return response


def _done_text(request: Request, language: str) -> str:
    """Return what the page is to say was done; an address can name one of our sentences, and numbers in it."""
    said = DONE.get(request.query_params.get("done", ""))
    if said is None:
        return ""
    count, other = (count_text(number_of(request.query_params.get(name), 0)) for name in ("count", "other"))
    return text_in(language, said, count=count, other=other)


def language_of(request: Request) -> str:
    """Return the language a page is to speak."""
    for told in (request.query_params.get("lang"), request.cookies.get("shmq_lang")):
        if told in LANGUAGES:
            return told
    accepted = request.headers.get("accept-language", "").lower().replace(" ", "")
    return "zh" if accepted.startswith("zh") else "en"


def theme_of(request: Request) -> str:
    """Return the colours a page is to have."""
    for told in (request.query_params.get("theme"), request.cookies.get("shmq_theme")):
        if told in THEMES:
            return told
    return THEMES[0]


def _address(request: Request, changes: dict[str, Any]) -> str:
    """Return this page's address with parameters changed, and left out where they are None."""
    kept = {name: text for name, text in request.query_params.items() if name not in _PASSING}
    kept.update({name: str(value) for name, value in changes.items()})
    for name, value in changes.items():
        if value is None:
            del kept[name]
    return request.url.path + (f"?{urlencode(kept)}" if kept else "")
