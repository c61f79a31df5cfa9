"""Administration of consumer groups: create, delete, list.

Owns the requests 200, 207 and 201. It does not know members' subscriptions.

The tables keep the name of a group and nothing else, so a configuration that differs from RocketMQ's defaults is
refused: accepting and forgetting it would be worse.
"""

from __future__ import annotations

import msgspec

from shmq.daemon.broker.fields import text_of
from shmq.daemon.broker.groups import GroupRegistry
from shmq.daemon.broker.requests import Answer, Call, Handler
from shmq.daemon.broker.tables import Tables
from shmq.errors import RemoteError, UsageError
from shmq.message import check_group, nearest
from shmq.protocol.body import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    decode_body,
    encode_body,
)
from shmq.protocol.codes import Request, Response


class GroupRequests:
    """Serves the administration of consumer groups."""

    def __init__(self, tables: Tables, registry: GroupRegistry) -> None:
        self._tables = tables
        self._registry = registry

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._put,
            Request.DELETE_SUBSCRIPTIONGROUP: self._delete,
            Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._list,
        }

    def _put(self, call: Call) -> Answer:
        config = decode_body(call.command.body, SubscriptionGroupConfig)
        name = check_group(config.groupName)
        defaults = msgspec.structs.asdict(SubscriptionGroupConfig(name))
        wanted = msgspec.structs.asdict(config)
        differing = {key: value for key, value in wanted.items() if value != defaults[key]}
        if differing:
            shown = ", ".join(f"{key}={value} (kept: {defaults[key]})" for key, value in differing.items())
            raise UsageError(f"the group settings {shown} cannot be changed", hint="leave them at their defaults")
        self._tables.group_put(name)
        return Answer()

    def _delete(self, call: Call) -> Answer:
        name = check_group(text_of(call.ext, "groupName"))
        members = self._registry.members(name)
        if members:
            raise UsageError(
                f'group "{name}" has {len(members)} members online, the first is {members[0]}',
                hint="stop its consumers, then delete it",
            )
        if self._tables.group(name) is None:
            near = " or ".join(f'"{other}"' for other in nearest(name, self._tables.groups()))
            raise RemoteError(
                Response.SUBSCRIPTION_GROUP_NOT_EXIST,
                f'group "{name}" does not exist',
                hint=f"did you mean {near}?" if near else "see the names with: shmq group list",
            )
        self._tables.group_delete(name)
        return Answer()

    def _list(self, call: Call) -> Answer:
        table = {name: SubscriptionGroupConfig(name) for name in self._tables.groups()}
        return Answer(body=encode_body(SubscriptionGroupTable(table, DataVersion(counter=self._tables.version))))
