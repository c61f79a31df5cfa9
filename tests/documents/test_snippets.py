"""Every program and command of the tutorial and of the how-to guides does what the page says."""

import shutil
from pathlib import Path

import pytest

from shmq.testing import Broker
from tests.documents.snippets import run, steps_of

pytestmark = pytest.mark.slow

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [
    DOCUMENTS / "tutorial.md",
    DOCUMENTS / "celery.md",
    DOCUMENTS / "faststream.md",
    *sorted((DOCUMENTS / "how-to").glob("*.md")),
]


def starts_spark(page: Path) -> bool:
    return "shmq spark" in page.read_text()


@pytest.mark.timeout(1200)  # several programs one after the other, some of them start a JVM; each has its own bound
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(DOCUMENTS)), marks=[pytest.mark.peer] if starts_spark(page) else [])
        for page in PAGES
    ],
)
def test_what_a_page_says_is_what_happens(page: Path, tmp_path: Path) -> None:
    if starts_spark(page) and shutil.which("java") is None:
        pytest.skip("no Java, which Spark needs")
    with Broker(tcp=True) as broker:
        for step in steps_of(page, tmp_path):
            run(step, tmp_path, broker.url)


def test_a_page_whose_program_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('two')\n```\n\n```text\nthree\n```\n")
    (step,) = steps_of(page, tmp_path)
    with pytest.raises(AssertionError, match="no line is\nthree\nin\ntwo"):
        run(step, tmp_path, "shmq://absent")


def test_a_page_whose_command_fails_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ false\n```\n")
    (step,) = steps_of(page, tmp_path)
    with pytest.raises(AssertionError, match="exit status 1"):
        run(step, tmp_path, "shmq://absent")
