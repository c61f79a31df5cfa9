"""The options of a name server: the table from which `shmq nameserver` takes them."""

from __future__ import annotations

from dataclasses import dataclass

from shmq.options.broker import OPTIONS as OF_A_BROKER
from shmq.options.row import named_rows, option, rows_of, settings_in


@dataclass(frozen=True)
class NameServerOptions:
    """Settings of a name server."""

    listen: str = option("127.0.0.1:9876", "Where brokers and clients connect.", value="HOST:PORT")
    kv: str = option("", "Keeps the KV configuration.", value="FILE", shown="memory")
    match_addresses: bool = option(False, "A broker registers only the address it comes from.")
    insecure: bool = OF_A_BROKER["insecure"].again()
    acl: str = OF_A_BROKER["acl"].again()
    tls_cert: str = OF_A_BROKER["tls-cert"].again()
    tls_key: str = OF_A_BROKER["tls-key"].again()
    tls_mode: str = OF_A_BROKER["tls-mode"].again()
    log_format: str = OF_A_BROKER["log-format"].again()

    def __post_init__(self) -> None:
        for row in rows_of(self):
            row.check(getattr(self, row.field))

    @classmethod
    def from_json(cls, text: str) -> NameServerOptions:
        """Read a JSON object of these settings; raises UsageError as `settings_in`."""
        return cls(**settings_in(cls, text))


OPTIONS = named_rows(NameServerOptions)
