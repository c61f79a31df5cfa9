"""What a switch of the master costs clients: `python -m benchmarks.replication --switch 50`.

Brokers of one name that elect their master over an etcd of their own, under the load of `tests/ha/elected`; each switch
is chosen by chance. A figure is for how long one client had no receipt, from when the switch began. The run also proves
what it proves as a test: nothing that was acknowledged is lost, and the other rules of `tests/ha/elected/rules.py`.

    die, stop      the master's processes are killed, or stand still, as a host does
    ship           the process that replicates is killed
    end, promote   an orderly switch: the master ends, another one is promoted by hand
    host lost      die, stop and ship together: p50 <= 5 s, p99 <= 10 s
    in order       end and promote together: p50 <= 1 s
    java           RocketMQ's clients (`--java 4 5`), which look for a new route every 2 s here: p99 <= 10 s
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.ha.elected.switches import JAVA, LOCAL, LOST, ORDERLY, TCP, run

PROMISES = {  # p50 and p99, seconds
    **{(LOST, who): (5.0, 10.0) for who in (TCP, LOCAL)},
    **{(ORDERLY, who): (1.0, math.inf) for who in (TCP, LOCAL)},
    **{(kind, JAVA): (math.inf, 10.0) for kind in (LOST, ORDERLY)},
}


def switch(given: Sequence[str]) -> int:
    """Switch so often as the command line says, and print a table; returns 1 where a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description=__doc__)
    parser.add_argument("--switch", type=int, required=True, metavar="COUNT", dest="count", help="how many switches")
    parser.add_argument("--brokers", type=int, default=2, choices=(2, 3))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--java", nargs="*", default=(), choices=("4", "5"), help="lines of RocketMQ's client as well")
    arguments = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        found = run(arguments.count, arguments.brokers, arguments.seed, Path(folder), java=arguments.java)
    waits = found.pop("waits_s")
    print(found)
    print(f"{'switch and client':<20}{'count':>7}{'p50 s':>9}{'p99 s':>9}{'max s':>9}  must                  holds")
    broken = 0
    for name, each in waits.items():
        kind, _, who = name.partition(", ")
        must, holds = "", ""
        if (kind, who) in PROMISES:
            p50, p99 = PROMISES[kind, who]
            is_kept = each["p50"] <= p50 and each["p99"] <= p99
            must, holds = f"p50 <= {p50:g}, p99 <= {p99:g}", "yes" if is_kept else "NO"
            broken += not is_kept
        row = f"{name:<20}{each['count']:>7}{each['p50']:>9.2f}{each['p99']:>9.2f}{each['max']:>9.2f}"
        print(f"{row}  {must:<22}{holds}".rstrip())
    return 1 if broken else 0
