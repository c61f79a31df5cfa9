"""Administration of consumer groups: create, configure, delete, list.

They are the requests 200, 225, 207, 201 and 352.

What this broker could not honour is refused, because accepting and forgetting it would be worse: a retry policy other
than the message delay levels, attributes, and subscriptions given by an administrator.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Names
from shmq.daemon.broker.topics import delete_retries
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import FlowControl, RemoteError, UsageError
from shmq.message import check_consumer_group, check_group, nearest
from shmq.protocol.admin_body import GroupConfigList
from shmq.protocol.body import (
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    decode_body,
    encode_body,
)
from shmq.protocol.codes import Request, Response

_LEVELS_POLICY = "CUSTOMIZED"  # RocketMQ's word for: the delay levels, one after the other


class GroupRequests(Part):
    """Serves the administration of consumer groups."""

    def __init__(self, tables: Names, registry: GroupRegistry, groups: GroupSettings, settings: BrokerSettings) -> None:
        self._tables = tables
        self._registry = registry
        self._groups = groups
        self._settings = settings

    @serves(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def _put(self, call: Call) -> Answer:
        return self._put_all([decode_body(call.command.body, SubscriptionGroupConfig)])

    @serves(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def _put_list(self, call: Call) -> Answer:
        configs = decode_body(call.command.body, GroupConfigList).groupConfigList
        most = self._settings.list_entries_max
        if len(configs) > most:
            raise FlowControl(f"{len(configs)} groups in one request; {most} are allowed")
        return self._put_all(configs)

    def _put_all(self, configs: Sequence[SubscriptionGroupConfig]) -> Answer:
        for config in configs:
            if config.groupName not in self._tables.groups():  # one that is there a client of RocketMQ has brought
                check_consumer_group(config.groupName)
            _check_honoured(config)
            self._groups.check(config)
        for config in configs:
            self._groups.put(config)
        return Answer()

    @serves(Request.DELETE_SUBSCRIPTIONGROUP)
    def _delete(self, call: Call) -> Answer:
        name = check_group(text_of(call.ext, "groupName"))
        members = self._registry.members(name)
        if members:
            raise UsageError(
                f'group "{name}" has {len(members)} members online, the first is {members[0]}',
                hint="stop its consumers, then delete it",
            )
        if self._tables.group(name) is None:
            if not call.connection.is_local:
                return Answer()  # RocketMQ finds nothing wrong with it
            near = " or ".join(f'"{other}"' for other in nearest(name, self._tables.groups()))
            raise RemoteError(
                Response.SUBSCRIPTION_GROUP_NOT_EXIST,
                f'group "{name}" does not exist',
                hint=f"did you mean {near}?" if near else "see the names with: shmq group list",
            )
        delete_retries(self._tables, lambda group, _: group == name)
        self._tables.group_delete(name)
        return Answer()

    @serves(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def _list(self, call: Call) -> Answer:
        table = {name: self._groups.named(name) for name in self._tables.groups()}
        return Answer(body=encode_body(SubscriptionGroupTable(table, DataVersion(counter=self._tables.version))))

    @serves(Request.GET_SUBSCRIPTIONGROUP_CONFIG)
    def _get(self, call: Call) -> Answer:
        name = check_group(text_of(call.ext, "group"))
        if self._tables.group(name) is None:
            raise RemoteError(Response.SUBSCRIPTION_GROUP_NOT_EXIST, f'group "{name}" does not exist')
        return Answer(body=encode_body(self._groups.named(name)))


def _check_honoured(config: SubscriptionGroupConfig) -> None:
    policy = config.groupRetryPolicy
    kind = policy.get("type", _LEVELS_POLICY) if isinstance(policy, dict) else _LEVELS_POLICY
    refused: dict[str, Any] = {
        "groupRetryPolicy": policy if kind != _LEVELS_POLICY else None,
        "attributes": config.attributes,
        "subscriptionDataSet": config.subscriptionDataSet,
    }
    for name, value in refused.items():
        if value and value is not msgspec.UNSET:
            raise UsageError(
                f'group "{config.groupName}": {name}={value!r:.64} is not supported',
                hint=f"leave {name} out",
            )
