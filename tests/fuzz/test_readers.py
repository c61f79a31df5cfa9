"""Bytes from outside into every reader of the core, guided by the code they reach; under ASan and UBSan.

libFuzzer runs for SHMQ_FUZZ_SECONDS (60); without clang our own fuzzer, mutation.c, takes its place. SHMQ_TEST_SEED
repeats the seed, and with SHMQ_FUZZ_KEEP=1 the inputs that libFuzzer found become the corpus.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from core_build import ADDRESS, Edit, attempt, program

from tests.fuzz.corpus import READERS, read_corpus, unpack_corpus, write_corpus
from tests.seed import SEED

SECONDS = int(os.environ.get("SHMQ_FUZZ_SECONDS", "60"))
KEEP = os.environ.get("SHMQ_FUZZ_KEEP", "") not in ("", "0")
_QUICK_SECONDS = 3
_GUIDED = (*ADDRESS, "-fsanitize-coverage=trace-pc")
_LIBFUZZER = ("-O1", "-w", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all")


@functools.cache
def has_libfuzzer() -> bool:
    """Whether clang is here with the library that it links fuzzers with."""
    if shutil.which("clang") is None:
        return False
    command = ["clang", "-fsanitize=fuzzer", "-x", "c", "-", "-o", os.devnull]
    text = "#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t n) { return !d && n; }"
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode == 0


def mutation(*edits: Edit) -> Path:
    return program("mutation", ("fuzz/mutation.c", "fuzz/readers.c"), _GUIDED, edits=edits)


def mutated(executable: Path, directory: Path, seconds: int, seed: int) -> tuple[dict[str, int] | None, str]:
    """What our fuzzer counted, None when it came to a crash; and then the input and the reason."""
    corpus, under_way = unpack_corpus(directory / "corpus"), directory / "input"
    done = attempt(executable, seconds, seed, under_way, corpus)
    if done.returncode == 0:
        counts: dict[str, int] = json.loads(done.stdout)
        return counts, ""
    data = under_way.read_bytes() if under_way.exists() else bytes(4)
    found = data[4 : 4 + int.from_bytes(data[:4], "little")]
    return None, f"{READERS[found[0] % len(READERS)] if found else ''} {found[1:].hex()}\n{done.stdout}{done.stderr}"


def test_the_corpus_reaches_every_reader() -> None:
    assert {each[0] for each in read_corpus()} == set(range(len(READERS)))


def test_a_few_changed_inputs_are_read_within_bounds(tmp_path: Path) -> None:
    counts, said = mutated(mutation(), tmp_path, _QUICK_SECONDS, SEED)
    assert counts is not None, f"SHMQ_TEST_SEED={SEED}: {said}"
    print(f"SHMQ_TEST_SEED={SEED}: {counts}")
    assert counts["edges_of_seeds"] > 300


@pytest.mark.slow
@pytest.mark.timeout(300 + 4 * SECONDS)
def test_inputs_that_reach_new_code_are_read_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_libfuzzer():
        counts, said = mutated(mutation(), tmp_path, SECONDS, SEED)
        assert counts is not None, f"SHMQ_TEST_SEED={SEED}: {said}"
        print(f"SHMQ_TEST_SEED={SEED}, our own fuzzer: {counts}")
        return
    monkeypatch.setenv("CC", "clang")
    executable = program("readers", ("fuzz/readers.c",), _LIBFUZZER)
    corpus, found, kept = unpack_corpus(tmp_path / "corpus"), tmp_path / "found", tmp_path / "kept"
    found.mkdir()
    # libFuzzer's limit of memory looks at the peak, which a program inherits from the process that starts it: here from
    # pytest, after tests that mapped gigabytes. So single allocations are limited instead.
    words = ("-rss_limit_mb=0", "-malloc_limit_mb=2048", "-max_len=4096", "-print_final_stats=1", "-timeout=20")
    words += (f"-max_total_time={SECONDS}", f"-seed={SEED}")
    done = attempt(executable, *words, f"-artifact_prefix={tmp_path}/", found, corpus)
    crashes = [f"{path.name}: {path.read_bytes().hex()}" for path in tmp_path.iterdir() if "-" in path.name]
    assert done.returncode == 0, f"SHMQ_TEST_SEED={SEED}\n{crashes}\n{done.stderr[-4000:]}"
    [runs] = re.findall(r"number_of_executed_units: (\d+)", done.stderr)
    print(f"SHMQ_TEST_SEED={SEED}, libFuzzer: {runs} runs, {len(list(found.iterdir()))} inputs that reached new code")
    if KEEP:
        kept.mkdir()
        attempt(executable, "-merge=1", kept, corpus, found)
        write_corpus([*read_corpus(), *(path.read_bytes() for path in kept.iterdir())])


MUTANTS = {
    "a frame's header": Edit("send_frame.c", "        bytes - 4 < counted)", "        false)"),
    "a batch's total": Edit(
        "batch.c", "    if (total > left || total < LEAST_BYTES) {", "    if (total < LEAST_BYTES) {"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_our_fuzzer_notices_a_missing_check(name: str, tmp_path: Path) -> None:
    counts, said = mutated(mutation(MUTANTS[name]), tmp_path, 20, 1)
    assert counts is None, counts
    assert any(words in said for words in ("AddressSanitizer", "runtime error", "readers.c:")), said
