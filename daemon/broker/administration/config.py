"""The broker's settings over the wire: a list of what may be changed, and nothing else.

They are the requests 25 and 26.

    autoCreateTopicEnable     true, false         whether a send creates its topic
    defaultTopicQueueNums     1 to 1024           queues of a topic created on first use
    enablePropertyFilter      true, false         whether consumers may filter by SQL92
    maxMessageSize            1024 to 4194304     bytes of a message over TCP
    timerMaxDelaySec          1 to 315360000      seconds a message may wait for a time of its own
    transactionTimeOut        1 to 86400000       ms until a transaction is asked about first
    transactionCheckInterval  1000 to 86400000    ms until it is asked about again
    transactionCheckMax       1 to 1000           how often; then it is rolled back

RocketMQ refuses a few names and takes the rest, and one of the rest reached a shell (CVE-2023-33246). Here only these
have a name; they live in memory and end with the process. A client without an account changes nothing over TCP.
Other bridges of the broker get the settings from `tunables_of`, and take them with `take_tunables`.

Invariant: a change is taken as a whole or not at all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables
from shmq.daemon.broker.topics import make_system_topics
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import PermissionDenied, UsageError
from shmq.message import QUEUES_MAX, TRACE_TOPIC
from shmq.protocol.body import DataVersion
from shmq.protocol.codes import Request
from shmq.protocol.java_properties import java_properties, parse_java_properties

# What tools look for in every broker's settings, and what is always so here.
_FIXED = {
    "autoCreateSubscriptionGroup": "true",
    "filterServerNums": "0",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceOn": "true",
    "traceTopicEnable": "false",
}
_WORDS = {"true": 1, "false": 0}
_DIGITS_MAX = 10
_DAY_MS = 86_400_000


class _Tunable(NamedTuple):
    """A setting by the name of its field in BrokerSettings."""

    field: str
    least: int
    most: int
    is_switch: bool = False

    def parse(self, name: str, text: str) -> int | bool:
        if self.is_switch:
            if text not in _WORDS:
                raise UsageError(f"{name} is {text[:64]!a}; true or false is needed")
            return text == "true"
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else -1
        if not self.least <= value <= self.most:
            raise UsageError(f"{name} is {text[:64]!a}; a number from {self.least} to {self.most} is needed")
        return value


TUNABLES = {
    "autoCreateTopicEnable": _Tunable("auto_create", 0, 1, is_switch=True),
    "defaultTopicQueueNums": _Tunable("default_queues", 1, QUEUES_MAX),
    "enablePropertyFilter": _Tunable("property_filter", 0, 1, is_switch=True),
    "maxMessageSize": _Tunable("message_bytes_max", 1024, 4 << 20),
    "timerMaxDelaySec": _Tunable("timer_max_delay_seconds", 1, 86_400 * 3650),
    "transactionTimeOut": _Tunable("transaction_timeout_ms", 1, _DAY_MS),
    "transactionCheckInterval": _Tunable("transaction_interval_ms", 1000, _DAY_MS),
    "transactionCheckMax": _Tunable("transaction_checks_max", 1, 1000),
}


def tunables_of(settings: BrokerSettings) -> dict[str, str]:
    """Return what may be changed, by RocketMQ's names."""
    return {name: _text(getattr(settings, tunable.field)) for name, tunable in TUNABLES.items()}


def take_tunables(settings: BrokerSettings, values: Mapping[str, str]) -> None:
    """Change settings to what `tunables_of` said elsewhere; other names are passed over.

    Raises:
        UsageError: a value that is out of range; nothing is changed then.
    """
    taken = {name: tunable.parse(name, values[name]) for name, tunable in TUNABLES.items() if name in values}
    for name, value in taken.items():
        setattr(settings, TUNABLES[name].field, value)


class ConfigRequests(Part):
    """Serves the settings."""

    def __init__(
        self, tables: Tables, settings: BrokerSettings, *, changed: Callable[[], Sequence[Effect]] = tuple
    ) -> None:
        self._tables = tables
        self._settings = settings
        self._changed = changed
        self._version = DataVersion()

    @serves(Request.GET_BROKER_CONFIG)
    def _get(self, call: Call) -> Answer:
        settings = self._settings
        values = {
            "brokerName": settings.broker_name,
            "brokerClusterName": settings.cluster,
            "brokerId": str(settings.broker_id),
            "brokerRole": _role_of(settings),
            "flushDiskType": "SYNC_FLUSH" if settings.wait_durable else "ASYNC_FLUSH",
            "fileReservedTime": str(settings.retention_hours),
            "messageDelayLevel": settings.delay_levels,
            "slaveReadEnable": _text(settings.slave_reads_bytes > 0),
            "timerWheelEnable": "true",
            "recallMessageEnable": "true",
            "useTLS": _text(settings.uses_tls),
            **_FIXED,
            **tunables_of(settings),
        }
        if call.connection.local is not None:
            values["listenPort"] = str(call.connection.local.port)
        version = msgspec.json.encode(self._version).decode()
        return Answer(ext={"version": version}, body=java_properties(values))

    @serves(Request.UPDATE_BROKER_CONFIG)
    def _update(self, call: Call) -> Answer:
        if not call.connection.is_local and not call.connection.has_account:
            raise PermissionDenied(
                "settings are changed over TCP by accounts only, and this broker has none",
                hint="start the broker with other options, or with --acl FILE",
            )
        changed: dict[str, int | bool] = {}
        for name, value in parse_java_properties(call.command.body):
            tunable = TUNABLES.get(name)
            if tunable is None:
                raise PermissionDenied(
                    f"Can not update config in black list. {name[:64]!a} is not one of {', '.join(TUNABLES)}",
                    hint="start the broker with other options: shmq serve --help",
                )
            changed[tunable.field] = tunable.parse(name, value)
        for field, new in changed.items():
            setattr(self._settings, field, new)
        self._version = DataVersion(self._version.counter + 1, self._tables.clock_ms)
        reports = make_system_topics(self._tables, self._settings) if self._settings.serves_tcp else []
        shown = ", ".join(f"{field}={_text(new)}" for field, new in changed.items())
        return Answer(
            effects=[
                Report(f"settings changed by {call.connection.remote or 'a local client'}: {shown}"),
                *self._changed(),
            ],
            reports=reports,
        )


def _role_of(settings: BrokerSettings) -> str:
    if settings.is_slave:
        return "SLAVE"
    return "SYNC_MASTER" if settings.confirms else "ASYNC_MASTER"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
