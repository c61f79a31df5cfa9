"""The life of a keeper process: attach, say so, keep, stop or be orphaned."""

from collections.abc import Sequence

from shmq.daemon.counters import make_counters, own_counters
from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.attachment import attach
from shmq.daemon.keeper.keeper import Keeper
from shmq.daemon.tether import Tether
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.shm.counters import KEEPER
from shmq.store.recovery import RecoveryReport


def run_keeper(
    options: Options,
    tether: Tether,
    log: EventLog,
    *,
    epoch: int = 0,
    directories: Sequence[int] = (),
) -> int:
    """Keep the store until the supervisor ends it; returns the exit status.

    Args:
        epoch: that a promotion has given this broker.
        directories: descriptors of the store and of its commitlog/, which the supervisor has locked.
    """
    try:
        attached = attach(options, log, epoch=epoch, directories=directories)
        make_counters(attached.instance, log, bridges=options.bridges)
        keeper = Keeper(attached, options, log, own_counters(attached.instance, KEEPER, log), directories)
        keeper.start()
    except ShmqError as error:
        return tether.failed(error, log, "keeper.failed")
    tether.call_on_stop(keeper.wake)
    report = attached.report
    tether.ready(
        instance=attached.instance.to_object(),
        warm=report is None,
        records=report.records if report else 0,
        seconds=round(report.seconds, 3) if report else 0.0,
        damages=_told_damages(report) if report else [],
    )
    keeper.run(tether.stopping)
    if tether.is_orphaned:
        log("keeper.orphaned")
        keeper.abandon()
        return ExitCode.DONE
    return ExitCode.DONE if keeper.stop() else ExitCode.UNEXPECTED


def _told_damages(report: RecoveryReport) -> list[dict[str, int | str]]:
    return [{"position": damage.position, "end": damage.end, "reason": damage.reason} for damage in report.damages]
