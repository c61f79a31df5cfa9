"""URLs of remote clusters: what they may say, and that secrets stay out of sight."""

import pytest

from shmq.addresses import Address
from shmq.client.place import RemotePlace, is_remote, locate, parse_address, remote_place
from shmq.errors import UsageError
from shmq.shm.place import Place
from tests.tables.rows import every_row


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHMQ_ACCESS_KEY", "SHMQ_SECRET_KEY", "SHMQ_URL"):
        monkeypatch.delenv(name, raising=False)


def test_a_url_names_name_servers_in_order_without_doubles() -> None:
    place = remote_place("rocketmq://h1:9877,h2,h1:9877,[::1]:1")
    assert place.name_servers == (Address("h1", 9877), Address("h2", 9876), Address("::1", 1))
    assert place.url == "rocketmq://h1:9877,h2:9876,[::1]:1"


def test_rocketmqs_own_separator_is_taken_too() -> None:
    assert remote_place("rocketmq://a:1;[::1]:2;b").name_servers == (
        Address("a", 1),
        Address("::1", 2),
        Address("b", 9876),
    )


def test_options_are_read_by_their_type() -> None:
    options = remote_place(
        "rocketmq://h?tls=true&tls_ca=%2Fca.pem&tls_verify=off&compression=zstd&avoid_slow=0"
    ).options
    assert (options.tls, options.tls_ca, options.tls_verify, options.compression, options.avoid_slow) == (
        True,
        "/ca.pem",
        False,
        "zstd",
        False,
    )


def test_a_secret_is_in_the_secret_url_only() -> None:
    place = remote_place("rocketmq://h:1?access_key=rocketmq2&secret_key=12345678&security_token=tt")
    for text in (place.url, repr(place), str(place)):
        assert "12345678" not in text and "tt" not in text.replace("https", "")
    assert remote_place(place.secret_url) == place


def test_keys_come_from_the_environment_unless_the_url_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMQ_ACCESS_KEY", "from-env")
    monkeypatch.setenv("SHMQ_SECRET_KEY", "secret-env")
    assert remote_place("rocketmq://h").options.access_key == "from-env"
    assert remote_place("rocketmq://h?access_key=a&secret_key=b").options.access_key == "a"


@every_row(
    ("url", "says"),
    [
        ("rocketmq://", "does not name"),
        ("rocketmq://h/path", "does not name"),
        ("rocketmq://user:secret@h", "does not name"),
        ("rocketmq://h:0", "is not an address"),
        ("rocketmq://h:99999", "is not an address"),
        ("rocketmq://:9876", "is not an address"),
        ("rocketmq://h:\uff11", "is not an address"),
        ("rocketmq://a b", "is not an address"),
        ("rocketmq://" + "h" * 300, "is not an address"),
        ("rocketmq://\udcff", "is not an address"),
        ("rocketmq://a..b", "is not an address"),
        ("rocketmq://256.1.1.1", "is not an address"),
        ("rocketmq://[h]", "does not name"),
        ("rocketmq://[::1", "does not name"),
        ("rocketmq://::1:9876,[::x]", "does not name"),
        ("rocketmq://h?unknown=1", "does not exist"),
        ("rocketmq://h?tls=maybe", "neither true nor false"),
        ("rocketmq://h?compression=rar", "does not exist"),
        ("rocketmq://h?access_key=a", "without secret_key"),
        ("rocketmq://h?tls_key=k.pem", "needs tls_cert"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        remote_place(url)
    assert caught.value.hint


@every_row(
    "url",
    [
        "rocketmq:///x?secret_key=12345678",
        "rocketmq://user:12345678@h",
        "rocketmq://user:1234/12345678@h",
        "rocketmq://user:12345678@[::1",
        "rocketmq://user:@12345678@h:1/x",
        "rocketmqs://user:12345678@h?secret_key=12345678",
        "shmq://user:12345678@h/x?secret_key=12345678",
        "user:12345678@h",
    ],
)
def test_a_refused_url_shows_no_secret(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(url)
    assert "12345678" not in f"{caught.value} {caught.value.hint}"


def test_the_scheme_chooses_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_remote("rocketmq://h") and is_remote("RocketMQ://h") and not is_remote("shmq://default")
    assert isinstance(locate("RocketMQ://h"), RemotePlace) and isinstance(locate("SHMQ://h"), Place)
    assert isinstance(locate("shmq://default"), Place)
    assert isinstance(locate("rocketmq://h"), RemotePlace)
    monkeypatch.setenv("SHMQ_URL", "rocketmq://from-env:1")
    place = locate(None)
    assert isinstance(place, RemotePlace) and place.broker_name == "from-env:1"


def test_an_address_needs_a_port_unless_one_is_given() -> None:
    assert parse_address("h", default_port=5) == Address("h", 5)
    with pytest.raises(UsageError):
        parse_address("h")
