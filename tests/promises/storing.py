"""Promises: what a store keeps."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_FAULTS = "tests/faults/test_several_processes.py::"
_DISK = "tests/crash/test_disk_faults.py::"
_DISK_ERRORS = "tests/storage/test_sqlite_disk_errors_live.py::"
_CHECKSUMS = "tests/storage/test_sqlite_checksums.py::"
_LEVEL = "tests/storage/test_conformance_formatlevel.py::"
_KEYS = "tests/plane/sharedkeys/test_keysmadeonce.py::"
_SEEDS = Proof(
    "tests/faults/disk/test_disk_seeds.py::test_faults_of_files_lose_nothing_acknowledged_and_store_nothing_refused"
)
_KILLED = Proof("tests/plane/test_process.py::test_what_a_killed_server_acknowledged_is_there_after_a_restart")
_WRITER = Never("Its writes go through the same writer, and the same store.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="acknowledged-writes-are-kept",
        sentence="A write that was answered with success is stored, and every later read of any server sees it.",
        doors=doors(
            _WRITER,
            {
                Door.KUBEADM: Proof(
                    "tests/crash/test_kill_during_joins.py::test_every_acknowledged_join_is_stored_and_all_joins_succeed"
                ),
                Door.K3S: Proof(
                    "tests/scenarios/test_k3scertificates.py::"
                    "test_a_server_that_is_killed_after_the_password_was_stored_goes_on_where_it_was"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/faults/test_faults.py::test_no_fault_loses_a_write_an_agent_or_a_token"
                ),
                Door.OTHER_SERVER: Proof(
                    _FAULTS + "test_several_servers_give_one_history_while_they_are_killed_and_stopped"
                ),
                Door.OTHER_WORKER: Proof(
                    _FAULTS + "test_several_workers_give_one_history_while_they_are_killed_stopped_and_restarted"
                ),
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _WRITER,
            {
                Moment.AT_REST: _KILLED,
                Moment.BODY: Proof(
                    "tests/server/test_requests.py::test_a_client_that_goes_away_in_the_middle_of_its_body_writes_nothing"
                ),
                Moment.QUEUED: Proof(
                    "tests/storage/test_sqlite_faults.py::test_a_group_fails_as_a_whole_and_the_next_one_succeeds"
                ),
                Moment.WATCH: Proof("tests/registry/test_watchcache.py::test_a_broken_watch_loses_nothing"),
                Moment.RESTART: _KILLED,
                Moment.RESTORE: Documented("What came after a snapshot is gone.", "docs/back-up-and-restore.md"),
                Moment.UNREADABLE: Documented(
                    "A value that cannot be decrypted is kept, and 500 until its key is back.",
                    "docs/encrypt-at-rest.md#when-a-value-cannot-be-decrypted",
                ),
                Moment.LEADER: Proof(
                    "tests/scenarios/test_workers_on_etcd.py::"
                    "test_a_killed_leader_is_succeeded_before_its_lease_expires_and_loses_no_write"
                ),
                Moment.CLOCK: Never("Revisions order the writes, and no clock."),
            },
        ),
    ),
    Promise(
        key="changes-need-the-state-they-saw",
        sentence="A change is stored only on the state that it was made from: of two at one moment, one succeeds.",
        doors=doors(
            _WRITER,
            {
                Door.KUBEADM: Proof(
                    "tests/scenarios/test_limited_tokens.py::test_exactly_as_many_machines_join_as_the_token_allows"
                ),
                Door.K3S: Proof("tests/server/test_k3scertificates.py::test_of_two_first_passwords_at_once_one_wins"),
                Door.ADMINISTRATOR: Proof(
                    "tests/registry/test_update.py::test_a_put_with_an_old_resource_version_is_409_in_the_known_words"
                ),
                Door.SIGNER: Proof("tests/reconcile/test_loop.py::test_a_conflict_is_planned_again_with_the_new_state"),
                Door.OTHER_SERVER: Proof(
                    "tests/registry/test_claims.py::test_two_servers_asked_for_the_same_at_once_grant_it_once"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/storage/test_processes_live.py::test_compare_and_swap_holds_across_processes"
                ),
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: Proof(
                    "tests/reconcile/test_fencing.py::test_a_write_without_a_precondition_is_not_sent"
                ),
            },
        ),
        moments=moments(
            _WRITER,
            {
                Moment.AT_REST: Proof(
                    "tests/storage/test_conformance.py::test_of_writes_racing_for_one_key_exactly_one_wins"
                ),
                Moment.LEADER: Proof(
                    "tests/reconcile/test_fencing.py::test_a_write_that_was_sent_before_a_stop_and_arrives_after_it_changes_nothing"
                ),
                Moment.RESTORE: Proof(
                    "tests/storage/test_etcd.py::test_after_a_restore_all_revisions_are_greater_than_those_shown_before"
                ),
            },
        ),
    ),
    Promise(
        key="damaged-copies-are-refused",
        sentence="A snapshot that is not whole is not restored, and no server serves a store that was half filled.",
        doors=doors(
            Never("It reads a store that a server has opened."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/storage/snapshot/test_format.py::test_a_flipped_bit_in_any_byte_is_found"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/storage/test_copying.py::test_a_copy_that_was_killed_is_refused_by_servers_and_repeated_to_its_end"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/storage/test_copying.py::test_a_writer_in_the_target_is_noticed_and_the_target_stays_incomplete"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The mark of an unfinished copy stands in the store, where each start looks for it."),
            {
                Moment.AT_REST: Proof(
                    "tests/storage/snapshot/test_format.py::test_a_file_that_is_cut_anywhere_is_found"
                ),
                Moment.RESTART: Proof(
                    "tests/crash/test_kill_move.py::test_a_copy_that_is_killed_is_refused_by_servers_and_completed"
                ),
                Moment.RESTORE: Proof("tests/scenarios/test_restore.py::test_a_cluster_is_restored_and_moved"),
                Moment.UNREADABLE: Proof(
                    "tests/storage/test_copying.py::test_a_mark_that_cannot_be_read_still_refuses"
                ),
            },
        ),
    ),
    Promise(
        key="one-set-of-keys-for-a-cluster",
        sentence="Servers of one store have one CA. A CA in a data directory is replaced by a later one of its own cluster only.",
        doors=doors(
            Never("It uses the keys that the server has."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/trust/sharedkeys/test_envelope.py::test_what_was_changed_outside_of_the_servers_is_not_opened"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/plane/sharedkeys/test_share.py::test_servers_that_start_at_once_agree_on_one_ca"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/plane/test_keystore.py::test_several_processes_that_start_at_once_agree"
                ),
                Door.ELSEWHERE: elsewhere("That CA is not one of Mooring."),
            },
        ),
        moments=moments(
            Never("The generation of the keys stands in the sealed row."),
            {
                Moment.AT_REST: Proof("tests/plane/sharedkeys/test_share.py::test_another_ca_is_refused_and_kept"),
                Moment.RESTART: Proof(
                    "tests/plane/sharedkeys/test_files.py::test_a_server_that_is_killed_between_two_writes_goes_on"
                ),
                Moment.RESTORE: Proof(
                    "tests/plane/sharedkeys/test_share.py::test_a_store_from_an_earlier_backup_gets_the_present_keys"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/plane/sharedkeys/test_share.py::test_without_a_token_the_error_says_what_to_give"
                ),
                Moment.LEADER: Proof(
                    "tests/plane/rollover/test_runner.py::test_two_servers_that_both_believe_to_lead_make_one_ca"
                ),
            },
        ),
    ),
    Promise(
        key="a-rollover-locks-nobody-out",
        sentence="A rollover is whole at every kill, and retires no CA while a Node lacks the other, unless it is forced.",
        doors=doors(
            Never("The CAs in force are the same for every way in."),
            {
                Door.KUBEADM: Proof(
                    "tests/scenarios/test_ca_rollover.py::test_the_ca_is_replaced_and_every_machine_finds_its_way"
                ),
                Door.K3S: Proof(
                    "tests/agent/k3s/test_process.py::test_new_cas_are_followed_and_a_retired_one_leads_to_an_early_renewal"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/controllers/test_carollover.py::test_obstacles_stop_each_step_forced_or_not"
                ),
                Door.RENEWAL: Proof(
                    "tests/agent/certificates/test_renewal.py::"
                    "test_a_rollover_of_the_ca_asks_for_an_earlier_renewal_once_for_each_certificate"
                ),
                Door.RECOVERY: Proof("tests/authn/test_recovery.py::test_a_retired_ca_lets_its_machines_come_back"),
                Door.OTHER_SERVER: Proof(
                    "tests/plane/rollover/test_runner.py::test_every_server_follows_a_rollover_through_the_store"
                ),
                Door.ELSEWHERE: elsewhere("No rollover is offered there: that CA is not one of Mooring."),
            },
        ),
        moments=moments(
            Never("The phase is read from the files, and the object in the store asks for the next."),
            {
                Moment.AT_REST: Proof("tests/controllers/test_carollover.py::test_a_machine_is_named_with_the_reason"),
                Moment.WATCH: Proof(
                    "tests/server/test_revocation.py::"
                    "test_watches_end_when_another_bundle_no_longer_verifies_their_certificate"
                ),
                Moment.RESTART: Proof(
                    "tests/plane/rollover/test_files.py::test_a_server_that_is_killed_between_two_writes_continues"
                ),
                Moment.RESTORE: Proof(
                    "tests/scenarios/test_ends.py::"
                    "test_what_ended_after_a_copy_of_the_store_stays_ended_until_it_is_applied"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/plane/rollover/test_files.py::test_a_file_that_cannot_be_read_is_named"
                ),
                Moment.LEADER: Proof(
                    "tests/plane/rollover/test_runner.py::test_another_server_goes_on_with_a_rollover"
                ),
            },
        ),
    ),
    Promise(
        key="a-refused-write-is-not-stored",
        sentence="A write to SQLite that fails with 503 is not stored. One that may be stored is answered with 504, and ends the "
        "process.",
        doors=doors(
            _WRITER,
            {
                Door.ADMINISTRATOR: Proof(
                    _DISK + "test_a_commit_whose_fsync_fails_is_answered_504_and_ends_the_server_with_an_error"
                ),
                Door.OTHER_SERVER: Never("A file of SQLite belongs to one server."),
                Door.OTHER_WORKER: Proof(_DISK + "test_of_several_workers_the_one_whose_commit_failed_is_replaced"),
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _WRITER,
            {
                Moment.AT_REST: Proof(
                    _DISK_ERRORS + "test_a_commit_that_stores_nothing_says_so_and_the_next_one_succeeds"
                ),
                Moment.QUEUED: Proof(
                    _DISK_ERRORS
                    + "test_a_commit_that_may_be_stored_has_an_unknown_outcome_and_ends_the_use_of_the_file"
                ),
                Moment.RESTART: Proof(_DISK_ERRORS + "test_what_a_start_recovers_is_on_the_disk_before_it_is_used"),
            },
        ),
    ),
    Promise(
        key="keys-are-made-once",
        sentence="The keys of a cluster are never made again beside its data, and its data is served with no other cluster's keys.",
        doors=doors(
            Never("It makes no key of the cluster."),
            {
                Door.ADMINISTRATOR: Proof("tests/scenarios/test_clusterkeys.py::test_the_page_of_lost_keys"),
                Door.OTHER_SERVER: Proof(_KEYS + "test_what_is_sealed_in_the_store_comes_back_from_there"),
                Door.OTHER_WORKER: Never(
                    "The parent process reads the store before it makes a key or starts a worker."
                ),
            },
        ),
        moments=moments(
            Never("Keys are compared with the store before the server serves."),
            {
                Moment.AT_REST: Proof(_KEYS + "test_a_store_without_its_pki_is_refused"),
                Moment.RESTART: Proof(_KEYS + "test_a_first_start_that_is_killed_at_any_write_is_completed"),
                Moment.RESTORE: Proof(_KEYS + "test_the_pki_of_one_cluster_with_the_store_of_another_is_refused"),
                Moment.UNREADABLE: Proof(
                    _KEYS + "test_a_store_without_a_record_is_adopted_with_its_ca_and_refused_without"
                ),
                Moment.LEADER: Proof(
                    "tests/plane/rollover/test_runner.py::test_the_record_of_a_server_that_keeps_its_keys_follows_the_phases"
                ),
            },
        ),
    ),
    Promise(
        key="faults-of-files-lose-nothing",
        sentence="Whatever operation on a file fails, nothing acknowledged is lost, nothing refused is stored, and keys are whole.",
        doors=doors(
            _WRITER,
            {
                Door.ADMINISTRATOR: _SEEDS,
                Door.OTHER_WORKER: _SEEDS,
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(_WRITER, {Moment.AT_REST: _SEEDS, Moment.QUEUED: _SEEDS, Moment.RESTART: _SEEDS}),
    ),
    Promise(
        key="a-replaced-database-is-noticed",
        sentence="A database file that is deleted, replaced or cut while it is open is noticed, and no write is answered with "
        "success.",
        doors=doors(
            _WRITER,
            {
                Door.ADMINISTRATOR: Proof(
                    _DISK + "test_a_database_that_is_deleted_while_it_is_open_is_noticed_and_can_be_put_back"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/storage/test_sqlite_replaced.py::test_a_log_that_another_process_empties_is_in_its_place"
                ),
                Door.OTHER_SERVER: Never("A file of SQLite belongs to one server."),
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The paths of the open files are compared at each commit."),
            {
                Moment.AT_REST: Proof(
                    "tests/storage/test_sqlite_replaced.py::"
                    "test_an_idle_server_notices_it_within_seconds_and_goes_on_when_the_file_is_back"
                ),
                Moment.QUEUED: Proof(
                    "tests/storage/test_sqlite_replaced.py::"
                    "test_a_file_that_is_not_in_its_place_is_noticed_by_the_next_write_and_nothing_is_stored"
                ),
                Moment.RESTART: Never("A start opens the file that is in its place."),
                Moment.RESTORE: Proof(
                    _DISK + "test_a_database_that_is_deleted_while_it_is_open_is_noticed_and_can_be_put_back"
                ),
            },
        ),
    ),
    Promise(
        key="changed-bytes-are-not-served",
        sentence="Bytes that changed in the SQLite file are never served as an object. A damaged object is named, and deleted on "
        "purpose only.",
        doors=doors(
            Never("Its objects are read from the file by the same reader, which verifies each record."),
            {
                Door.ADMINISTRATOR: Proof(
                    _DISK + "test_an_object_whose_bytes_changed_is_refused_by_its_name_and_can_be_deleted_on_purpose"
                ),
                Door.OTHER_SERVER: Never("A file of SQLite belongs to one server; etcd has checksums of its own."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("Each read from the file verifies the checksum."),
            {
                Moment.AT_REST: Proof(
                    _CHECKSUMS + "test_no_read_returns_a_changed_byte_and_what_is_missing_is_found_by_verification"
                ),
                Moment.WATCH: Proof(_CHECKSUMS + "test_a_watch_that_would_yield_a_damaged_record_lists_again"),
                Moment.RESTART: Proof(
                    _DISK + "test_an_object_whose_bytes_changed_is_refused_by_its_name_and_can_be_deleted_on_purpose"
                ),
                Moment.RESTORE: Proof(_CHECKSUMS + "test_verification_names_the_damaged_key_and_a_copy_is_refused"),
            },
        ),
    ),
    Promise(
        key="a-damaged-snapshot-replaces-none",
        sentence="A snapshot that was damaged while it was written does not take the place of a good one.",
        doors=doors(
            Never("It writes no snapshot."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/plane/snapshots/test_file.py::"
                    "test_a_snapshot_that_was_damaged_on_its_way_takes_no_others_place"
                ),
            },
        ),
        moments=moments(
            Never("A snapshot is read back from the disk and verified before it takes its name."),
            {
                Moment.AT_REST: Proof(
                    "tests/plane/snapshots/test_file.py::"
                    "test_a_snapshot_that_was_damaged_on_its_way_takes_no_others_place"
                ),
            },
        ),
    ),
    Promise(
        key="an-older-program-opens-no-newer-store",
        sentence="A program that does not support the format of a store is refused at its start, and stops when the format is "
        "raised while it is suspended.",
        doors=doors(
            Never("It is served by a process that has read the level of the format."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/scenarios/test_several_servers.py::"
                    "test_an_older_program_on_a_newer_store_is_refused_with_one_line"
                ),
                Door.OTHER_SERVER: Proof(
                    _LEVEL + "test_a_server_that_starts_while_the_leader_raises_the_level_is_seen_or_refused"
                ),
                Door.OTHER_WORKER: Never("Each worker publishes the levels that it supports, as each server does."),
                Door.ELSEWHERE: Never("mooring controllers opens no store."),
            },
        ),
        moments=moments(
            Never("No request takes part: a start reads the level, and the leader raises it."),
            {
                Moment.AT_REST: Proof(
                    "tests/scenarios/test_several_servers.py::"
                    "test_an_older_program_on_a_newer_store_is_refused_with_one_line"
                ),
                Moment.RESTART: Proof(_LEVEL + "test_a_server_whose_start_is_overtaken_by_the_raise_is_refused"),
                Moment.RESTORE: Never("The level is a key of the store, and goes with its copies and snapshots."),
                Moment.UNREADABLE: Never("The level is not encrypted."),
                Moment.LEADER: Proof(
                    _LEVEL + "test_a_server_that_starts_while_the_leader_raises_the_level_is_seen_or_refused"
                ),
                Moment.CLOCK: Proof(_LEVEL + "test_a_server_that_slept_while_the_level_was_raised_stops"),
            },
        ),
    ),
    Promise(
        key="a-key-that-comes-back-is-used",
        sentence="An object whose key or KMS plugin comes back is seen by every reader, without a write or a restart.",
        doors=doors(
            Never("Every way in reads the same views, which are read again after each change of the keys."),
            {
                Door.SIGNER: Proof(
                    "tests/registry/test_encryptionatrest.py::test_followers_of_a_view_see_what_can_be_read_again"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("Each change of the keys makes the views be read again, whatever waits or leads."),
            {
                Moment.AT_REST: Proof(
                    "tests/storage/encryption/test_kmsplugins.py::"
                    "test_a_plugin_that_starts_late_makes_values_readable_again"
                ),
                Moment.RESTART: Proof(
                    "tests/registry/test_encryptionatrest.py::"
                    "test_a_key_that_comes_back_while_the_state_is_read_is_used_at_once"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/registry/test_encryptionatrest.py::test_followers_of_a_view_see_what_can_be_read_again"
                ),
            },
        ),
    ),
)
