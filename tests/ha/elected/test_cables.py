"""Faults of network, hosts and etcd under load, each broker in a network of its own; the long form is
`python -m tests.ha.elected.cables`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.ha.elected.cables import run
from tests.ha.etcd.server import needs_etcd
from tests.ha.faults.test_cuts import needs_tun
from tests.ha.hosts import needs_hosts
from tests.seed import SEED

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), needs_hosts, needs_tun, pytest.mark.slow]
FAULTS = 5


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_where_cables_are_cut(tmp_path: Path) -> None:
    done = run(FAULTS, random.Random(SEED).choice((2, 3)), SEED, tmp_path)
    print(done)
    assert done["acknowledged"] > 0
