"""Signatures of ACL 1.0: over values only, sorted by name, body last."""

import base64
import hashlib
import hmac

import pytest

from shmq.protocol.acl import ACCESS_KEY, SIGNATURE, is_signed, sign

EXT = {"topic": "orders", "queueId": "3", "a": "ä"}
KEYS = {"access_key": "rocketmq2", "secret_key": "12345678"}


def test_the_signed_content_is_the_values_in_order_of_their_names_and_the_body() -> None:
    signed = sign(EXT, b"body", token="tok", **KEYS)
    # Names in order: AccessKey, SecurityToken, a, queueId, topic.
    content = "rocketmq2" + "tok" + "ä" + "3" + "orders"
    expected = hmac.new(b"12345678", content.encode() + b"body", hashlib.sha1).digest()
    assert signed[SIGNATURE] == base64.b64encode(expected).decode()
    assert signed | EXT == signed and signed[ACCESS_KEY] == "rocketmq2"


def test_what_was_signed_is_accepted_and_a_new_signature_takes_the_place_of_the_old() -> None:
    signed = sign(EXT, b"body", **KEYS)
    assert is_signed(signed, b"body", secret_key="12345678")
    assert sign(signed, b"body", **KEYS) == signed


@pytest.mark.parametrize(
    "change", [{"topic": "order"}, {"new": "x"}, {ACCESS_KEY: "rocketmq3"}, {SIGNATURE: ""}, {SIGNATURE: "ä"}]
)
def test_a_changed_field_does_not_fit_the_signature(change: dict[str, str]) -> None:
    assert not is_signed(sign(EXT, b"body", **KEYS) | change, b"body", secret_key="12345678")


def test_a_changed_body_another_key_or_no_signature_do_not_fit() -> None:
    signed = sign(EXT, b"body", **KEYS)
    assert not is_signed(signed, b"bodY", secret_key="12345678")
    assert not is_signed(signed, b"body", secret_key="123456789")
    assert not is_signed(
        {key: value for key, value in signed.items() if key != SIGNATURE}, b"body", secret_key="12345678"
    )


def test_the_field_of_a_query_by_unique_key_may_be_signed_or_added_later() -> None:
    unique = {"_UNIQUE_KEY_QUERY": "true"}
    assert is_signed(sign(EXT, b"", **KEYS) | unique, b"", secret_key="12345678")
    assert is_signed(sign(EXT | unique, b"", **KEYS), b"", secret_key="12345678")
