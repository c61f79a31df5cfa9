"""Owns the way a job takes to the broker on the driver, and the options of the source that say which broker it is."""

from __future__ import annotations

from collections.abc import Mapping

from shmq.spark.access import Access, open_access
from shmq.spark.options import parse_options

_PLACE = ("store", "access", "nameserver", "broker")


def place_options(source: Mapping[str, str]) -> dict[str, str]:
    """Return those of the source's options that say where the broker is."""
    return {name: value for name, value in source.items() if name.lower() in _PLACE}


def open_place(source: Mapping[str, str]) -> Access:
    """Return the driver's way to the broker.

    Raises:
        ShmqError: there is none.
    """
    return open_access(parse_options({**place_options(source), "view": "queues"}))
