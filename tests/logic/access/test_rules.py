"""Each request of each kind of sender against the accounts: what is let through, what is refused and how."""

import itertools
import json
from typing import Any

import pytest

from shmq.daemon.logic.access.needs import needs_of
from shmq.daemon.logic.access.rights import Permission
from shmq.daemon.logic.access.rules import AccessRules, read_rules
from shmq.daemon.logic.access.text import read_access_text
from shmq.errors import PermissionDenied, ProtocolError, UsageError
from shmq.protocol.acl import sign
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.request_table import REQUESTS, RequestClass
from tests.tables.rows import every_row

RULES = read_rules(
    read_access_text("""
globalWhiteRemoteAddresses: [10.1.*.*]
accounts:
- accessKey: producer
  secretKey: secret-p
  topicPerms: [orders=PUB, logs=SUB]
- accessKey: consumer
  secretKey: secret-c
  whiteRemoteAddress: 10.2.0.7
  topicPerms: [orders=SUB]
  groupPerms: [workers=SUB, closed=DENY]
- accessKey: everything
  secretKey: secret-e
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: administrator
  secretKey: secret-a
  whiteRemoteAddress: 10.2.0.7
  admin: true
""")
)
SECRETS = {"producer": "secret-p", "consumer": "secret-c", "everything": "secret-e", "administrator": "secret-a"}
HOST = "203.0.113.9"


def signed(who: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"", version: int = 409) -> Command:
    fields = sign(ext or {}, body, access_key=who, secret_key=SECRETS[who])
    return Command(code=code, ext=fields, body=body, version=version)


def allowed(command: Command, host: str = HOST) -> bool:
    try:
        RULES.check(command, host)
    except PermissionDenied:
        return False
    return True


def beat(group: str, *topics: str) -> bytes:
    subscriptions = [SubscriptionData(topic) for topic in topics]
    return encode_body(HeartbeatData("c", [ConsumerData(group, subscriptions)], [ProducerData("p")]))


def locks(group: str, topic: str) -> bytes:
    queue = {"brokerName": "b", "queueId": 0, "topic": topic}
    return json.dumps({"clientId": "c", "consumerGroup": group, "mqSet": [queue]}).encode()


def test_every_code_a_client_may_send_to_a_broker_says_what_it_needs() -> None:
    for spec in REQUESTS.values():
        if spec.request_class is RequestClass.CLIENT and spec.asks == "client":
            try:
                needs = needs_of(Command(code=spec.code))
            except ProtocolError:
                continue  # its body names what it needs
            assert all(need.any_of for need in needs), spec


def test_every_header_field_that_names_a_topic_or_a_group_of_a_client_counts() -> None:
    # The fields of a request that a client addresses something by; the producer's own group is no resource.
    names = {"topic", "consumerGroup", "group"}
    for spec in REQUESTS.values():
        if spec.request_class is not RequestClass.CLIENT or (spec.asks, spec.answers) != ("client", "broker"):
            continue
        fields = {field.name for field in spec.fields} & names
        if fields and spec.code not in (Request.VIEW_MESSAGE_BY_ID,):
            ext = dict.fromkeys(fields, "x")
            assert len(needs_of(Command(code=spec.code, ext=ext))) == len(fields), spec


