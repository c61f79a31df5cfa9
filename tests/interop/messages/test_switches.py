"""Java's clients go on through switches of an elected master, by kills and hand-overs, and get all that is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ha.elected.switches import JAVA, run
from tests.ha.etcd.server import needs_etcd
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.registry import java_program
from tests.seed import SEED

pytest.importorskip("urllib3")
pytestmark = needs_etcd()
SWITCHES = 5


@pytest.mark.timeout(600)
def test_javas_clients_lose_nothing_in_switches(tmp_path: Path) -> None:
    try:
        for version in ("4", "5"):
            java_program(version)
    except PeerMissing as reason:
        pytest.skip(str(reason))
    done = run(SWITCHES, 2, SEED, tmp_path, java=("4", "5"))
    print(done)
    assert any(name.endswith(JAVA) for name in done["waits_s"])
