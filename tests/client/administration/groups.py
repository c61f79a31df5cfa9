"""The groups of users that a broker has, for tests that hold that none was made."""

from __future__ import annotations

import shmq
from shmq.message import is_system_group


def groups_of(mq: shmq.Connection) -> set[str]:
    """Their names; the groups of the broker's own parts come whenever one first notes how far it is."""
    return {name for name in mq.admin.groups if not is_system_group(name)}
