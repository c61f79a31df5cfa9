"""Remote settings: a few switches, and no name for anything that could do harm (CVE-2023-37582)."""

from __future__ import annotations

import pytest

from shmq.protocol.codes import Request, Response
from tests.nameserver.desk import Desk

SWITCHES = b"orderMessageEnable=true\nreturnOrderTopicConfigToBroker=true\n"


def test_the_switches_are_shown_as_properties(desk: Desk) -> None:
    reply = desk.ask(desk.connect(), Request.GET_NAMESRV_CONFIG)
    assert (reply.code, reply.body) == (Response.SUCCESS, SWITCHES)


def test_a_switch_is_changed(desk: Desk) -> None:
    admin = desk.connect()
    body = b"#Fri Nov 20 08:00:00 UTC 2026\n orderMessageEnable = false \n\n"
    assert desk.ask(admin, Request.UPDATE_NAMESRV_CONFIG, body=body).code == Response.SUCCESS
    assert b"orderMessageEnable=false\n" in desk.ask(admin, Request.GET_NAMESRV_CONFIG).body


@pytest.mark.parametrize(
    "name",
    [
        *("kvConfigPath", "configStorePath", "configStorePathName", "rocketmqHome", "configBlackList", "listenPort"),
        *("bindAddress", "productEnvName", "clusterTest", "serverCallbackExecutorThreads", "", "kvConfigPath "),
        *("\\u006bvConfigPath", "orderMessageEnable\x00"),
    ],
)
def test_nothing_else_can_be_set_and_the_rest_of_the_body_is_not_taken_either(desk: Desk, name: str) -> None:
    admin = desk.connect()
    body = f"orderMessageEnable=false\n{name}=/tmp/x\n".encode()
    reply = desk.ask(admin, Request.UPDATE_NAMESRV_CONFIG, body=body)
    assert reply.code == Response.NO_PERMISSION
    assert (reply.remark or "").startswith("Can not update config in black list.")
    assert desk.ask(admin, Request.GET_NAMESRV_CONFIG).body == SWITCHES


@pytest.mark.parametrize("body", [b"orderMessageEnable=yes", b"orderMessageEnable", b"\xff=1", b"a=b\n" * 65])
def test_a_body_that_makes_no_sense_is_an_error(desk: Desk, body: bytes) -> None:
    admin = desk.connect()
    assert desk.ask(admin, Request.UPDATE_NAMESRV_CONFIG, body=body).code != Response.SUCCESS
    assert desk.ask(admin, Request.GET_NAMESRV_CONFIG).body == SWITCHES