@every_row(
    ("code", "ext", "body", "who"),
    [
        (Request.SEND_MESSAGE, {"topic": "orders"}, b"m", "producer"),
        (Request.SEND_MESSAGE_V2, {"b": "orders"}, b"m", "producer"),
        (Request.SEND_BATCH_MESSAGE, {"b": "orders"}, b"m", "producer"),
        (Request.SEND_REPLY_MESSAGE_V2, {"b": "orders"}, b"m", "producer"),
        (Request.END_TRANSACTION, {"topic": "orders"}, b"", "producer"),
        (Request.STAGE_ROWS, {"topic": "orders"}, b"", "producer"),
        (Request.COMMIT_ROWS, {"topic": "orders"}, b"", "producer"),
        (Request.STAGED_STATE, {"topic": "orders"}, b"", "producer"),
        (Request.READ_RANGE, {"topic": "orders"}, b"", "consumer"),
        (Request.GET_MAX_OFFSET, {"topic": "orders"}, b"", "producer"),
        (Request.GET_MAX_OFFSET, {"topic": "orders"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.LITE_PULL_MESSAGE, {"topic": "orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%workers", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%workers+orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.ACK_MESSAGE, {"topic": "%RETRY%workers+orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.ACK_MESSAGE, {"topic": "%RETRY%workers_orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.SEND_MESSAGE_V2, {"b": "%RETRY%workers"}, b"m", "consumer"),
        (Request.CONSUMER_SEND_MSG_BACK, {"group": "workers"}, b"", "consumer"),
        (Request.QUERY_CONSUMER_OFFSET, {"topic": "orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.UPDATE_CONSUMER_OFFSET, {"topic": "orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "workers"}, b"", "consumer"),
        (Request.UNREGISTER_CLIENT, {"consumerGroup": "workers"}, b"", "consumer"),
        (Request.HEART_BEAT, {}, beat("workers", "orders", "%RETRY%workers"), "consumer"),
        (Request.LOCK_BATCH_MQ, {}, locks("workers", "orders"), "consumer"),
        (Request.UNLOCK_BATCH_MQ, {}, locks("workers", "orders"), "consumer"),
        (Request.QUERY_MESSAGE, {"topic": "orders"}, b"", "consumer"),
        (Request.CHECK_CLIENT_CONFIG, {}, b'{"group":"workers","subscriptionData":{"topic":"orders"}}', "consumer"),
        (Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "anything"}, b"", "consumer"),
    ],
)
def test_an_account_may_do_what_its_permissions_say_and_another_may_not(
    code: int, ext: dict[str, str], body: bytes, who: str
) -> None:
    assert allowed(signed(who, code, ext, body))
    assert allowed(signed("administrator", code, ext, body))
    assert allowed(signed("everything", code, ext, body))
    assert not allowed(Command(code=code, ext=ext, body=body))
    changed = signed(who, code, ext, body)
    assert not allowed(Command(code=code, ext=changed.ext, body=body + b"!"))
    if code not in (Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_MAX_OFFSET):
        other = "consumer" if who == "producer" else "producer"
        assert not allowed(signed(other, code, ext, body))


@every_row(
    ("code", "ext", "body", "who"),
    [
        (Request.SEND_MESSAGE_V2, {"b": "logs"}, b"", "producer"),
        (Request.SEND_BATCH_MESSAGE, {"b": "logs"}, b"", "producer"),
        (Request.SEND_MESSAGE_V2, {"b": "unnamed"}, b"", "producer"),
        (Request.END_TRANSACTION, {"topic": "logs"}, b"", "producer"),
        (Request.STAGE_ROWS, {"topic": "logs"}, b"", "producer"),
        (Request.COMMIT_ROWS, {"topic": "logs"}, b"", "producer"),
        (Request.DROP_ROWS, {}, b"", "producer"),
        (Request.STAGED_STATE, {"topic": "orders"}, b"", "consumer"),
        (Request.READ_RANGE, {"topic": "orders"}, b"", "producer"),
        (Request.DESCRIBE_QUEUES, {"topic": "logs"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "closed"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "logs", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%workers+logs", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%closed+orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%workers_orders", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.PULL_MESSAGE, {"topic": "%RETRY%w+rmq_sys_wheel_timer", "consumerGroup": "w"}, b"", "everything"),
        (Request.ACK_MESSAGE, {"topic": "%RETRY%workers+logs", "consumerGroup": "workers"}, b"", "consumer"),
        (Request.HEART_BEAT, {}, beat("workers", "orders", "logs"), "consumer"),
        (Request.HEART_BEAT, {}, beat("closed", "orders"), "consumer"),
        (Request.LOCK_BATCH_MQ, {}, locks("closed", "orders"), "consumer"),
        (Request.LOCK_BATCH_MQ, {}, locks("workers", "logs"), "consumer"),
        (Request.PULL_MESSAGE, {"topic": "SCHEDULE_TOPIC_XXXX", "consumerGroup": "workers"}, b"", "everything"),
        (Request.PULL_MESSAGE, {"topic": "rmq_sys_wheel_timer", "consumerGroup": "workers"}, b"", "everything"),
        (Request.BATCH_ACK_MESSAGE, {}, b'{"acks":[{"c":"closed","t":"orders"}]}', "consumer"),
        (Request.BATCH_ACK_MESSAGE, {}, b'{"acks":[{"c":"workers","t":"logs"}]}', "consumer"),
    ],
)
def test_a_resource_without_the_permission_is_refused(code: int, ext: dict[str, str], body: bytes, who: str) -> None:
    assert not allowed(signed(who, code, ext, body))


@every_row(
    "code",
    [spec.code for spec in REQUESTS.values() if spec.request_class in (RequestClass.ADMIN, RequestClass.INTERNAL)],
)
def test_only_an_administrator_may_administrate(code: int) -> None:
    assert allowed(signed("administrator", code))
    for who in ("producer", "consumer", "everything"):
        assert not allowed(signed(who, code))
    assert not allowed(Command(code=code))


def test_a_white_listed_address_is_a_client_or_a_server_and_no_administrator() -> None:
    for host, trusted in [("10.1.7.8", True), ("10.11.7.8", False), ("10.1.7.8.9", False), ("", False)]:
        assert allowed(Command(code=Request.SEND_MESSAGE_V2, ext={"b": "anything"}), host) is trusted
        assert allowed(Command(code=Request.REGISTER_BROKER), host) is trusted
        assert not allowed(Command(code=Request.UPDATE_BROKER_CONFIG), host)
        assert not allowed(Command(code=Request.GET_ALL_PRODUCER_INFO), host)


def test_an_account_may_be_unsigned_from_its_own_address_but_an_administrator_never() -> None:
    ext = {"AccessKey": "consumer", "topic": "orders", "consumerGroup": "workers"}
    assert allowed(Command(code=Request.PULL_MESSAGE, ext=ext), "10.2.0.7")
    assert not allowed(Command(code=Request.PULL_MESSAGE, ext=ext), "10.2.0.8")
    assert not allowed(Command(code=Request.PULL_MESSAGE, ext=ext | {"topic": "logs"}), "10.2.0.7")
    assert not allowed(Command(code=Request.PULL_MESSAGE, ext=ext | {"AccessKey": "administrator"}), "10.2.0.7")


@pytest.mark.parametrize(
    ("version", "code"), [(0, Response.SYSTEM_ERROR), (409, Response.SYSTEM_ERROR), (413, 16), (479, 16)]
)
def test_a_refusal_has_the_code_the_clients_release_expects(version: int, code: int) -> None:
    for command in (
        Command(code=10, ext={"topic": "t"}, version=version),
        signed("producer", 10, {"topic": "logs"}, version=version),
    ):
        with pytest.raises(PermissionDenied) as caught:
            RULES.check(command, HOST)
        assert caught.value.code == code


def test_a_refusal_says_who_and_what_and_no_secret() -> None:
    with pytest.raises(PermissionDenied, match="No accessKey is configured"):
        RULES.check(Command(code=10), HOST)
    with pytest.raises(PermissionDenied, match="No acl config for 'a-stranger'"):
        RULES.check(Command(code=10, ext={"AccessKey": "a-stranger"}), HOST)
    with pytest.raises(PermissionDenied, match="Check signature failed for accessKey=producer") as caught:
        RULES.check(Command(code=10, ext={"AccessKey": "producer", "Signature": "secret-p"}), HOST)
    assert "secret" not in str(caught.value)
    with pytest.raises(PermissionDenied, match="No permission PUB on topic 'logs' for accessKey=producer"):
        RULES.check(signed("producer", 10, {"topic": "logs"}), HOST)
    with pytest.raises(PermissionDenied, match="No permission SUB on group 'closed' for accessKey=consumer"):
        RULES.check(signed("consumer", Request.CONSUMER_SEND_MSG_BACK, {"group": "closed"}), HOST)
    assert "secret" not in repr(RULES._accounts["producer"])


@every_row("body", [b"", b"[]", b"{", b'{"group":1}', b'{"consumerGroup":"workers","mqSet":[1]}', b"\xff"])
def test_a_body_that_does_not_name_what_has_to_be_judged_is_refused(body: bytes) -> None:
    for code in (Request.LOCK_BATCH_MQ, Request.HEART_BEAT, Request.CHECK_CLIENT_CONFIG, Request.QUERY_ASSIGNMENT):
        with pytest.raises(ProtocolError):
            RULES.check(signed("everything", code, body=body), HOST)


@every_row(
    ("pattern", "inside", "outside"),
    [
        ("*", "1.2.3.4", None),
        ("*.*.*.*", "1.2.3.4", "::1"),
        ("10.0.0.1-9", "10.0.0.9", "10.0.0.10"),
        ("10.0.{1,3}.*", "10.0.3.200", "10.0.2.200"),
        ("10.0.0.1,10.0.0.2", "10.0.0.2", "10.0.0.3"),
        ("fe80::1", "FE80::1", "fe80::2"),
        ("10.0.0.1-x", "10.0.0.1-x", "10.0.0.1"),
    ],
)
def test_a_white_list_pattern_is_compared_part_by_part(pattern: str, inside: str, outside: str | None) -> None:
    rules = AccessRules([], [pattern])
    rules.check(Command(code=Request.SEND_MESSAGE), inside)
    if outside is not None:
        with pytest.raises(PermissionDenied):
            rules.check(Command(code=Request.SEND_MESSAGE), outside)


ACCOUNT = {"accessKey": "account1", "secretKey": "secret-1"}


@every_row(
    ("data", "text"),
    [
        (None, "no map"),
        ({"accounts": {}}, "no list"),
        ({"account": []}, "account is not known"),
        ({"accounts": [ACCOUNT | {"accessKey": "short"}]}, "account 1: accessKey needs at least 7"),
        ({"accounts": [{"accessKey": "account1"}]}, "account 1: secretKey needs at least 7"),
        ({"accounts": [ACCOUNT, ACCOUNT]}, "same accessKey"),
        ({"accounts": [ACCOUNT | {"admin": "yes"}]}, "admin is true or false"),
        ({"accounts": [ACCOUNT | {"defaultTopicPerm": "ALL"}]}, "'ALL' is no permission"),
        ({"accounts": [ACCOUNT | {"topicPerms": "a=PUB"}]}, "topicPerms is no list"),
        ({"accounts": [ACCOUNT | {"topicPerms": ["a"]}]}, "name=PUB"),
        ({"accounts": [ACCOUNT | {"topicPerms": ["a b=PUB"]}]}, "a b"),
        ({"accounts": [ACCOUNT | {"groupPerms": ["g=pub"]}]}, "'pub' is no permission"),
        ({"accounts": [ACCOUNT | {"topicPerm": []}]}, "topicPerm is not known"),
        ({"globalWhiteRemoteAddresses": ["localhost"]}, "'localhost' is no address"),
    ],
)
def test_a_wrong_file_is_refused_and_its_secrets_stay_out_of_the_text(data: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_rules(data)
    assert text in str(caught.value) and "secret-1" not in str(caught.value)


def test_permissions_are_a_set_of_rights() -> None:
    rights = list(itertools.accumulate(Permission, lambda all_, one: all_ | one))
    assert rights[-1] == Permission.PUB | Permission.SUB
