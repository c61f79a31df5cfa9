"""`shmq cluster promote`: a slave becomes the master, in the memory that its readers have mapped already."""

from __future__ import annotations

import click

from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.tools.cluster.switch_call import switch, wait_until_served
from shmq.tools.command import Call, Command, pass_call


@click.command(cls=Command)
@click.argument("broker", required=False)
@click.option("--force", is_flag=True, help="Also where that is refused; says what may be lost.")
@pass_call
def promote(call: Call, broker: str | None, force: bool) -> int:
    """Make a slave on this host the master; BROKER is its name.

    Refused while the master can be reached and takes messages: demote it first. Refused, too, while it has more than
    this slave, and where this slave has never heard of it. With --force what that master has and this slave lacks, and
    what it goes on to store, is cut off when it comes back, and kept there. A master that was heard of a moment ago is
    waited for, up to 8 s: it may be about to start again.
    """
    place, done = switch(call, broker, {"verb": "promote", "force": force})
    name = place.broker_name
    wait_until_served(place, done["epoch"])
    if call.terminal.structured:
        call.terminal.document({"broker": name, **done})
        return ExitCode.DONE
    call.terminal.say(
        f'broker "{name}" is the master since log position {done["log_end"]}, epoch {done["epoch"]}'
        f" ({done['seconds']} s); it was a slave of {done['old_master']}"
    )
    if done["missing_bytes"]:
        call.terminal.say(
            f"{plural(done['missing_bytes'], 'byte')} of that master's log are not here: they may be messages that were"
            " acknowledged. When it comes back as a slave it keeps them: shmq store export --tail"
        )
    if not done["master_answered"]:
        call.terminal.say(
            "that master did not answer; what it stored after this host last heard of it is counted nowhere"
        )
    return ExitCode.DONE
