"""What the tree keeps to: no pause instead of a wait, one test command for all, words that name the component."""

import configparser
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.crash.mutants.catalogue import MUTANTS
from tests.tables.rows import every_row

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
WAITING = {"deadline.py"}
"""The one file that pauses between two looks at a condition."""

PAUSE = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\))")
IMPORTED = re.compile(r"^\s*from (?:time|asyncio) import .*\bsleep\b")
ON_PURPOSE = "# not a wait: "

RIDDLE = re.compile(
    r"(?:no|some|any|every)body|who(?:ever)|(?<![a-z])no[ -]one(?![a-z])|(?:any|some|every)one(?![a-z])"
    r"|(?<![a-z])(?:is|are|was|were|be|been|being)(?:_|\s[\s#*/]*)"
    r"(?:(?:not|never|also|only|once|again)[ _])?told(?![a-z])"
)
"""Words that hide which component acts: a reader, the bridge, another process, the operator. Names count, too."""
SUBJECTS_SINCE = "bf630111"
SUBJECT = re.compile(r"[a-z][\w/., -]*: \S|Revert ")
SUBJECT_MAX = 72
WITH_WORDS = ("bindings", "daemon", "shmq", "tools", "spark", "pyspark_shmq", "tests", "benchmarks", "examples")


def pauses(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each pause that does not say what it is, those in programs of a test included."""
    for number, line in enumerate(text.splitlines(), 1):
        if IMPORTED.search(line) or (PAUSE.search(line) and ON_PURPOSE not in line):
            yield number, line.strip()


def test_no_test_pauses_where_it_could_wait_for_a_state() -> None:
    """tests/deadline.py waits; a pause that is the thing tested says so: `# not a wait: the work of the listener`."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.name not in WAITING and path != Path(__file__)
        for number, line in pauses(path.read_text())
    ]
    assert not found, "\n".join(found)


@every_row(
    ("line", "is_one"),
    [
        ("time.sleep(0.1)", True),
        ("    await asyncio.sleep(pause)  # long enough", True),
        ("from time import monotonic, sleep", True),
        ("time.sleep(0.1)  # not a wait: the work", False),
        ("await asyncio.sleep(0)", False),
        ("monkeypatch.setattr('time.sleep', pause)", False),
    ],
)
def test_a_pause_is_found_however_it_is_written(line: str, is_one: bool) -> None:
    assert bool(list(pauses(line))) is is_one


def test_no_test_of_ours_is_repeated() -> None:
    """tests/conftest.py repeats those of peers, once; a setting would repeat all."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert "--reruns" not in config["tool:pytest"]["addopts"]


def test_the_readme_has_one_test_command_and_ci_runs_it_as_it_stands() -> None:
    commands = [
        line for line in (ROOT / "README.md").read_text().splitlines() if re.match(r"\$ pip install .*pytest", line)
    ]
    assert len(commands) == 1 and re.search(r"&& pytest( -n \d+)?$", commands[0])
    script = (ROOT / ".ci/run").read_text()
    assert "gate) page=README.md tests='pytest -n 4'" in script and script.count("command=") == 1
    assert 'eval "${command% && *}"' in script and 'eval "${command##* && }"' in script
    assert "python -m tests.second_look" in script and "python -m tests.lint" in script and "--all" not in script


def test_mutants_replace_what_is_there_and_name_tests_that_are() -> None:
    """They run in the suite `faults`; that a change has left one behind is seen at once."""
    missing = {name: [*mutant.missing_texts(), *mutant.missing_tests()] for name, mutant in MUTANTS.items()}
    assert {name: found for name, found in missing.items() if found} == {}


def test_the_subject_of_a_commit_says_where_and_what_in_one_line() -> None:
    """Of the commits behind SUBJECTS_SINCE, where git knows them: an archive of the sources has none."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    subjects = [line.partition(" ") for line in log.stdout.splitlines()]
    assert [line for line in subjects if len(line[2]) > SUBJECT_MAX or not SUBJECT.match(line[2])] == []


def riddles(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each word that hides which component acts, also if broken over two lines."""
    for found in RIDDLE.finditer(text.lower()):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].split())


def test_prose_and_names_say_which_component_acts() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for folder in WITH_WORDS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".pyi", ".c", ".h"} and path != Path(__file__)
        for number, word in riddles(path.read_text())
    ]
    assert not found, "name the component that acts:\n" + "\n".join(found)


@every_row(
    ("text", "is_one"),
    [
        ("Nobody waits.", True),
        ("def test_it_harms_nobody() -> None:", True),
        ("Whoever looks", True),
        ("everyone is served", True),
        ("no one looks", True),
        ("its sender is told", True),
        (" * its sender is\n * told", True),
        ("which are not told", True),
        ("def is_told() -> bool:", True),
        ("the master told us", False),
        ("anyonethere", False),
        ("one is untold", False),
    ],
)
def test_a_word_that_hides_the_component_is_found_however_it_is_written(text: str, is_one: bool) -> None:
    assert bool(list(riddles(text))) is is_one
