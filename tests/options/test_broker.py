"""Settings: checked once, the same in every process."""

import re
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import UsageError
from shmq.options.broker import Options
from tests.options.test_addresses import LONGEST, RIGHT_HOSTS, WRONG_HOSTS
from tests.tables.rows import every_row


def test_settings_travel_as_json_without_change() -> None:
    options = Options(broker_name="a", runtime_dir="/run/a", store="/srv/a", flush="sync", file_bytes=1 << 20)
    assert Options.from_json(options.to_json()) == options
    assert options.flush_sync
    assert (options.place.runtime_dir, options.store_path) == (Path("/run/a"), Path("/srv/a"))


@pytest.mark.parametrize(
    "setting",
    [
        {"broker_name": "a/b"},
        {"file_bytes": 65537},
        {"file_bytes": 4096},
        {"file_bytes": True},
        {"flush": "often"},
        {"segments": "memfd"},
        {"log_format": "xml"},
        {"lease_ms": 1},
        {"retention_hours": 0},
        {"delete_hour": "24"},
        {"delete_hour": "at night"},
        {"when_full": "panic"},
        {"accept_loss": "5-4"},
        {"delay_levels": "soon"},
        {"timer_max_delay_seconds": 0},
        {"default_queues": "8"},
        {"disk_warn_percent": 90, "disk_force_percent": 80},
        {"store": "relative"},
        {"runtime_dir": "./run"},
        {"listen": "127.0.0.1"},
        {"listen": "127.0.0.1:65536"},
        {"listen": "::1:10911"},
        {"listen": ":10911"},
        {"nameservers": "a:1;b"},
        {"advertise": "host:"},
        {"cluster": "a b"},
        {"bridges": 0},
        {"tls_mode": "maybe"},
        {"tls_mode": "enforcing"},
        {"tls_cert": "/c"},
        {"acl": "relative"},
    ],
)
def test_a_setting_that_cannot_be_is_named(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Options(**setting)
    assert next(iter(setting)).split("_")[0] in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"file_byte": 1}'])
def test_text_that_holds_no_settings_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Options.from_json(text)


LISTENING = ("listen", "nameserver_listen", "metrics", "ha_listen")
REACHED: dict[str, dict[str, Any]] = {
    "nameservers": {},
    "advertise": {},
    "master": {"role": "slave"},
    "master_ha": {"role": "slave", "master": "h:1"},
}


@every_row("name", [*LISTENING, *REACHED])
def test_a_host_that_cannot_be_is_refused_wherever_an_address_is_a_setting(name: str) -> None:
    more = REACHED.get(name, {})
    for host, fault in WRONG_HOSTS:
        with pytest.raises(UsageError, match=fault) as caught:
            Options(**more, **{name: f"{host}:1"})
        assert name in str(caught.value) and len(str(caught.value)) < 400, host
    for host in RIGHT_HOSTS:
        if host.isascii() or name != "master":
            Options(**more, **{name: f"{host}:1"})


@every_row("name", [*REACHED])
def test_what_others_connect_to_has_a_port_and_is_one_address(name: str) -> None:
    for text, fault in (("h:0", "port 0"), ("[::1]:0", "port 0"), ("0.0.0.0:5", "every address"), ("[::]:5", "every")):
        with pytest.raises(UsageError, match=fault) as caught:
            Options(**REACHED[name], **{name: text})
        assert name in str(caught.value)
    for each in LISTENING:
        Options(**{each: "0.0.0.0:0"})


def test_name_servers_are_separated_as_rocketmq_separates_them() -> None:
    assert Options(nameservers="a:1;b:2").nameserver_addresses == ["a:1", "b:2"]
    assert Options().nameserver_addresses == []


@every_row(
    ("settings", "is_one"),
    [
        ({}, True),
        ({"nameservers": "a:1"}, False),
        ({"nameserver_listen": "a:1", "nameservers": "b:1;a:1"}, True),
        ({"nameserver_listen": "a:2", "nameservers": "b:1;a:1"}, False),
        ({"nameserver_listen": "a:0", "nameservers": "b:1;a:1"}, False),
    ],
)
def test_a_broker_is_a_name_server_where_none_is_named_or_its_own_address_is(
    settings: dict[str, str], is_one: bool
) -> None:
    assert Options(**settings).is_name_server is is_one  # type: ignore[arg-type]


def test_a_masters_address_may_be_as_long_as_the_segments_have_room_for() -> None:
    header = (Path(__file__).resolve().parents[2] / "bindings/shmq.h").read_text()
    [room] = map(int, re.findall(r"^#define SHMQ_LEADER_BYTES_MAX (\d+)u", header, re.M))
    longest = f"{LONGEST}:10911"
    assert len(longest) <= room
    assert Options(role="slave", master=longest).master == longest
    with pytest.raises(UsageError, match=f"at most {room} ASCII"):
        Options(role="slave", master="bücher.example:10911")
