"""Shape of every command: global options before or after its name, lazily loaded, errors as `shmq.errors` types.

    shmq --json topic list   =   shmq topic --json list   =   shmq topic list --json

Each command carries the global options itself and writes them into the one `Call` of the root context, so the place
where they stand does not matter; the later one wins, and `-v` adds up.
"""

from __future__ import annotations

import difflib
import importlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from shmq.client.place import is_remote
from shmq.errors import UsageError
from shmq.figures.quantity import parse_duration, parse_size
from shmq.shm.place import is_text
from shmq.tools.terminal.output import Style, Terminal

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    import shmq

    BytesParameter = click.ParamType[bytes, Any]
    FloatParameter = click.ParamType[float, Any]
    IntParameter = click.ParamType[int, Any]
    AnyParameter = click.ParamType[Any, Any]
else:
    BytesParameter = FloatParameter = IntParameter = AnyParameter = click.ParamType  # not generic before click 8.5

Value = TypeVar("Value")


@dataclass
class Call:
    """One run of the command: which broker, how long to wait, how to talk."""

    named_url: str | None = None  # by -u or -c
    timeout: float | None = None
    watch: float | None = None  # seconds between two runs
    style: Style = field(default_factory=Style)

    @property
    def url(self) -> str | None:
        """The broker's URL, or the current context's; None leaves it to $SHMQ_URL and the default.

        Raises:
            UsageError: the contexts cannot be read.
        """
        if self.named_url is not None:
            return self.named_url
        from shmq.tools.broker.contexts import current_url

        return current_url()

    @property
    def is_remote(self) -> bool:
        """Whether this call is about a cluster that is reached over TCP."""
        return is_remote(self.url or os.environ.get("SHMQ_URL") or "")

    def refuse_remote(self, text: str, *, hint: str) -> None:
        """Refuse a call about a cluster, for what only a broker's own host has.

        Args:
            text: why; "{url}" in it stands for the cluster.

        Raises:
            UsageError: it is one.
        """
        if self.is_remote:
            raise UsageError(text.replace("{url}", self.shown_url), hint=hint)

    @property
    def shown_url(self) -> str:
        """The broker, in words that hold no secret."""
        from shmq.client.place import locate

        return locate(self.url).url

    @property
    def terminal(self) -> Terminal:
        """Stdout and stderr of this call."""
        return Terminal(self.style)

    def connect(self) -> shmq.Connection:
        """Connect to the broker this call is about."""
        import shmq

        return shmq.connect(self.url) if self.timeout is None else shmq.connect(self.url, timeout=self.timeout)


pass_call = click.make_pass_decorator(Call, ensure=True)


class Duration(FloatParameter):
    """`250ms`, `30s`, `2h`; the value is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return float(value) if isinstance(value, int | float) else _parsed(self, parse_duration, value, param, ctx)


class Size(IntParameter):
    """`64m`, `1G`; the value is bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else _parsed(self, parse_size, value, param, ctx)


