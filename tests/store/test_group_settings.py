"""Settings of a group: what can be said, and what holds whatever was said."""

import json

from shmq.shm.core import GROUP_SETTINGS_BYTES_MAX
from shmq.store.group_settings import decode_settings, encode_settings, settings_fault, stored_settings
from tests.tables.rows import every_row

DEFAULTS = {
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


def test_a_group_without_settings_has_rocketmqs_defaults() -> None:
    assert decode_settings(b"") == DEFAULTS
    assert encode_settings(DEFAULTS) == b""


def test_settings_come_back_as_they_were_said() -> None:
    said = {"retryMaxTimes": 3, "consumeEnable": False, "consumeTimeoutMinute": 30}
    assert decode_settings(encode_settings(said)) == DEFAULTS | said


def test_the_longest_settings_fit_into_their_place() -> None:
    least = {name: -1 if name == "retryMaxTimes" else not value for name, value in DEFAULTS.items()}
    numbers = dict.fromkeys(("brokerId", "whichBrokerWhenConsumeSlowly"), (1 << 63) - 1)
    numbers |= dict.fromkeys(("retryMaxTimes", "consumeTimeoutMinute", "groupSysFlag"), (1 << 31) - 1)
    most = least | numbers | {"retryQueueNums": 1024, "consumeMessageOrderly": True}
    assert not settings_fault(most)
    text = encode_settings(most)
    assert len(text) <= GROUP_SETTINGS_BYTES_MAX and decode_settings(text) == most


@every_row(
    "text",
    [
        b"\xff\xfe",
        b"[1]",
        b"{",
        b"[" * 400,
        b'{"retryMaxTimes":"3"}',
        b'{"retryMaxTimes":true}',
        b'{"consumeEnable":1}',
        b'{"retryQueueNums":1025}',
        b'{"retryMaxTimes":1e99}',
        b'{"brokerId":99999999999999999999}',
    ],
)
def test_a_scribbled_text_means_the_defaults(text: bytes) -> None:
    assert decode_settings(text) == DEFAULTS


def test_a_setting_that_cannot_be_is_named_with_what_can() -> None:
    assert settings_fault({"retryMaxTimes": 16}) == ""
    assert settings_fault({"retryQueueNums": -1}) == "retryQueueNums=-1 is not possible; 0 to 1024 is"
    assert settings_fault({"consumeEnable": 1}) == "consumeEnable=1 is not possible; true or false is"


def test_the_file_keeps_what_is_no_setting_and_no_old_value_of_one() -> None:
    known = {"groupName": "g", "attributes": {"a": "b"}, "consumeTimeoutMinute": 30, "retryMaxTimes": 9}
    stored = stored_settings("g", known, encode_settings({"retryMaxTimes": 3}))
    assert stored == {**DEFAULTS, "groupName": "g", "attributes": {"a": "b"}, "retryMaxTimes": 3}
    assert json.loads(json.dumps(stored)) == stored
