"""Every seeded defect; `test_mutants.py` runs them.

First what was wrong once and is mended, then what must never come. Those of the core alone, which end in a process that
dies, are beside the enumeration that notices them: `../test_kill.py`.
"""

from __future__ import annotations

from tests.crash.core_build import Edit
from tests.crash.mutants.mutant import Mutant

_ACCESS = "tests/broker/test_foreign.py"
_ATOMIC = "tests/store/test_atomic.py"
_CONFIG = "tests/store/test_config.py"
_CUTTING = "tests/store/lineage/test_cutting.py"
_DAMAGE = "tests/bindings/test_damage.py"
_DAMAGED_RECORDS = "tests/broker/durability/test_damaged_records.py"
_FUNCTIONS = "tests/client/test_functions.py"
_LAGGING_DISK = "tests/broker/durability/test_lagging_disk.py"
_MEMBERS = "tests/bindings/test_members.py"
_OWNER = "tests/bindings/test_owner.py"
_PARKING = "tests/logic/test_parking.py"
_RECOVERY = "tests/store/test_recovery.py"
_RETENTION = "tests/keeper/test_retention.py"
_TIMERS = "tests/broker/timers/test_timers.py"
_TRANSACTIONS = "tests/broker/transactions/test_transactions.py"
_UNIT_REPAIR = "tests/store/test_unit_repair.py"


def _one(file: str, old: str, new: str, *noticed_by: str) -> Mutant:
    return Mutant((Edit(file, old, new),), noticed_by)


