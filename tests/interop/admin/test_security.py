"""Stock clients with accounts and with TLS: what is allowed works, what is not is refused in words they understand."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.peers.java import ClientError, LineClient
from tests.interop.peers.registry import python_of_cpp_client
from tests.interop.target import Target, start_ours

ACL = """
accounts:
- accessKey: producer-key
  secretKey: producer-secret
  topicPerms:
  - orders=PUB
- accessKey: consumer-key
  secretKey: consumer-secret
  topicPerms: [orders=SUB]
  groupPerms: [workers=SUB]
- accessKey: admin-key
  secretKey: admin-secret
  admin: true
"""
PRODUCER = {"accessKey": "producer-key", "secretKey": "producer-secret"}
CONSUMER = {"accessKey": "consumer-key", "secretKey": "consumer-secret"}
ADMIN = {"accessKey": "admin-key", "secretKey": "admin-secret"}
TOOLS = "accessKey: admin-key\nsecretKey: admin-secret\n"
Open = Callable[..., Callable[..., object]]

java_lines = pytest.mark.parametrize("java_version", ["4", "5"])


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the accounts."""
    path = tmp_path_factory.mktemp("acl") / "plain_acl.yml"
    path.write_text(ACL)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def guarded(accounts: Path) -> Iterator[Target]:
    """Our broker with accounts."""
    with start_ours(acl=str(accounts)) as target:
        yield target


@pytest.fixture
def java_client(client_of: Callable[[str], LineClient], java_version: str) -> LineClient:
    """The Java client of the test's line."""
    return client_of(f"java-{java_version}")


@pytest.fixture
def open_producer(java_client: LineClient, named: Callable[[str], str]) -> Iterator[Open]:
    """Call it with a target and options of the producer; it returns how to call its verbs."""
    names: list[str] = []

    def opened(target: Target, **options: object) -> Callable[..., object]:
        name = named("producer")
        java_client.do("producer", name=name, group=name, nameServer=target.name_server, **options)
        names.append(name)
        return lambda verb, **arguments: java_client.do(verb, name=name, **arguments)

    yield opened
    for name in names:
        java_client.do("producer-close", name=name)


@java_lines
def test_a_producer_with_an_account_sends_in_every_way_and_elsewhere_not(
    guarded: Target, open_producer: Open, java_version: str
) -> None:
    refusal = {"4": 1, "5": 16}[java_version]
    producer = open_producer(guarded, **PRODUCER)
    (sent,) = producer("send", topic="orders", bodies=["größe"], key="k", properties={"a": "ü"})
    assert sent["status"] == "SEND_OK"
    assert producer("batch", topic="orders", bodies=["one", "two"])["status"] == "SEND_OK"
    assert producer("async", topic="orders", bodies=["x"])[0]["status"] == "SEND_OK"
    for verb in ("send", "batch"):
        with pytest.raises(ClientError) as caught:  # wrapped: the client tries each broker before it gives up
            producer(verb, topic="logs", bodies=["x", "y"])
        assert caught.value.code == refusal
    wrong = open_producer(guarded, accessKey="producer-key", secretKey="guessed-secret")
    with pytest.raises(ClientError):
        wrong("send", topic="orders", bodies=["x"])
    anonymous = open_producer(guarded)
    with pytest.raises(ClientError):
        anonymous("send", topic="orders", bodies=["x"])


@java_lines
def test_an_administrators_mqadmin_works_and_an_accounts_does_not(
    guarded: Target, java_client: LineClient, mqadmin: Callable[..., str], java_version: str
) -> None:
    tools = java_client.directory / "conf" / "tools.yml"
    where = ["-n", guarded.name_server, "-b", guarded.broker_address]
    assert "success" not in mqadmin(java_version, "updateTopic", *where, "-t", "made")
    tools.write_text(TOOLS.replace("admin-", "producer-"))
    try:
        assert "success" not in mqadmin(java_version, "updateTopic", *where, "-t", "made")
        tools.write_text(TOOLS)
        assert "success" in mqadmin(java_version, "updateTopic", *where, "-t", "made")
        assert "made" in mqadmin(java_version, "topicList", "-n", guarded.name_server)
    finally:
        tools.unlink()


@java_lines
def test_a_consumer_with_an_account_receives(
    guarded: Target, java_client: LineClient, open_producer: Open, java_version: str, named: Callable[[str], str]
) -> None:
    body = named("body")
    open_producer(guarded, **PRODUCER)("send", topic="orders", bodies=[body])
    name = named("push")
    arguments = {"topic": "orders", "nameServer": guarded.name_server}
    java_client.do("push", name=name, group="workers", **arguments, **CONSUMER)
    java_client.expect(name, 1)
    java_client.do("push-close", name=name)


def test_over_three_bridges_accounts_send_and_receive_as_over_one(
    client_of: Callable[[str], LineClient], accounts: Path, named: Callable[[str], str]
) -> None:
    client, name = client_of("java-4"), named("bridges")
    with start_ours(acl=str(accounts), bridges=3) as target:
        client.do("producer", name=name, group=name, nameServer=target.name_server, **PRODUCER)
        sent = client.do("send", name=name, topic="orders", bodies=["one", "two", "three"])
        assert [each["status"] for each in sent] == ["SEND_OK"] * 3
        with pytest.raises(ClientError) as caught:
            client.do("send", name=name, topic="logs", bodies=["x"])
        assert caught.value.code == 1
        consumer = {"topic": "orders", "group": "workers", "nameServer": target.name_server}
        client.do("push", name=f"{name}-push", **consumer, **CONSUMER)
        received = client.expect(f"{name}-push", 3)
        assert {each["body"] for each in received} == {"one", "two", "three"}
        client.do("push-close", name=f"{name}-push")
        client.do("producer-close", name=name)


_CPP = """
import sys
from rocketmq.client import Producer, Message
producer = Producer("cpp-producer")
producer.set_namesrv_addr(sys.argv[1])
if len(sys.argv) > 2:
    producer.set_session_credentials(sys.argv[2], sys.argv[3], "ALIYUN")
producer.start()
message = Message("orders")
message.set_keys("k")
message.set_body("from C++")
print("sent", producer.send_sync(message).status.name)
producer.shutdown()
"""


def test_the_cpp_client_sends_with_its_account_and_not_without(guarded: Target) -> None:
    python = python_of_cpp_client()

    def send(*account: str) -> str:
        words = [str(python), "-c", _CPP, guarded.name_server, *account]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout

    assert "sent OK" in send("producer-key", "producer-secret")
    assert "sent" not in send("producer-key", "guessed-secret")
    assert "sent" not in send()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Our broker, TLS enforced."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    key.chmod(0o600)
    with start_ours(tls_mode="enforcing", tls_cert=str(cert), tls_key=str(key)) as target:
        yield target


@java_lines
def test_a_java_client_with_tls_sends_and_one_without_does_not(
    encrypted: Target, open_producer: Open, java_version: str
) -> None:
    producer = open_producer(encrypted, tls=True)
    large = "x" * (3 << 20)
    sent = producer("send", topic="orders", bodies=["hello", large])
    assert [each["status"] for each in sent] == ["SEND_OK", "SEND_OK"]
    plain = open_producer(encrypted)
    with pytest.raises(ClientError):
        plain("send", topic="orders", bodies=["x"])


def test_nothing_of_the_account_is_in_the_brokers_processes_command_lines(guarded: Target) -> None:
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _is_readable(path)]
    assert not any(b"producer-secret" in line for line in lines if b"shmq.daemon" in line)


def _is_readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
