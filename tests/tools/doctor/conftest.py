"""A case of a real broker whose host is a directory that the test fills."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shmq.testing import Broker
from shmq.tools.doctor.case import Case, open_case
from shmq.tools.doctor.host import Host


@pytest.fixture(scope="module")
def real() -> Iterator[Case]:
    """A broker of this host, as doctor sees it."""
    with Broker(tcp=True) as broker, open_case(broker.url) as case:
        yield case


@pytest.fixture
def case_on(real: Case, tmp_path: Path) -> Callable[..., Case]:
    """The same broker on a host with these files: `case_on({"/proc/swaps": …}, owner=1000)`."""

    def make(files: dict[str, str], owner: int | None = None) -> Case:
        for name, text in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert real.instance is not None
        instance = real.instance if owner is None else real.instance._replace(uid=owner)
        return replace(real, host=Host(tmp_path), instance=instance)

    return make
