"""Decides which of two masters of one name is registered: that of the newer epoch.

The epoch goes to name servers as `DataVersion.stateVersion`, which RocketMQ's own controllers use for the same.
"""

from __future__ import annotations


def replaces(epoch: int, epoch_before: int) -> bool:
    """Return whether a registration takes the place of another one's: a master that was deposed may not know it yet."""
    return epoch >= epoch_before