def _parsed(
    kind: AnyParameter,
    parse: Callable[[str], Value],
    value: str,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> Value:
    try:
        return parse(value)
    except UsageError as error:
        kind.fail(f"{error}: {error.hint}", param, ctx)


def _set_global(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    call = ctx.ensure_object(Call)
    _check_text(value)
    if param.name == "url" and value is not None:
        call.named_url = value
    elif param.name == "context" and value is not None:
        from shmq.tools.broker.contexts import load_contexts

        call.named_url = load_contexts().url_of(value)
    elif param.name == "timeout" and value is not None:
        call.timeout = value
    elif param.name in ("json", "jsonl") and value:
        call.style.form = param.name
    elif param.name == "output" and value is not None:
        call.style.form = "text" if value == "table" else value
    elif param.name == "watch" and value is not None:
        call.watch = value
    elif param.name == "quiet" and value:
        call.style.quiet = True
    elif param.name == "verbose":
        call.style.verbose += value
    elif param.name == "no_color" and value:
        call.style.color = False


def global_options(*, hidden: bool) -> list[click.Option]:
    """Return a fresh set of the options every command takes; hidden ones work but stay out of its help."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_set_global, hidden=hidden, **settings)

    return [
        option("-u", "--url", metavar="URL", help="shmq://NAME, shmq:///dir or rocketmq://HOST:9876.  [$SHMQ_URL]"),
        option("-c", "--context", metavar="NAME", help="A broker that `shmq context add` has named."),
        option("--json", is_flag=True, help="One JSON document on stdout; errors as JSON on stderr."),
        option("--jsonl", is_flag=True, help="One JSON object a line, for streams."),
        option(
            "-o", "--output", type=click.Choice(["table", "wide", "csv"]), help="Tables, with all columns, or as CSV."
        ),
        option("--watch", type=Duration(), metavar="TIME", help="Do it again every TIME until Ctrl-C."),
        option("-q", "--quiet", is_flag=True, help="No talk on stderr."),
        option("-v", "--verbose", count=True, help="More talk on stderr."),
        option("--no-color", is_flag=True, help="No colour, as with NO_COLOR set."),
        option("--timeout", type=Duration(), metavar="TIME", help="How long one step may wait: 500ms, 3s."),
    ]


class Content(BytesParameter):
    """Content that is stored as it was typed; the value is bytes."""

    name = "content"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        return value if isinstance(value, bytes) else os.fsencode(value)


class Command(click.Command):
    """A command that takes the global options too, and no word that is not UTF-8 but paths and contents."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("epilog", "Options of every command: shmq --help")
        super().__init__(*args, **settings)
        taken = {name for param in self.params for name in param.opts}
        for option in global_options(hidden=True):
            option.opts = [name for name in option.opts if name not in taken]  # consume's -o is kcat's
            self.params.append(option)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words of the command line.

        Raises:
            UsageError: one that names something is not UTF-8.
        """
        rest = super().parse_args(ctx, args)
        for param in self.params:
            if not isinstance(param.type, click.Path):
                _check_text(ctx.params.get(param.name or ""))
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and with --watch again and again."""
        call = ctx.ensure_object(Call)
        if call.watch is None:
            return super().invoke(ctx)
        if call.watch <= 0:
            raise UsageError(f"--watch {call.watch:g} is no time to wait", hint="--watch 2s")
        while True:
            if call.terminal.on_terminal() and not call.terminal.structured:
                click.clear()
            super().invoke(ctx)
            time.sleep(call.watch)


def _check_text(value: Any) -> None:
    if isinstance(value, Mapping):
        _check_text([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            _check_text(part)
    elif isinstance(value, str) and not is_text(value):
        raise UsageError(f"{value!a} is not UTF-8", hint="only bodies and paths may have other bytes; see `locale`")


@click.pass_context
def _explain(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.ensure_object(Call).terminal.line(ctx.get_help())


class Group(click.Group):
    """A noun with verbs; named alone, it explains itself."""

    command_class = Command

    def __init__(self, *args: Any, hidden_globals: bool = True, **settings: Any) -> None:
        settings.setdefault("invoke_without_command", True)
        settings.setdefault("callback", _explain)
        super().__init__(*args, **settings)
        self.params.extend(global_options(hidden=hidden_globals))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            raise UsageError(
                f'there is no command "{ctx.command_path} {name}"',
                hint=f"did you mean: {ctx.command_path} {near[0]}" if near else f"see {ctx.command_path} --help",
            )
        return super().resolve_command(ctx, args)


yes_option = click.option("--yes", is_flag=True, help="Do it; without it, only tell what would be done.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only tell what would be done.")


def confirmed(call: Call, *, yes: bool, dry_run: bool) -> bool:
    """Say whether to go on with a change that was announced before.

    Raises:
        UsageError: neither --yes nor --dry-run was given, so a script does not take nothing for something.
    """
    if dry_run:
        call.terminal.say("nothing was changed")
        return False
    if not yes:
        raise UsageError("nothing was changed", hint="run it again with --yes")
    return True


class Lazy(NamedTuple):
    """A command that is imported when it is called: where it is, and the line that help shows for it."""

    target: str  # module:attribute
    help: str
    section: str


class LazyGroup(Group):
    """The root: knows its commands by a table, so that help, completion and `version` import none of the others."""

    def __init__(self, *args: Any, table: Mapping[str, Lazy], **settings: Any) -> None:
        super().__init__(*args, hidden_globals=False, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute = self.table[cmd_name].target.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in self.table.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.help) for name, entry in self.table.items() if entry.section == section]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=entry.help) for name, entry in self.table.items() if name.startswith(incomplete)
        ]
