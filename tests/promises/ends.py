"""Promises: what was ended stays ended."""

from __future__ import annotations

from tests.promises.columns import LEAVING, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_DENYLIST = "tests/authn/test_denylist.py::test_an_entry_that_cannot_be_read_revokes_what_its_name_says"
_REVOKED = "tests/server/test_unreadable.py::test_a_revocation_that_cannot_be_read_goes_on_revoking"
_THREE_YEARS = (
    "tests/plane/test_carenewal.py::"
    "test_every_worker_and_server_has_valid_certificates_a_minute_after_each_jump_of_three_years"
)
_RESTORED = "tests/scenarios/test_ends.py::test_what_ended_after_a_copy_of_the_store_stays_ended_until_it_is_applied"

ROWS: tuple[Promise, ...] = (
    Promise(
        key="revocation-that-cannot-be-read",
        sentence="A revocation that cannot be read goes on revoking.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_REVOKED),
            Door.K3S: Proof(_REVOKED),
            Door.ADMINISTRATOR: Proof(_REVOKED),
            Door.SIGNER: Proof(
                "tests/reconcile/test_loop.py::test_an_object_that_cannot_be_read_stops_the_plans_that_need_it_and_no_other"
            ),
            Door.RENEWAL: Proof(_REVOKED),
            Door.RECOVERY: Proof(_DENYLIST),
            Door.LOGIN: Proof(_REVOKED),
            Door.SERVICE_ACCOUNT: Never("Revocations concern certificates."),
            Door.OTHER_SERVER: Never("The name of the entry is in the store, where every server reads it."),
            Door.OTHER_WORKER: Never("The name of the entry is in the store, where every worker reads it."),
            Door.SERVING: Proof("tests/controllers/test_requester.py::test_a_request_is_worth_what_its_requester_is"),
            Door.PERSON: Proof("tests/controllers/test_requester.py::test_a_request_is_worth_what_its_requester_is"),
            Door.REVIEW: Never("A review judges a token, and no certificate."),
            Door.ELSEWHERE: Proof(
                "tests/reconcile/test_kubernetes.py::"
                "test_a_kind_whose_changes_do_not_arrive_is_unreadable_until_they_do"
            ),
        },
        moments={
            Moment.AT_REST: Proof(
                "tests/plane/storemark/test_storemark.py::"
                "test_a_revocation_that_the_store_lost_is_made_again_and_one_that_was_deleted_is_not"
            ),
            Moment.BODY: Never(
                "An unreadable object moves the revision of its view, which a later judgement compares."
            ),
            Moment.QUEUED: Never(
                "An unreadable object moves the revision of its view, which a later judgement compares."
            ),
            Moment.WATCH: Proof(
                "tests/server/test_unreadable.py::test_the_revocation_of_a_node_that_cannot_be_read_is_503_for_that_node_alone"
            ),
            Moment.RESTART: Proof(
                "tests/plane/test_registry.py::test_an_entry_of_the_denylist_that_cannot_be_decrypted_is_known_by_its_name"
            ),
            Moment.RESTORE: Never("A restored value is read, or not, like any other."),
            Moment.UNREADABLE: Proof(_DENYLIST),
            Moment.LEADER: Never("The check runs on each server, whichever leads."),
            Moment.CLOCK: Never("The presence of an entry counts, and not its expiry."),
        },
    ),
    Promise(
        key="ends-outlive-the-store",
        sentence="What had ended stays ended on a store that was restored, and nothing is issued until that is settled.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_RESTORED),
            Door.K3S: Proof(
                "tests/server/test_endsgate.py::test_agents_of_k3s_get_no_certificate_and_no_password_is_stored_while_an_end_waits"
            ),
            Door.ADMINISTRATOR: Proof(
                "tests/registry/test_admission.py::test_the_list_of_ends_loses_only_what_is_settled"
            ),
            Door.SIGNER: Proof("tests/server/test_endsgate.py::test_no_signer_signs_while_an_end_waits"),
            Door.RENEWAL: Proof("tests/server/test_endsgate.py::test_no_signer_signs_while_an_end_waits"),
            Door.RECOVERY: Proof(
                "tests/plane/storemark/test_storemark.py::test_revocations_are_made_again_whatever_else_waits"
            ),
            Door.LOGIN: Proof("tests/server/test_endsgate.py::test_what_issues_answers_503_while_an_end_waits"),
            Door.SERVICE_ACCOUNT: Proof(
                "tests/authn/test_serviceaccount.py::test_a_token_of_a_node_that_came_back_with_a_restored_store"
            ),
            Door.OTHER_SERVER: Proof(
                "tests/scenarios/test_live_restore.py::test_ends_stay_ended_under_a_server_whose_etcd_is_restored"
            ),
            Door.OTHER_WORKER: Never("The ConfigMap of the ends is in the store, where every worker reads it."),
            Door.SERVING: Proof("tests/server/test_endsgate.py::test_no_signer_signs_while_an_end_waits"),
            Door.PERSON: Proof("tests/server/test_endsgate.py::test_no_signer_signs_while_an_end_waits"),
            Door.REVIEW: Proof(
                "tests/authn/test_serviceaccount.py::test_a_token_of_a_node_that_came_back_with_a_restored_store"
            ),
            Door.ELSEWHERE: elsewhere("What a restored etcd lacks has not happened."),
        },
        moments={
            Moment.AT_REST: Proof(
                "tests/plane/storemark/test_storemark.py::test_a_copy_to_which_another_server_has_written_since_is_older"
            ),
            Moment.BODY: Never("The gate is read when a credential is issued, without an await before it."),
            Moment.QUEUED: Proof(
                "tests/server/test_endsgate.py::test_an_end_that_comes_while_a_request_waits_refuses_it"
            ),
            Moment.WATCH: Proof(
                "tests/plane/storemark/test_storemark.py::test_a_store_that_is_restored_while_the_server_runs_is_judged_before_the_mark_is_written"
            ),
            Moment.RESTART: Proof(
                "tests/plane/storemark/test_storemark.py::test_an_end_after_a_waiver_is_another_end",
            ),
            Moment.RESTORE: Proof(
                "tests/scenarios/test_ends.py::test_a_machine_that_joined_after_the_snapshot_and_was_removed_stays_out"
            ),
            Moment.UNREADABLE: Proof(
                "tests/plane/storemark/test_undecidedends.py::test_what_cannot_be_read_in_a_restored_store_waits"
            ),
            Moment.LEADER: Never("The ConfigMap of the ends is in the store, whichever process leads."),
            Moment.CLOCK: Never("A store is older by its revisions, its counts and its cluster, and not by a time."),
        },
    ),
    Promise(
        key="own-certificates-are-renewed-in-time",
        sentence=(
            "A server's own certificates are renewed while it runs, also when its clock is set, "
            "and what a person renews is warned of long before."
        ),
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Never("Certificates of machines are renewed by the machines."),
            Door.K3S: Never("Certificates of machines are renewed by the machines."),
            Door.ADMINISTRATOR: Proof(
                "tests/plane/background/test_expirywatch.py::test_a_warning_is_a_line_an_event_and_a_check_once_a_day_until_it_is_replaced"
            ),
            Door.SIGNER: Proof(
                "tests/plane/background/test_expirywatch.py::test_a_whole_server_watches_its_certificates_and_cas"
            ),
            Door.RENEWAL: Proof(_THREE_YEARS),
            Door.RECOVERY: Never("Recovery is for machines."),
            Door.LOGIN: Never("A login obtains another certificate."),
            Door.SERVICE_ACCOUNT: Never("Tokens are not certificates."),
            Door.OTHER_SERVER: Proof(_THREE_YEARS),
            Door.OTHER_WORKER: Proof(_THREE_YEARS),
            Door.SERVING: Never("Certificates of machines are renewed by the machines."),
            Door.PERSON: Never("The certificates of a server need no approval."),
            Door.REVIEW: Never("A review renews no certificate."),
            Door.ELSEWHERE: Never("mooring controllers has no certificate of its own: it uses that of its kubeconfig."),
        },
        moments={
            Moment.AT_REST: Proof("tests/plane/background/test_expirywatch.py::test_from_when_on_a_person_is_told"),
            Moment.BODY: Never("No request takes part."),
            Moment.QUEUED: Never("No request takes part."),
            Moment.WATCH: Never("A connection keeps the certificate of its handshake."),
            Moment.RESTART: Proof(
                "tests/plane/background/test_expirywatch.py::test_the_workers_of_a_server_share_an_event"
            ),
            Moment.RESTORE: Never("The certificates are files beside the store."),
            Moment.UNREADABLE: Proof(
                "tests/plane/test_carenewal.py::test_a_server_that_runs_for_months_renews_its_certificates"
            ),
            Moment.LEADER: Never("Each server renews its own, whichever leads."),
            Moment.CLOCK: Proof(_THREE_YEARS),
        },
    ),
    Promise(
        key="an-update-never-revokes-less",
        sentence="No update of a revocation revokes less than before, and entries stay for as long as their certificates could "
        "count.",
        doors=doors(
            Never("It writes no revocation."),
            {
                Door.ADMINISTRATOR: Proof("tests/api/test_certificaterevocation.py::test_an_update_never_revokes_less"),
                Door.RENEWAL: Proof(
                    "tests/api/test_certificaterevocation.py::test_to_revoke_a_node_again_moves_the_moment"
                ),
                Door.RECOVERY: Proof(
                    "tests/controllers/test_revocation.py::test_an_entry_stays_while_its_certificates_recover_by_rule"
                ),
                Door.SERVICE_ACCOUNT: Proof("tests/registry/test_ownerreferences.py::test_what_is_refused"),
                Door.ELSEWHERE: elsewhere("What an entry revokes cannot be changed there, but until when can."),
            },
        ),
        moments=moments(
            Never("The stored entry is compared with the new one at each write."),
            {
                Moment.AT_REST: Proof("tests/api/test_certificaterevocation.py::test_an_update_never_revokes_less"),
                Moment.QUEUED: Proof("tests/controllers/test_revocation.py::test_only_an_entry_that_is_still_due_goes"),
                Moment.WATCH: Never("A watch writes nothing."),
                Moment.UNREADABLE: Proof(_DENYLIST),
                Moment.CLOCK: Proof(
                    "tests/controllers/test_revocation.py::"
                    "test_a_clock_that_ran_years_ahead_for_some_hours_deletes_no_entry"
                ),
            },
        ),
    ),
)
