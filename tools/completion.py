"""Names that complete on the command line, read from the broker's memory at each press of the key.

A completion must never fail or print: whatever goes wrong, it offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from shmq.tools.command import Call


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return topics that begin with what was typed; system topics only when asked for by name."""
    from shmq.message import is_system_topic

    return [name for name in _names(ctx, "topic_names", incomplete) if incomplete or not is_system_topic(name)]


def complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return groups that begin with what was typed."""
    return _names(ctx, "group_names", incomplete)


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return contexts that begin with what was typed."""
    try:
        from shmq.tools.broker.contexts import load_contexts

        return [name for name in sorted(load_contexts().urls) if name.startswith(incomplete)]
    except Exception:
        return []


def _names(ctx: click.Context, what: str, incomplete: str) -> list[str]:
    try:
        from shmq.tools.broker.access import open_view

        with open_view(ctx.ensure_object(Call)) as memory:
            names: Callable[[], list[str]] = getattr(memory, what)
            return [name for name in names() if name.startswith(incomplete)]
    except Exception:
        return []
