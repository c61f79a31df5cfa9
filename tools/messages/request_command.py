"""`shmq request` and `shmq reply`: ask for a reply, and answer with what a command prints.

stdout carries the reply and nothing else.

    shmq reply prices --exec 'tr a-z A-Z'        the request's body on stdin, its reply from stdout
    shmq request prices apple                    APPLE
"""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import click

from shmq.client import options
from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.tools.command import Call, Command, Content, pass_call
from shmq.tools.completion import complete_group, complete_topic
from shmq.tools.messages.expected_topic import create_option, expect_topic
from shmq.tools.messages.text import environment_of, message_document
from shmq.tools.terminal.output import json_line
from shmq.tools.terminal.standard_input import stdin_whole

if TYPE_CHECKING:
    from shmq.shm.core import Message

REPLY_GROUP = "shmq-reply"


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("body", type=Content(), required=False)
@click.option("--tag", metavar="TAG", help="Tag of the request, for repliers that filter.")
@click.option("--key", metavar="KEY", help="Key of the request.")
@pass_call
def request(call: Call, /, topic: str, body: bytes | None, tag: str | None, key: str | None) -> None:
    """Send a request to TOPIC and print the reply.

    Without BODY, or with -, standard input is the request. --timeout says how long to wait for the reply (3s).
    """
    content = stdin_whole() if body is None or body == b"-" else body
    timeout = options.CONNECT_TIMEOUT if call.timeout is None else call.timeout
    with call.connect() as connection:
        reply = connection.request(topic, content, tag=tag, key=key, timeout=timeout)
        if call.terminal.structured:
            call.terminal.write(json_line(message_document(reply)).encode() + b"\n")
        else:
            call.terminal.write(reply.body + b"\n")


class _Replies:
    """Answers with what a command prints, and ends after enough."""

    def __init__(self, call: Call, command: str, count: int | None) -> None:
        self.answered = 0
        self.failed = 0
        self.done = threading.Event()
        self._call = call
        self._command = command
        self._count = count

    def answer(self, message: Message) -> bytes | None:
        """Return the reply to one request; None when the command failed."""
        try:
            return self._answer(message)
        finally:
            if self._count is not None and self.answered + self.failed >= self._count:
                self.done.set()

    def _answer(self, message: Message) -> bytes | None:
        done = subprocess.run(
            self._command,
            shell=True,
            input=message.body,
            stdout=subprocess.PIPE,
            env=environment_of(message),
            check=False,
        )
        if done.returncode == 0:
            self.answered += 1
            return done.stdout.removesuffix(b"\n")
        self.failed += 1
        where = f"q{message.queue_id}@{message.offset}"
        self._call.terminal.say(f"{where}: the command ended with {done.returncode}; there is no reply")
        return None


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--exec", "execute", required=True, metavar="COMMAND", help="Run it for each request: stdin to stdout.")
@click.option("-g", "--group", default=REPLY_GROUP, show_default=True, shell_complete=complete_group,
              help="Repliers of one group share the requests.")  # fmt: skip
@click.option("-t", "--tag", "tags", metavar="EXPRESSION", help="Only these: 'fruit || veg'.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many requests.")
@create_option
@pass_call
def reply(
    call: Call, /, topic: str, execute: str, group: str, tags: str | None, count: int | None, create: bool
) -> int:
    """Answer the requests to TOPIC with what a command prints.

    The last newline of its output is not part of the reply. When the command fails there is no reply, and the
    requester times out. With --json it says at its end how many requests it has answered.
    """
    replies = _Replies(call, execute, count)
    with call.connect() as connection:
        expect_topic(call, connection, topic, must_exist=False, create=create)
        connection.replier(topic, group=group, tags=tags)(replies.answer)
        if count is None:
            connection.run()
        else:
            connection.start()
            while not replies.done.wait(options.SIGNAL_SLICE):
                pass
            connection.stop()  # after the reply of the call that runs
    counts = {"answered": replies.answered, "failed": replies.failed}
    call.terminal.report({"topic": topic, "group": group, **counts})
    call.terminal.note(f"{plural(replies.answered, 'request')} answered")
    return ExitCode.NO if replies.failed else ExitCode.DONE
