"""Checks every request before a page sees it, and adds the headers of every answer.

    request   Host is ours ──▶ token in the address, or a session ──▶ a form: origin, size, form token, not read-only
    refused   400 / 403        401, with the form that asks for it    403, 413

A form's fields are read here, once, into the request's state; pages never read a body.

The answer's rules forbid scripts and styles inside a page, frames, and other sites: what a message's body says stays
text even where a template should forget to escape it.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shmq.tools.console.access import Access

FORM_BYTES_MAX = 8 << 20
FORM_FIELDS_MAX = 20_000
FORM_TOKEN = "form_token"
_LOGIN = "/login"
_STATIC = "/static/"
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

Refuse = Callable[[Request, int, str], Response]


class Guard:
    """An ASGI application around another one.

    Args:
        refuse: makes the page that says why a request was refused; status 401 asks for the token.
    """

    def __init__(self, application: ASGIApp, access: Access, refuse: Refuse) -> None:
        self._application = application
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request = Request(scope, receive)
        scope.setdefault("state", {}).update(form={}, session="", form_token="")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(request, MutableHeaders(scope=message))
            await send(message)

        response = await self._refused(request)
        await (response or self._application)(scope, receive, send_guarded)

    async def _refused(self, request: Request) -> Response | None:
        """Return the answer to a request that no page is to see."""
        access, host = self._access, request.headers.get("host", "")
        if not access.host_is_ours(host):
            return self._refuse(
                request,
                400,
                f'This console is not known as "{host[:80]}"; to reach it by that name, start it with --allow-host.',
            )
        if request.method not in ("GET", "HEAD", "POST"):
            return self._refuse(request, 405, f"{request.method[:20]} is not understood here.")
        path = request.url.path
        if path.startswith(_STATIC):
            return None
        told = request.query_params.get("token")
        if told is not None and access.token_is(told) and request.method == "GET":
            return self._let_in(request)
        session = request.cookies.get(access.cookie, "")
        if not access.session_is_ours(session):
            session = ""
        if request.method == "POST":
            return await self._refused_form(request, session)
        if not session:
            if access.asks_token:
                wrong = "This is not the token." if told is not None else ""
                return self._refuse(request, 401, wrong)
            session = access.new_session()
            request.state.new_session = session
        self._keep(request, session)
        return None

    async def _refused_form(self, request: Request, session: str) -> Response | None:
        access, path = self._access, request.url.path
        origin = request.headers.get("origin")
        if origin is not None and not access.origin_is_ours(origin, request.headers.get("host", "")):
            return self._refuse(request, 403, "This form came from a page of another site.")
        form = await self._form(request)
        if form is None:
            return self._refuse(request, 413, f"A form may have {FORM_BYTES_MAX >> 20} MiB at most.")
        if path == _LOGIN and access.asks_token:
            right = access.token_is(form.get("token", ""))
            return self._let_in(request) if right else self._refuse(request, 401, "This is not the token.")
        if not session:
            return self._refuse(request, 401 if access.asks_token else 403, "Open the console first.")
        if not access.form_token_is(session, form.get(FORM_TOKEN, "")):
            return self._refuse(request, 403, "This form is not from this console, or from before it was restarted.")
        if access.read_only:
            return self._refuse(request, 403, "This console was started with --read-only; it changes nothing.")
        self._keep(request, session)
        request.state.form = form
        return None

    async def _form(self, request: Request) -> dict[str, str] | None:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                return None
        form: dict[str, str] = {}
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
        except ValueError:
            return None
        for name, value in pairs:  # of a field that is there several times, all values, one a line
            form[name] = f"{form[name]}\n{value}" if name in form else value
        return form

    def _keep(self, request: Request, session: str) -> None:
        request.state.session = session
        request.state.form_token = self._access.form_token(session)

    def _let_in(self, request: Request) -> Response:
        """Answer with a session, and an address that does not hold the token."""
        pairs = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        path = "/" if request.url.path == _LOGIN else request.url.path
        target = "/" + path.lstrip("/\\") + (f"?{urlencode(pairs)}" if pairs else "")
        request.state.new_session = self._access.new_session()
        return RedirectResponse(target, 303)

    def _add_headers(self, request: Request, headers: MutableHeaders) -> None:
        for name, value in _HEADERS.items():
            headers[name] = value
        if "cache-control" not in headers:
            headers["cache-control"] = "no-cache" if request.url.path.startswith(_STATIC) else "no-store"
        session = getattr(request.state, "new_session", None)
        if session:
            headers.append("set-cookie", f"{self._access.cookie}={session}; Path=/; HttpOnly; SameSite=Strict")
