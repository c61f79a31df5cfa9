"""How long the pages say that something takes is how long it takes."""

import re
from pathlib import Path

from shmq.client.remote.duties import LEADERS_INTERVAL
from shmq.client.remote.share import HOLDERS_FIRST
from shmq.client.wire_tcp.name_service import SWITCH_FOR
from shmq.daemon.bridge.store.parting import PARTING_MS
from tests.tables.rows import every_row

DOCS = Path(__file__).parents[2] / "docs"
SAID = {"two minutes": 120.0, "10 s": 10.0, "5 s": 5.0}


@every_row(
    "page, sentence, seconds",
    [
        ("how-to/ordering.md", r"takes no other queue for ([^.]*)\.", HOLDERS_FIRST),
        ("replication.md", r"asks the name servers each ([\d]+ s) who leads", LEADERS_INTERVAL),
        ("replication.md", r"for the first time later than ([\w ]+) after the promotion", PARTING_MS / 1000),
        ("reference/remote.md", r"altogether counts for ([\w ]+) more", SWITCH_FOR),
    ],
)
def test_a_page_says_how_long_it_takes(page: str, sentence: str, seconds: float) -> None:
    [said] = re.findall(sentence, re.sub(r"\s+", " ", (DOCS / page).read_text()))
    assert SAID[said] == seconds
