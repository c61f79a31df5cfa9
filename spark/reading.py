"""Owns what one task needs to know of a load; plain data, and nothing that is done with it."""

from __future__ import annotations

from dataclasses import dataclass

from shmq.spark.options import Options


@dataclass(frozen=True)
class Reading:
    """The options of a load and its columns, in the order they are wanted."""

    options: Options
    columns: tuple[str, ...]
