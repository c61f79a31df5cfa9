"""The pictures in the documentation show what is shown now; `python -m benchmarks.pictures` draws them anew."""

import html
import re
from pathlib import Path

import pytest

from shmq.tools.doctor.examine import CHECKS
from shmq.tools.top import view
from shmq.version import __version__

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("doctor", "health", "top")


def lines_of(name: str) -> list[str]:
    """The lines of a picture, without its frame."""
    lines: dict[float, list[tuple[float, str]]] = {}
    text = (ROOT / "docs/images" / f"{name}.svg").read_text()
    for x, y, part in re.findall(r'<text [^>]*?x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', text):
        lines.setdefault(float(y), []).append((float(x), html.unescape(part).replace("\xa0", " ")))
    return ["".join(part for _, part in sorted(parts)) for _, parts in sorted(lines.items())]


def test_top_has_the_columns_that_are_shown_now() -> None:
    lines = [line.split() for line in lines_of("top")]
    for fields in (view._PROCESSES, view._TOPICS, view._GROUPS):
        assert [column.title.upper() for column, _ in fields if column.title] in lines
    assert not any("%RETRY%" in word for line in lines for word in line), "topics of redelivery are shown with -a only"


def test_doctor_has_the_version_and_a_line_for_each_check() -> None:
    lines = lines_of("doctor")
    # Not which layout of the memory it was: a new one changes nothing that is seen.
    assert any(re.search(rf"shmq {__version__}, layout \d+, C core for", line) for line in lines), "draw them anew"
    assert any("take part: the same as this command" in line for line in lines)
    assert sum(line.startswith("[") for line in lines) >= len(CHECKS) - 2  # some have nothing to say on a good host


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_names_no_place_of_the_machine_that_drew_it(name: str) -> None:
    text = "\n".join(lines_of(name))
    assert re.findall(r"/(?:home|root|work|mnt|srv|opt)/\S*", text) == []
    assert text.splitlines()[0].strip().endswith(f"shmq {name}")
