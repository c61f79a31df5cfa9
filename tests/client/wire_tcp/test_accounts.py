"""Our client over TCP with an account and TLS, at a real broker of one bridge and of three."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import shmq
from shmq.testing import Broker

ACL = """
accounts:
- accessKey: order-service
  secretKey: secret-of-orders
  topicPerms: [orders=PUB]
- accessKey: billing
  secretKey: secret-of-billing
  topicPerms: [orders=SUB]
  groupPerms: [billing=SUB, late=SUB, pulling=SUB]
- accessKey: operations
  secretKey: secret-of-operations
  admin: true
"""
PRODUCER = {"access_key": "order-service", "secret_key": "secret-of-orders"}
CONSUMER = {"access_key": "billing", "secret_key": "secret-of-billing"}
ADMIN = {"access_key": "operations", "secret_key": "secret-of-operations"}
CONNECTIONS = 6  # with three bridges the kernel deals them out
Connect = Callable[..., shmq.Connection]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for loopback; its key lies beside it."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    key.chmod(0o600)
    return cert


@pytest.fixture(scope="module", params=[1, 3], ids=["one bridge", "three bridges"])
def broker(request: pytest.FixtureRequest, certificate: Path) -> Iterator[Broker]:
    path = certificate.with_name("plain_acl.yml")
    path.write_text(ACL)
    path.chmod(0o600)
    tls = {"tls_mode": "enforcing", "tls_cert": str(certificate), "tls_key": str(certificate.with_name("key.pem"))}
    with Broker(tcp=True, bridges=request.param, acl=str(path), **tls) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=4)
        mq.admin.create_topic("audit", queues=1)
        yield broker


@pytest.fixture
def connect(broker: Broker, certificate: Path) -> Iterator[Connect]:
    """Call it with options of the URL."""
    opened: list[shmq.Connection] = []

    def call(**options: Any) -> shmq.Connection:
        options = {"tls": "true", "tls_ca": str(certificate), **options}
        opened.append(shmq.connect(f"rocketmq://{broker.name_server}?{urlencode(options)}", timeout=60.0))
        return opened[-1]

    yield call
    for connection in opened:
        connection.close()


def test_what_one_account_sends_another_receives_gives_back_and_acknowledges(
    connect: Connect, eventually: Callable[..., Any]
) -> None:
    sent = set()
    for number in range(CONNECTIONS):
        producer = connect(**PRODUCER)
        sent.add(producer.send("orders", b"single %d" % number).message_id)
        sent |= {receipt.message_id for receipt in producer.send_batch("orders", [b"a", b"b"])}
    attempts: dict[str, int] = {}
    with connect(**CONSUMER).subscribe("orders", group="billing", start="earliest") as subscription:

        def all_came() -> bool:
            for message in subscription.receive(32, 0.2):
                attempts[message.message_id] = max(attempts.get(message.message_id, 0), message.attempt)
                if len(attempts) == 1 and message.attempt == 1:
                    message.nack(1.0)  # the broker keeps it, and delivers it again
                else:
                    message.ack()
            return sent <= attempts.keys() and 2 in attempts.values()

        eventually(all_came, 40.0)
    group = connect(**ADMIN).admin.groups["billing"]
    eventually(lambda: group.lag.total == 0)


def test_a_group_of_an_account_without_more_rights_can_begin_at_the_end(
    connect: Connect, eventually: Callable[..., Any]
) -> None:
    producer = connect(**PRODUCER)
    for queue_id in range(4):
        producer.send("orders", b"before", queue_id=queue_id)
    seen: set[bytes] = set()
    with connect(**CONSUMER).subscribe("orders", group="late", start="latest") as subscription:

        def came() -> bool:
            producer.send("orders", b"after")
            seen.update(message.body for message in subscription.receive(32, 0.2))
            return bool(seen)

        eventually(came)
    assert seen == {b"after"}


def test_a_pull_consumer_commits_and_sees_what_its_group_committed_without_more_rights(connect: Connect) -> None:
    connect(**PRODUCER).send("orders", b"x", queue_id=1)
    with connect(**CONSUMER).pull_consumer("orders", group="pulling", start="earliest") as consumer:
        assert consumer.committed() == {}
        committed = consumer.commit(offsets={0: 0, 1: 1})
        assert consumer.committed() == committed == {0: 0, 1: 1}


def test_what_an_account_may_not_do_is_refused_with_the_brokers_words(connect: Connect) -> None:
    producer, consumer = connect(**PRODUCER), connect(**CONSUMER)
    with pytest.raises(shmq.PermissionDenied, match="No permission PUB on topic 'audit'"):
        producer.send("audit", b"x")
    with pytest.raises(shmq.PermissionDenied, match="No permission PUB on topic 'orders'"):
        consumer.send_batch("orders", [b"x", b"y"])
    with pytest.raises(shmq.PermissionDenied, match="No permission SUB"), producer.pull_consumer("orders") as reader:
        reader.poll(1, 1.0)
    for connection in (producer, consumer):
        with pytest.raises(shmq.PermissionDenied, match="Need admin permission"):
            connection.admin.create_topic("mine")
        with pytest.raises(shmq.PermissionDenied, match="Need admin permission"):
            connection.admin.delete_topic("orders")
    with pytest.raises(shmq.PermissionDenied, match="No permission SUB on group 'others'"):
        consumer.subscribe("orders", group="others")
    assert connect(**ADMIN).admin.create_topic("made", queues=2).name == "made"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"access_key": "order-service", "secret_key": "guessed-secret"}, "Check signature failed"),
        ({"access_key": "unknown-key", "secret_key": "secret-of-orders"}, "No acl config"),
        ({"access_key": "", "secret_key": ""}, "No accessKey is configured"),
        ({}, "No accessKey is configured"),
    ],
)
def test_a_wrong_account_or_none_is_refused_at_once(connect: Connect, keys: dict[str, str], said: str) -> None:
    with pytest.raises(shmq.PermissionDenied, match=said) as caught:
        connect(**keys)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", [{"access_key": "order-service"}, {"secret_key": "secret-of-orders"}])
def test_half_an_account_is_refused_before_anything_is_sent(connect: Connect, given: dict[str, str]) -> None:
    with pytest.raises(shmq.UsageError, match="cannot be signed without"):
        connect(**given)


def test_the_environment_names_the_account_where_the_url_does_not(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHMQ_ACCESS_KEY", PRODUCER["access_key"])
    monkeypatch.setenv("SHMQ_SECRET_KEY", PRODUCER["secret_key"])
    assert connect().send("orders", b"x").topic == "orders"


def test_a_plain_connection_and_an_unknown_certificate_are_errors_that_say_so(connect: Connect) -> None:
    with pytest.raises(shmq.PermissionDenied, match="do not agree on TLS"):
        connect(tls_ca="", **PRODUCER).send("orders", b"x")
    with pytest.raises(shmq.ShmqError, match="without TLS"):
        connect(tls="false", tls_ca="", **PRODUCER).send("orders", b"x")
    assert connect(tls_ca="", tls_verify="false", **PRODUCER).send("orders", b"x").topic == "orders"


def test_no_secret_is_shown_by_a_connection_nor_kept_in_the_brokers_log(connect: Connect, broker: Broker) -> None:
    connection = connect(**PRODUCER)
    connection.send("orders", b"x")
    assert "secret" not in connection.url + repr(connection)
    assert "secret-of" not in broker.log
