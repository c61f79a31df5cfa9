"""Send every line of this host's text files through a broker, kill processes halfway, and check that no line is lost.

Three processes send all lines of all files under the given folders, and a group of three processes consumes them.
Halfway one producer and one consumer are killed with SIGKILL. A new producer continues where the ledger of the dead one
ends; the other consumers take over the dead one's queues. Each producer writes (number of the line, hash) to its ledger
after the broker acknowledged the line. Each consumer writes what it received to its ledger and then acknowledges. At
the end every acknowledged line has to be in a consumer's ledger, with the same hash.

    python examples/grind.py                              a private broker, about 400 MB of text
    python examples/grind.py --megabytes 2000 --url shmq://default
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from struct import Struct

import shmq
from shmq.testing import Broker

PRODUCERS = CONSUMERS = 3
ENTRY = Struct("<IQQ")  # producer, number of the line, hash of the line
BATCH_LINES = 200
BATCH_BYTES = 200_000
TOPIC, GROUP = "grind", "grind"
QUIET_SECONDS = 3.0  # longer than a takeover, so an empty queue means the end


def hash_of(line: bytes) -> int:
    return int.from_bytes(blake2b(line, digest_size=8).digest(), "little")


def text_files(roots: list[str], bytes_max: int) -> list[str]:
    """Paths under the roots, in a fixed order, until they add up to `bytes_max`."""
    found: list[str] = []
    total = 0
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                total += os.path.getsize(path)
                found.append(path)
                if total >= bytes_max:
                    return found
    return found


def batches(paths: list[str]) -> Iterator[list[bytes]]:
    """Lines in order, a few hundred at a time; an overlong line is cut into pieces of 64 KiB."""
    batch: list[bytes] = []
    size = 0
    for path in paths:
        with open(path, "rb") as file:
            while line := file.readline(65_536):
                batch.append(line.rstrip(b"\n"))
                size += len(line)
                if len(batch) == BATCH_LINES or size >= BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
    if batch:
        yield batch


def produce(url: str, folder: Path, number: int) -> None:
    """Send every line of this producer's files that its ledger does not hold yet."""
    paths = (folder / f"files-{number}").read_text().split("\0")
    ledger = os.open(folder / f"acknowledged-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # A kill inside write() may leave half an entry. It counts for nothing yet, so it is cut off.
    known = os.fstat(ledger).st_size // ENTRY.size
    os.ftruncate(ledger, known * ENTRY.size)
    position = 0
    with shmq.connect(url) as mq, mq.producer() as producer:
        for batch in batches(paths):
            lines = batch[max(0, known - position) :]
            first = position + len(batch) - len(lines)
            position += len(batch)
            if not lines:
                continue
            producer.send_batch(TOPIC, lines, keys=[f"{number}-{first + i}" for i in range(len(lines))])
            os.write(ledger, b"".join(ENTRY.pack(number, first + i, hash_of(line)) for i, line in enumerate(lines)))


def consume(url: str, folder: Path, number: int) -> None:
    """Write messages to the ledger, then acknowledge them, until the producers are done and nothing is left."""
    ledger = os.open(folder / f"consumed-{number}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    last = time.monotonic()
    with shmq.connect(url) as mq, mq.subscribe(TOPIC, group=GROUP) as subscription:
        while not (folder / "done").exists() or time.monotonic() - last < QUIET_SECONDS:
            messages = subscription.receive(max=512, wait=0.2)
            entries = []
            for message in messages:
                producer, _, line = (message.key or "").partition("-")
                entries.append(ENTRY.pack(int(producer), int(line), hash_of(message.body)))
            os.write(ledger, b"".join(entries))
            for message in messages:
                message.ack()
            last = time.monotonic() if messages else last


def start(role: str, url: str, folder: Path, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, __file__, "--role", role, str(number), "--url", url, "--folder", str(folder)]
    )


def entries(folder: Path, kind: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{kind}-*")) // ENTRY.size


def read(path: Path) -> Iterator[tuple[int, int, int]]:
    data = path.read_bytes()
    return ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size])


