"""What is registered of a master: the port where slaves get the log, also where the system chose it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

import shmq
from shmq.addresses import parse_address
from shmq.protocol.codes import Request, Response
from shmq.shm.addresses import HA_ADDRESS, read_addresses
from shmq.testing import Broker
from tests.bridge.live_bridge import RawPeer
from tests.deadline import eventually
from tests.ha.pair import assert_equal, send
from tests.ha.test_switch import fixed, follow, ha_of, promote
from tests.nameserver.live_nameserver import LiveNameServer, brokers_of, name_server
from tests.ports import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture
def names() -> Iterator[LiveNameServer]:
    with name_server() as server:
        yield server


def told_to_slaves(name_server: str, broker: Broker) -> str:
    """The replication address in the answer that a slave gets when it registers."""
    fields = {
        "brokerName": broker.name,
        "brokerAddr": "127.0.0.2:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "127.0.0.2:10912",
        "brokerId": "1",
    }
    with closing(RawPeer(parse_address(name_server))) as slave:
        reply = slave.ask(Request.REGISTER_BROKER, fields)
    assert reply.code == Response.SUCCESS
    return reply.ext.get("haServerAddr", "")


def test_name_servers_get_the_port_that_the_system_chose(names: LiveNameServer) -> None:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", nameservers=names.address) as master:
        address = read_addresses(master.place.ha_path)[HA_ADDRESS]
        assert not address.endswith(":0")
        eventually(
            lambda: told_to_slaves(names.address, master) == address, lambda: told_to_slaves(names.address, master)
        )
        os.kill(master.processes["bridge"].pid, signal.SIGKILL)
        eventually(
            lambda: told_to_slaves(names.address, master) == address, lambda: told_to_slaves(names.address, master)
        )


def test_the_name_server_in_a_master_tells_its_slaves_where_they_get_the_log() -> None:
    with Broker(tcp=True, ha_listen="127.0.0.1:0") as master:
        address = read_addresses(master.place.ha_path)[HA_ADDRESS]
        eventually(lambda: told_to_slaves(master.name_server, master) == address, lambda: master.log[-2000:])
    with Broker(tcp=True) as alone:
        assert told_to_slaves(alone.name_server, alone) == ""


def test_the_port_that_was_named_is_registered_at_once(names: LiveNameServer) -> None:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", nameservers=names.address) as master:
        address = read_addresses(master.place.ha_path)[HA_ADDRESS]
    with Broker(tcp=True, ha_listen=address, nameservers=names.address) as master:
        assert told_to_slaves(names.address, master) == address


def test_a_promoted_slave_is_the_master_for_name_servers_and_its_epoch_is_registered(names: LiveNameServer) -> None:
    with Broker(nameservers=names.address, **fixed()) as old:
        where = {"master": old.broker_address, "master_ha": ha_of(old), "nameservers": names.address}
        with Broker(name=old.name, role="slave", **where, **fixed()) as new:
            send(old, range(3))
            assert_equal(old, new)
            both = {"0": old.broker_address, "1": new.broker_address}
            eventually(lambda: names.brokers_of("orders") == {old.name: both}, lambda: str(names.brokers_of("orders")))
            assert state_version(names, old, 0) == 0
            old.kill_daemon()
            promote(new)
            alone = {old.name: {"0": new.broker_address}}
            eventually(lambda: names.brokers_of("orders") == alone, lambda: str(names.brokers_of("orders")))
            assert state_version(names, new, 0) == 1
            follow(old, new)
            both = {"0": new.broker_address, "1": old.broker_address}
            eventually(lambda: names.brokers_of("orders") == {old.name: both}, lambda: str(names.brokers_of("orders")))


def test_hosts_that_are_each_others_name_servers_lose_no_name_with_one_of_them() -> None:
    servers = [f"127.0.0.1:{free_ports()}" for _ in range(2)]
    both = {"nameservers": ";".join(servers)}
    with Broker(nameserver_listen=servers[0], **both, **fixed()) as old:
        where = {"role": "slave", "master": old.broker_address, "master_ha": ha_of(old)}
        with (
            Broker(name=old.name, nameserver_listen=servers[1], **where, **both, **fixed()) as new,
            shmq.connect(f"rocketmq://{both['nameservers']}", timeout=30.0) as mq,
        ):
            assert [old.name_server, new.name_server] == servers
            mq.send("orders", b"42 apples")
            assert_equal(old, new)
            every = {old.name: {"0": old.broker_address, "1": new.broker_address}}
            eventually(lambda: routes(servers) == [every, every], lambda: str(routes(servers)))
            old.kill_daemon()
            promote(new)
            eventually(lambda: brokers_of(servers[1], "orders") == {old.name: {"0": new.broker_address}})
            mq.send("orders", b"43 apples")
            follow(old, new)
            every = {old.name: {"0": new.broker_address, "1": old.broker_address}}
            eventually(lambda: routes(servers) == [every, every], lambda: str(routes(servers)))
            os.kill(new.processes["bridge"].pid, signal.SIGKILL)
            eventually(lambda: routes(servers) == [every, every], lambda: str(routes(servers)))
            mq.send("orders", b"44 apples")
            assert_equal(new, old)


def routes(servers: list[str]) -> list[dict[str, dict[str, str]]]:
    """What each of them says of the orders; [] while one of them ends."""
    with contextlib.suppress(OSError, AssertionError):
        return [brokers_of(server, "orders") for server in servers]
    return []


def test_slaves_with_an_id_each_are_all_in_the_route(names: LiveNameServer) -> None:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", nameservers=names.address) as master:
        send(master, range(3))
        where = {"role": "slave", "master": master.broker_address, "master_ha": ha_of(master)}
        own = {"name": master.name, "tcp": True, "nameservers": names.address, **where}
        with Broker(**own) as first, Broker(slave_id=7, **own) as second:
            with closing(RawPeer(parse_address(second.broker_address))) as peer:
                assert "brokerId=7\n" in peer.ask(Request.GET_BROKER_CONFIG, {}).body.decode()
            every = {"0": master.broker_address, "1": first.broker_address, "7": second.broker_address}
            eventually(
                lambda: names.brokers_of("orders") == {master.name: every}, lambda: str(names.brokers_of("orders"))
            )


def state_version(names: LiveNameServer, broker: Broker, broker_id: int) -> int:
    """The epoch that the name server knows of a broker."""
    fields = {
        "brokerName": broker.name,
        "brokerAddr": broker.broker_address,
        "clusterName": "DefaultCluster",
        "brokerId": str(broker_id),
    }
    with names.peer() as peer:
        reply = peer.ask(Request.QUERY_DATA_VERSION, fields)
    assert reply.code == Response.SUCCESS and reply.body, reply
    return int(json.loads(reply.body).get("stateVersion", 0))  # 0 is left out
