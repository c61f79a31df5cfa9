"""A broker that a group may append to, or that is scraped, is well: each part is held to the mode it was made with."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.figures.verdict import Verdict
from shmq.testing import Broker
from tests.supervisor.test_namespaces import needs_namespaces
from tests.tools.health.situations import all_well, of, reported

pytestmark = pytest.mark.slow  # a broker for each, with an exporter

OF_THE_GROUP = """
import os, subprocess, sys
from pathlib import Path
from shmq.shm.instance import read_instance
from shmq.testing import Broker
from shmq.tools.doctor.access import check_permissions
from shmq.tools.doctor.case import open_case
from shmq.figures.verdict import Verdict
from shmq.tools.doctor.finding import WORDS
from tests.tools.health.situations import all_well, of, reported

own = Path(sys.argv[1], "group")
own.write_text(Path("/etc/group").read_text() + "shmq:x:10911:\\n")
subprocess.run(["mount", "--bind", own, "/etc/group"], check=True)
with Broker(metrics="127.0.0.1:0") as broker:
    all_well(broker.url)
    with open_case(broker.url) as case:
        print(*[f"{found.check} {WORDS[found.verdict]} {found.what}" for found in check_permissions(case)])
    instance = read_instance(broker.place.instance_path)
    [path] = Path("/dev/shm").glob(f"shmq.{broker.name}.*.counters")
    modes = {file.name.rpartition(".")[2]: file.stat().st_mode & 0o777 for file in path.parent.glob(f"{path.stem}.*")}
    print(*[f"{part} {mode:04o}" for part, mode in sorted(modes.items())], f"group {path.stat().st_gid}")
    path.chmod(0o660)  # a process that may append could forge what the daemon counted
    finding, _ = reported(broker.url, of("segments", Verdict.CRITICAL, str(path), "0660", "0640"))
    print(finding.do.partition(";")[0] == f"chown {os.geteuid()} {path} && chmod 0640 {path}")
    with open_case(broker.url) as case:
        print(*[WORDS[found.verdict] for found in check_permissions(case)])
"""


@needs_namespaces
def test_each_part_of_a_broker_of_the_writer_group_has_the_mode_it_was_made_with(tmp_path: Path) -> None:
    result = subprocess.run(
        ["unshare", "--mount", sys.executable, "-P", "-c", OF_THE_GROUP, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert result.stdout.splitlines() == [
        "access.segments ok permissions 0660 group shmq",
        "control 0660 counters 0640 readers 0660 units 0660 group 10911",
        "True",
        "fail",
    ], result.stdout + result.stderr


def test_a_scraped_broker_is_well_and_its_stopped_exporter_is_reported_with_what_follows() -> None:
    with Broker(metrics="127.0.0.1:0") as broker:
        presence = all_well(broker.url).snapshot.presence
        assert presence.counted == presence.registered  # the exporter is recorded, and attached to nothing
        pid = broker.processes["exporter"].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            finding, _ = reported(broker.url, of("daemon", Verdict.CRITICAL, "exporter", str(pid), "stopped"))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "scrape" in finding.why and finding.do == f"kill -CONT {pid}"
