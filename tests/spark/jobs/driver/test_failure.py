"""What Spark fails with: our own errors are found in its texts, and a Java process that is gone is named."""

from __future__ import annotations

import socket

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JNetworkError

from shmq.errors import OffsetOutOfRange, ShmqError
from shmq.spark.jobs.driver.failure import explained, failure_of


def test_a_java_process_that_is_gone_is_named_with_what_to_type() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gateway = JavaGateway(gateway_parameters=GatewayParameters(address="127.0.0.1", port=port))
    with pytest.raises(ShmqError, match="Java process has ended") as caught, explained():
        gateway.jvm.java.lang.System.currentTimeMillis()
    assert "go on" in caught.value.hint and not caught.value.retryable


def test_one_that_ends_in_the_middle_of_an_answer_is_too() -> None:
    def foreach_batch() -> None:
        try:
            raise Py4JNetworkError("Answer from Java side is empty")
        except Py4JNetworkError as error:
            raise RuntimeError("the query stopped") from error

    with pytest.raises(ShmqError, match="Java process has ended"), explained():
        foreach_batch()


def test_the_newest_error_of_ours_in_a_text_of_spark_is_the_cause() -> None:
    text = "Job aborted\n  shmq.errors.SendError: first\nCaused by:\n shmq.errors.OffsetOutOfRange: 7 are gone\n at x"
    found = failure_of(RuntimeError(text))
    assert isinstance(found, OffsetOutOfRange) and str(found) == "7 are gone"


def test_what_is_none_of_ours_is_passed_on_as_it_is() -> None:
    with pytest.raises(KeyError), explained():
        raise KeyError("x")
    assert failure_of(RuntimeError("shmq.errors.NoSuchError: x")) is None
