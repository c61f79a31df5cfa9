"""Rules for what protects the TCP ports: the certificate, and files that were changed and are not taken."""

from __future__ import annotations

from collections.abc import Iterator

from shmq.figures.snapshot import Security
from shmq.figures.verdict import Finding, Verdict
from shmq.protocol.certificate import Certificate, date_text


def security_findings(security: Security, now: float) -> Iterator[Finding]:
    """Judge what a broker said last of its certificate and its files."""
    if security.kept:
        why = "accounts and certificate are those that were read before; a restart would refuse the files"
        do = "mend the file, or put the former one back: it is looked at once a second"
        yield Finding("security", Verdict.WARNING, security.kept, "kept", why, do)
    if not security.certificate:
        return
    certificate = Certificate((), security.begins, security.ends)
    what = f"certificate {security.certificate} {{}}"
    if notice := certificate.notice(now):
        verdict = Verdict.CRITICAL if certificate.fault(now) else Verdict.WARNING
        why = "clients that look at it refuse the connection"
        do = f"put a new one there, it is taken within a second; openssl x509 -in {security.certificate} -noout -dates"
        yield Finding("security", verdict, what.format(notice), security.certificate, why, do)
    else:
        until = f"is valid until {date_text(security.ends)}"
        yield Finding("security", Verdict.OK, what.format(until), security.certificate)