class Report:
    """Shows the progress: one line that changes on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = time.monotonic()
        self._told = 0.0

    def progress(self, *, last: bool = False) -> tuple[int, int]:
        sent, received = entries(self._folder, "acknowledged"), entries(self._folder, "consumed")
        seconds = time.monotonic() - self._began
        text = f"{seconds:7.1f} s   acknowledged {sent:>12,}   consumed {received:>12,}"
        if last or (not sys.stdout.isatty() and seconds - self._told > 10):
            self._told = seconds
            print(text)
        elif sys.stdout.isatty():
            print(f"\r{text}", end="\r", flush=True)
        return sent, received

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s   {text}")


def run(url: str, folder: Path, total: int) -> None:
    """Start all processes, kill one producer and one consumer halfway, wait for the end."""
    consumers = [start("consumer", url, folder, i) for i in range(CONSUMERS)]
    producers = [start("producer", url, folder, i) for i in range(PRODUCERS)]
    report = Report(folder)
    killed_producer = killed_consumer = False
    while any(process.poll() is None for process in producers) or not killed_consumer:
        sent, received = report.progress()
        if not killed_producer and sent > total // 2:
            producers[0].kill()
            producers[0].wait()
            producers[0] = start("producer", url, folder, 0)
            killed_producer = True
            report.say(f"killed a producer after {sent:,} acknowledged lines")
        if not killed_consumer and received > total // 2:
            consumers[0].kill()
            killed_consumer = True
            report.say(f"killed a consumer after {received:,} consumed lines")
        time.sleep(0.05)
    (folder / "done").touch()
    failed = [process.args for process in producers + consumers[1:] if process.wait() != 0]
    report.progress(last=True)
    if failed:
        sys.exit(f"a process failed: {failed}")


def check(folder: Path) -> int:
    """Compare the ledgers; returns the number of faults."""
    sent = [array("Q", (entry[2] for entry in read(folder / f"acknowledged-{i}"))) for i in range(PRODUCERS)]
    seen = [bytearray(len(hashes)) for hashes in sent]
    again = unknown = wrong = 0
    for path in folder.glob("consumed-*"):
        for producer, line, value in read(path):
            if line >= len(sent[producer]):
                unknown += 1
            elif sent[producer][line] != value:
                wrong += 1
            else:
                again += seen[producer][line]
                seen[producer][line] = 1
    missing = sum(hits.count(0) for hits in seen)
    print(f"acknowledged {sum(map(len, sent)):,} lines: missing {missing}, with another hash {wrong}, ", end="")
    print(f"never acknowledged {unknown}, delivered again {again:,}")
    return missing + wrong + unknown


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=400)
    parser.add_argument("--url", help="a running broker; default: a private one in a temporary folder")
    parser.add_argument("--roots", nargs="+", default=["/usr/share/doc", "/usr/lib/python3", "/usr/lib", "/usr/share"])
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        role, number = arguments.role
        (produce if role == "producer" else consume)(arguments.url, arguments.folder, int(number))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="shmq-grind-"))
    try:
        paths = text_files(arguments.roots, int(arguments.megabytes * 1_000_000))
        for i in range(PRODUCERS):
            (folder / f"files-{i}").write_text("\0".join(paths[i::PRODUCERS]))
        total = sum(len(batch) for batch in batches(paths))
        print(f"{len(paths):,} files, {sum(map(os.path.getsize, paths)):,} bytes, {total:,} lines")
        if arguments.url:
            run(arguments.url, folder, total)
        else:
            with Broker(small=False, file_bytes=256 << 20) as broker:
                run(broker.url, folder, total)
        faults = check(folder)
        print("every acknowledged line was consumed with its hash" if faults == 0 else f"{faults} faults")
        return 0 if faults == 0 else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
