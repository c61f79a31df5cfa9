"""The seed corpus of the fuzzers, corpus.txt: one input a line, the name of its reader and its bytes in hexadecimal.

An input for the fuzzer is the number of its reader in one byte, then the bytes. The lines are what clients and the
encoders write, and what a run of libFuzzer found that reaches code of its own (`SHMQ_FUZZ_KEEP=1`, test_readers.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

READERS = ("frame", "batch", "record", "written", "properties", "units", "index")
"""In the order of the table in readers.c."""
_PATH = Path(__file__).with_name("corpus.txt")
_LINE_BYTES_MAX = 2000


def read_corpus() -> list[bytes]:
    """Return every input."""
    found = []
    for line in _PATH.read_text().splitlines():
        reader, data = line.split(" ")
        found.append(bytes([READERS.index(reader)]) + bytes.fromhex(data))
    return found


def write_corpus(inputs: Iterable[bytes]) -> None:
    """Replace the corpus by these inputs, without those that are long or empty."""
    lines = {
        f"{READERS[each[0] % len(READERS)]} {each[1:].hex()}" for each in inputs if 1 < len(each) <= _LINE_BYTES_MAX
    }
    _PATH.write_text("".join(f"{line}\n" for line in sorted(lines)))


def unpack_corpus(directory: Path) -> Path:
    """Write each input into a file of its own, as fuzzers want it."""
    directory.mkdir()
    for number, each in enumerate(read_corpus()):
        (directory / f"{number:04d}").write_bytes(each)
    return directory