MENDED: dict[str, Mutant] = {
    "a timed message that is not on disk yet is taken for damage": _one(
        "daemon/broker/timers/timers.py",
        "end = self._log.visible(self._queue)",
        "end = bounds.offset_max",
        f"{_LAGGING_DISK}::test_nothing_is_lost_or_stored_twice_while_the_disk_lags",
    ),
    "a delayed message that is not on disk yet is passed over": _one(
        "daemon/broker/timers/delay.py",
        "                    level.is_unseen = True\n",
        "                    behind = min(offset + 1, self._tables.queue_bounds(level.queue).offset_max)\n"
        "                    self._tables.set_committed(level.slot, behind)\n",
        f"{_LAGGING_DISK}::test_nothing_is_lost_or_stored_twice_while_the_disk_lags",
    ),
    "units are believed whatever their sums say": _one(
        "shmq/store/unit_repair.py",
        " or zlib.crc32(data[at : at + units * UNIT_BYTES]) != wanted:",
        ":",
        f"{_UNIT_REPAIR}::test_every_message_stays_readable_and_the_next_offset_is_right",
    ),
    "a queue whose units are lost begins again at the records that are left": _one(
        "shmq/store/unit_repair.py",
        "end = fault.end if is_cleaned else max(fault.first, last + 1)",
        "end = max(fault.first, last + 1)",
        f"{_UNIT_REPAIR}::test_offsets_are_not_reused_when_retention_took_the_records_and_the_units_are_lost",
    ),
    "a bad unit stops its queue for ever": _one(
        "reader.c",
        "    cursor->next++;\n    shmq_cursor_skip(cursor, offset, 1);\n    shmq_cursor_save(",
        "    shmq_cursor_save(",
        f"{_DAMAGE}::test_no_flipped_byte_of_a_unit_stops_its_queue",
    ),
    "a unit that points at another record hands it out": _one(
        "match.c",
        "view->log_position != unit->log_position || view->queue_offset != queue_offset ||",
        "view->log_position != unit->log_position ||",
        f"{_DAMAGE}::test_a_unit_that_names_another_record_is_damage",
    ),
    "a bad unit is damage before the keeper has looked at the log": _one(
        "damage.c",
        "    return doubt ? doubt_look(store, doubt, unit, now_ns) : SHMQ_WOULD_BLOCK;\n",
        "    (void)doubt_look;\n    (void)doubt;\n    return SHMQ_CORRUPT;\n",
        f"{_DAMAGE}::test_a_reader_waits_for_the_keeper_and_gets_what_it_rebuilt",
    ),
    "units that a reader reports are not mended": _one(
        "daemon/keeper/damages.py",
        "count, damages = self._units.mend(report.queue, report.queue_offset)",
        "count, damages = 0, []",
        "tests/keeper/test_damages.py::test_wrong_units_are_mended_and_nothing_is_lost",
    ),
    "a damaged body is delivered as good": _one(
        "match.c",
        "    return !verify || shmq_record_check(data, view) == SHMQ_OK ? SHMQ_MATCH : SHMQ_DAMAGED;\n",
        "    (void)verify;\n    return SHMQ_MATCH;\n",
        f"{_DAMAGE}::test_no_flipped_byte_of_a_record_is_handed_out",
    ),
    "a damaged record is given back, and so copied, by its position": _one(
        "match.c",
        "    if (!verify || shmq_record_check(data, view) == SHMQ_OK) {\n        return SHMQ_OK;\n",
        "    if (verify || !verify) {\n        return SHMQ_OK;\n",
        f"{_DAMAGE}::test_no_flipped_byte_of_a_record_is_handed_out",
    ),
    "a damaged op record settles whatever half it names": _one(
        "py_together.c",
        "name, verify, &view) != SHMQ_MATCH ||",
        "name, false, &view) != SHMQ_MATCH ||",
        f"{_DAMAGED_RECORDS}::test_a_damaged_op_record_settles_no_other_half",
    ),
    "committed messages behind damage are committed again": _one(
        "daemon/bridge/store/log.py",
        "                position = position_behind(self._store, position)\n",
        "                position = None\n",
        f"{_DAMAGED_RECORDS}::test_damage_in_front_of_committed_messages_hides_none_of_them",
    ),
    "a half that was damaged before it was looked at stays open for ever": _one(
        "daemon/broker/transactions/transactions.py",
        "            return self._learn_unread(offset, now_ms)\n",
        "            return None\n",
        f"{_DAMAGED_RECORDS}::test_a_damaged_half_is_rolled_back_when_its_time_has_come_and_told_once",
    ),
    "a record that lost its checksum passes for another writer's": _one(
        "record.c",
        "view->body_crc || (has_room && was_crc_property(tail))",
        "view->body_crc || (has_room && was_crc_property(tail) && false)",
        f"{_DAMAGE}::test_no_flipped_byte_of_a_record_is_handed_out",
    ),
    "a record that is not on disk yet is damage to a reader": _one(
        "damage.c",
        "    if (is_stored && !shmq_unit_is_durable(store, unit)) {\n",
        "    if (is_stored && false) {\n",
        f"{_DAMAGE}::test_what_is_not_durable_yet_is_waited_for",
    ),
    "no copy of a damaged record is kept": _one(
        "daemon/keeper/damages.py",
        "kept = size > 0 and self._quarantine.add(",
        "kept = size < 0 and self._quarantine.add(",
        "tests/keeper/test_damages.py::test_a_damaged_record_is_reported_once_kept_and_counted_once",
    ),
    "what follows a bad record above the mark is cut off": _one(
        "shmq/store/damage.py",
        "        after = self.next_record(bad)\n        if after is not None:\n",
        "        after = self.next_record(bad) if bad < (self._durable_end or 0) else None\n"
        "        if after is not None:\n",
        f"{_RECOVERY}::test_whole_records_behind_a_damaged_one_above_the_mark_are_kept",
    ),
    "a record inside the body of a damaged one is taken for one of the log": _one(
        "shmq/store/damage.py",
        "        at = self._behind_agreeing(bad)\n",
        "        at = bad\n",
        f"{_RECOVERY}::test_a_record_inside_the_body_of_a_damaged_one_is_not_taken_for_one_of_the_log",
    ),
    "the offset of a damaged last record is given out again": _one(
        "shmq/store/rebuild.py",
        "        if queue_offset == expected:\n            self._place",
        "        if queue_offset == -1:\n            self._place",
        f"{_RECOVERY}::test_the_offset_of_a_damaged_last_record_is_not_given_out_again",
    ),
    "a failed sync of units is tried again and believed": _one(
        "shmq/store/consumequeue.py",
        "                self._lost[path] = sync.ranges[path].joined(self._dirty.get(path))\n",
        "                self._dirty[path] = sync.ranges[path].joined(self._dirty.get(path))\n",
        "tests/store/test_consumequeue.py::test_what_a_failed_sync_covered_is_written_again_before_the_next_one",
        "tests/keeper/test_marks.py::test_what_a_failed_sync_covered_is_on_disk_when_the_mark_has_moved",
    ),
    "a full disk costs what a group has not consumed": _one(
        "daemon/keeper/retention.py",
        '            self._log("disk.held", **holder._asdict())\n        return False\n',
        '            self._log("disk.held", **holder._asdict())\n        return True\n',
        f"{_RETENTION}::test_a_full_disk_costs_no_message_that_is_not_consumed",
    ),
    "full log files go while empty ones stay": _one(
        "daemon/keeper/retention.py",
        "            disk = self._give_back_spares(disk)\n",
        "            pass\n",
        f"{_RETENTION}::test_empty_spare_files_go_before_full_ones_and_come_again_when_they_are_needed",
    ),
    "an account may give back a message that it may not read": _one(
        "daemon/broker/sends/send_back.py",
        "            call.rights.check(_consumed_resource(record, group), Permission.SUB)\n",
        "            pass\n",
        f"{_ACCESS}::test_nothing_foreign_is_read_or_changed",
    ),
    "an account may end a transaction of a topic that is not its own": _one(
        "daemon/broker/transactions/transactions.py",
        "        call.rights.check(topic, Permission.PUB)\n",
        "",
        f"{_ACCESS}::test_nothing_foreign_is_read_or_changed",
    ),
    "a send over TCP waits in the loop each time that the lock is taken": _one(
        "daemon/bridge/store/log.py",
        "timeout=0.0 if self._is_stuck else self._patience",
        "timeout=self._patience",
        "tests/bridge/store/test_log.py::test_after_one_wait_in_vain_the_next_appends_do_not_wait_until_one_succeeds",
    ),
    "who may wait for 5 ms waits for room as long as the keeper lives": _one(
        "room.c",
        "        if (now >= deadline_ns || shmq_keeper_is_silent(store, now, KEEPER_PATIENCE_NS)) {\n"
        "            return SHMQ_LOG_FULL;\n",
        "        if (shmq_keeper_is_silent(store, now, KEEPER_PATIENCE_NS)) {\n            return SHMQ_LOG_FULL;\n",
        "tests/bindings/test_producer.py::test_a_producer_whose_time_is_over_is_refused_though_the_keeper_lives",
    ),
    "a claim whose time is over stands as long as only those come who may not wait": _one(
        "claim.c",
        "SHMQ_CLAIM_OPEN && claim_may_end(store)) {",
        "SHMQ_CLAIM_OPEN && now < deadline_ns && claim_may_end(store)) {",
        "tests/bridge/test_full_log.py::"
        "test_the_claim_of_a_process_that_is_stopped_or_dead_is_ended_by_those_who_may_not_wait",
    ),
    "a full table of queues does not say what frees it": _one(
        "daemon/bridge/store/tables.py",
        "            raise self._full(name, max(read_queues, write_queues)) from error\n",
        "            raise\n",
        "tests/bridge/store/test_tables.py",
    ),
    "silent connections keep their places": _one(
        "daemon/bridge/acceptor.py",
        "        if not silent:\n            return False\n",
        "        if silent or not silent:\n            return False\n",
        "tests/bridge/test_connection_limit.py::test_silent_connections_make_room_the_oldest_first",
    ),
    "the checksum of a table is not looked at": _one(
        "shmq/store/seal.py",
        "    if seal is not None and zlib.crc32(",
        "    if seal is None and zlib.crc32(",
        f"{_CONFIG}::test_no_changed_bit_gives_other_numbers",
    ),
    "tables are written without a checksum": _one(
        "shmq/store/config.py",
        "write_atomically(path, sealed(text), mode",
        "write_atomically(path, text, mode",
        f"{_CONFIG}::test_no_changed_bit_gives_other_numbers",
    ),
    "a table that was there is taken for one of a new store": _one(
        "shmq/store/recovery.py",
        "files.config.check_missing(known.config_files if known else 0)",
        "files.config.check_missing(0)",
        f"{_RECOVERY}::test_a_table_that_was_there_is_not_taken_for_one_of_a_new_store",
    ),
    "too low a limit of open files is not noticed": _one(
        "daemon/descriptors.py",
        "    if most < NEEDED:\n",
        "    if most < 0:\n",
        "tests/supervisor/test_descriptors.py::test_too_few_are_refused_at_once_with_what_is_needed",
    ),
    "a send that may be stored is reported as not stored": _one(
        "shmq/client/remote/sender.py",
        "            is_doubtful |= error.maybe_stored\n",
        "            error.maybe_stored = False\n",
        "tests/broker/durability/test_slow_disk.py::test_a_send_whose_broker_went_away_says_that_it_may_be_stored",
    ),
    "an async def is taken for a listener": _one(
        "shmq/functions.py",
        "    if _is_any(function, inspect.iscoroutinefunction):\n",
        "    if _is_any(function, inspect.ismodule):\n",
        f"{_FUNCTIONS}::test_a_synchronous_connection_takes_no_function_that_would_not_run",
    ),
    "what a listener returned counts as run": _one(
        "shmq/functions.py",
        "    if outcome is None or not (",
        "    if outcome is outcome or not (",
        f"{_FUNCTIONS}::test_a_message_whose_listener_returned_something_unfinished_comes_again",
    ),
    "a member acts under whatever life its client slot has": _one(
        "shmq.h",
        "    return shmq_client_lives(store, client) ? client : 0;\n",
        "    return client != 0 ? shmq_client_word(store, shmq_client_slot(client)) : 0;\n",
        f"{_MEMBERS}::test_the_queue_of_the_one_that_has_the_slot_now_is_not_the_others",
    ),
    "a client slot is kept that another connection of the process has by now": _one(
        "daemon/broker/clients/attachment.py",
        'if number_of(call.ext, "slotGeneration", default=-1) != self._tables.client_generation(slot):',
        "if False:",
        "tests/broker/clients/test_attachment.py",
    ),
}

