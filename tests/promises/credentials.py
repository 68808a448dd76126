"""Promises: does this credential count now."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_RETIRED_KEY = (
    "tests/plane/rollover/test_files.py::test_nothing_that_leaves_a_server_makes_the_old_key_a_ca_for_clients"
)
_RETIRED_ON_PATH = "tests/pki/test_verify.py::test_a_retired_key_stands_on_no_path"
_EVERY_ENCODING = "tests/pki/test_verify.py::test_a_key_is_named_by_its_bytes_and_by_its_normal_form"

_ONE_VERIFIER = Never("One function verifies every client certificate, and names its keys.")
_STANDING = "tests/server/test_standing.py::"
_AGE = "tests/server/test_viewage.py::"
_CRLS = "tests/server/test_clientcrls.py::"
_BODY = Proof(_STANDING + "test_a_credential_that_ends_while_the_body_is_awaited_grants_nothing")
_QUEUE = Proof(_STANDING + "test_a_credential_that_ends_while_the_request_is_queued_grants_nothing")
_COMMIT = Proof(_STANDING + "test_a_credential_that_ends_before_the_commit_grants_nothing")
_DOORS = Proof(_STANDING + "test_no_door_takes_a_credential_that_ended_while_the_body_was_awaited")
_K3S = Proof(_STANDING + "test_a_credential_that_ends_while_an_agent_of_k3s_waits_gets_no_certificate")
_NO_CERTIFICATE = Proof(_STANDING + "test_a_revoked_key_gets_no_certificate_for_another_key")
_OTHER_SERVER = Proof(
    "tests/registry/test_commit.py::test_a_grant_waits_for_the_revocation_that_another_server_has_stored"
)
_UNSTORED = Proof(
    "tests/registry/test_commit.py::test_a_write_that_stores_nothing_shows_nothing_to_a_credential_that_ended"
)
_REVOKED = Proof(
    "tests/server/test_requester.py::test_a_request_with_another_key_dies_with_the_certificate_that_made_it"
)
_CASES = Proof("tests/controllers/test_requester.py::test_a_request_is_worth_what_its_requester_is")
_PUBLICATION = Proof("tests/server/test_requester.py::test_a_revocation_between_signature_and_publication_is_in_time")
_RESTORED = Documented(
    "A snapshot brings back what was ended after it, until the end is applied again.", "docs/back-up-and-restore.md"
)

_LEAVE = Proof("tests/server/test_leave.py::test_a_credential_that_ended_ends_no_membership")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="views-that-judge-are-young",
        sentence="No credential counts by views that were confirmed more than a second before: the store is asked first, or the "
        "answer is 503.",
        doors=doors(
            Never("Every way in over HTTP passes the same check before its verdict counts."),
            {
                Door.ADMINISTRATOR: Proof(_AGE + "test_views_that_lag_behind_the_store_let_nobody_in"),
                Door.SIGNER: _PUBLICATION,
                Door.OTHER_SERVER: Proof(_AGE + "test_views_that_lag_behind_the_store_let_nobody_in"),
                Door.OTHER_WORKER: Proof(_AGE + "test_views_that_lag_behind_the_store_let_nobody_in"),
                Door.REVIEW: Proof(
                    "tests/server/test_reviews.py::test_a_review_that_waited_for_a_thread_is_answered_by_young_views"
                ),
                Door.ELSEWHERE: elsewhere(
                    "The controllers follow that API server by watches, and it judges credentials itself."
                ),
            },
        ),
        moments=moments(
            Never("The check compares the age of the views whenever a verdict is made."),
            {
                Moment.AT_REST: Proof(_AGE + "test_a_store_that_does_not_answer_lets_nobody_in_by_old_views"),
                Moment.BODY: Proof(_AGE + "test_a_write_whose_body_was_awaited_is_judged_by_young_views"),
                Moment.WATCH: Documented(
                    "An open watch goes on while views lag, and delivers nothing newer than they have.",
                    "docs/access.md",
                ),
                Moment.UNREADABLE: Proof(
                    "tests/registry/test_hangingplugin.py::"
                    "test_a_revocation_passes_a_value_that_the_plugin_does_not_decrypt"
                ),
                Moment.CLOCK: Never("Ages are counted on the monotonic clock."),
            },
        ),
    ),
    Promise(
        key="credential-counts-at-the-effect",
        sentence="A request whose credential ends before it takes effect writes nothing, is shown no object, and gets no "
        "certificate, token or key.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: _NO_CERTIFICATE,
            Door.K3S: _K3S,
            Door.ADMINISTRATOR: _BODY,
            Door.SIGNER: _PUBLICATION,
            Door.RENEWAL: _NO_CERTIFICATE,
            Door.RECOVERY: Never("A machine recovers by a CertificateSigningRequest, which the same writer commits."),
            Door.LOGIN: _DOORS,
            Door.SERVICE_ACCOUNT: _DOORS,
            Door.OTHER_SERVER: _OTHER_SERVER,
            Door.OTHER_WORKER: _UNSTORED,
            Door.SERVING: Proof(
                "tests/server/test_servingrequests.py::"
                "test_a_machine_that_ends_between_signature_and_publication_gets_no_serving_certificate"
            ),
            Door.PERSON: _DOORS,
            Door.REVIEW: _DOORS,
            Door.ELSEWHERE: ITS_OWN,
        },
        moments={
            Moment.AT_REST: Proof(
                "tests/server/test_revocation.py::test_an_open_connection_gets_200_then_401_then_200_again"
            ),
            Moment.BODY: Proof(_STANDING + "test_unfinished_requests_on_a_connection_end_with_its_key"),
            Moment.QUEUED: _QUEUE,
            Moment.WATCH: Proof("tests/server/test_openwatches.py::test_a_watch_ends_with_its_credential"),
            Moment.RESTART: Never("A request does not outlive the process that serves it."),
            Moment.RESTORE: _RESTORED,
            Moment.UNREADABLE: Proof(_STANDING + "test_a_credential_that_becomes_unreadable_is_503_and_grants_nothing"),
            Moment.LEADER: Never("Each server judges the credentials of its own requests, whichever leads."),
            Moment.CLOCK: _COMMIT,
        },
    ),
    Promise(
        key="requests-end-with-their-requester",
        sentence="No certificate is signed for a requester whose certificate was revoked, or who was deleted, whatever key it has.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: _CASES,
            Door.K3S: _CASES,
            Door.ADMINISTRATOR: _REVOKED,
            Door.SIGNER: _REVOKED,
            Door.RENEWAL: Proof("tests/server/test_requester.py::test_the_request_of_a_deleted_machine_is_not_signed"),
            Door.RECOVERY: _CASES,
            Door.LOGIN: Never("A login leaves no request that could wait."),
            Door.SERVICE_ACCOUNT: _CASES,
            Door.OTHER_SERVER: Never("The record of the certificate is in the request, which every server reads."),
            Door.OTHER_WORKER: Never("The record of the certificate is in the request, which every worker reads."),
            Door.SERVING: Proof(
                "tests/server/test_servingrequests.py::"
                "test_a_machine_that_ended_while_its_request_was_held_gets_no_serving_certificate"
            ),
            Door.PERSON: Proof(
                "tests/server/test_servingrequests.py::"
                "test_no_person_approves_a_serving_certificate_for_a_machine_that_ended"
            ),
            Door.REVIEW: Never("A review leaves no request that could wait."),
            Door.ELSEWHERE: elsewhere(
                "That server does not record the certificate of a requester: its Node, its "
                "ServiceAccount and its token are judged."
            ),
        },
        moments={
            Moment.AT_REST: _CASES,
            Moment.BODY: _NO_CERTIFICATE,
            Moment.QUEUED: _PUBLICATION,
            Moment.WATCH: Never("A watch shows a certificate, and issues none."),
            Moment.RESTART: Never("The request, its record and the denylist are in the store."),
            Moment.RESTORE: _RESTORED,
            Moment.UNREADABLE: _CASES,
            Moment.LEADER: Proof(
                "tests/controllers/test_requester.py::test_a_certificate_is_judged_again_when_it_is_published"
            ),
            Moment.CLOCK: Proof(
                "tests/server/test_requester.py::"
                "test_a_request_that_a_clock_made_in_the_future_is_older_than_a_later_revocation_of_its_node"
            ),
        },
    ),
    Promise(
        key="requests-of-a-token",
        sentence="A request waits for a person after its token was deleted, is denied after its token was revoked, and stays "
        "after its token has expired.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Proof(
                "tests/cli/test_audit_live.py::test_a_revoked_token_takes_the_requests_along_that_wait"
            ),
            Door.K3S: Never("A request of the supervisor has the same user, by which its token is known."),
            Door.ADMINISTRATOR: Never("An administrator needs no bootstrap token."),
            Door.SIGNER: Proof("tests/controllers/test_tokenlimits.py::test_an_automatic_approval_meets_an_objection"),
            Door.RENEWAL: Never("A machine renews with its certificate."),
            Door.RECOVERY: Never("A machine recovers with its certificate."),
            Door.LOGIN: Never("A login leaves no request that could wait."),
            Door.SERVICE_ACCOUNT: Never("The token of a ServiceAccount is not a bootstrap token."),
            Door.OTHER_SERVER: Never("Token and request are in the store, which every server reads."),
            Door.OTHER_WORKER: Never("Token and request are in the store, which every worker reads."),
            Door.SERVING: Never("Such a request of a token waits for a person in any case."),
            Door.PERSON: Proof("tests/controllers/test_tokenlimits.py::test_nothing_stands_in_the_way_of"),
            Door.REVIEW: Never("A review makes no request."),
            Door.ELSEWHERE: Proof(
                "tests/cli/test_elsewhere.py::test_a_request_that_arrives_while_a_token_is_withdrawn_is_denied"
            ),
        },
        moments={
            Moment.AT_REST: Proof("tests/controllers/test_tokenlimits.py::test_nothing_stands_in_the_way_of"),
            Moment.BODY: _BODY,
            Moment.QUEUED: _QUEUE,
            Moment.WATCH: Never("A watch makes no request."),
            Moment.RESTART: Never("Token and request are in the store."),
            Moment.RESTORE: _RESTORED,
            Moment.UNREADABLE: Proof(
                "tests/controllers/test_tokenlimits.py::test_an_automatic_approval_meets_an_objection"
            ),
            Moment.LEADER: Never("The plan reads token and request again."),
            Moment.CLOCK: Proof("tests/controllers/test_tokenlimits.py::test_nothing_stands_in_the_way_of"),
        },
    ),
    Promise(
        key="verdicts-from-outside",
        sentence="The verdict of a service outside counts for as long as it is remembered, for ten seconds at least, and for an "
        "hour for an open watch.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Never("A joining machine has a token of this cluster."),
            Door.K3S: Never("The supervisor asks no service outside."),
            Door.ADMINISTRATOR: Proof(_STANDING + "test_a_verdict_from_outside_counts_for_as_long_as_it_is_remembered"),
            Door.SIGNER: Never("A signer has no credential from outside."),
            Door.RENEWAL: Never("A machine renews with its certificate."),
            Door.RECOVERY: Never("A machine recovers with its certificate."),
            Door.LOGIN: Proof(_STANDING + "test_a_verdict_from_outside_counts_for_as_long_as_it_is_remembered"),
            Door.SERVICE_ACCOUNT: Never("Tokens of this cluster are verified here."),
            Door.OTHER_SERVER: Never("Each server asks, and remembers, for itself."),
            Door.OTHER_WORKER: Never("Each worker asks, and remembers, for itself."),
            Door.SERVING: Never("A node requests it with its certificate."),
            Door.PERSON: Never("The credential of the person is judged as that of every administrator who writes."),
            Door.REVIEW: Never("A review asks by the same authenticators, which remember a verdict for all alike."),
            Door.ELSEWHERE: ITS_OWN,
        },
        moments={
            Moment.AT_REST: Proof(
                "tests/server/test_webhook.py::test_an_acceptance_lives_for_its_time_whatever_the_webhook_thinks_by_now"
            ),
            Moment.BODY: Proof(_STANDING + "test_a_verdict_from_outside_counts_for_as_long_as_it_is_remembered"),
            Moment.QUEUED: Never("The same function judges after the body and after the queue."),
            Moment.WATCH: Proof(
                "tests/server/test_openwatches.py::"
                "test_a_watch_with_a_verdict_that_nobody_remembers_ends_after_its_time"
            ),
            Moment.RESTART: Never("Nothing is remembered over a restart."),
            Moment.RESTORE: Never("Nothing that is remembered is in the store."),
            Moment.UNREADABLE: Never("A service outside is not encrypted by this server."),
            Moment.LEADER: Never("Each server asks for itself, whichever leads."),
            Moment.CLOCK: Proof(_STANDING + "test_a_verdict_from_outside_counts_for_as_long_as_it_is_remembered"),
        },
    ),
    Promise(
        key="a-retired-key-stands-on-no-path",
        sentence="A key of a CA that was replaced or given up makes no certificate that counts, even if it was certified again.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: Proof(_RETIRED_KEY),
            Door.K3S: Proof(_RETIRED_KEY),
            Door.ADMINISTRATOR: Proof(_RETIRED_KEY),
            Door.SIGNER: Proof(
                "tests/pki/test_clientissuers.py::"
                "test_a_ca_of_the_cluster_that_a_signer_names_is_trusted_unless_it_was_given_up_or_stolen"
            ),
            Door.RENEWAL: Proof(_RETIRED_KEY),
            Door.RECOVERY: Documented(
                "A CA that was retired without --compromised verifies the way back of a machine that was off.",
                "docs/replace-the-ca.md#machines-that-are-behind",
            ),
            Door.LOGIN: Proof(_RETIRED_KEY),
            Door.SERVICE_ACCOUNT: Never("Tokens are signed by keys that are not CAs."),
            Door.OTHER_SERVER: Proof(
                "tests/plane/rollover/test_runner.py::test_every_server_follows_a_rollover_through_the_store"
            ),
            Door.OTHER_WORKER: Never("Each worker follows the files of the CA."),
            Door.SERVING: Proof(_RETIRED_KEY),
            Door.PERSON: Proof(_RETIRED_KEY),
            Door.REVIEW: Never("A review judges a token, which is signed by a key that is not a CA."),
            Door.ELSEWHERE: elsewhere(
                "That CA is not one of Mooring, and that API server chooses the CAs of its clients."
            ),
        },
        moments={
            Moment.AT_REST: Proof(_RETIRED_ON_PATH),
            Moment.BODY: _BODY,
            Moment.QUEUED: _QUEUE,
            Moment.WATCH: Proof(
                "tests/server/test_revocation.py::test_watches_end_when_another_bundle_no_longer_verifies_their_certificate"
            ),
            Moment.RESTART: Proof(
                "tests/scenarios/test_upgrade.py"
                "::test_a_key_that_an_earlier_version_replaced_as_compromised_makes_no_administrator"
            ),
            Moment.RESTORE: Proof(
                "tests/plane/rollover/test_files.py::test_a_stolen_ca_that_is_put_back_into_the_bundle_stands_on_no_path"
            ),
            Moment.UNREADABLE: Proof("tests/plane/rollover/test_files.py::test_a_file_that_cannot_be_read_is_named"),
            Moment.LEADER: Never("Each server verifies for itself."),
            Moment.CLOCK: Never("The key decides, and no time."),
        },
    ),
    Promise(
        key="revocation-by-key-and-path",
        sentence="A revocation counts for every encoding of a key, and for what stands above a certificate.",
        doors={
            Door.LEAVE: _LEAVE,
            Door.KUBEADM: _ONE_VERIFIER,
            Door.K3S: _ONE_VERIFIER,
            Door.ADMINISTRATOR: Proof(_EVERY_ENCODING),
            Door.SIGNER: Never("Signers verify requests, whose keys are compared in their usual form."),
            Door.RENEWAL: _ONE_VERIFIER,
            Door.RECOVERY: _ONE_VERIFIER,
            Door.LOGIN: _ONE_VERIFIER,
            Door.SERVICE_ACCOUNT: Never("Revocations concern certificates."),
            Door.OTHER_SERVER: Documented(
                "Servers of one store read one denylist. Against another API server an entry is recorded, and the certificate "
                "is accepted there until it expires.",
                "docs/controllers-for-any-cluster.md#what-that-api-server-enforces-and-what-it-does-not",
            ),
            Door.OTHER_WORKER: Never("The denylist is in the store, where every worker reads it."),
            Door.SERVING: _ONE_VERIFIER,
            Door.PERSON: _ONE_VERIFIER,
            Door.REVIEW: Never("A review judges a token, and no certificate."),
            Door.ELSEWHERE: elsewhere("An entry is recorded, and the certificate is accepted there until it expires."),
        },
        moments={
            Moment.AT_REST: Proof(
                "tests/authn/test_denylist.py::test_an_intermediate_that_is_revoked_takes_what_is_below_it"
            ),
            Moment.BODY: _BODY,
            Moment.QUEUED: _QUEUE,
            Moment.WATCH: Proof(
                "tests/server/test_revocation.py::test_an_open_connection_gets_200_then_401_then_200_again"
            ),
            Moment.RESTART: Never("The path is verified again at each connection."),
            Moment.RESTORE: Proof(
                "tests/plane/storemark/test_storemark.py::test_revocations_are_made_again_whatever_else_waits"
            ),
            Moment.UNREADABLE: Proof(
                "tests/authn/test_denylist.py::test_an_entry_that_cannot_be_read_revokes_what_its_name_says"
            ),
            Moment.LEADER: Never("Each server verifies for itself."),
            Moment.CLOCK: Proof("tests/authn/test_denylist.py::test_a_clock_that_was_behind_at_the_revocation"),
        },
    ),
    Promise(
        key="a-crl-of-another-ca-counts",
        sentence="Where the operator names the CRL of a CA, a certificate that is on it, or below one that is, counts nowhere.",
        doors=doors(
            Never("The CRLs are judged beside the denylist, for every client certificate."),
            {
                Door.KUBEADM: Never("A joining machine has a token, and no certificate yet."),
                Door.ADMINISTRATOR: Proof(
                    _CRLS + "test_a_new_crl_refuses_an_open_connection_and_ends_its_watches_and_no_others"
                ),
                Door.SIGNER: Proof(
                    "tests/controllers/test_requester.py::"
                    "test_a_requester_on_a_crl_gets_nothing_and_waits_for_one_that_is_missing"
                ),
                Door.RECOVERY: Proof("tests/authn/test_clientcrls.py::test_a_node_on_a_crl_does_not_recover"),
                Door.LOGIN: Never("A login takes no credential of a certificate."),
                Door.SERVICE_ACCOUNT: Never("CRLs concern certificates."),
                Door.OTHER_SERVER: Documented(
                    "Each server reads its own files: give the same ones to all.",
                    "docs/authentication/client-certificates.md#crls",
                ),
                Door.OTHER_WORKER: Never("Each worker reads the same files."),
                Door.REVIEW: Never("A review judges a token, and no certificate."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments={
            Moment.AT_REST: Proof(
                _CRLS + "test_a_revoked_intermediate_refuses_the_leaf_also_as_a_member_of_the_bundle"
            ),
            Moment.BODY: _BODY,
            Moment.QUEUED: _QUEUE,
            Moment.WATCH: Proof(_CRLS + "test_a_new_crl_refuses_an_open_connection_and_ends_its_watches_and_no_others"),
            Moment.RESTART: Documented(
                "The CRL in force is not remembered over a restart: an older copy in the file counts then.",
                "docs/threats/certificates-and-ca.md",
            ),
            Moment.RESTORE: Never("CRLs stand in files, which a restore leaves alone."),
            Moment.UNREADABLE: Proof(_CRLS + "test_content_that_cannot_be_used_leaves_the_last_good_crl_in_force"),
            Moment.LEADER: Never("Each server verifies for itself."),
            Moment.CLOCK: Proof(_CRLS + "test_past_next_update_a_required_crl_answers_503_and_ends_watches"),
        },
    ),
    Promise(
        key="shown-states-are-those-of-the-server",
        sentence="mooring certs list and certs show judge a certificate by the checks of the server.",
        doors=doors(
            Never("It shows no state of a certificate."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/cli/test_certsrevoke_live.py::"
                    "test_list_and_show_tell_the_end_of_the_certificate_and_that_its_node_was_deleted"
                ),
                Door.K3S: Proof(
                    "tests/cli/test_certsrevoke_live.py::"
                    "test_certificates_of_users_that_machines_share_are_listed_with_their_machine"
                ),
                Door.SIGNER: Proof(
                    "tests/cli/test_certsrevoke_live.py::"
                    "test_a_certificate_of_a_ca_that_verifies_no_client_any_more_is_rejected"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/cli/test_elsewhere.py::test_what_is_on_the_denylist_is_not_said_to_be_refused"
                ),
                Door.ELSEWHERE: Proof(
                    "tests/cli/test_elsewhere.py::test_what_is_on_the_denylist_is_not_said_to_be_refused"
                ),
            },
        ),
        moments=moments(
            Never("The checks run at each call, on the objects that the server judges by."),
            {
                Moment.AT_REST: Proof(
                    "tests/cli/test_certsrevoke_live.py::"
                    "test_list_and_show_tell_the_end_of_the_certificate_and_that_its_node_was_deleted"
                ),
            },
        ),
    ),
)
