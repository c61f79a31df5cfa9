"""Which broker of this name the answer to a pull says to ask next: the master, or a slave.

    slave_reads_bytes     where the last record that was looked at lies     the next one
    0                     -                                                 the master
    more                  no farther than that behind the log end           the group's `brokerId`, 0
                          farther                                           its `whichBrokerWhenConsumeSlowly`, 1

It is RocketMQ's slaveReadEnable; there the distance is a share of the host's memory. A slave judges by its own log, so
a reader that was sent there stays until it has caught up.
"""

from typing import NamedTuple

from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Log
from shmq.daemon.broker.settings import BrokerSettings
from shmq.protocol.route import MASTER_ID

MASTER = str(MASTER_ID)


class NextBroker(NamedTuple):
    """What a group's answers say: where it is near the log end, and where it is far behind."""

    near: str = MASTER
    far: str = MASTER


class SlaveReads:
    """The choice, by the settings of the broker and of each group."""

    def __init__(self, log: Log, groups: GroupSettings, settings: BrokerSettings) -> None:
        self._log = log
        self._groups = groups
        self._settings = settings

    def of(self, group: int) -> NextBroker:
        """Return the two brokers of the group with that number."""
        if not self._settings.slave_reads_bytes:
            return NextBroker()
        settings = self._groups.at(group)
        return NextBroker(str(settings.brokerId), str(settings.whichBrokerWhenConsumeSlowly))

    def after(self, queue: int, next_offset: int, broker: NextBroker) -> str:
        """Return which of the two it is for who goes on at an offset."""
        far_bytes = self._settings.slave_reads_bytes
        is_far = far_bytes > 0 and self._log.end - self._log.position_of(queue, next_offset - 1) > far_bytes
        return broker.far if is_far else broker.near
