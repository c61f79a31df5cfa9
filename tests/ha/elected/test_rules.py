"""The rules notice what breaks them."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from tests.ha.elected.receivers import Receiver
from tests.ha.elected.rules import check_seen


def receiver(name: str, *bodies: bytes) -> Receiver:
    """One that has received these."""
    made = Receiver(name, lambda: None, lambda _: nullcontext(Mock()))
    made.received = dict.fromkeys(bodies, 0.0)
    return made


def test_who_received_what_the_last_leader_has_not_is_named() -> None:
    check_seen({b"a", b"b"}, [receiver("one", b"a"), receiver("other", b"a", b"b")])
    with pytest.raises(AssertionError, match="other received 1 that the last leader has not"):
        check_seen({b"a", b"b"}, [receiver("one", b"a"), receiver("other", b"b", b"c")])


def test_a_group_that_saw_nothing_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="one received nothing"):
        check_seen({b"a"}, [receiver("one")])
