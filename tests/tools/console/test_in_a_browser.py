"""Every screen in Debian's Chromium: drawn without an error, readable in every theme, driven by keys and forms.

Pictures of all screens are left in the folder that SHMQ_SCREENSHOTS names, else in the test's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shmq
from tests.tools.console.conftest import Site
from tests.tools.console.screens import CHROMIUM, SCREENS, path_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SHMQ_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_screens(page: Page, site: Site, message_id: str, theme: str) -> Iterator[str]:
    """Open every screen; yield its name."""
    root = site.access.listen.url.rstrip("/")
    page.goto(f"{root}/?theme={theme}")
    for name in SCREENS:
        answer = page.goto(root + path_of(name, message_id))
        assert answer is not None and answer.status == 200, name
        if name == "overview":
            page.wait_for_selector("[data-drawn] canvas")
        yield name


def test_every_screen_is_drawn_without_an_error(shop: tuple[Site, str], browser: Browser, pictures: Path) -> None:
    site, message_id = shop
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text))  # what the rules of the page forbid is said here, too
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in open_screens(page, site, message_id, "light"):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page.screenshot(path=pictures / f"{name}-1280-light.png", full_page=True)
    assert wrong == []
    page.close()


def test_every_screen_fits_a_phone_and_has_no_serious_finding_of_axe(
    shop: tuple[Site, str], browser: Browser, pictures: Path
) -> None:
    axe = pytest.importorskip("axe_playwright_python.base", reason="pip install axe-playwright-python")
    script = Path(axe.AXE_FILE_PATH).read_text()
    site, message_id = shop
    context = browser.new_context(viewport={"width": 390, "height": 844}, bypass_csp=True)  # axe is a script inside
    page = context.new_page()
    wrong: list[tuple[str, str, str]] = []
    for name in open_screens(page, site, message_id, "dark"):
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        page.screenshot(path=pictures / f"{name}-390-dark.png", full_page=True)
        page.evaluate(script)
        wrong += [(name, *each) for each in serious(page, "dark") + serious(page, "light")]
    assert wrong == []
    context.close()


def serious(page: Page, theme: str) -> list[tuple[str, str]]:
    """Return what axe finds in a page's colours of a theme, and where."""
    page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (each["id"], node["html"])
        for each in found["violations"]
        for node in each["nodes"]
        if each["impact"] in ("serious", "critical")
    ]


def test_it_is_driven_by_keys_and_forms(shop: tuple[Site, str], browser: Browser) -> None:
    site, _ = shop
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(site.access.listen.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.click("text=Create a topic")
    page.fill("[name=name]", "by-a-browser")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=The topic was created.")
    page.click("text=Send a message")
    page.fill("[name=body]", "<b>from a browser</b>")
    page.click("button:has-text('Send')")
    page.wait_for_selector("pre:has-text('<b>from a browser</b>')")
    page.goto(f"{site.access.listen.url}topics/by-a-browser/delete")
    page.click("text=Delete 1 messages")
    page.wait_for_selector("text=The topic was deleted, with its messages.")
    page.click("summary[aria-label='Language and colours']")
    page.click("text=中文")
    page.wait_for_selector("h1:has-text('主题')")
    page.close()


def test_the_tail_shows_what_comes(shop: tuple[Site, str], browser: Browser) -> None:
    site, _ = shop
    page = browser.new_page()
    page.goto(f"{site.access.listen.url}messages/tail?topic=orders")
    page.wait_for_function("document.getElementById('state').textContent.length > 0")
    with shmq.connect(site.source.url) as mq:
        for number in range(600):  # until the first question was answered, nothing is followed
            mq.send("orders", b"<i>tailed</i> %d" % number)
            if page.locator("#tail td.body").count():
                break
            page.wait_for_timeout(100)
    assert page.locator("#tail td.body").first.text_content().startswith("<i>tailed</i>")  # type: ignore[union-attr]
    assert page.locator("#tail i").count() == 0
    page.close()
