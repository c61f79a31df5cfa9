"""A pair without etcd under faults of every kind, whose master's host is gone at last; the long form is
`python -m tests.ha.faults.rounds`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ha.faults.rounds import run
from tests.ha.faults.test_cuts import needs_tun
from tests.ha.hosts import needs_hosts
from tests.seed import SEED

pytestmark = [needs_hosts, needs_tun]
ROUNDS = 10


@pytest.mark.timeout(900)
@pytest.mark.parametrize("in_sync_min", [1, 2, 0])
def test_nothing_acknowledged_is_lost_with_the_masters_host(tmp_path: Path, in_sync_min: int) -> None:
    done = run(ROUNDS, in_sync_min, SEED + in_sync_min, tmp_path)
    print(done)
    assert done["acknowledged"] > 0 and (done["lost"] == 0 or in_sync_min == 0)
