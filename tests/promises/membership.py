"""Promises: is this machine a member."""

from __future__ import annotations

from tests.promises.columns import Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_UNREADABLE = "tests/server/test_unreadable.py::"
_LEAVING = "tests/server/test_leave.py::"
_CHECK = "tests/authn/test_membership.py::test_what_cannot_be_read_leaves_the_certificates_of_its_own_name_undecided"
_SCENARIO = "tests/scenarios/test_membership.py::"
_K3S = "tests/server/test_k3scertificates.py::"
_COLLECTOR = "tests/controllers/test_garbagecollector.py::test_what_says_which_machines_may_come_in_is_never_collected"

_LEAVE = Proof("tests/server/test_leave.py::test_a_credential_that_ended_ends_no_membership")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="a-machine-ends-no-membership-but-its-own",
        sentence="A machine that leaves ends its own membership and nothing else, by the client certificate that it proves: "
        "its Node goes, and its certificates are revoked.",
        doors=doors(
            Never("No other way in ends the membership of its caller."),
            {
                Door.LEAVE: Proof(_LEAVING + "test_a_machine_ends_its_own_membership_and_no_other"),
                Door.RENEWAL: Proof(
                    _LEAVING
                    + "test_a_certificate_that_was_signed_beside_the_request_is_revoked_unless_it_is_another_machines"
                ),
                Door.PERSON: Proof(_LEAVING + "test_a_caller_that_is_no_machine_ends_nothing"),
                Door.ADMINISTRATOR: Proof(_LEAVING + "test_a_caller_that_is_no_machine_ends_nothing"),
                Door.K3S: Proof(
                    "tests/agent/k3s/test_live.py::test_a_machine_leaves_by_the_servers_that_it_has_learned"
                ),
                Door.ELSEWHERE: elsewhere(
                    "Another API server has no such path: an administrator deletes the Node, and mooring leave says so."
                ),
            },
        ),
        moments=moments(
            Never("The deletion is judged at its commit, with the credential of the machine and the uid of its Node."),
            {
                Moment.AT_REST: Proof(_LEAVING + "test_a_machine_without_a_node_leaves_and_frees_its_name"),
                Moment.QUEUED: Proof(_LEAVING + "test_a_credential_that_ended_ends_no_membership"),
                Moment.CLOCK: Proof(_LEAVING + "test_an_expired_certificate_is_no_membership_that_has_ended"),
                Moment.RESTORE: Never("The deletion and the revocations are ends, and are made again after a restore."),
            },
        ),
    ),
    Promise(
        key="membership-that-cannot-be-read",
        sentence="A membership that cannot be read counts for nothing: its node gets 503 meanwhile, and no other node notices.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Proof(
                _UNREADABLE + "test_machines_join_while_a_secret_cannot_be_read_when_the_leader_changes"
            ),
            Door.K3S: Proof(
                "tests/server/test_k3scertificates.py::test_no_password_is_set_for_a_name_whose_record_cannot_be_read"
            ),
            Door.ADMINISTRATOR: Never(
                "A certificate of a person names no node, and the check of membership passes it."
            ),
            Door.SIGNER: Proof(
                "tests/reconcile/test_loop.py::test_an_object_that_cannot_be_read_stops_the_plans_that_need_it_and_no_other"
            ),
            Door.RENEWAL: Proof(_UNREADABLE + "test_a_membership_that_cannot_be_read_is_503_for_that_node_alone"),
            Door.RECOVERY: Proof(_CHECK),
            Door.LOGIN: Proof("tests/authz/test_node.py::test_a_node_whose_membership_cannot_be_read_gets_nothing"),
            Door.SERVICE_ACCOUNT: Proof(
                "tests/authn/test_serviceaccount.py::test_about_an_object_that_cannot_be_read_there_is_no_verdict"
            ),
            Door.OTHER_SERVER: Never("Each server reads the store itself, and judges by what it can read."),
            Door.OTHER_WORKER: Never("Each worker reads the store itself, and judges by what it can read."),
            Door.SERVING: Proof(
                "tests/server/test_servingrequests.py::"
                "test_a_machine_whose_membership_cannot_be_read_waits_for_its_serving_certificate"
            ),
            Door.PERSON: Proof("tests/controllers/test_requester.py::test_a_request_is_worth_what_its_requester_is"),
            Door.REVIEW: Proof(
                "tests/server/test_reviews.py::"
                "test_an_access_review_of_a_node_whose_membership_has_ended_allows_nothing"
            ),
            Door.ELSEWHERE: Proof(
                "tests/reconcile/test_kubernetes.py::"
                "test_a_kind_whose_changes_do_not_arrive_is_unreadable_until_they_do"
            ),
        },
        moments={
            Moment.AT_REST: Proof(
                _UNREADABLE + "test_a_damaged_field_is_503_for_its_node_and_hides_no_end_from_the_others"
            ),
            Moment.BODY: Never(
                "An unreadable object moves the revision of its view, which a later judgement compares."
            ),
            Moment.QUEUED: Proof(
                "tests/reconcile/test_loop.py::test_an_object_that_cannot_be_read_stops_the_plans_that_need_it_and_no_other"
            ),
            Moment.WATCH: Proof(
                _UNREADABLE + "test_the_revocation_of_a_node_that_cannot_be_read_is_503_for_that_node_alone"
            ),
            Moment.RESTART: Proof(_UNREADABLE + "test_a_server_starts_while_nothing_that_is_stored_can_be_read"),
            Moment.RESTORE: Never("A restored value is read, or not, like any other."),
            Moment.UNREADABLE: Proof(_UNREADABLE + "test_a_membership_that_cannot_be_read_is_503_for_that_node_alone"),
            Moment.LEADER: Proof(
                _UNREADABLE + "test_machines_join_while_a_secret_cannot_be_read_when_the_leader_changes"
            ),
            Moment.CLOCK: Never("Whether a value can be read does not depend on the time."),
        },
    ),
    Promise(
        key="membership-ends-with-the-deletion",
        sentence="The membership of a machine ends when the deletion of its Node begins, whatever finalizers hold the Node.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Proof(_SCENARIO + "test_a_finalizer_does_not_prolong_a_membership"),
            Door.K3S: Proof(_K3S + "test_a_node_asks_for_itself_and_while_its_node_exists"),
            Door.ADMINISTRATOR: Never("A certificate of a person is of no machine; an administrator deletes the Node."),
            Door.SIGNER: Proof("tests/controllers/test_requester.py::test_a_request_is_worth_what_its_requester_is"),
            Door.RENEWAL: Proof(
                "tests/controllers/test_nameownership.py::test_a_request_that_waited_gains_nothing_by_a_change"
            ),
            Door.RECOVERY: Proof(
                "tests/controllers/test_noderecovery.py::test_every_other_fault_holds_the_request_for_a_person"
            ),
            Door.LOGIN: Proof("tests/authz/test_node.py::test_a_node_whose_membership_has_ended_gets_nothing"),
            Door.SERVICE_ACCOUNT: Documented(
                "A token that is bound to a Node or a Pod is accepted for a minute after the deletion began, as in Kubernetes.",
                "docs/protocol/service-account-tokens.md#bound-tokens",
            ),
            Door.OTHER_SERVER: Never(
                "The uid of the Node is recorded in the store before the Node is marked as deleted."
            ),
            Door.OTHER_WORKER: Never("Each worker reads the record from the same store, and judges by it."),
            Door.SERVING: Proof(
                "tests/server/test_servingrequests.py::"
                "test_a_machine_that_ends_between_signature_and_publication_gets_no_serving_certificate"
            ),
            Door.PERSON: Proof(
                "tests/server/test_servingrequests.py::"
                "test_no_person_approves_a_serving_certificate_for_a_machine_that_ended"
            ),
            Door.REVIEW: Proof(
                "tests/server/test_reviews.py::"
                "test_an_access_review_of_a_node_whose_membership_has_ended_allows_nothing"
            ),
            Door.ELSEWHERE: elsewhere(
                "The certificate is accepted there, and the machine may create its Node again. The name "
                "is free for another machine."
            ),
        },
        moments={
            Moment.AT_REST: Proof("tests/api/test_membership.py::test_when_a_membership_has_ended"),
            Moment.BODY: Never("The credential is judged again when the request takes effect, by the same check."),
            Moment.QUEUED: Proof(
                "tests/controllers/test_nameownership.py::test_a_request_that_waited_gains_nothing_by_a_change"
            ),
            Moment.WATCH: Proof(_SCENARIO + "test_the_deletion_of_a_node_ends_the_membership"),
            Moment.RESTART: Proof(_SCENARIO + "test_the_deletion_of_a_node_ends_the_membership"),
            Moment.RESTORE: Never("A restored store is the subject of the promises about ends."),
            Moment.UNREADABLE: Proof(_UNREADABLE + "test_a_membership_that_cannot_be_read_is_503_for_that_node_alone"),
            Moment.LEADER: Never("The registry of each server records the deletion, and no controller."),
            Moment.CLOCK: Proof(
                "tests/controllers/test_nodeidentity.py::test_a_clock_that_ran_years_ahead_for_some_hours_deletes_no_identity"
            ),
        },
    ),
    Promise(
        key="shared-users-end-with-their-machine",
        sentence="Certificates of kube-proxy and of k3s's controller are bound to one machine, and end with its Node, its "
        "revocation and its name.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Never("kubeadm's kube-proxy has a token of a service account, and no certificate."),
            Door.K3S: Proof(_K3S + "test_kube_proxy_s_certificate_ends_with_its_machine"),
            Door.ADMINISTRATOR: Never(
                "A person may certify any user; such a certificate is revoked by its serial number."
            ),
            Door.SIGNER: Proof("tests/controllers/test_k3sjoin.py::test_who_has_a_certificate_of_a_shared_user"),
            Door.RENEWAL: Proof(
                _K3S + "test_kube_proxy_and_controller_need_the_certificate_of_a_machine_and_no_headers"
            ),
            Door.RECOVERY: Never("Only the certificate of a node proves a machine that comes back."),
            Door.LOGIN: Proof("tests/authn/test_membership.py::test_a_certificate_of_a_shared_user"),
            Door.SERVICE_ACCOUNT: Never("A token of a service account is of none of these users."),
            Door.OTHER_SERVER: Never("The machine stands in the certificate, and its key in the store."),
            Door.OTHER_WORKER: Proof(
                "tests/scenarios/test_k3scertificates.py::test_both_workers_give_a_machine_its_four_certificates"
            ),
            Door.SERVING: Never("A serving certificate authenticates no client."),
            Door.PERSON: Proof(
                "tests/controllers/test_k3sjoin.py::test_a_person_may_approve_a_certificate_of_a_shared_user"
            ),
            Door.REVIEW: Never("A review judges a token, and no certificate. These users have certificates."),
            Door.ELSEWHERE: Never("The signers of the supervisor run in a Mooring server only."),
        },
        moments={
            Moment.AT_REST: Proof("tests/authn/test_membership.py::test_a_certificate_of_a_shared_user"),
            Moment.BODY: Never("The credential is judged again when the request takes effect, by the same check."),
            Moment.QUEUED: Proof("tests/controllers/test_k3sjoin.py::test_who_has_a_certificate_of_a_shared_user"),
            Moment.WATCH: Never("Open watches are judged again at each change of the kinds that the check reads."),
            Moment.RESTART: Never("The check reads objects of the store, and remembers nothing beside."),
            Moment.RESTORE: Never("A restored store is the subject of the promises about ends."),
            Moment.UNREADABLE: Never("The check of what cannot be read is that of the node's own certificate."),
            Moment.LEADER: Never("The key is recorded by compare-and-swap before the approval, whoever leads."),
            Moment.CLOCK: Documented(
                "Certificates that were issued before machines were named are accepted until they end.",
                "docs/protocol/k3s.md#certificates",
            ),
        },
    ),
    Promise(
        key="trust-is-never-collected",
        sentence="A right to update a revocation, an identity, an authorized machine or a rollover is not a right to delete it.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Never("A machine writes none of these kinds."),
            Door.K3S: Never("A machine writes none of these kinds."),
            Door.ADMINISTRATOR: Proof(
                "tests/registry/test_ownerreferences.py::test_a_right_to_patch_a_revocation_does_not_delete_it"
            ),
            Door.SIGNER: Never("A signer writes none of their owners."),
            Door.RENEWAL: Never("A renewal writes none of their owners."),
            Door.RECOVERY: Never("A recovery writes none of their owners."),
            Door.LOGIN: Never("A login writes no object."),
            Door.SERVICE_ACCOUNT: Proof("tests/registry/test_ownerreferences.py::test_what_is_refused"),
            Door.OTHER_SERVER: Proof(_COLLECTOR),
            Door.OTHER_WORKER: Proof(_COLLECTOR),
            Door.SERVING: Never("A request for a certificate is the owner of none of these kinds."),
            Door.PERSON: Never("An approval changes the conditions of a request, and no owners."),
            Door.REVIEW: Never("A review stores no object."),
            Door.ELSEWHERE: elsewhere("An object of these kinds that has an owner is deleted with it."),
        },
        moments={
            Moment.AT_REST: Proof(_COLLECTOR),
            Moment.BODY: Never("The collector leaves out these kinds, whenever their owners were written."),
            Moment.QUEUED: Never("The collector leaves out these kinds, whenever their owners were written."),
            Moment.WATCH: Never("A watch deletes nothing."),
            Moment.RESTART: Never("The collector leaves out these kinds at each start."),
            Moment.RESTORE: Never("The collector leaves out these kinds after a restore, too."),
            Moment.UNREADABLE: Never("An object that cannot be read has no owners, and is not collected."),
            Moment.LEADER: Never("The collector of each server leaves out these kinds."),
            Moment.CLOCK: Never("No owner ends by time."),
        },
    ),
)
