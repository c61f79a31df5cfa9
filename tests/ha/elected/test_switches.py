"""Switches of every kind under load, two and three brokers; the long form is `python -m tests.ha.elected.switches`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ha.elected.switches import run
from tests.ha.etcd.server import needs_etcd
from tests.seed import SEED

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]
SWITCHES = 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("brokers", [2, 3])
def test_nothing_acknowledged_is_lost_in_switches(tmp_path: Path, brokers: int) -> None:
    done = run(SWITCHES, brokers, SEED, tmp_path)
    print(done)
    assert done["acknowledged"] > 0
