"""The root of the `shmq` command: which commands there are, and how a call ends.

Invariants:
1. Every way out is an exit status of `exit_code`; click's own 2 never leaves this module.
2. With --json or --jsonl anywhere on the line, stderr carries one JSON object for an error, also for a usage error.
3. An unexpected exception leaves a report in a file and names it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from shmq.errors import ShmqError, UsageError
from shmq.exit_code import ExitCode
from shmq.tools.command import Call, Lazy, LazyGroup
from shmq.tools.terminal.output import OutputLost, ReaderGone, forget, output_lost

# section -> command -> (module below shmq.tools:attribute, what help says)
_SECTIONS = {
    "Run": {
        "serve": ("service.serve_command:serve", "Run a broker on this host."),
        "nameserver": ("service.nameserver_command:nameserver", "Run a name server without a broker."),
        "systemd": ("service.systemd_command:systemd", "Print a systemd unit for a broker."),
        "config": ("service.config_command:config", "Show and check a broker's settings."),
        "stop": ("service.stop_command:stop", "Stop a broker and wait until it is gone."),
        "demo": ("service.demo_command:demo", "Broker, producer and consumer for a few seconds."),
        "bench": ("bench.bench_command:bench", "Measure throughput and latency."),
    },
    "Messages": {
        "produce": ("messages.produce_command:produce", "Store messages: one argument, a file, or lines."),
        "consume": ("messages.consume_command:consume", "Print messages, alone or as member of a group."),
        "request": ("messages.request_command:request", "Ask, and print the reply."),
        "reply": ("messages.request_command:reply", "Answer requests with what a command prints."),
        "query": ("messages.query_command:query", "SQL over topics."),
        "tail": ("messages.consume_command:tail", "Print the last messages and follow."),
    },
    "Watch": {
        "health": ("health.health_command:health", "Is the broker well, why not, what to type."),
        "check": ("health.check_command:check", "Check one topic, group, store, process."),
        "top": ("top.top_command:top", "Watch processes, topics and groups."),
        "console": ("console.console_command:console", "Show a broker in a browser, and change it."),
        "store": ("store.store_command:store", "Check a store's files: scrub."),
        "cluster": ("cluster.cluster_command:cluster", "A broker's other hosts: status."),
        "doctor": ("doctor.doctor_command:doctor", "Examine host, store and broker; say the cure."),
    },
    "Administration": {
        "topic": ("administration.topic_command:topic", "List, show, create, update, delete topics."),
        "group": ("administration.group_command:group", "List, show, create, delete consumer groups."),
        "offset": ("administration.offset_command:offset", "Show, reset, skip, clone a group's progress."),
        "timer": ("messages.timer_command:timer", "List and cancel messages that wait for their time."),
        "tx": ("messages.tx_command:tx", "List, check, commit, roll back open transactions."),
        "message": ("messages.message_command:message", "Show, find, trace, resend, verify single messages."),
        "cluster": ("cluster.cluster_command:cluster", "Which broker is the master: promote, demote."),
        "dlq": ("messages.dlq_command:dlq", "List, show, resend, export, purge dead letters."),
        "context": ("service.context_command:context", "Name brokers: add, list, use, rm."),
        "spark": ("spark_command:spark", "Jobs on Spark: archive, replay, reconcile, lag, dlq."),
    },
    "Help": {
        "version": ("version_command:version", "Print versions."),
        "completion": ("completion_command:completion", "Shell completion: install, show."),
    },
}
COMMANDS = {
    name: Lazy(f"shmq.tools.{target}", help_line, section)
    for section, commands in _SECTIONS.items()
    for name, (target, help_line) in commands.items()
}


class _Root(LazyGroup):
    """Catches what click would turn into a message and a status of its own."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                sys.stderr.write("\n")  # behind the ^C that the terminal shows
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        command = cli.get_command(ctx, "version")
        assert command is not None
        ctx.invoke(command)
        ctx.exit()


cli = _Root(
    "shmq",
    table=COMMANDS,
    help="A message broker in this host's memory that speaks RocketMQ.\n\nStart one with: shmq serve",
    epilog="""\b
Exit status: 0 done, 1 the answer is no, 64 usage, 65 bad data, 69 no broker,
70 internal, 73 cannot create, 75 temporary, 77 no permission, 78 configuration,
130 interrupted. health and check: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.""",
    params=[
        click.Option(
            ["-V", "--version"], is_flag=True, expose_value=False, callback=_print_version, help="As `shmq version`."
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one call of `shmq` and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    call = Call()
    call.style.form = _form_asked_for(words)
    try:
        status = cli.main(words, prog_name="shmq", standalone_mode=False, obj=call)
        sys.stdout.flush()
        return int(status or 0)
    except (ReaderGone, BrokenPipeError):
        forget(sys.stdout)
        return int(ExitCode.DONE)
    except (KeyboardInterrupt, click.Abort):
        return int(ExitCode.INTERRUPTED)
    except click.ClickException as error:
        return call.terminal.fail(_usage_error(error))
    except (ShmqError, PermissionError) as error:
        return call.terminal.fail(error)
    except Exception as error:  # the outermost edge: nothing above could act on it
        lost = error.__cause__ if isinstance(error, OutputLost) else error
        if isinstance(lost, OSError) and (lost is not error or _is_of_stdout(lost)):
            forget(sys.stdout)
            return call.terminal.fail(output_lost(lost))
        return _fail_unexpectedly(call, error)


def _form_asked_for(words: Sequence[str]) -> str:
    """Find the form of errors before the line is understood, because misunderstanding it is an error too."""
    options = words[: words.index("--")] if "--" in words else words
    return "jsonl" if "--jsonl" in options else "json" if "--json" in options else "text"


def _usage_error(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "shmq"
    return UsageError(error.format_message(), hint=f"see {path} --help")


def _is_of_stdout(error: OSError) -> bool:
    """Whether a write to stdout without our terminal raised it: click's help, rich's screen, or our flush."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return module == __name__ or module.partition(".")[0] in ("click", "rich")


def _fail_unexpectedly(call: Call, error: Exception) -> int:
    import platform
    import tempfile
    import traceback

    from shmq.version import __version__

    with tempfile.NamedTemporaryFile(
        "w", prefix="shmq-report-", suffix=".txt", delete=False, encoding="utf-8", errors="surrogateescape"
    ) as report:
        report.write(f"shmq {__version__}, Python {platform.python_version()}, {platform.platform()}\n")
        report.write(f"arguments: {sys.argv[1:]!r}\n\n")
        traceback.print_exception(error, file=report)
    if call.style.verbose:
        traceback.print_exception(error)
    return call.terminal.fail(
        ShmqError(f"internal error: {type(error).__name__}: {error}", hint=f"please report it with {report.name}")
    )
