"""Who may use the console, and what it refuses: strangers, other sites, unsigned forms, forged changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from shmq.errors import UsageError
from shmq.testing import Broker
from shmq.tools.console.access import Access, Listen, parse_listen
from shmq.tools.console.guard import FORM_BYTES_MAX
from tests.tools.console.conftest import Site
from tests.tools.json_schema import check
from tests.tools.shell import Shell, interrupt

TOKEN = "a token beyond guessing"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "192.0.2.1:80", "127.0.0.1.evil.example", ""]
)
def test_a_host_that_is_not_ours_is_refused(site: Site, host: str) -> None:
    answer = site.client.get("/", headers={"host": host})
    assert answer.status_code == 400
    assert "set-cookie" not in answer.headers


def test_every_answer_forbids_scripts_in_pages_frames_and_other_sites(site: Site) -> None:
    for path in ("/", "/no/such/page", "/static/console.css", "/health.json"):
        headers = site.client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"


def test_a_form_without_its_token_is_refused(site: Site) -> None:
    site.page("/")
    for fields in ({}, {"form_token": "f" * 64}):
        answer = site.client.post("/topics", data=fields)
        assert answer.status_code == 403
        assert "not from this console" in answer.text


def test_a_form_of_another_session_is_refused(site: Site) -> None:
    site.page("/")
    foreign = site.access.form_token(site.access.new_session())
    assert site.client.post("/topics", data={"form_token": foreign}).status_code == 403


def test_a_form_from_another_site_is_refused_whatever_it_carries(site: Site) -> None:
    site.page("/")
    token = site.access.form_token(site.client.cookies[site.access.cookie])
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{site.access.listen.port + 1}"):
        answer = site.client.post("/topics", data={"form_token": token}, headers={"origin": origin})
        assert (answer.status_code, "another site" in answer.text) == (403, True)


def test_a_form_without_a_session_is_refused(site: Site) -> None:
    answer = httpx.post(site.access.listen.url + "topics", data={"form_token": "x"})
    assert answer.status_code == 403


def test_a_form_that_is_too_large_is_refused(site: Site) -> None:
    answer = site.client.post("/topics", content=b"a=" + b"x" * FORM_BYTES_MAX)
    assert answer.status_code == 413


def test_other_methods_are_refused(site: Site) -> None:
    assert site.client.request("DELETE", "/").status_code == 405


def test_a_console_with_a_token_shows_nothing_to_strangers(console_of: Callable[..., Site]) -> None:
    site = console_of(TOKEN)
    for path in ("/", "/health.json", "/trends.json", "/topics", "/?token=wrong"):
        answer = site.client.get(path)
        assert answer.status_code == 401
        assert "shmq://" not in answer.text and "set-cookie" not in answer.headers
    assert site.client.get("/static/console.css").status_code == 200


def test_the_token_in_the_address_lets_in_and_leaves_the_address(console_of: Callable[..., Site]) -> None:
    site = console_of(TOKEN)
    answer = site.client.get("/", params={"token": TOKEN, "lang": "zh"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/?lang=zh")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert "概览" in site.page("/", lang="zh")


def test_the_address_with_a_token_leads_nowhere_else(console_of: Callable[..., Site]) -> None:
    site = console_of(TOKEN)
    answer = site.client.get(f"{site.access.listen.url}/evil.example/", params={"token": TOKEN})
    assert answer.headers["location"] == "/evil.example/"


def test_the_token_may_be_typed(console_of: Callable[..., Site]) -> None:
    site = console_of(TOKEN)
    assert site.client.post("/login", data={"token": "wrong"}).status_code == 401
    answer = site.client.post("/login", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    site.page("/")


def test_a_session_of_another_console_is_worth_nothing(console_of: Callable[..., Site]) -> None:
    site = console_of(TOKEN)
    other = Access(Listen("127.0.0.1", site.access.listen.port), TOKEN)
    site.client.cookies.set(site.access.cookie, other.new_session())
    assert site.client.get("/").status_code == 401


def test_a_console_that_is_read_only_takes_no_form(console_of: Callable[..., Site]) -> None:
    site = console_of(read_only=True)
    assert "read only" in site.page("/")
    assert "changes nothing" in site.submit("/topics", 403)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "broker.example"])
def test_other_hosts_need_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="no token is set"):
        Access(Listen(host, 8080), None)
    Access(Listen(host, 8080), TOKEN)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(UsageError, match="can be guessed"):
        Access(Listen("127.0.0.1", 8080), "secret")


def test_names_of_a_proxy_are_ours_when_they_are_given() -> None:
    access = Access(Listen("127.0.0.1", 8080), None, names=["console.example"])
    assert access.host_is_ours("console.example") and access.host_is_ours("[::1]:8080")
    assert access.origin_is_ours("https://console.example", "127.0.0.1:8080")
    assert not access.origin_is_ours("https://evil.example", "127.0.0.1:8080")
    assert not access.host_is_ours("192.0.2.1") and not access.host_is_ours("evil.example")


@pytest.mark.parametrize(
    "text", ["8080", "localhost", "localhost:http", ":8080", "127.0.0.1:70000", "a b:1", f"{'h' * 300}:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        parse_listen(text)


def test_the_command_prints_the_address_with_its_token_and_ends_at_ctrl_c(broker: Broker) -> None:
    process = Shell(broker.url).start("console", "--listen", "127.0.0.1:0", "--jsonl")
    assert process.stdout is not None
    document = json.loads(process.stdout.readline())
    check("console", document)
    url = document["url"]
    answer = httpx.get(url, follow_redirects=False, timeout=60)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert httpx.get(url.partition("?")[0], timeout=60).status_code == 401
    result = interrupt(process)
    assert (result.status, result.err) in [(130, ""), (0, "")]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--listen", "0.0.0.0:0"), "no token is set"),
        (("--token", TOKEN, "--no-token"), "contradict"),
        (("--listen", "nowhere"), "is no address"),
        (("-u", "rocketmq://127.0.0.1:9876"), "reached over TCP"),
    ],
)
def test_the_command_refuses_what_cannot_be(words: tuple[str, ...], what: str) -> None:
    assert what in Shell().fails(64, "console", *words)["error"]


def test_without_its_libraries_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['starlette'] = None; from shmq.tools.start import main; sys.exit(main(['console']))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 64 and "pip install 'shmq[console]'" in result.stderr
