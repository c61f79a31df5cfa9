"""What a C compiler needs to use the shared-memory log: `python -m shmq.bindings.config --cflags --libs`.

The header `shmq.h` and the library `libshmq.so.N` lie beside this file. N is SHMQ_ABI, the version of the layouts that
a program has compiled in, so a program and a library that disagree about them are never loaded together.

    --cflags             where shmq.h is
    --libs               how to link the library, found again at run time where it is now
    --segments RUNTIME   the paths of the three segments that a broker's instance.json names, for shmq_store_open
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from shmq.plain_file import read_plain

HERE = Path(__file__).resolve().parent


def abi() -> int:
    """SHMQ_ABI of the header."""
    found = re.search(r"^#define SHMQ_ABI (\d+)u", (HERE / "shmq.h").read_text(), re.M)
    assert found
    return int(found[1])


def cflags() -> list[str]:
    """Options of a compilation that includes shmq.h."""
    return [f"-I{HERE}"]


def libs() -> list[str]:
    """Options of a link with the library."""
    return [f"-L{HERE}", f"-Wl,-rpath,{HERE}", f"-l:libshmq.so.{abi()}", "-pthread"]


def segments(runtime: Path) -> list[str]:
    """Paths of the control, units and readers segments. Raises SystemExit where they have none."""
    instance = json.loads(read_plain(runtime / "instance.json"))
    if instance["kind"] != "posix":
        raise SystemExit(f"segments of kind {instance['kind']} have no paths")
    return [f"/dev/shm{name}" for name in instance["segments"]]


def main() -> None:
    """Print what was asked for on one line, as pkg-config does."""
    parser = argparse.ArgumentParser(prog="python -m shmq.bindings.config", description=__doc__.partition("\n")[0])
    parser.add_argument("--cflags", action="store_true", help="where shmq.h is")
    parser.add_argument("--libs", action="store_true", help="how to link the library")
    parser.add_argument("--segments", metavar="RUNTIME", type=Path, help="paths of a broker's segments")
    asked = parser.parse_args()
    words = [*(cflags() if asked.cflags else ()), *(libs() if asked.libs else ())]
    print(*words, *(segments(asked.segments) if asked.segments else ()))


if __name__ == "__main__":
    main()
