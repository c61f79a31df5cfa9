"""The real console over a real broker: uvicorn on loopback in a thread, and a browser's half of the protocol."""

from __future__ import annotations

import html
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

import shmq
from shmq.testing import Broker
from shmq.tools.console.access import Access, Listen
from shmq.tools.console.application import make_application
from shmq.tools.console.source import Source
from tests.deadline import eventually


class Site:
    """One console, and a browser's requests to it."""

    def __init__(self, access: Access, source: Source) -> None:
        self.access = access
        self.source = source
        self.client = httpx.Client(base_url=access.listen.url, timeout=60)

    def page(self, path: str, status: int = 200, **parameters: Any) -> str:
        """Return a page as it came."""
        self.source.forget()
        answer = self.client.get(path, params=parameters or None, follow_redirects=True)
        assert answer.status_code == status, answer.text
        return answer.text

    def words(self, path: str, status: int = 200, **parameters: Any) -> str:
        """Return what people read on a page, in one line."""
        return words_of(self.page(path, status, **parameters))

    def submit(self, path: str, status: int = 200, **fields: Any) -> str:
        """Send a form as a page of this console would; return what people read then."""
        if self.access.cookie not in self.client.cookies:
            self.client.get("/")
        session = self.client.cookies[self.access.cookie]
        data = {"form_token": self.access.form_token(session), **fields}
        answer = self.client.post(path, data=data, follow_redirects=True)
        assert answer.status_code == status, answer.text
        return words_of(answer.text)


def words_of(page: str) -> str:
    """Return the text of a page's main part."""
    main = page[page.index("<main") :]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


@contextmanager
def open_site(url: str, token: str | None = None, **settings: Any) -> Iterator[Site]:
    """Run a console for the length of a with block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = Access(Listen("127.0.0.1", listener.getsockname()[1]), token, **settings)
        source = Source(url)
        config = uvicorn.Config(make_application(source, access), log_level="warning", ws="none", lifespan="on")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started or not thread.is_alive(), "the console starts")
            site = Site(access, source)
            yield site
            site.client.close()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def broker(broker_in_time: Broker) -> Broker:
    return broker_in_time


@pytest.fixture(scope="session")
def site(broker: Broker) -> Iterator[Site]:
    """A console without a token that may change everything."""
    with open_site(broker.url) as site:
        yield site


@pytest.fixture
def console_of(broker: Broker) -> Iterator[Callable[..., Site]]:
    """Consoles with other settings."""
    with ExitStack() as stack:
        yield lambda token=None, **settings: stack.enter_context(open_site(broker.url, token, **settings))


@pytest.fixture
def links_of() -> Callable[[str], set[str]]:
    """What a page leads to on this console."""
    return lambda page: {html.unescape(link) for link in re.findall(r'(?:href|src)="(/[^"]*)"', page)}


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[Site, str]]:
    """A broker with something on every screen, and the id of a message that was traced."""
    with (
        Broker(tcp=True) as broker,
        broker.connect() as mq,
        shmq.connect(broker.url, trace=True) as traced,
        open_site(broker.url) as site,
    ):
        receipt = traced.send("orders", b'{"order": 1, "fruit": ["apple"]}', key="order-1", tag="fruit")
        mq.send_batch("orders", [b'{"order": %d, "customer": "customer"}' % number for number in range(12_000)])
        mq.send("orders", b"later", delay=7200)
        mq.producer(group="shop").transaction("orders", b"half", key="o-42")
        with mq.subscribe("orders", group="billing") as subscription:
            for message in subscription.receive(3, wait=60):
                subscription.reject(message, "the customer is unknown")
        eventually(lambda: "Pub" in site.words("/trace", id=receipt.message_id), "the trace is stored")
        yield site, receipt.message_id
