"""A fresh name server for each test."""

import pytest

from tests.nameserver.desk import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
