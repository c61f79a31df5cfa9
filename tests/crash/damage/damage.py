"""Every byte and every page of a small store damaged, one at a time, and what the broker makes of each.

byte    one bit of it flipped, and all eight
page    4 KiB zeroed, or as an older store had them
file    a table as an older store had it

must hold    no message with other content than was sent, none that was not sent
             every message is there whose record was not damaged itself, and the index leads to it
             no queue ends before an offset that was given out; no group is moved on; moved back only by an older
             table
             what was damaged is said, by `store verify` and by what `health` shows; an older table cannot be seen,
                 nor an older checkpoint or index mark
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.damage.examined import Seen, examine
from tests.crash.damage.stores import FILE_BYTES, PAGE_BYTES, Image, Stores, make_stores

_MEMORY = "/dev/shm"
_BITS = {"bit": 0x01, "byte": 0xFF}
ENDS = ("stopped", "killed")
_WHOLE_WHEN_OLDER = ("checkpoint", "shmq.index")  # one page, which a crash may have left older too: costs a longer walk


@dataclass(frozen=True)
class Case:
    """One damage: where, and how ("bit", "byte", "zeros", "older", "file")."""

    name: str
    at: int
    how: str

    def damaged(self, stores: Stores) -> Image | None:
        """Return the damaged store; None when it would be the same."""
        whole, older = stores.whole, stores.older
        if self.how in _BITS:
            byte = whole.files[self.name][0][self.at : self.at + 1].ljust(1, b"\0")[0]
            return whole.changed(self.name, self.at, bytes([byte ^ _BITS[self.how]]))
        if self.how == "file":
            return Image({**whole.files, self.name: older.files[self.name]})
        page = whole.page(self.name, self.at)
        data = bytes(len(page)) if self.how == "zeros" else older.page(self.name, self.at)
        data = data[: len(page)].ljust(len(page), b"\0")
        if data == page or (self.how == "older" and self.name not in older.files):
            return None
        return whole.changed(self.name, self.at, data)

    def makes_older(self, stores: Stores) -> bool:
        """Whether the whole file is then as an older store had it, which cannot be seen; a table may be one page."""
        if self.how != "older" or self.name in _WHOLE_WHEN_OLDER:
            return self.how in ("older", "file")
        damaged = self.damaged(stores)
        return self.is_table and damaged is not None and damaged.files[self.name] == stores.older.files[self.name]

    def hits(self, position: int, size: int) -> bool:
        """Whether the damage lies in a record of the log."""
        folder, _, name = self.name.partition("/")
        if folder != "commitlog":
            return False
        begin = int(name) + self.at
        return begin < position + size and position < begin + (1 if self.how in _BITS else PAGE_BYTES)

    @property
    def bits(self) -> int:
        """Which bits of a byte are flipped."""
        return _BITS[self.how]

    @property
    def is_table(self) -> bool:
        """Whether it is a table, which an older one may replace."""
        return self.name.startswith("config/")


def all_cases(stores: Stores) -> Iterator[Case]:
    """Every byte twice, every page twice, every older table."""
    for (name, at), how in itertools.product(stores.whole.live(), _BITS):
        yield Case(name, at, how)
    yield from page_cases(stores)


def page_cases(stores: Stores) -> Iterator[Case]:
    """Every page and every older table."""
    for (name, at), how in itertools.product(stores.whole.pages(), ("zeros", "older")):
        yield Case(name, at, how)
    for name in sorted(stores.whole.files.keys() & stores.older.files.keys()):
        if name.startswith("config/"):
            yield Case(name, 0, "file")


def sample(stores: Stores, count: int, seed: int) -> list[Case]:
    """A seeded sample of the bytes, of every file as much, as most files are short."""
    chance = random.Random(seed)
    by_file: dict[str, list[int]] = {}
    for name, at in stores.whole.live():
        by_file.setdefault(name, []).append(at)
    names = sorted(by_file)
    return [
        Case(name, chance.choice(by_file[name]), chance.choice(list(_BITS)))
        for name in (
            names[number % len(names)]
            if number % 2
            else chance.choices(names, [len(by_file[name]) for name in names])[0]
            for number in range(count)
        )
    ]


def check(stores: Stores, cases: Iterable[Case]) -> tuple[Counter[str], list[str]]:
    """Damage a store in each of these ways; returns counts and what is wrong."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="shmq-damage-", dir=_MEMORY if Path(_MEMORY).is_dir() else None) as made:
        root = Path(made, "store")
        stores.whole.lay_out(root)
        truth = examine(root)
        assert not truth.refused and not truth.told and not truth.unindexed, truth
        for case in cases:
            image = case.damaged(stores)
            if image is None:
                continue
            image.lay_out(root)
            counts[f"damaged_{'bytes' if case.how in _BITS else 'pages'}"] += 1
            try:
                seen = examine(root)
            except Exception as error:  # whatever it is, this damage made it
                wrong.append(f"{case}: {type(error).__name__}: {error}")
                continue
            hit = {place for place, found in truth.messages.items() if case.hits(found.position, found.record_bytes)}
            counts["records_hit"] += len(hit)
            wrong += [f"{case}: {each}" for each in anomalies(case, truth, seen, hit, stores)]
    return counts, wrong


def anomalies(case: Case, truth: Seen, seen: Seen, hit: set[tuple[str, int, int]], stores: Stores) -> Iterator[str]:
    """Say what is not as it must be."""
    if seen.refused:
        yield f"refused: {seen.refused}"
        return
    for place, found in truth.messages.items():
        now = seen.messages.get(place)
        if now is None and place not in hit:
            yield f"lost: {place}"
        elif now is not None and now != found:
            yield f"wrong: {place} is {now}"
    yield from (f"invented: {place}" for place in seen.messages.keys() - truth.messages.keys())
    yield from (f"not indexed: {place}" for place in seen.unindexed)
    for queue, end in truth.ends.items():
        if seen.ends.get(queue, 0) < end:
            yield f"offset given out again: {queue} ends at {seen.ends.get(queue)} instead of {end}"
    for key, offset in truth.offsets.items():
        now_at = seen.offsets.get(key, -1)
        if now_at > offset or (now_at != offset and not case.is_table):
            yield f"group moved: {key} from {offset} to {now_at}"
    is_older = case.makes_older(stores)
    if set(seen.verified) <= set(truth.verified) and not is_older:
        yield "not reported by store verify"
    if not seen.told and not is_older:
        yield "not reported by health"


def damage(seed: int, *, count: int) -> tuple[Counter[str], list[str]]:
    """A turn of `python -m tests.crash`: some bytes and all pages of one store."""
    stores = make_stores(end=random.Random(seed).choice(ENDS))
    return check(stores, [*sample(stores, count, seed), *page_cases(stores)])


def long_run(seed: int, *, end: str, share: int, shares: int) -> tuple[Counter[str], list[str]]:
    """One share of all bytes and pages."""
    stores = make_stores(end=end)
    cases = list(all_cases(stores))
    random.Random(seed).shuffle(cases)
    return check(stores, cases[share::shares])


assert FILE_BYTES % PAGE_BYTES == 0
