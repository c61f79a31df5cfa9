"""Run schedules: `python -m tests.ha.simulation --schedules 100000 --seed 0`.

Each schedule is its seed: `--schedules 1 --seed N` repeats one. The exit code is 1 when a rule was broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.ha.simulation.checker import Violation
from tests.ha.simulation.schedule import Result, run_schedule

SOME = 100


def run_some(count: int, first: int) -> tuple[list[Result], list[str], float]:
    """Run schedules one after the other; return what they did, what was wrong, and processor seconds."""
    began = time.process_time()
    results, wrong = [], []
    for seed in range(first, first + count):
        try:
            results.append(run_schedule(seed))
        except Violation as violation:
            wrong.append(f"seed {seed}: {violation}")
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return results, wrong, time.process_time() - began


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.ha.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="stop at the first rule that is broken")
    options = parser.parse_args()
    last = options.seed + options.schedules
    parts = [(first, min(SOME, last - first)) for first in range(options.seed, last, SOME)]
    results: list[Result] = []
    wrong: list[str] = []
    seconds = 0.0
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [pool.submit(partial(run_some, count), first) for first, count in parts]
        for job in jobs:
            some, bad, took = job.result()
            results += some
            wrong += bad
            seconds += took
            for line in bad:
                print(line, flush=True)
            if wrong and options.stop:
                pool.shutdown(cancel_futures=True)
                break
    print(
        json.dumps(
            {
                "schedules": len(results) + len(wrong),
                "seed": options.seed,
                "violations": len(wrong),
                "processor_s": round(seconds, 1),
                "faults": sum(result.faults for result in results),
                "elections": sum(result.elections for result in results),
                "confirmed": sum(result.confirmed for result in results),
                "acknowledged": sum(result.acknowledged for result in results),
                "lost_and_counted": sum(result.lost for result in results),
                "given_up_by_force": sum(result.given_up for result in results),
                "late_receipts_of_standing_clocks": sum(result.late_receipts for result in results),
                "stuck_without_their_stores": sum(result.is_stuck for result in results),
                "places_given_back": sum(result.given_back for result in results),
                "led_beside_a_full_disk": sum(result.is_led_beside for result in results),
                "only_a_full_disk_in_sync": sum(result.is_left_alone for result in results),
            }
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
