"""The settings of a consumer group: RocketMQ's names, defaults and bounds, and their short text in shared memory.

A group's settings lie beside its name in shared memory, in two copies that take turns, so that reading needs no
lock and every bridge and local member sees a change at once. The keeper writes `subscriptionGroup.json`.

    text    JSON of what differs from the defaults, sorted:  {"consumeEnable":false,"retryMaxTimes":3}

Invariants:
 1. `decode_settings(encode_settings(v))` has every setting, each of its type and within its bounds, whatever `v` holds.
 2. Decoding never fails: any local process may write to the segment, so what cannot be is replaced by the default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class _Setting(NamedTuple):
    default: bool | int
    least: int = 0
    most: int = 1

    def takes(self, value: object) -> bool:
        return type(value) is type(self.default) and self.least <= int(value) <= self.most


_SETTINGS = {
    "brokerId": _Setting(0, 0, _INT64_MAX),
    "consumeBroadcastEnable": _Setting(True),
    "consumeEnable": _Setting(True),
    "consumeFromMinEnable": _Setting(True),
    "consumeMessageOrderly": _Setting(False),
    "consumeTimeoutMinute": _Setting(15, 0, _INT32_MAX),
    "groupSysFlag": _Setting(0, 0, _INT32_MAX),
    "notifyConsumerIdsChangedEnable": _Setting(True),
    "retryMaxTimes": _Setting(16, -1, _INT32_MAX),
    "retryQueueNums": _Setting(1, 0, 1024),
    "whichBrokerWhenConsumeSlowly": _Setting(1, 0, _INT64_MAX),
}
# RocketMQ 4 does not know these, so they stand in files and replies only where they were set.
_RELEASE_5 = ("consumeMessageOrderly", "consumeTimeoutMinute", "groupSysFlag")


def settings_fault(values: Mapping[str, Any]) -> str:
    """Return what is wrong with the first setting that cannot be taken; empty when all can."""
    for name, setting in _SETTINGS.items():
        value = values.get(name, setting.default)
        if not setting.takes(value):
            bounds = "true or false" if setting.most == 1 else f"{setting.least} to {setting.most}"
            return f"{name}={value!r:.40} is not possible; {bounds} is"
    return ""


def encode_settings(values: Mapping[str, Any]) -> bytes:
    """Return the text of settings; names that are no settings, and values that cannot be, are left out."""
    changed = {
        name: values[name]
        for name, setting in _SETTINGS.items()
        if name in values and setting.takes(values[name]) and values[name] != setting.default
    }
    return json.dumps(changed, separators=(",", ":")).encode() if changed else b""


def decode_settings(text: bytes) -> dict[str, Any]:
    """Return all settings by name, in RocketMQ 4's set plus what of release 5 differs from its default."""
    values = _parsed(text)
    found: dict[str, Any] = {}
    for name, setting in _SETTINGS.items():
        value = values.get(name, setting.default)
        value = value if setting.takes(value) else setting.default
        if name not in _RELEASE_5 or value != setting.default:
            found[name] = value
    return found


def stored_settings(name: str, known: Mapping[str, Any], text: bytes) -> dict[str, Any]:
    """Return a group as its file describes it: its settings, and what of `known` is no setting."""
    others = {key: value for key, value in known.items() if key not in _SETTINGS}
    return {**others, **decode_settings(text), "groupName": name}


def _parsed(text: bytes) -> dict[str, Any]:
    if not text:
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
