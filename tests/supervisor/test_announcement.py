"""What `serve` says of TCP: where it listens, and which name servers know it as what."""

from shmq.daemon.announcement import tcp_facts
from shmq.shm.addresses import as_registered, read_addresses
from shmq.testing import Broker
from tests.nameserver.live_nameserver import name_server

BROKER = "10.0.0.5:10911"


def test_it_is_registered_only_where_that_is_so_and_as_what_it_is_known() -> None:
    facts = tcp_facts(
        {"broker": BROKER} | as_registered({"ns1:9876": BROKER, "ns3:9876": "10.1.0.5:10911"}),
        nameservers=["ns1:9876", "ns2:9876", "ns3:9876"],
        advertise="",
    )
    assert facts == [
        f"{BROKER} broker",
        f"registered as {BROKER} with ns1:9876",
        "registered as 10.1.0.5:10911 with ns3:9876",
        "not registered yet with ns2:9876: tried again until it answers",
    ]


def test_an_embedded_name_server_hands_out_what_is_advertised() -> None:
    addresses = {"broker": BROKER, "nameserver": "10.0.0.5:9876"}
    begin = ["10.0.0.5:9876 name service", f"{BROKER} broker"]
    assert tcp_facts(addresses, nameservers=[], advertise="") == [*begin, "advertises the address clients reach"]
    assert tcp_facts(addresses, nameservers=[], advertise="host") == [*begin, "advertises host"]


def test_a_broker_that_says_it_is_ready_is_registered() -> None:
    with name_server() as server, Broker(tcp=True, nameservers=f"{server.address};127.0.0.1:1") as broker:
        assert server.brokers_of("TBW102") == {broker.name: {"0": broker.broker_address}}
        addresses = read_addresses(broker.place.addresses_path)
        facts = tcp_facts(addresses, nameservers=[server.address, "127.0.0.1:1"], advertise="")
        assert f"registered as {broker.broker_address} with {server.address}" in facts
        assert any("not registered yet with 127.0.0.1:1" in fact for fact in facts)
