"""Faults on purpose, for as long as you like: `python -m tests.crash --minutes 10`.

    kills     processes that append to one log, each killed with SIGKILL after some milliseconds
    power     snapshots of a broker under load; every disk that a power cut may leave is recovered and read
    drive     power cuts of a broker on a real file system, whose drive has a cache; only as root
    calls     the n-th sync, write, allocation or change of a name fails
    soak      kills of every process on a slow disk under a clock that jumps
    damage    bytes and pages of a store that are not what was written, in this process and under a running broker

They take turns until the time is over; whatever is under way is finished. Each turn prints its counts and the seed
that repeats it, and the last lines sum up. The exit code is 1 when anything was lost, wrong, stuck or invented.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.crash.broker.soak import soak
from tests.crash.core_build import SOAK, attempt, program
from tests.crash.damage.damage import damage
from tests.crash.damage.running import running_damage
from tests.crash.disk.drive import reason_without_drives
from tests.crash.disk.drive_cuts import drive_cuts
from tests.crash.disk.failing_calls import failing_call
from tests.crash.disk.power_cuts import power_cuts

_OF_CALLS = 400
_KILLS = 5000
_PAUSE_US = 500
Turn = Callable[[int], tuple[Counter[str], list[str]]]


def _kills(seed: int) -> tuple[Counter[str], list[str]]:
    done = attempt(program("soak", SOAK), "--kills", _KILLS, "--seed", seed, "--pause-us", _PAUSE_US)
    if done.returncode not in (0, 1):
        return Counter(), [f"status {done.returncode}: {done.stdout}{done.stderr}"]
    figures = json.loads(done.stdout)
    counts = Counter(kills=figures["kills"], kills_of_lock_holders=figures.get("lock_holders_killed", 0))
    counts["kills_messages"] = figures.get("messages", 0)
    return counts, [f"{figures['violations']} violations, the first: {figures['first']}"] if done.returncode else []


def _power(seed: int) -> tuple[Counter[str], list[str]]:
    flush, slow_ms = random.Random(seed).choice((("sync", 0), ("sync", 40), ("sync", 400), ("async", 40)))
    counts = power_cuts(seed=seed, snapshots=8, images=50, flush=flush, slow_ms=slow_ms, again=True)
    return Counter(power_images=counts.images, power_acknowledged=counts.acknowledged), counts.failures


def _drive(seed: int) -> tuple[Counter[str], list[str]]:
    flush, slow_ms, full = random.Random(seed).choice(
        (("sync", 0, False), ("sync", 40, False), ("sync", 0, True), ("async", 20, False))
    )
    counts = drive_cuts(seed=seed, cuts=10, flush=flush, slow_ms=slow_ms, full=full)
    return Counter(drive_cuts=counts.snapshots, drive_acknowledged=counts.acknowledged), counts.failures


def _calls(seed: int) -> tuple[Counter[str], list[str]]:
    counts = failing_call(1 + seed % _OF_CALLS, seed=seed)
    return Counter(failing_calls=1, calls_acknowledged=counts.acknowledged), counts.failures


def _soak(seed: int) -> tuple[Counter[str], list[str]]:
    counts = soak(seed=seed, episodes=5, flush=random.Random(seed).choice(("sync", "async")))
    found = Counter(broker_kills=counts.kills, soak_acknowledged=counts.acknowledged, soak_delivered=counts.delivered)
    found += Counter({f"clock_jumps_{when}": jumps for when, jumps in counts.jumps.items()})
    return found, counts.failures


def _damage(seed: int) -> tuple[Counter[str], list[str]]:
    counts, wrong = damage(seed, count=500)
    found, more = running_damage(seed, lives=4)
    return counts + found, wrong + more


_TURNS: dict[str, Turn] = {
    "kills": _kills,
    "power": _power,
    "drive": _drive,
    "calls": _calls,
    "soak": _soak,
    "damage": _damage,
}
_ORDER = ("kills", "power", "drive", "calls", "calls", "calls", "calls", "soak", "damage")


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description="faults on purpose, counted")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--turns", type=int, help="so many, whatever the time; `--only calls --turns 400` is all calls")
    parser.add_argument("--seed", type=int, default=None, help="repeat the turns of a run")
    parser.add_argument("--only", nargs="+", choices=sorted(_TURNS), default=list(_TURNS), help="which kinds of turn")
    arguments = parser.parse_args(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # brokers and mounts go with us
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    order = [name for name in _ORDER if name in arguments.only]
    if "drive" in order and (reason := reason_without_drives()):
        print(f"drive  is left out: {reason}")
        order.remove("drive")
    until = time.monotonic() + 60 * arguments.minutes
    totals: Counter[str] = Counter()
    failures: list[str] = []
    for number, name in enumerate(itertools.cycle(order)):
        if number and (number >= arguments.turns if arguments.turns else time.monotonic() >= until):
            break
        counts, wrong = _TURNS[name](seed + number)
        totals += counts
        failures += [f"{name} --seed {seed + number}: {each}" for each in wrong]
        told = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in counts.items())
        print(f"{name:<6} seed {seed + number}: {told}; {len(wrong)} wrong", flush=True)
        for each in wrong[:5]:
            print(f"       {each[:300]}", flush=True)
    print("\n" + "\n".join(f"{key.replace('_', ' '):<22} {value:>10}" for key, value in totals.items()))
    print(f"{'wrong':<22} {len(failures):>10}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
