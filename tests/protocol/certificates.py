"""Certificates for tests, valid when a test wants them to be; `openssl` makes them."""

import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.deadline import DEADLINE_SECONDS

DAY = 86_400.0
_CONFIG = """
[ca]
default_ca = own
[own]
database = {directory}/index
serial = {directory}/serial
new_certs_dir = {directory}
default_md = sha256
policy = any
x509_extensions = extensions
unique_subject = no
[any]
commonName = supplied
[extensions]
subjectAltName = {names}
basicConstraints = CA:TRUE
[req]
distinguished_name = nothing
[nothing]
"""


def make_certificate(
    directory: Path,
    *,
    names: str = "DNS:localhost,IP:127.0.0.1",
    begins_in: float = -DAY,
    ends_in: float = DAY,
) -> tuple[Path, Path]:
    """Make a certificate that is its own issuer, and its key; the times are seconds from now."""
    directory.mkdir(parents=True, exist_ok=True)
    cert, key, asked, config = (directory / name for name in ("cert.pem", "key.pem", "asked.csr", "openssl.cnf"))
    config.write_text(_CONFIG.format(directory=directory, names=names))
    (directory / "index").write_text("")
    (directory / "serial").write_text("01")
    begins, ends = (
        datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y%m%d%H%M%SZ") for seconds in (begins_in, ends_in)
    )
    request = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    sign: list[object] = [
        "ca",
        "-batch",
        "-notext",
        "-selfsign",
        "-keyfile",
        key,
        "-startdate",
        begins,
        "-enddate",
        ends,
    ]
    for words in ([*request, "-keyout", key, "-out", asked], [*sign, "-in", asked, "-out", cert]):
        command = ["openssl", *map(str, words), "-config", str(config)]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
    key.chmod(0o600)
    return cert, key
