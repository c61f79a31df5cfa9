"""What `shmq health --json` prints of one check, for tests."""

from __future__ import annotations

import json
from typing import Any

from shmq.testing import Broker
from tests.tools.json_schema import check
from tests.tools.shell import Shell


def health_of(broker: Broker, name: str, cause: str) -> dict[str, Any]:
    """The finding of this check that is not OK and has this cause; the document follows the schema."""
    document = json.loads(Shell(broker.url).run("health", "--json").out)
    check("health", document)
    bad = [each for each in document["findings"] if each["check"] == name and each["verdict"] != "OK"]
    found = [each for each in bad if cause in each["why"]]
    assert found, document
    finding: dict[str, Any] = found[0]
    return finding
