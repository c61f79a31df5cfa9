"""Values to bodies and back."""

import msgspec
import pytest

from shmq.client.topic import codec_of
from shmq.errors import UsageError


class Order(msgspec.Struct):
    id: str
    quantity: int


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_value_comes_back_as_the_type_it_was(name: str) -> None:
    codec = codec_of(name, Order)
    order = Order("o-42", 3)
    assert codec.decode(codec.encode(order)) == order


def test_a_body_of_another_type_is_refused() -> None:
    codec = codec_of("json", Order)
    with pytest.raises(msgspec.ValidationError):
        codec.decode(b'{"id": 1, "quantity": "x"}')


def test_any_object_that_encodes_and_decodes_is_a_codec() -> None:
    class Text:
        def encode(self, value: str, /) -> bytes:
            return value.encode()

        def decode(self, body: bytes, /) -> str:
            return body.decode()

    codec = codec_of(Text(), str)
    assert codec.decode(codec.encode("grüße")) == "grüße"


@pytest.mark.parametrize("codec", ["yaml", 7, object()])
def test_anything_else_is_refused_with_what_would_do(codec: object) -> None:
    with pytest.raises(UsageError) as caught:
        codec_of(codec, Order)  # type: ignore[arg-type]
    assert "json" in caught.value.hint
