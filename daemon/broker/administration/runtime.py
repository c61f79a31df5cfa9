"""Serves the broker's figures under the names of RocketMQ's tools.

They are the requests 28, 907 and 315; the last shows one statistic by name and key.

Every value is text. `mqadmin` of RocketMQ 4 reads getTransferedTps, that of 5 getTransferredTps. What this broker has
nothing of (thread pools, a page cache lock, a transient store buffer) is said as RocketMQ says it when nothing waits,
and so is how long appends took: local programs append without asking, and the broker does not see how long.
"""

from collections.abc import Sequence

import msgspec

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.traffic import Traffic
from shmq.daemon.broker.tables import DiskRoom, StoreFacts, StoreState
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.header_fields import text_of
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.errors import RemoteError
from shmq.protocol.admin_body import KeyValueTable
from shmq.protocol.body import CHECKS, encode_body
from shmq.protocol.codes import PROTOCOL_VERSION, PROTOCOL_VERSION_NAME, Request, Response

_SPANS = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms"),
    *("500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
_NOTHING_WAITS = {
    **{
        f"{pool}ThreadPoolQueue{what}": "0"
        for pool in ("send", "pull", "litePull", "query", "ack")
        for what in ("Size", "HeadWaitTimeMills")
    },
    "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
    "ackThreadPoolQueueCapacity": "100000",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "dispatchMaxBuffer": "0",
    "dispatchBehindBytes": "0",
    "pageCacheLockTimeMills": "0",
    "putMessageEntireTimeMax": "0",
    "getMessageEntireTimeMax": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
    "startAcceptSendRequestTimeStamp": "0",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "putMessageDistributeTime": "".join(f"[{span}]:0 " for span in _SPANS),
}
_GIB = 1 << 30


class RuntimeRequests(Part):
    """Serves the state of the broker as figures."""

    def __init__(self, tables: StoreState, traffic: Traffic, settings: BrokerSettings, *, since_ms: int) -> None:
        self._tables = tables
        self._traffic = traffic
        self._settings = settings
        self._since_ms = since_ms

    @serves(Request.GET_BROKER_RUNTIME_INFO)
    def _runtime_info(self, call: Call) -> Answer:
        uptime_ms = call.now_ms - self._since_ms
        facts = self._tables.facts()
        table = {
            **_NOTHING_WAITS,
            "brokerActive": "true",
            "brokerVersion": str(PROTOCOL_VERSION),
            "brokerVersionDesc": PROTOCOL_VERSION_NAME,
            "bootTimestamp": str(self._tables.clock_ms - uptime_ms),
            "runtime": _duration(uptime_ms),
            "earliestMessageTimeStamp": str(self._tables.earliest_ms()),
            **_log(facts),
            **_disk(self._tables.disk()),
            **self._rates(),
            CHECKS: msgspec.json.encode(self._tables.troubles()).decode(),
        }
        return Answer(body=encode_body(KeyValueTable(table)))

    @serves(Request.VIEW_BROKER_STATS_DATA)
    def _view(self, call: Call) -> Answer:
        name, key = text_of(call.ext, "statsName"), text_of(call.ext, "statsKey")
        data = self._traffic.statistics.data(name, key)
        if data is None:
            raise RemoteError(Response.SYSTEM_ERROR, f"The stats <{name[:127]}> <{key[:400]}> not exist")
        return Answer(body=encode_body(data))

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Look at the traffic, then take the snapshots of the statistics."""
        self._traffic.tick(now_ms)
        self._traffic.statistics.tick(now_ms)
        return ()

    def _rates(self) -> dict[str, str]:
        traffic = self._traffic
        got = str(traffic.get_rates)
        return {
            "putTps": str(traffic.put_rates),
            "getFoundTps": got,
            "getMissTps": "0.0 0.0 0.0",
            "getTotalTps": got,
            "getTransferedTps": got,
            "getTransferredTps": got,
            "msgPutTotalYesterdayMorning": str(traffic.put_totals.yesterday_morning),
            "msgPutTotalTodayMorning": str(traffic.put_totals.today_morning),
            "msgPutTotalTodayNow": str(traffic.put_totals.now),
            "msgGetTotalYesterdayMorning": str(traffic.get_totals.yesterday_morning),
            "msgGetTotalTodayMorning": str(traffic.get_totals.today_morning),
            "msgGetTotalTodayNow": str(traffic.get_totals.now),
        }

    @serves(Request.GET_BROKER_HA_STATUS)
    def _replication(self, call: Call) -> Answer:
        body = {
            "master": True,
            "masterCommitLogMaxOffset": self._tables.facts().log_end,
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
            "haClientRuntimeInfo": dict.fromkeys(
                (
                    "lastReadTimestamp",
                    "lastWriteTimestamp",
                    "masterFlushOffset",
                    "maxOffset",
                    "transferredByteInSecond",
                ),
                0,
            ),
        }
        return Answer(body=encode_body(body))


def _log(facts: StoreFacts) -> dict[str, str]:
    return {
        "commitLogMinOffset": str(facts.log_begin),
        "commitLogMaxOffset": str(facts.log_end),
        "remainHowManyDataToFlush": f"{max(0, facts.log_end - facts.durable_end)} B",
        "putMessageTimesTotal": str(facts.appended),
        "putMessageSizeTotal": str(facts.appended_bytes),
        "putMessageAverageSize": str(facts.appended_bytes / facts.appended if facts.appended else 0.0),
        "putMessageFailedTimes": str(facts.refused),
    }


def _disk(room: DiskRoom) -> dict[str, str]:
    used = room.used / max(1, room.used + room.free)
    return {
        "commitLogDiskRatio": f"{used:.2f}",
        "consumeQueueDiskRatio": f"{used:.2f}",
        "commitLogDirCapacity": f"Total : {room.size / _GIB:.1f} GiB, Free : {room.free / _GIB:.1f} GiB.",
    }


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
