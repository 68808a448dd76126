"""Promises: may this server change what the cluster publishes."""

from __future__ import annotations

from tests.promises.columns import LEAVING, Cell, Documented, Door, Moment, Never, Promise, Proof, moments

_LOCK = "tests/plane/test_directorylock.py::"
_REFUSED = Proof(_LOCK + "test_a_directory_in_use_is_refused_at_once_with_the_process_and_what_to_do")
_DRAINING = Proof(_LOCK + "test_the_workers_of_a_killed_parent_hold_it_until_they_have_drained")
_ENDPOINTS = "tests/plane/test_endpoints.py::"
_STAYS = Proof(_ENDPOINTS + "test_an_address_that_is_left_out_beside_one_that_stays_is_removed_and_a_default_is_not")
_EDITED = "tests/scenarios/test_edited_clusterinfo.py::"
_ROLLOVER = "tests/controllers/test_carollover.py::"
_BOOT = "tests/plane/test_firstboot.py::"
_NO_REQUEST = Never("No request takes part: a start publishes.")
_DOORS: dict[Door, Cell] = {
    door: Never("The way in reads what is published, and changes nothing of it.")
    for door in Door
    if door not in (Door.OTHER_SERVER, Door.OTHER_WORKER)
}

ROWS: tuple[Promise, ...] = (
    Promise(
        key="one-server-for-each-data-directory",
        sentence="A second server on a data directory is refused, and changes nothing that the cluster publishes.",
        doors={
            Door.LEAVE: LEAVING,
            **_DOORS,
            Door.OTHER_SERVER: _REFUSED,
            Door.OTHER_WORKER: _DRAINING,
            Door.ELSEWHERE: Never("mooring controllers has no data directory."),
        },
        moments={
            Moment.AT_REST: _REFUSED,
            Moment.BODY: _NO_REQUEST,
            Moment.QUEUED: _NO_REQUEST,
            Moment.WATCH: _NO_REQUEST,
            Moment.RESTART: _DRAINING,
            Moment.RESTORE: Never("The lock is of the directory, and not of what the store holds."),
            Moment.UNREADABLE: Proof(_LOCK + "test_a_lock_without_a_number_is_another_process"),
            Moment.LEADER: Never("The lock is held by the process, whichever leads."),
            Moment.CLOCK: Never("The lock is held until it is given back, for whatever time."),
        },
    ),
    Promise(
        key="published-addresses-stay",
        sentence="A published address stays until a person withdraws it, or leaves it out beside one that stays.",
        doors={
            Door.LEAVE: LEAVING,
            **_DOORS,
            Door.OTHER_SERVER: _REFUSED,
            Door.OTHER_WORKER: Never("Workers share the configuration."),
            Door.ELSEWHERE: Never("bootstrapsigner signs cluster-info, and changes no address in it."),
        },
        moments={
            Moment.AT_REST: _STAYS,
            Moment.BODY: _NO_REQUEST,
            Moment.QUEUED: _NO_REQUEST,
            Moment.WATCH: _NO_REQUEST,
            Moment.RESTART: Proof(_ENDPOINTS + "test_an_address_that_was_given_is_kept_although_it_is_of_this_machine"),
            Moment.RESTORE: Never("The addresses stand in files beside the store."),
            Moment.UNREADABLE: Proof(_ENDPOINTS + "test_a_directory_of_an_earlier_version"),
            Moment.LEADER: Never("Each server publishes its own configuration."),
            Moment.CLOCK: Never("No time takes part."),
        },
    ),
    Promise(
        key="what-is-published-verifies-the-server",
        sentence="A certificate, or a bundle of CAs, that does not verify with the other is not put in force, and the last good "
        "pair stays.",
        doors={
            Door.LEAVE: LEAVING,
            **_DOORS,
            Door.OTHER_SERVER: Never("Each server verifies its own files."),
            Door.OTHER_WORKER: Never("Each worker verifies the same files."),
            Door.ELSEWHERE: Never(
                "mooring controllers publishes no CA, and changes no certificate of that API server."
            ),
        },
        moments=moments(
            _NO_REQUEST,
            {
                Moment.AT_REST: Proof(
                    "tests/plane/test_servingpair.py::test_a_pair_that_the_bundle_does_not_verify_waits_for_one_that_does"
                ),
                Moment.RESTART: Proof(
                    "tests/plane/test_keystore.py::test_a_bundle_that_does_not_verify_the_server_stops_the_start"
                ),
                Moment.RESTORE: Never("The files are beside the store."),
                Moment.UNREADABLE: Proof(
                    "tests/plane/test_reloading.py::test_the_last_good_content_stays_in_force_and_the_log_says_so_once"
                ),
                Moment.LEADER: Never("Each server publishes its own configuration."),
                Moment.CLOCK: Proof(
                    "tests/plane/test_carenewal.py::"
                    "test_every_worker_and_server_has_valid_certificates_a_minute_after_each_jump_of_three_years"
                ),
            },
        ),
    ),
    Promise(
        key="a-rollover-keeps-the-way-to-join",
        sentence="No phase of a rollover is reached, forced or not, while cluster-info, root-ca-file or client-ca-file lacks the "
        "CA that stays, unless cluster-info names no CA of the cluster.",
        doors={
            Door.LEAVE: LEAVING,
            **_DOORS,
            Door.KUBEADM: Proof(_EDITED + "test_machines_join_in_each_phase_by_a_new_line"),
            Door.ADMINISTRATOR: Proof(_EDITED + "test_force_does_not_lock_administrators_out_by_client_ca_file"),
            Door.PERSON: Proof(_ROLLOVER + "test_obstacles_stop_each_step_forced_or_not"),
            Door.OTHER_SERVER: Documented(
                "The server that runs the controllers judges its own files: append the CA to those of each server.",
                "docs/replace-the-ca.md#several-servers",
            ),
            Door.OTHER_WORKER: Proof(_BOOT + "test_what_stands_in_the_way_of_joining_is_named"),
            Door.ELSEWHERE: Never("mooring controllers replaces no CA."),
        },
        moments={
            Moment.AT_REST: Proof(
                "tests/trust/test_editedclusterinfo.py::test_an_obstacle_names_the_configmap_and_what_to_do"
            ),
            Moment.BODY: _NO_REQUEST,
            Moment.QUEUED: Proof(_BOOT + "test_a_write_in_the_same_moment_is_merged"),
            Moment.WATCH: Proof(_EDITED + "test_an_edit_in_the_middle_follows_at_once_and_an_abort_leads_back"),
            Moment.RESTART: Proof(_EDITED + "test_no_way_leads_on_while_cluster_info_cannot_follow"),
            Moment.RESTORE: Proof(_BOOT + "test_a_store_of_an_earlier_version_follows_out_of_the_trap"),
            Moment.UNREADABLE: Proof(_BOOT + "test_what_stands_in_the_way_of_joining_is_named"),
            Moment.LEADER: Proof(
                "tests/plane/rollover/test_runner.py::test_no_step_is_taken_that_joining_machines_could_not_follow"
            ),
            Moment.CLOCK: Never("No time takes part."),
        },
    ),
)
