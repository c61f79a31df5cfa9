"""RocketMQ's tools subtract offsets: their difference is our lag, less what is popped, and with what cleaning took."""

import re
from collections.abc import Callable

import pytest

from shmq.testing import Broker
from tests.tools.backlog_states import States


@pytest.mark.parametrize("version", ["4", "5"])
def test_mqadmins_difference_follows_from_our_lag(mqadmin: Callable[..., str], version: str) -> None:
    with Broker(tcp=True) as broker:
        states = States(broker)
        for state in states.all:
            text = mqadmin(version, "consumerProgress", "-g", state.group, "-n", broker.name_server)
            found = re.findall(r"Diff Total: (\d+)", text)
            assert found, text
            [difference] = found
            assert int(difference) == state.offsets_difference == state.lag - state.popped + state.lost, state
        states.close()
