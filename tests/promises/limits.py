"""Promises: what one caller can cost another."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, LEAVING, Documented, Door, Moment, Never, Promise, Proof, doors, moments

_TURN = Proof(
    "tests/server/test_http1.py::test_a_refusal_waits_for_the_replies_before_it_and_nothing_is_served_after_it"
)
_HOST = Proof("tests/server/test_http1.py::test_a_request_names_one_host_in_a_version_that_is_spoken")
_LONG_WORK = "tests/registry/test_longwork.py::"
_ETCD = "tests/storage/test_etcd_deadlines.py::"
_NO_STATE = Never("The bytes of a connection are judged before any state of the cluster is read.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="replies-belong-to-their-requests",
        sentence="A reply belongs to its request: refusals take their turn, and what could be read in two ways is refused.",
        doors={
            Door.LEAVE: LEAVING,
            **{door: Never("Every way in over HTTP has the same connection.") for door in Door},
            Door.ADMINISTRATOR: _TURN,
            Door.KUBEADM: _HOST,
            Door.ELSEWHERE: ITS_OWN,
        },
        moments={
            Moment.AT_REST: Proof("tests/attack/test_pipelines.py::test_every_reply_is_that_of_its_request"),
            Moment.BODY: _TURN,
            Moment.QUEUED: _TURN,
            Moment.WATCH: Proof(
                "tests/server/test_http1.py::test_junk_in_the_middle_of_a_reply_ends_the_connection_and_adds_nothing_to_it"
            ),
            Moment.RESTART: _NO_STATE,
            Moment.RESTORE: _NO_STATE,
            Moment.UNREADABLE: _NO_STATE,
            Moment.LEADER: _NO_STATE,
            Moment.CLOCK: _NO_STATE,
        },
    ),
    Promise(
        key="guesses-are-limited",
        sentence="Wrong credentials of a source are answered twenty at once and one each second, on all workers together; right "
        "ones "
        "of others are never slowed.",
        doors=doors(
            Never("Every way in over HTTP counts failures in the same place."),
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_authentication.py::test_a_source_that_guesses_is_answered_late_and_with_429_beyond_its_budget"
                ),
                Door.K3S: Proof(
                    "tests/server/test_supervisor.py::test_wrong_tokens_count_with_all_failures_of_a_source"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_authentication.py::"
                    "test_others_behind_the_same_address_who_prove_who_they_are_are_not_slowed"
                ),
                Door.LOGIN: Proof(
                    "tests/server/test_userfiles.py::test_who_guesses_beyond_the_budget_costs_no_scrypt_and_nobody_else_is_slowed"
                ),
                Door.OTHER_SERVER: Documented(
                    "Each server counts for itself: several servers answer as many times as many.",
                    "docs/access.md#guessed-credentials",
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/scenarios/test_hostlimits.py::"
                    "test_two_workers_are_one_server_for_guesses_the_audit_log_metrics_and_refusals"
                ),
                Door.REVIEW: Documented(
                    "Who may review tokens may try any number of them: the tokens in a review are not counted.",
                    "docs/access.md#guessed-credentials",
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The count is in memory, and no object takes part."),
            {
                Moment.AT_REST: Proof(
                    "tests/authn/test_guesses.py::test_a_scan_of_ten_thousand_guesses_is_mostly_refused"
                ),
                Moment.QUEUED: Proof("tests/server/test_secondstage.py::test_nothing_is_found_out_for_who_guesses"),
                Moment.RESTART: Proof(
                    "tests/server/test_hostshare.py::test_a_killed_worker_leaves_neither_counts_nor_a_lock"
                ),
                Moment.CLOCK: Proof("tests/authn/test_guesses.py::test_a_clock_that_goes_back_never_refills"),
            },
        ),
    ),
    Promise(
        key="one-client-holds-its-own-share",
        sentence="The connections, memory and places that a source may hold are bounded, and a source above its bound loses its "
        "own.",
        doors=doors(
            Never("Every way in over HTTP is counted by its source, before it is known."),
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_listener.py::test_one_source_holds_at_most_half_of_the_connections"
                ),
                Door.K3S: Proof(
                    "tests/server/test_supervisor.py::test_reading_and_changing_do_not_displace_each_other"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_heldbytes.py::"
                    "test_the_largest_connection_of_a_source_above_its_share_is_cut_and_no_neighbour"
                ),
                Door.LOGIN: Proof(
                    "tests/server/test_secondstage.py::test_a_storm_of_passwords_is_refused_beyond_the_queue"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_hostshare.py::test_bytes_held_for_a_source_by_all_workers_count_and_each_gives_up_its_part"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("Bounds are of the process and its host, and no object takes part."),
            {
                Moment.AT_REST: Proof(
                    "tests/server/test_sourcenetwork.py::test_every_limit_of_a_source_counts_an_ipv6_site_as_one"
                ),
                Moment.BODY: Proof("tests/server/test_http1.py::test_a_body_is_counted_until_its_request_has_ended"),
                Moment.QUEUED: Proof("tests/server/test_flowcontrol.py::test_a_full_queue_is_429_for_that_user_only"),
                Moment.WATCH: Proof("tests/server/test_watches.py::test_a_client_too_far_behind_is_cut_off"),
                Moment.RESTART: Proof(
                    "tests/server/test_hostshare.py::test_counts_of_a_worker_that_ended_are_forgotten_and_no_others"
                ),
            },
        ),
    ),
    Promise(
        key="work-is-linear",
        sentence="The work of a request is at most linear in its bytes and in what it touches, and holds up no other request "
        "for long.",
        doors=doors(
            Never("Every way in over HTTP has the same decoders, and the same thread for long work."),
            {
                Door.KUBEADM: Proof("tests/server/test_heavy.py::test_a_join_token_sends_small_bodies_only"),
                Door.K3S: Proof("tests/server/test_supervisor.py::test_a_long_body_is_refused_before_it_takes_a_place"),
                Door.ADMINISTRATOR: Proof("tests/apimachinery/test_growth.py::test_apply"),
                Door.SIGNER: Proof("tests/pki/test_namegate.py::test_the_work_for_one_request_is_bounded"),
                Door.LOGIN: Proof("tests/pki/test_verify.py::test_the_search_ends_after_a_fixed_number_of_checks"),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_heavy.py::test_a_long_selector_of_a_review_is_parsed_beside_the_loop"
                ),
                Door.REVIEW: Proof(
                    "tests/server/test_heavy.py::test_a_long_selector_of_a_review_is_parsed_beside_the_loop"
                ),
                Door.ELSEWHERE: Proof(
                    "tests/reconcile/test_loop.py::test_hundreds_of_keys_of_one_event_leave_turns_to_the_event_loop"
                ),
            },
        ),
        moments=moments(
            Never("The bytes of the request decide, and no state."),
            {
                Moment.RESTART: Proof(
                    "tests/reconcile/test_loop.py::test_hundreds_of_keys_of_one_event_leave_turns_to_the_event_loop"
                ),
                Moment.LEADER: Proof(
                    "tests/controllers/test_clusterroleaggregation.py::test_the_work_is_linear_in_the_rules"
                ),
                Moment.AT_REST: Proof("tests/api/test_growth.py::test_the_work_of_all_hooks_is_linear"),
                Moment.BODY: Proof("tests/server/test_heavy.py::test_a_long_query_is_not_parsed_before_authentication"),
                Moment.QUEUED: Proof("tests/registry/test_longwork.py::test_callers_that_always_wait_get_equal_time"),
                Moment.WATCH: Proof(
                    "tests/server/test_watches.py::test_the_initial_state_goes_out_in_slices_and_changes_wait_for_its_end"
                ),
            },
        ),
    ),
    Promise(
        key="anonymous-callers-come-last",
        sentence="Anonymous requests start when no other request waits, a few in each turn, and read cluster-info, health and "
        "version "
        "only.",
        doors=doors(
            Never("A caller with a credential is not anonymous."),
            {
                Door.KUBEADM: Proof("tests/server/test_authentication.py::test_what_anonymous_may"),
                Door.K3S: Proof("tests/server/test_supervisor.py::test_public_paths_need_no_credential_and_read_none"),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_hostshare.py::test_anonymous_requests_of_all_workers_have_one_share"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("Places are given out in memory, and no object takes part."),
            {
                Moment.AT_REST: Proof(
                    "tests/server/test_flowcontrol.py::test_few_anonymous_callers_are_served_in_one_turn_of_the_loop"
                ),
                Moment.QUEUED: Proof("tests/server/test_flowcontrol.py::test_anonymous_callers_wait_while_users_do"),
                Moment.WATCH: Proof(
                    "tests/server/test_http2.py::test_a_watch_of_nobody_in_particular_goes_on_and_the_connection_takes_no_more"
                ),
            },
        ),
    ),
    Promise(
        key="a-silent-part-delays-nobody-else",
        sentence="A service, a token, a KMS plugin or a member of etcd that hangs is left at a deadline, and delays no request "
        "that does "
        "not need it.",
        doors=doors(
            Never("It needs none of these services."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_webhook.py::test_a_slow_webhook_is_waited_for_and_then_not"
                ),
                Door.SIGNER: Proof(
                    "tests/reconcile/test_devicethreads.py::"
                    "test_a_device_that_never_answers_is_given_up_and_does_not_take_every_thread"
                ),
                Door.LOGIN: Proof(
                    "tests/authn/test_customcalls.py::test_one_that_blocks_keeps_its_threads_and_holds_up_nobody_else"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/faults/test_etcd_members.py::"
                    "test_without_a_quorum_reads_and_writes_are_refused_clearly_and_go_on_afterwards"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_sharedlistener.py::test_a_worker_that_does_not_accept_delays_a_connection_only_shortly"
                ),
                Door.SERVING: Proof(
                    "tests/reconcile/test_resolver.py::"
                    "test_requesters_whose_names_are_not_answered_leave_places_to_others"
                ),
                Door.PERSON: Never("The credential of the person is judged as that of every administrator who writes."),
                Door.REVIEW: Never(
                    "A review asks a service in the same second stage, which has a deadline and a number of places."
                ),
                Door.ELSEWHERE: Proof(
                    "tests/reconcile/test_leaderelection.py::"
                    "test_a_server_that_hangs_is_a_failure_after_the_renewal_deadline"
                ),
            },
        ),
        moments=moments(
            Never("Each call has a deadline of its own, whatever waits or leads."),
            {
                Moment.AT_REST: Proof(
                    "tests/storage/encryption/test_kmsplugins.py::"
                    "test_a_plugin_that_hangs_delays_a_thousand_values_no_more_than_one"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/storage/encryption/test_kmsplugins.py::test_a_plugin_that_starts_late_makes_values_readable_again"
                ),
            },
        ),
    ),
    Promise(
        key="texts-cost-their-length",
        sentence="No text of a request costs more time than its length.",
        doors=doors(
            Never("Every way in over HTTP has the same decoders."),
            {
                Door.ADMINISTRATOR: Proof("tests/attack/test_longtext.py::test_texts_of_objects"),
                Door.LOGIN: Proof("tests/attack/test_longtext.py::test_texts_of_parsers"),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The bytes of the request decide, and no state."),
            {
                Moment.AT_REST: Proof("tests/attack/test_longtext.py::test_texts_of_objects"),
                Moment.BODY: Proof("tests/attack/test_longtext.py::test_directives_of_yaml_are_few"),
            },
        ),
    ),
    Promise(
        key="callers-share-long-work",
        sentence="A caller does not wait for the backlog of long work of another, and the work that it may have waiting is "
        "bounded in bytes.",
        doors=doors(
            Never("Every way in over HTTP has the same thread for long work."),
            {
                Door.ADMINISTRATOR: Proof(_LONG_WORK + "test_a_caller_waits_for_no_backlog_of_another"),
                Door.SERVICE_ACCOUNT: Proof(_LONG_WORK + "test_service_accounts_of_a_namespace_are_one_caller"),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The time that callers used is counted in memory, and no object takes part."),
            {
                Moment.AT_REST: Proof(_LONG_WORK + "test_a_caller_waits_for_no_backlog_of_another"),
                Moment.BODY: Proof(_LONG_WORK + "test_what_a_caller_may_hold_is_bounded_in_bytes"),
                Moment.QUEUED: Proof(_LONG_WORK + "test_callers_that_always_wait_get_equal_time"),
            },
        ),
    ),
    Promise(
        key="strangers-write-short-records",
        sentence="A request without authentication leaves at most 2 KiB in the audit log.",
        doors=doors(
            Never("Every request over HTTP is recorded by the same auditor."),
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_audittruncate.py::test_an_unauthenticated_request_leaves_a_record_of_two_kilobytes"
                ),
                Door.SIGNER: Never("A signer makes no request over HTTP."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The record is cut when it is written, whatever waits or is stored."),
            {
                Moment.AT_REST: Proof(
                    "tests/server/test_audittruncate.py::test_an_unauthenticated_request_leaves_a_record_of_two_kilobytes"
                ),
            },
        ),
    ),
    Promise(
        key="a-restart-of-workers-loses-no-request",
        sentence="While SIGHUP replaces the workers, every request is answered, and every write that was acknowledged is there.",
        doors=doors(
            Never("Every way in over HTTP has the same listener and the same drain."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/faults/test_restart.py::test_a_restart_of_all_workers_loses_no_request"
                ),
                Door.SIGNER: Never("A signer makes no request over HTTP: another worker leads, and plans again."),
                Door.OTHER_SERVER: Never("Another server is not restarted."),
                Door.OTHER_WORKER: Proof(
                    "tests/faults/test_restart.py::test_a_restart_of_all_workers_loses_no_request"
                ),
                Door.ELSEWHERE: Never("mooring controllers has no workers: another process takes over its Lease."),
            },
        ),
        moments=moments(
            Never("An old worker drains after a new one serves, whatever is stored."),
            {
                Moment.RESTART: Proof("tests/faults/test_restart.py::test_a_restart_of_all_workers_loses_no_request"),
                Moment.WATCH: Never(
                    "A watch is not a request that is lost: it ends, and its client goes on from its revision."
                ),
            },
        ),
    ),
    Promise(
        key="a-silent-etcd-has-a-deadline",
        sentence="While etcd is silent a read fails after 6 seconds, and a write ends after 10 seconds.",
        doors=doors(
            Never("Its reads and writes go through the same driver."),
            {
                Door.ADMINISTRATOR: Proof(_ETCD + "test_a_write_to_a_silent_etcd_ends_after_ten_seconds"),
                Door.OTHER_SERVER: Proof(_ETCD + "test_a_read_of_a_silent_etcd_fails_after_six_seconds"),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("Each call has a deadline of its own, on a clock that is never set."),
            {
                Moment.AT_REST: Proof(_ETCD + "test_a_read_of_a_silent_etcd_fails_after_six_seconds"),
                Moment.QUEUED: Proof(_ETCD + "test_a_write_to_a_silent_etcd_ends_after_ten_seconds"),
            },
        ),
    ),
)
