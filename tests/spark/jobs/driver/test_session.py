"""The session of a job: what is not there is said at once, where Spark would try for a minute."""

from __future__ import annotations

import socket

import pytest

from shmq.errors import ConnectError
from shmq.spark.jobs.driver.session import check_master


def test_a_master_that_does_not_answer_is_said_with_its_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, so that no other process takes it; no listener
        url = f"spark://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConnectError, match=f"{url}: Connection refused"):
            check_master(url)


def test_one_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as standby:
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{standby.getsockname()[1]}")


def test_an_address_without_a_port_is_no_master() -> None:
    with pytest.raises(ConnectError, match="no Spark master at spark://nowhere"):
        check_master("spark://nowhere")
