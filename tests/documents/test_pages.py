"""What the pages name exists: files that are linked, headings that are linked."""

import re
from pathlib import Path

from tests.tables.rows import every_row

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "benchmarks/README.md"]


def anchors(page: Path) -> set[str]:
    """The names by which headings of a page are linked, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_row("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", page.read_text()):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in anchors(target)):
            lost.append((path, heading))
    assert not lost


def test_the_pages_tell_the_layout_of_this_version() -> None:
    [layout] = re.findall(r"#define SHMQ_ABI (\d+)u", (ROOT / "bindings/shmq.h").read_text())
    told = {
        (page.name, number)
        for page in PAGES
        for number in re.findall(r"(?:libshmq\.so\.|\bABI )(\d+)", page.read_text())
    }
    assert told == {("c.md", layout), ("CHANGELOG.md", layout)}


@every_row("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_host_of_a_pair_that_a_page_starts_can_be_followed_once_it_leads(page: Path) -> None:
    started = re.findall(r"^(?:\w?\$ )?shmq serve .*$", page.read_text(), re.M)
    hosts = [command for command in started if "--ha-listen" in command or "--role slave" in command]
    assert [
        command
        for command in hosts
        if "--ha-listen" not in command or ("--ha-allow" not in command and "--ha-secret-file" not in command)
    ] == []


def test_the_chinese_page_tells_the_same_commands_and_leads_to_the_same_pages() -> None:
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))
    blocks = [re.findall(r"^```.*?^```$", text, re.M | re.S) for text in (english, chinese)]
    assert blocks[0] == blocks[1]
    links = [set(re.findall(r"\]\(([\w/.-]+\.md)", text)) for text in (english, chinese)]
    assert links[0] - links[1] - {"README.zh-CN.md", "CHANGELOG.md"} == set()
    assert len(re.findall(r"^## ", english, re.M)) == len(re.findall(r"^## ", chinese, re.M))


def test_every_example_has_a_line_on_its_page_and_is_run_by_a_test() -> None:
    examples = ROOT / "examples"
    page, tests = (examples / "README.md").read_text(), (ROOT / "tests/test_examples.py").read_text()
    names = [path.name for path in examples.glob("*.py")]
    assert [name for name in names if f"[{name}]" not in page or name not in tests] == []
