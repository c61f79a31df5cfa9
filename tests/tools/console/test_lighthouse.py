"""Every screen is accessible: Lighthouse gives it 95 or more.

A snapshot takes Lighthouse a second, so each screen is looked at once, the two themes by turns; axe, whose rules
Lighthouse weighs, looks at all of them in both (test_in_a_browser.py).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import cycle
from pathlib import Path

import pytest

from tests.tools.console.conftest import Site
from tests.tools.console.screens import CHROMIUM, SCREENS, path_of

SCORE_MIN = 95
AUDITS_MIN = 10  # of a page that was really looked at
LIGHTHOUSE = shutil.which("lighthouse")
SCRIPT = Path(__file__).with_name("lighthouse.mjs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.skipif(LIGHTHOUSE is None, reason="no lighthouse: npm install -g lighthouse"),
]


def test_every_screen_has_95_for_accessibility(shop: tuple[Site, str]) -> None:
    assert LIGHTHOUSE is not None and CHROMIUM is not None
    site, message_id = shop
    root = site.access.listen.url.rstrip("/")
    urls = [
        f"{root}{path}{'&' if '?' in path else '?'}theme={theme}"
        for path, theme in zip((path_of(name, message_id) for name in SCREENS), cycle(("light", "dark")), strict=False)
    ]
    home = Path(LIGHTHOUSE).resolve().parents[1]
    done = subprocess.run(["node", SCRIPT, home, CHROMIUM, *urls], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(pages) == len(urls)
    assert [page for page in pages if page["status"] != 200 or page["passed"] < AUDITS_MIN] == []
    assert [page for page in pages if page["score"] < SCORE_MIN] == []
