"""The table of changes, each row once: `python -m tests.keeper.live.table DIRECTORY [--minutes N] [--part 1/3]`.

    a row        one change of one kind of file, at a broker that runs with one of the kills, or at a stopped store
    DIRECTORY    rows.txt has a line for each row that was run; a second call goes on with those that are missing

Rows are run in an order that `--seed` decides, so that some minutes of them are a sample of the whole; parts of one
order have no row in common and can be run side by side. The exit code is 1 when a row of this call was wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.keeper.live.changes import Change, changes
from tests.keeper.live.rounds import KILLS, Round

STOPPED: Final = "stopped"


class Row(NamedTuple):
    """One change at one moment; `when` is a kill, "" for none, or STOPPED."""

    change: Change
    when: str

    def __str__(self) -> str:
        return f"{self.change.target} {self.change.name}, {self.when or 'running'}"


def rows() -> list[Row]:
    """Return the whole table; a store that is gone together with its broker leaves no trace, so that is no row."""
    moments = [*dict.fromkeys(KILLS), STOPPED]
    return [
        Row(change, when) for change in changes() for when in moments if (change.target, when) != ("store", STOPPED)
    ]


def run(row: Row, directory: Path, seed: int) -> list[str]:
    """Return what is wrong."""
    shutil.rmtree(directory, ignore_errors=True)  # of a call that was ended
    directory.mkdir(parents=True)
    kill = "" if row.when == STOPPED else row.when
    each = Round(row.change, kill, directory / "round", is_running=row.when != STOPPED, seed=seed)
    each.run()
    shutil.rmtree(directory, ignore_errors=True)
    return each.wrong


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text} is no part: 1/3, 2/3 and 3/3 are the whole")
    return int(part), int(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows that are missing, for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N")
    given = parser.parse_args(arguments)
    given.directory.mkdir(parents=True, exist_ok=True)
    journal = given.directory / "rows.txt"
    done = {line.partition("\t")[0] for line in journal.read_text().splitlines()} if journal.exists() else set()
    table = rows()
    random.Random(given.seed).shuffle(table)
    part, parts = given.part
    missing = [each for each in list(enumerate(table))[part - 1 :: parts] if str(each[1]) not in done]
    until, count_wrong = time.monotonic() + 60 * given.minutes, 0
    for count, (number, row) in enumerate(missing, 1):
        if time.monotonic() >= until:
            break
        wrong = run(row, given.directory / f"{number}", given.seed * 10_000 + number)
        count_wrong += bool(wrong)
        said = " | ".join(text.replace("\n", " ") for text in wrong) or "right"
        with journal.open("a") as lines:
            lines.write(f"{row}\t{said}\n")
        print(f"{count} of {len(missing)}: {row}: {said}", flush=True)
    return 1 if count_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
