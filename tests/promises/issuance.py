"""Promises: what is in a certificate, and who decided so."""

from __future__ import annotations

from tests.promises.columns import Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_STANDING = "tests/server/test_standing.py::"
_ELSEWHERE = "tests/reconcile/test_kubernetes.py::"
_POD = "tests/controllers/test_podsigner.py::"
_POD_REQUESTS = "tests/registry/test_podcertificaterequests.py::"
_BODY = Proof(_STANDING + "test_a_credential_that_ends_while_the_body_is_awaited_grants_nothing")
_READ_BACK = Proof("tests/pki/test_issued.py::test_a_certificate_that_is_not_its_template_is_refused")
_NO_CERTIFICATE = Never("It gives no certificate.")
_NO_WATCH = Never("A watch shows a certificate, and issues none.")
_ONE_AUTHORITY = Never("Every certificate is made by the same function, which reads it back.")
_IN_STORE = Never("Request, conditions and rules are read again by whichever process signs.")
_AFTER_BODY = Never("The approver and the signer decide about a stored request.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="certificates-have-what-was-approved",
        sentence="A certificate has the names, usages and lifetime that were approved, and nothing beside.",
        doors=doors(
            _ONE_AUTHORITY,
            {
                Door.KUBEADM: Proof(
                    "tests/controllers/test_certificaterequests.py::test_a_serving_certificate_keeps_its_names"
                ),
                Door.K3S: Proof("tests/pki/test_supervisorsigners.py::test_a_hostile_request_changes_no_name"),
                Door.ADMINISTRATOR: _READ_BACK,
                Door.SIGNER: Proof(
                    "tests/controllers/test_certificaterequests.py::"
                    "test_a_certificate_that_the_authority_refuses_marks_the_request_failed"
                ),
                Door.LOGIN: Proof(
                    "tests/server/test_login.py::"
                    "test_a_certificate_names_who_was_authenticated_and_not_who_is_in_the_request"
                ),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.SERVING: Proof(
                    "tests/controllers/test_certificaterequests.py::test_a_serving_certificate_keeps_its_names"
                ),
                Door.PERSON: Proof(
                    "tests/cli/test_requests_live.py::"
                    "test_a_review_does_not_approve_the_request_that_took_the_name_of_the_one_that_it_showed"
                ),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: Proof(
                    "tests/kubernetes/test_controllers.py::test_tokens_certificates_and_a_dead_leader"
                ),
            },
        ),
        moments=moments(
            _IN_STORE,
            {
                Moment.AT_REST: _READ_BACK,
                Moment.BODY: _AFTER_BODY,
                Moment.QUEUED: Never("The spec of a request cannot be changed."),
                Moment.WATCH: _NO_WATCH,
                Moment.UNREADABLE: Proof(
                    "tests/controllers/test_certificaterequests.py::test_a_device_that_fails_leaves_the_request_as_it_is"
                ),
                Moment.CLOCK: Proof("tests/controllers/test_certificaterequests.py::test_validity_of_a_certificate"),
            },
        ),
    ),
    Promise(
        key="requests-are-signed-by-their-key",
        sentence="A request is stored, and signed, only with a signature by the key in it.",
        doors=doors(
            Never("It is a request of the same form, which the same parser verifies."),
            {
                Door.KUBEADM: Proof("tests/pki/test_requests.py::test_refused_requests"),
                Door.K3S: Proof(
                    "tests/server/test_k3scertificates.py::test_what_is_no_request_for_a_certificate_is_400"
                ),
                Door.LOGIN: Proof("tests/server/test_login.py::test_a_request_that_its_key_did_not_sign_is_refused"),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.PERSON: Never(
                    "The request was verified before it was stored, and is verified again before it is signed."
                ),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: Proof(
                    "tests/controllers/test_certificaterequests.py::"
                    "test_a_request_that_cannot_be_signed_is_marked_failed"
                ),
            },
        ),
        moments=moments(
            Never(
                "The signature is over the bytes that are stored, and is verified again before the certificate is made."
            ),
            {
                Moment.AT_REST: Proof("tests/pki/test_requests.py::test_no_byte_of_a_request_can_be_changed"),
                Moment.QUEUED: Proof(
                    "tests/controllers/test_certificaterequests.py::"
                    "test_a_request_that_cannot_be_signed_is_marked_failed"
                ),
                Moment.WATCH: _NO_WATCH,
            },
        ),
    ),
    Promise(
        key="no-request-for-system-masters",
        sentence="No request for a client certificate of the API server names the group system:masters.",
        doors=doors(
            _NO_CERTIFICATE,
            {
                Door.KUBEADM: Proof("tests/pki/test_signers.py::test_kube_apiserver_client_kubelet"),
                Door.K3S: Proof("tests/pki/test_supervisorsigners.py::test_a_hostile_request_changes_no_name"),
                Door.ADMINISTRATOR: Proof(
                    "tests/registry/test_admission.py::test_nobody_asks_for_a_member_of_system_masters"
                ),
                Door.SIGNER: Documented(
                    "A signer of the operator's own may certify anyone: give it a CA of its own.",
                    "docs/choose-the-signers.md#a-ca-of-your-own",
                ),
                Door.RENEWAL: Proof("tests/pki/test_signers.py::test_kube_apiserver_client_kubelet"),
                Door.RECOVERY: Proof("tests/registry/test_admission.py::test_a_recovering_node"),
                Door.LOGIN: Proof("tests/server/test_login.py::test_a_name_of_the_system_is_refused"),
                Door.OTHER_SERVER: Never("Every server runs the same plugin, on every creation."),
                Door.OTHER_WORKER: Never("Every worker runs the same plugin, on every creation."),
                Door.SERVING: Proof("tests/pki/test_signers.py::test_kubelet_serving"),
                Door.PERSON: Never("Such a request is refused at its creation, so that no person sees it."),
                Door.ELSEWHERE: elsewhere(
                    "Such a request is refused by the admission of that API server, where its plugin is on."
                ),
            },
        ),
        moments=moments(
            Never("The request is refused at its creation, and its spec cannot be changed."),
            {
                Moment.AT_REST: Proof("tests/pki/test_signers.py::test_kube_apiserver_client"),
                Moment.BODY: Proof(
                    "tests/registry/test_admission.py::test_a_request_only_validation_can_read_is_refused_all_the_same"
                ),
            },
        ),
    ),
    Promise(
        key="approval-needs-its-right",
        sentence="A request is approved by a rule only where its requester may have it approved, and by a person only with the "
        "right "
        "on its signer.",
        doors=doors(
            _NO_CERTIFICATE,
            {
                Door.KUBEADM: Proof(
                    "tests/controllers/test_certificaterequests.py::"
                    "test_a_recognised_request_that_is_not_allowed_says_so_once_and_is_retried"
                ),
                Door.K3S: Proof("tests/controllers/test_supervisorapprover.py::test_others_need_a_permission"),
                Door.ADMINISTRATOR: Proof(
                    "tests/registry/test_admission.py::test_approving_needs_the_right_on_the_signer_or_its_domain"
                ),
                Door.SIGNER: Proof("tests/registry/test_admission.py::test_signing"),
                Door.RENEWAL: Proof(
                    "tests/controllers/test_certificaterequests.py::test_selfnodeclient_is_checked_before_nodeclient"
                ),
                Door.RECOVERY: Proof("tests/controllers/test_noderecovery.py::test_without_the_rule_rbac_decides"),
                Door.LOGIN: Never("A login is not a request that is approved: RBAC decides about its path."),
                Door.OTHER_SERVER: Never("Rights are objects of the store, which every server reads."),
                Door.OTHER_WORKER: Never("Rights are objects of the store, which every worker reads."),
                Door.SERVING: Proof(
                    "tests/controllers/test_servingapprover.py::test_faults_that_cannot_heal_deny_at_once"
                ),
                Door.PERSON: Proof(
                    "tests/server/test_standing.py::test_a_right_that_admission_asked_for_is_judged_at_the_commit"
                ),
                Door.ELSEWHERE: Proof("tests/reconcile/test_remote.py::test_access_reviews_are_created_on_the_server"),
            },
        ),
        moments=moments(
            Never("The right is asked for by an access review at the moment of the approval."),
            {
                Moment.AT_REST: Proof(
                    "tests/controllers/test_certificaterequests.py::"
                    "test_the_access_review_carries_the_whole_identity_of_the_requester"
                ),
                Moment.BODY: _BODY,
                Moment.QUEUED: Proof(
                    "tests/reconcile/test_endtoend.py::test_a_refused_request_waits_until_it_is_allowed"
                ),
                Moment.WATCH: _NO_WATCH,
                Moment.UNREADABLE: Never("A role or a binding that cannot be read grants nothing."),
                Moment.LEADER: Proof(
                    "tests/reconcile/test_fencing.py::test_what_was_planned_before_a_stop_is_not_written_after_it"
                ),
            },
        ),
    ),
    Promise(
        key="a-policy-binds-its-signer",
        sentence="A signer with a policy signs what a rule allows, also after a person has approved the request.",
        doors=doors(
            Never("The signer asks the policy about each of its requests, wherever they come from."),
            {
                Door.KUBEADM: Proof(
                    "tests/controllers/test_signerpolicy.py::test_the_first_rule_for_the_requester_decides"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/controllers/test_signerpolicy.py::test_what_a_person_approved_is_refused_all_the_same"
                ),
                Door.SIGNER: Proof("tests/controllers/test_signerpolicy.py::test_a_rule_names_what_it_refuses"),
                Door.LOGIN: Never("A login is not a request to a signer, and no policy is for it."),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.OTHER_SERVER: Documented(
                    "The policy is a file of each server: give all of them the same one.",
                    "docs/choose-the-signers.md#rules",
                ),
                Door.PERSON: Proof(
                    "tests/controllers/test_signerpolicy.py::test_what_a_person_approved_is_refused_all_the_same"
                ),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: elsewhere("The policy binds csrsigner: another signer there does not read it."),
            },
        ),
        moments=moments(
            Never("The policy in force is asked when the certificate is made."),
            {
                Moment.AT_REST: Proof(
                    "tests/controllers/test_signerpolicy.py::"
                    "test_a_signer_without_rules_refuses_and_one_that_is_not_named_is_free"
                ),
                Moment.WATCH: _NO_WATCH,
                Moment.RESTART: Proof("tests/plane/test_followedpolicy.py::test_a_start_needs_a_good_file_or_none"),
                Moment.UNREADABLE: Proof(
                    "tests/plane/test_followedpolicy.py::test_a_changed_policy_comes_into_force_and_a_wrong_one_does_not"
                ),
            },
        ),
    ),
    Promise(
        key="pods-get-certificates-while-they-run",
        sentence="A Pod gets a certificate while it runs, in the name of its ServiceAccount and no other, and the API server takes "
        "it for no user.",
        doors=doors(
            Never("Only the signers of PodCertificateRequests make certificates of Pods."),
            {
                Door.SIGNER: Proof(_POD + "test_the_certificate_of_a_pod_is_an_svid"),
                Door.ADMINISTRATOR: Proof(_POD + "test_the_certificate_of_a_pod_authenticates_no_user"),
                Door.PERSON: Never("No person decides about such a request."),
                Door.OTHER_SERVER: Documented(
                    "The policy is a file of each server: give all of them the same one.",
                    "docs/choose-the-signers.md#rules",
                ),
                Door.ELSEWHERE: elsewhere("The signer runs in a Mooring server only."),
            },
        ),
        moments=moments(
            Never("The Pod is judged by the views when the certificate is published."),
            {
                Moment.AT_REST: Proof(_POD + "test_a_request_that_is_refused"),
                Moment.QUEUED: Proof(_POD + "test_what_has_changed_by_the_commit_publishes_nothing"),
                Moment.WATCH: _NO_WATCH,
                Moment.RESTORE: Proof(_POD + "test_nothing_is_signed_while_an_end_waits_to_be_settled"),
                Moment.UNREADABLE: Proof(_POD + "test_an_object_that_cannot_be_read_is_not_one_that_is_gone"),
                Moment.CLOCK: Documented(
                    "A certificate that was issued is valid to its end, also when its Pod has ended.",
                    "docs/choose-the-signers.md#certificates-for-pods",
                ),
            },
        ),
    ),
    Promise(
        key="revoked-keys-get-no-certificate",
        sentence="No certificate is issued for a revoked key, nor for a node on a request from before its revocation.",
        doors=doors(
            Never("The check runs before every approval and every signature."),
            {
                Door.KUBEADM: Proof(
                    "tests/controllers/test_revocation.py::test_no_certificate_takes_a_revocation_back"
                ),
                Door.K3S: Proof(
                    "tests/controllers/test_k3sjoin.py::test_a_request_from_before_the_revocation_of_its_node_is_denied"
                ),
                Door.RECOVERY: Proof(
                    "tests/agent/test_membership_live.py::"
                    "test_a_revoked_machine_does_not_come_back_and_is_told_to_bring_a_token"
                ),
                Door.LOGIN: Documented(
                    "A login may be certified for a revoked key; the certificate is refused at its first use.",
                    "docs/revoke-a-certificate.md#revoke",
                ),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.SERVING: Proof(
                    "tests/server/test_servingrequests.py::"
                    "test_a_machine_that_ended_while_its_request_was_held_gets_no_serving_certificate"
                ),
                Door.PERSON: Proof(
                    "tests/server/test_servingrequests.py::"
                    "test_no_person_approves_a_serving_certificate_for_a_machine_that_ended"
                ),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: elsewhere(
                    "No request for a revoked key is approved or signed by these controllers: another "
                    "approver or signer does not look."
                ),
            },
        ),
        moments=moments(
            Never("The denylist is in the store, and is read when the certificate is made."),
            {
                Moment.AT_REST: Proof(
                    "tests/controllers/test_revocation.py::test_no_certificate_takes_a_revocation_back"
                ),
                Moment.BODY: _AFTER_BODY,
                Moment.QUEUED: Proof(
                    "tests/server/test_requester.py::test_a_revocation_between_signature_and_publication_is_in_time"
                ),
                Moment.WATCH: _NO_WATCH,
                Moment.RESTORE: Proof("tests/server/test_endsgate.py::test_no_signer_signs_while_an_end_waits"),
                Moment.UNREADABLE: Proof(
                    "tests/controllers/test_requester.py::test_entries_of_requests_that_cannot_be_read_are_present"
                ),
            },
        ),
    ),
    Promise(
        key="bundles-need-attest",
        sentence="A bundle of CAs in the name of a signer is written only with the right to attest for it.",
        doors=doors(
            Never("It writes no bundle."),
            {
                Door.ADMINISTRATOR: Proof("tests/registry/test_admission.py::test_a_bundle_of_a_signer_needs_attest"),
                Door.SIGNER: Proof("tests/registry/test_admission.py::test_a_change_of_a_bundle"),
                Door.SERVICE_ACCOUNT: Proof("tests/registry/test_admission.py::test_a_bundle_of_a_signer_needs_attest"),
            },
        ),
        moments=moments(
            Never("The right is asked for at each write, and the name of the signer cannot be changed afterwards."),
            {
                Moment.AT_REST: Proof("tests/registry/test_admission.py::test_a_change_of_a_bundle"),
                Moment.BODY: _BODY,
                Moment.WATCH: Never("A watch writes nothing."),
            },
        ),
    ),
    Promise(
        key="pod-certificates-need-sign",
        sentence="The certificate of a Pod is written into its request only with the right to sign for the signer.",
        doors=doors(
            Never("It writes no certificate into a PodCertificateRequest."),
            {
                Door.KUBEADM: Proof(_POD_REQUESTS + "test_a_node_only_creates_requests"),
                Door.ADMINISTRATOR: Proof(_POD_REQUESTS + "test_signing_needs_the_right_on_the_signer_or_its_domain"),
                Door.SERVICE_ACCOUNT: Proof(_POD_REQUESTS + "test_signing_needs_the_right_on_the_signer_or_its_domain"),
                Door.OTHER_SERVER: Never("Rights are objects of the store, which every server reads."),
                Door.OTHER_WORKER: Never("Rights are objects of the store, which every worker reads."),
            },
        ),
        moments=moments(
            Never(
                "The right is asked for at each write, on the signer in the stored request, which cannot be changed."
            ),
            {
                Moment.AT_REST: Proof(_POD_REQUESTS + "test_a_status_that_stays_as_it_is_needs_no_right"),
                Moment.BODY: _BODY,
                Moment.QUEUED: Proof(_STANDING + "test_a_right_that_admission_asked_for_is_judged_at_the_commit"),
                Moment.WATCH: Never("A watch writes nothing."),
                Moment.UNREADABLE: Never("A role or a binding that cannot be read grants nothing."),
            },
        ),
    ),
    Promise(
        key="approvers-know-what-was-revoked",
        sentence="An approver that cannot read what was revoked approves nothing.",
        doors=doors(
            Never(
                "A Mooring server always serves these kinds, and an entry that cannot be read goes on revoking there."
            ),
            {
                Door.KUBEADM: Proof(_ELSEWHERE + "test_after_the_kinds_were_deleted_nothing_is_approved"),
                Door.SIGNER: Proof(
                    "tests/reconcile/test_loop.py::"
                    "test_an_object_that_cannot_be_read_stops_the_plans_that_need_it_and_no_other"
                ),
                Door.LOGIN: Never("A login is not a request that is approved."),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.OTHER_SERVER: Proof(_ELSEWHERE + "test_after_the_kinds_were_deleted_nothing_is_approved"),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: Proof(
                    "tests/reconcile/test_kubernetes.py::test_after_the_kinds_were_deleted_nothing_is_approved"
                ),
            },
        ),
        moments=moments(
            Never("The definitions of the kinds are read before each decision."),
            {
                Moment.AT_REST: Proof(_ELSEWHERE + "test_after_the_kinds_were_deleted_nothing_is_approved"),
                Moment.BODY: _AFTER_BODY,
                Moment.QUEUED: Proof(_ELSEWHERE + "test_what_changed_while_the_kinds_were_read_is_judged_again"),
                Moment.WATCH: Proof(_ELSEWHERE + "test_the_end_of_a_watch_of_a_deleted_kind_stops_the_approver"),
                Moment.RESTART: Proof(
                    "tests/reconcile/test_standalonecontrollers.py::"
                    "test_a_controller_whose_kind_is_refused_does_not_run_and_the_others_do"
                ),
                Moment.RESTORE: Documented(
                    "Who deletes the definition of CertificateRevocation deletes the denylist: it is empty when the kind is "
                    "made again.",
                    "docs/controllers-for-any-cluster.md#when-something-is-missing",
                ),
                Moment.UNREADABLE: Proof(
                    _ELSEWHERE + "test_a_kind_whose_changes_do_not_arrive_is_unreadable_until_they_do"
                ),
            },
        ),
    ),
    Promise(
        key="a-person-sees-what-the-signer-would-refuse",
        sentence="A person sees what the signer or its policy would refuse before approving a request.",
        doors=doors(
            Never("The same controller judges each request that a person decides about."),
            {
                Door.KUBEADM: Proof(
                    "tests/cli/test_pieces.py::test_a_request_that_breaks_a_rule_of_its_signer_is_approved_with_force_only"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/cli/test_requests_live.py::test_the_finding_of_the_signing_policy_is_shown_before_the_approval"
                ),
                Door.SIGNER: Proof(
                    "tests/controllers/test_signerpolicy.py::test_a_person_sees_whatever_the_signer_would_fail_after_the_approval"
                ),
                Door.LOGIN: Never("A login is not a request that a person approves."),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.PERSON: Proof(
                    "tests/cli/test_requests_live.py::"
                    "test_the_finding_of_the_signing_policy_is_shown_before_the_approval"
                ),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: elsewhere(
                    "The finding is written where csrsigner runs: another signer says nothing before the approval."
                ),
            },
        ),
        moments=moments(
            Never("The finding is a condition of the stored request, and is judged again while the request waits."),
            {
                Moment.AT_REST: Proof(
                    "tests/cli/test_requests_live.py::test_the_finding_of_the_signing_policy_is_shown_before_the_approval"
                ),
                Moment.QUEUED: Proof(
                    "tests/controllers/test_signerpolicy.py::test_a_finding_is_written_once_and_removed_with_its_cause"
                ),
            },
        ),
    ),
)
