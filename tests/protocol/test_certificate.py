"""What is read out of a certificate is what openssl put in, and nothing else is taken for one."""

import ssl
import time

import pytest

from shmq.protocol.certificate import DAY_SECONDS, Certificate, certificate_of_der, certificate_of_pem
from tests.protocol.certificates import make_certificate
from tests.tables.rows import every_row


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("certificate")
    names = "DNS:broker.example,DNS:*.example,IP:10.0.0.4,IP:::1"
    cert, _ = make_certificate(directory, names=names, begins_in=-100, ends_in=40_000 * DAY_SECONDS)
    return cert.read_bytes()


def test_names_and_times_are_those_that_were_asked_for(pem: bytes) -> None:
    found = certificate_of_pem(b"text in front\n" + pem + b"and behind")
    assert found.names == ("broker.example", "*.example", "10.0.0.4", "::1")
    assert found.begins == pytest.approx(time.time() - 100, abs=60)
    assert found.ends == pytest.approx(time.time() + 40_000 * DAY_SECONDS, abs=60), "a year behind 2050 has four digits"


def test_every_cut_of_a_certificate_is_refused(pem: bytes) -> None:
    whole = ssl.PEM_cert_to_DER_cert(pem.decode())
    assert certificate_of_der(whole)
    for end in range(len(whole)):
        with pytest.raises(ValueError):
            certificate_of_der(whole[:end])
    for text in (b"", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----", b"key"):
        with pytest.raises(ValueError):
            certificate_of_pem(text)


@every_row(
    "days, fault, notice",
    [
        (-1.0, "is not valid before", "is not valid before"),
        (50.0, "", ""),
        (85.9, "", ""),
        (86.1, "", "expires on 1970-04-11 00:00:00 UTC, in 14 days"),
        (99.9, "", "in 0 days"),
        (100.1, "expired on 1970-04-11 00:00:00 UTC", "expired on"),
    ],
)
def test_a_certificate_says_what_is_wrong_and_what_will_be_in_two_weeks(days: float, fault: str, notice: str) -> None:
    found, now = Certificate((), 0.0, 100.0 * DAY_SECONDS), days * DAY_SECONDS
    assert fault in found.fault(now) and bool(found.fault(now)) == bool(fault)
    assert notice in found.notice(now) and bool(found.notice(now)) == bool(notice)
