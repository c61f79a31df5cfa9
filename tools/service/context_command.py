"""`shmq context`: add, list, use, rm. Names for brokers, so that `-c prod` stands for a long URL.

No broker is asked.
"""

from __future__ import annotations

import click

from shmq.client.place import locate
from shmq.figures.quantity import plural
from shmq.tools.broker.contexts import Contexts, load_contexts, save_contexts
from shmq.tools.command import Call, Group, pass_call
from shmq.tools.completion import complete_context
from shmq.tools.terminal.output import Column

context = Group("context", help="Name brokers: add, list, use, rm.")


@context.command()
@click.argument("name", metavar="NAME")
@click.argument("place", metavar="URL")
@click.option("--use", "is_used", is_flag=True, help="Make it the current one, too.")
@pass_call
def add(call: Call, name: str, place: str, is_used: bool) -> None:
    """Let NAME stand for URL, whatever it stood for before."""
    contexts = load_contexts()
    contexts.add(name, place)
    if is_used:
        contexts.use(name)
    _changed(call, contexts, f'context "{name}" is {locate(place).url}')


@context.command("list")
@pass_call
def list_(call: Call) -> None:
    """List the contexts; the current one has a star."""
    contexts = load_contexts()
    if call.terminal.structured:
        _print(call, contexts)
        return
    rows = [["*" if name == contexts.current else "", name, locate(url).url] for name, url in _ordered(contexts)]
    if rows:
        call.terminal.table([Column(""), Column("name"), Column("url")], rows)
    call.terminal.say(plural(len(rows), "context"))


@context.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_context)
@pass_call
def use(call: Call, name: str | None) -> None:
    """Mean NAME wherever neither -u, -c nor $SHMQ_URL says another; without NAME, none."""
    contexts = load_contexts()
    contexts.use(name)
    _changed(call, contexts, "no context is current" if name is None else f'context "{name}" is current')


@context.command()
@click.argument("name", metavar="NAME", shell_complete=complete_context)
@pass_call
def rm(call: Call, name: str) -> None:
    """Forget NAME."""
    contexts = load_contexts()
    contexts.remove(name)
    _changed(call, contexts, f'context "{name}" is forgotten')


def _changed(call: Call, contexts: Contexts, text: str) -> None:
    save_contexts(contexts)
    if call.terminal.structured:
        _print(call, contexts)
    else:
        call.terminal.say(text)


def _print(call: Call, contexts: Contexts) -> None:
    rows = [
        {"name": name, "url": locate(url).url, "current": name == contexts.current} for name, url in _ordered(contexts)
    ]
    call.terminal.document({"contexts": rows}, rows=rows)


def _ordered(contexts: Contexts) -> list[tuple[str, str]]:
    return sorted(contexts.urls.items())
