"""Reads and writes the settings of consumer groups for the parts of the broker.

The settings lie beside the group's name in shared memory, as the JSON of what differs from RocketMQ's defaults, in two
copies that take turns: reading needs no lock, and every bridge and local member sees a change at once. Any local
process may write there, so what cannot be is read as the default. The keeper writes `subscriptionGroup.json` from it.

The text is read on each call, because another bridge or a restart may have changed it; a group that does not exist has
RocketMQ's defaults, as one without settings has.
"""

from functools import lru_cache
from typing import Any

import msgspec

from shmq.daemon.broker.tables import Groups
from shmq.daemon.logic.header_fields import ADVICE
from shmq.errors import InvalidName, RemoteError, UsageError
from shmq.message import check_group
from shmq.protocol.body import SubscriptionGroupConfig
from shmq.protocol.codes import Response
from shmq.store.group_settings import decode_settings, encode_settings, settings_fault

_KNOWN_TEXTS = 1024  # distinct texts kept decoded; groups with the same settings share one


class GroupSettings:
    """The settings of every group."""

    def __init__(self, tables: Groups) -> None:
        self._tables = tables

    def of(self, name: str) -> SubscriptionGroupConfig:
        """Return a group's settings; the caller changes nothing in them. `groupName` is empty."""
        group = self._tables.group(name)
        return _decoded(b"" if group is None else self._tables.group_settings(group))

    def at(self, group: int) -> SubscriptionGroupConfig:
        """Return the settings of the group with that number."""
        return _decoded(self._tables.group_settings(group))

    def named(self, name: str) -> SubscriptionGroupConfig:
        """Return a group's settings with its name, as replies carry them."""
        return msgspec.structs.replace(self.of(name), groupName=name)

    def check(self, config: SubscriptionGroupConfig) -> None:
        """Say whether `put` would take it.

        Raises:
            UsageError: a setting is out of its bounds.
        """
        if fault := settings_fault(_said(config)):
            raise UsageError(f'group "{config.groupName}": {fault}')

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create the group unless it exists, and configure it; call `check` first.

        Raises:
            SegmentFull: no room for another group.
        """
        group = self._tables.group_put(config.groupName)
        text = encode_settings(_said(config))
        if self._tables.group_settings(group) != text:
            self._tables.group_set(group, text)


def check_consumes(tables: Groups, groups: GroupSettings, group: str) -> int:
    """Make sure that a group exists and may consume; return its number.

    Raises:
        RemoteError: there is no such group and cannot be, or it may not consume.
    """
    number = tables.group(group)
    if number is None:
        try:
            return tables.group_put(check_group(group))
        except InvalidName as error:
            remark = f"subscription group [{group[:64]}] does not exist, {ADVICE}"
            raise RemoteError(Response.SUBSCRIPTION_GROUP_NOT_EXIST, remark) from error
    if not groups.at(number).consumeEnable:
        raise RemoteError(Response.NO_PERMISSION, f"subscription group no permission, {group}")
    return number


def _said(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(config).items() if value is not msgspec.UNSET}


@lru_cache(_KNOWN_TEXTS)
def _decoded(text: bytes) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig("", **decode_settings(text))
