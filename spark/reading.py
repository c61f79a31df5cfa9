"""Owns what one task needs to know of a load; plain data, and nothing that is done with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shmq.spark.options import Options


@dataclass(frozen=True)
class Reading:
    """The options of a load and its columns, in the order they are wanted."""

    options: Options
    columns: tuple[str, ...]

    def selection(self) -> dict[str, Any]:
        """Return what the core's decoders are told of the options, wherever the records come from."""
        options = self.options
        limits: dict[str, Any] = {} if options.end_ms is None else {"ms_end": options.end_ms}
        return limits | {
            "rows_max": options.batch_rows,
            "bytes_max": options.batch_bytes,
            "tags": options.tags or None,
            "ms_begin": options.start_ms or 0,
            "verify": options.verify_crc,
        }
