"""Encrypts connections of this client, and explains why one could not be made.

what went wrong                     found out by
certificate expired, not yet valid  its own dates: it is fetched again without being trusted
another host, unknown issuer        what OpenSSL says of it, and the names in it
no TLS at the other end             the handshake: it is broken off, or answered with something else
TLS at the other end only           a handshake with the peer that ended a plain connection without a byte
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time

from shmq.addresses import Address
from shmq.client.place import RemoteOptions
from shmq.errors import PermissionDenied, UsageError
from shmq.protocol.certificate import Certificate, certificate_of_der
from shmq.shm.descriptors import above_standard

PROBE_TIMEOUT = 1.0
_EXPIRED, _NOT_YET_VALID, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # X509_V_ERR_… of OpenSSL
_ABOUT_ISSUER = range(18, 22)
_PLAIN_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NAMES_SHOWN_MAX = 8


def tls_context(options: RemoteOptions) -> ssl.SSLContext | None:
    """Return how connections are encrypted; None for plain ones.

    Raises:
        UsageError: a certificate file cannot be used.
    """
    if not options.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_ca or None)
        if options.tls_cert:
            context.load_cert_chain(options.tls_cert, options.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.tls_ca, options.tls_cert, options.tls_key)))
        raise UsageError(f"TLS cannot be set up with {files}: {error}", hint="PEM files that may be read") from error
    if not options.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def speaks_tls(address: Address, timeout: float) -> bool:
    """Say whether a server speaks TLS at an address."""
    return await _shown(address, min(timeout, PROBE_TIMEOUT)) is not None


async def refusal(address: Address, error: OSError) -> PermissionDenied:
    """Return the error of a handshake that failed, with its cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unfit(address, error, await _certificate(address))
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if isinstance(error, ConnectionError) or reason in _PLAIN_REASONS:
        return PermissionDenied(
            f"{address} and this client do not agree on TLS: it does not answer a handshake ({reason})",
            hint="tls=false if the broker does not speak TLS; else it may want a certificate: tls_cert=FILE",
        )
    return PermissionDenied(
        f"{address} and this client do not agree on TLS: {reason}",
        hint="tls_ca=FILE names the certificate to trust; tls=false if the broker does not speak TLS",
    )


def _unfit(address: Address, error: ssl.SSLCertVerificationError, shown: Certificate | None) -> PermissionDenied:
    text, code = f"{address} and this client do not agree on TLS: its certificate ", error.verify_code
    if code in (_EXPIRED, _NOT_YET_VALID):
        dates = shown.fault(time.time()) if shown else ""
        usual = "is not valid yet" if code == _NOT_YET_VALID else "has expired"
        # The dates of its own certificate say nothing where that of its issuer is meant.
        return PermissionDenied(
            text + (dates or f"{usual}, or that of its issuer"),
            hint="is the clock of this host right (date -u)? else the broker needs another, and takes it while it runs",
        )
    if code in (_OTHER_HOST, _OTHER_ADDRESS):
        names = ", ".join(shown.names[:_NAMES_SHOWN_MAX]) if shown else ""
        return PermissionDenied(
            f'{text}is not for "{address.host}" but for {names or "other names"}',
            hint="connect to a name that is in it; what brokers are called is what they register as (--advertise)",
        )
    if code in _ABOUT_ISSUER:
        return PermissionDenied(
            f"{text}is of an issuer that is not trusted here: {error.verify_message}",
            hint="tls_ca=FILE names the certificate to trust, that of the issuer or the broker's own",
        )
    return PermissionDenied(f"{text}is refused: {error.verify_message}", hint="openssl x509 -in FILE -noout -text")


async def _certificate(address: Address) -> Certificate | None:
    with contextlib.suppress(ValueError):
        return certificate_of_der(await _shown(address) or b"")
    return None


async def _shown(address: Address, timeout: float = PROBE_TIMEOUT) -> bytes | None:
    """Return the certificate that is shown at an address, whatever it is worth; None without TLS."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout):
            with above_standard:  # it opens sockets and files
                _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
            try:
                return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")
            finally:
                writer.transport.abort()
    return None
