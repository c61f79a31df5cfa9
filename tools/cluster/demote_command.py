"""`shmq cluster demote`: a master takes no message any more, and follows another broker."""

from __future__ import annotations

import click

from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.tools.cluster.switch_call import switch
from shmq.tools.command import Call, Command, pass_call


@click.command(cls=Command)
@click.argument("broker", required=False)
@click.option("--master", required=True, metavar="HOST:PORT", help="The broker that becomes the master, or is it.")
@click.option("--master-ha", default="", metavar="HOST:PORT", help="Where it ships its log (the port behind).")
@click.option("--force", is_flag=True, help="Also where that ships no log to this host yet.")
@pass_call
def demote(call: Call, broker: str | None, master: str, master_ha: str, force: bool) -> int:
    """Make a master on this host the slave of another broker; BROKER is its name.

    From then on it refuses messages and names the other; slaves that are connected get the rest of its log first. What
    it has and the other lacks is cut off when both meet, and kept: shmq store export --tail. Refused where the other
    ships no log to this host, after 8 s in which it may start again: nothing would be followed then.
    """
    request = {"verb": "demote", "master": master, "master_ha": master_ha, "force": force}
    place, done = switch(call, broker, request)
    name = place.broker_name
    if call.terminal.structured:
        call.terminal.document({"broker": name, **done})
        return ExitCode.DONE
    call.terminal.say(
        f'broker "{name}" takes no messages any more: its log ends at {done["log_end"]}, the master is {done["master"]}'
    )
    if done["behind_bytes"]:
        call.terminal.say(
            f"a connected slave still lacks {plural(done['behind_bytes'], 'byte')} of it; it is not promoted without"
            " --force before it has them"
        )
    if not done["lock_was_free"]:
        call.terminal.say("a process was stopped in the middle of an append; what it may still store belongs to no log")
    return ExitCode.DONE