NEVER: dict[str, Mutant] = {
    "a file takes its name before its content is synced": _one(
        "shmq/store/atomic.py",
        "        write_whole(descriptor, content, 0)\n        os.fsync(descriptor)\n",
        "        write_whole(descriptor, content, 0)\n",
        f"{_ATOMIC}::test_the_content_is_synced_before_it_gets_the_name",
    ),
    "no copy of a table is kept": _one(
        "shmq/store/atomic.py",
        "    if backup and path.exists():\n",
        "    if False:\n",
        f"{_ATOMIC}::test_the_previous_content_is_kept_as_backup",
    ),
    "a new log file is not synced": _one(
        "shmq/store/layout.py",
        "            os.fsync(descriptor)\n",
        "",
        "tests/crash/disk/test_new_files.py",
    ),
    "the directory of a new log file is not synced": _one(
        "shmq/store/commitlog.py",
        "            os.rename(temporary, path)\n            sync_directory(path.parent)\n",
        "            os.rename(temporary, path)\n",
        "tests/crash/disk/test_new_files.py",
    ),
    "both slots of the mark are the same": _one(
        "shmq/store/durable.py",
        "(mark.sequence % 2) * _SLOT_STRIDE",
        "0",
        "tests/store/test_durable.py::test_a_mark_torn_at_any_byte_leaves_the_one_before",
    ),
    "the mark is not checked": _one(
        "shmq/store/durable.py",
        "        if len(body) < slot.size or content[at : at + slot.size + _CRC.size] != _with_crc(body):\n",
        "        if len(body) < slot.size:\n",
        "tests/store/test_durable.py::test_every_flipped_bit_is_noticed",
    ),
    "a log file goes before the mark says so": _one(
        "daemon/keeper/retention.py",
        "            self._mark.advance(log_begin=begin)\n",
        "            pass\n",
        f"{_RETENTION}::test_the_mark_says_the_new_begin_before_a_file_goes_and_without_it_the_file_stays",
    ),
    "a log that lacks files starts without a word": _one(
        "shmq/store/lineage/loss.py",
        "    if missing != accepted:\n",
        "    if False:\n",
        "tests/store/lineage/test_loss.py::test_what_is_missing_is_reported_and_only_that_is_accepted_and_only_once",
    ),
    "the mark is raised before the flush": _one(
        "daemon/keeper/marks.py",
        "self._mark.advance(durable_end=self._store.durable_end, config",
        "self._mark.advance(durable_end=self._store.log_end, config",
        "tests/keeper/test_marks.py::test_no_mark_says_more_of_the_log_than_was_flushed",
    ),
    "the mark is raised before the units are synced": _one(
        "daemon/keeper/marks.py",
        "            if noted.sync.failed:\n                return\n",
        "",
        "tests/keeper/test_marks.py::test_what_a_failed_sync_covered_is_on_disk_when_the_mark_has_moved",
    ),
    "a flush syncs nothing": _one(
        "flush.c",
        "if (mapping == NULL || store->io->sync_data(mapping->fd) != 0) {",
        "if (mapping == NULL) {",
        "tests/crash/disk/test_power_cuts.py::test_a_few_disks_that_a_power_cut_may_leave_hold_what_was_acknowledged",
    ),
    "a failed flush is tried again": _one(
        "flush.c",
        "            shmq_set_read_only(store, SHMQ_READ_ONLY_FLUSH_FAILED);\n",
        "",
        "tests/keeper/test_flusher.py::test_the_first_flush_error_is_final_until_the_next_recovery",
    ),
    "an offset of a group is saved before the log behind it is on disk": _one(
        "daemon/keeper/catalog.py",
        "self._progress[1] > self._store.durable_end:",
        "self._progress[1] > self._store.log_end:",
        "tests/keeper/test_delay_offsets.py",
    ),
    "an offset above its queue is kept": _one(
        "shmq/store/tables.py",
        "store.offset_set(slot, min(offset, offset_max))",
        "store.offset_set(slot, offset)",
        f"{_RECOVERY}::test_an_offset_above_the_queue_is_lowered_to_its_maximum",
    ),
    "what follows the end of the log is left there": _one(
        "shmq/store/recovery.py",
        "report.zeroed_bytes = commitlog.zero_from(log_end)",
        "report.zeroed_bytes = 0",
        f"{_RECOVERY}::test_garbage_behind_the_last_record_is_zeroed",
    ),
    "log files go that are not on disk yet": _one(
        "daemon/keeper/retention.py",
        "return behind <= in_use and behind <= self._store.durable_end",
        "return behind <= in_use",
        f"{_RETENTION}::test_a_file_that_is_not_durable_yet_stays",
    ),
    "a send is answered before it is on disk": _one(
        "daemon/broker/sends/sends.py",
        "        if waits and sent.end > self._log.durable_end:\n",
        "        if False:\n",
        "tests/broker/sends/test_sends.py::test_under_synchronous_flush_the_answer_waits_for_the_disk",
    ),
    "a recall is answered before it is on disk": _one(
        "daemon/broker/sends/sends.py",
        "end <= self._log.durable_end or not any(map(self._is_counted_on_disk, topics)):\n",
        "end:\n",
        f"{_LAGGING_DISK}::test_a_recall_is_answered_when_it_is_on_disk",
    ),
    "a parked request is never answered": _one(
        "daemon/logic/parking.py",
        "            is_last = now_ms >= parked.until_ms\n",
        "            is_last = False\n",
        f"{_PARKING}::test_who_has_waited_long_enough_gets_the_answer_of_the_last_try",
    ),
    "a parked request that has stored something is handled again": _one(
        "daemon/logic/parking.py",
        "            and self._congestion.stored == stored\n",
        "",
        f"{_PARKING}::test_only_a_request_that_stored_nothing_and_met_no_room_is_handled_again",
    ),
    "a send overtakes those that are parked": _one(
        "daemon/logic/parking.py",
        "return self._sends > 0 and call.command.code in SENDS",
        "return False",
        f"{_PARKING}::test_later_sends_wait_behind_a_send_and_other_requests_do_not",
    ),
    "the op record of a commit lies before the message": _one(
        "daemon/broker/transactions/transactions.py",
        "self._log.append_together([*entries, op])",
        "self._log.append_together([op, *entries])",
        f"{_TRANSACTIONS}::test_the_message_and_its_op_record_lie_back_to_back_the_message_first",
    ),
    "a commit does not say that its half is settled": _one(
        "daemon/broker/transactions/transactions.py",
        "self._log.append_together([*entries, op])",
        "self._log.append_together([*entries] or [op])",
        f"{_TRANSACTIONS}::test_a_commit_stores_the_message_and_that_the_half_is_settled",
    ),
    "a commit whose op record a power cut took is carried out again": _one(
        "daemon/broker/transactions/transactions.py",
        "        if self._recovery is not None and self._recovery.step(now_ms):\n"
        "            self._recovery = None\n"
        "        return self._recovery is None\n",
        "        return True\n",
        f"{_TRANSACTIONS}::test_a_committed_message_whose_op_record_a_power_cut_took_is_not_committed_again",
    ),
    "a dead letter is stored once more": _one(
        "daemon/broker/sends/dead_letters.py",
        "        if origin[0] and origin in known.origins:\n",
        "        if False:\n",
        "tests/broker/sends/test_send_back.py",
        "tests/broker/durability/test_lagging_disk.py",
    ),
    "a timed message goes by the wall clock": _one(
        "daemon/broker/timers/timers.py",
        "clock_ms, stamp_ms = self._tables.clock_ms, self._tables.stamp_ms",
        "clock_ms = stamp_ms = int(__import__('time').time() * 1000)",
        _TIMERS,
    ),
    "a timed message is settled before its copy is stored": _one(
        "daemon/broker/timers/timers.py",
        "                return 1\n            record = self._record(offset)\n",
        "                return 1\n            record = self._record(offset)\n            self._settle(due, offset)\n",
        f"{_TIMERS}::test_killed_between_any_two_steps_every_message_is_copied_exactly_once",
        f"{_TIMERS}::test_a_copy_that_cannot_be_stored_stops_delivery_for_a_second_and_is_not_lost",
    ),
    "the index is trusted while it is written to": _one(
        "daemon/keeper/index.py",
        '            self._take_back(IndexMark(begin[0], older[-1] if older else ""), begin[1])\n',
        "            self._is_settled = False\n",
        "tests/keeper/test_index.py::test_trust_is_taken_back_before_a_settled_file_is_written_to",
    ),
    "a reader sees what is not on disk yet": _one(
        "state.c",
        "sync ? shmq_safe_word(store) : &store->log->end",
        "sync ? &store->log->end : &store->log->end",
        "tests/bindings/test_reader.py::test_i7_under_synchronous_flush_nothing_is_seen_before_it_is_durable",
    ),
    "showing takes any word away": _one(
        "owner.c",
        "    bool is_local = shmq_owner_is_local(owner);\n",
        "    bool is_local = owner != 0;\n",
        f"{_OWNER}::test_showing_leaves_a_word_that_is_no_members",
    ),
    "showing takes the queue of a living member away": _one(
        "owner.c",
        "if (is_local && !shmq_client_lives(store, owner)) {",
        "if (is_local && (!shmq_client_lives(store, owner) || owner != 0)) {",
        f"{_OWNER}::test_showing_takes_no_queue_from_a_living_member",
    ),
    "leaving does not look for which queue the slot is": _one(
        "owner.c",
        "if (!own || owner_load(entry) != own || !holds(entry, place)) {",
        "if (!own || owner_load(entry) != own || (false && !holds(entry, place))) {",
        f"{_OWNER}::test_leaving_a_queue_leaves_the_next_place_of_its_slot",
    ),
    "freeing does not look for which queue the slot is": _one(
        "owner.c",
        "while (seen != 0 && seen != SHMQ_OWNER_MOVING && holds(entry, place) && !owner_swap(",
        "while (seen != 0 && seen != SHMQ_OWNER_MOVING && !owner_swap(",
        f"{_OWNER}::test_freeing_a_queue_frees_not_the_next_place_of_its_slot",
    ),
    "a group that has the entry of a deleted one has its number too": _one(
        "member.c",
        "(uint32_t)next_names(store, index) | index : index;",
        "(uint32_t)next_names(store, index) * 0 + index : index;",
        f"{_OWNER}::test_a_member_of_a_deleted_group_takes_no_queue_of_the_group_that_has_its_entry",
    ),
    "an owner word counts for whatever group has the slot": _one(
        "owner.c",
        "    return atomic_load_explicit(&entry->place, memory_order_acquire) == place;\n",
        "    return (uint32_t)atomic_load_explicit(&entry->place, memory_order_acquire) == (uint32_t)place;\n",
        f"{_OWNER}::test_a_member_of_a_deleted_group_takes_no_queue_of_the_group_that_has_its_entry",
    ),
    "an offset is set for whatever group has the slot": _one(
        "offset.c",
        "if (now != place || ",
        "if ((uint32_t)now != (uint32_t)place || ",
        f"{_OWNER}::test_a_member_of_a_deleted_group_takes_no_queue_of_the_group_that_has_its_entry",
    ),
    "the slots of a deleted group are listed for the next one of its entry": _one(
        "daemon/bridge/store/tables.py",
        " for slot in slots if slot >> _GROUP_SHIFT == group}",
        " for slot in slots}",
        "tests/bridge/store/test_tables.py::test_a_group_has_no_places_of_the_one_that_had_its_entry",
    ),
    "freeing ends the moving of a slot": _one(
        "owner.c",
        "while (seen != 0 && seen != SHMQ_OWNER_MOVING && holds(",
        "while (seen != 0 && holds(",
        f"{_OWNER}::test_a_slot_that_is_moving_is_no_ones_to_take_lock_or_free",
    ),
    "a file that is cut keeps its inode": _one(
        "shmq/store/lineage/cutting.py",
        "            commitlog.renew(cut.position, until=cut.position)\n",
        "            cut_path = commitlog.path(cut.position - cut.position % commitlog.file_bytes)\n"
        "            os.truncate(cut_path, cut.position % commitlog.file_bytes)\n"
        "            os.truncate(cut_path, commitlog.file_bytes)\n",
        f"{_CUTTING}::test_a_mapping_of_the_old_file_belongs_to_no_log",
    ),
    "the files of a former master keep their inodes": _one(
        "shmq/store/lineage/cutting.py",
        "            commitlog.renew(position, until=position + commitlog.file_bytes)\n",
        "            pass\n",
        f"{_CUTTING}::test_a_mapping_of_the_old_file_belongs_to_no_log",
    ),
    "a slave acknowledges what is not on its disk": _one(
        "daemon/ha/slave/follower.py",
        "        return min(self._flushed, self._reached)\n",
        "        return self._reached\n",
        "tests/ha/test_links.py::test_a_slave_says_what_is_on_its_disk_only_once_it_is",
    ),
    "a lock ends the moving of a slot": _one(
        "owner.c",
        "if (seen == SHMQ_OWNER_MOVING ||\n            (!is_own",
        "if (\n            (!is_own",
        f"{_OWNER}::test_a_slot_that_is_moving_is_no_ones_to_take_lock_or_free",
    ),
    "a replica's record is not described to its index": _one(
        "replicate.c",
        ".described = has_properties(view),",
        ".described = has_properties(view) && false,",
        "tests/bindings/replication/test_replicate.py::test_a_follower_becomes_its_master_whatever_the_pieces",
    ),
    "a slave reports a mark before it has taken over what that says": _one(
        "daemon/ha/slave/following.py",
        "        marks = self._marks.take()\n",
        "        link.applied(end, _now_ms())\n        marks = self._marks.take()\n",
        "tests/ha/slave/test_following.py::test_a_record_is_not_reported_before_what_it_says_of_tables_is_taken_over",
    ),
    "name servers do not learn the epoch": _one(
        "daemon/nameserver/registration.py",
        "stateVersion=self.state)",
        "stateVersion=0)",
        "tests/ha/test_names.py::test_a_promoted_slave_is_the_master_for_name_servers_and_its_epoch_is_registered",
    ),
}

MUTANTS: dict[str, Mutant] = MENDED | NEVER
