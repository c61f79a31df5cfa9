"""Groups and offset slots are found by hash: in how many looks, and always the right one."""

import random

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore, raises_status

GROUPS, QUEUES = 10_000, 8


def test_ten_thousand_groups_on_eight_queues_take_a_few_looks_each() -> None:
    with LiveStore(group_max=GROUPS + 1, offset_max=GROUPS * QUEUES) as live:
        queues = live.topic(queues=QUEUES)
        groups = (live.tables.group_put(f"group-{number}") for number in range(GROUPS))
        slots = [live.tables.offset_put(group, queue) for group in groups for queue in queues]
        assert slots == [entry.slot for entry in live.store.offsets()]
        assert live.figures.lookup_probes < 4 * GROUPS * QUEUES
        other = live.attach(writable=True)
        for number in (0, 1, GROUPS // 2, GROUPS - 1):
            group = other.group_find(f"group-{number}")
            assert group == number == live.tables.group_put(f"group-{number}")
            own = slots[number * QUEUES : (number + 1) * QUEUES]
            assert [_core.BrokerTables(other).offset_put(group, queue) for queue in queues] == own
        assert other.group_find("group-x") == -1
        assert _core.StoreFigures(other).lookup_probes < 400
        with raises_status(_core.TABLE_FULL):
            live.tables.offset_put(live.tables.group_put("one more"), queues[0])


def test_what_is_there_already_is_found_without_a_new_version_of_the_tables() -> None:
    with LiveStore() as live:
        store, (queue, *_) = live.store, live.topic()
        slot = live.tables.offset_put(live.tables.group_put("billing"), queue)
        version = store.table_version
        for _ in range(3):
            assert live.tables.offset_put(live.tables.group_put("billing"), queue) == slot
        assert store.table_version == version


def test_processes_find_what_others_made_deleted_and_gave_to_another_name() -> None:
    chance = random.Random(7)
    with LiveStore(group_max=12, offset_max=400) as live:
        queues = live.topic(queues=3)
        stores = [live.store, live.attach(writable=True), live.attach(writable=True)]
        alive: dict[str, int] = {}
        for _ in range(3000):
            store, name = chance.choice(stores), f"g{chance.randrange(30)}"
            if name in alive and chance.random() < 0.4:
                _core.BrokerTables(store).group_delete(name)
                del alive[name]
            elif name in alive or len(alive) < 12:
                group = _core.BrokerTables(store).group_put(name)
                assert alive.setdefault(name, group) == group
                queue = chance.choice(queues)
                slot = _core.BrokerTables(store).offset_put(group, queue)
                assert _core.BrokerTables(chance.choice(stores)).offset_put(group, queue) == slot
            looked = f"g{chance.randrange(30)}"
            assert chance.choice(stores).group_find(looked) == alive.get(looked, -1)
        assert len(set(alive.values())) == len(alive)
