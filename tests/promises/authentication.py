"""Promises: who is the user of a request."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_STANDING = "tests/server/test_standing.py::"
_BODY = Proof(_STANDING + "test_no_door_takes_a_credential_that_ended_while_the_body_was_awaited")
_QUEUE = Proof(_STANDING + "test_a_credential_that_ends_while_the_request_is_queued_grants_nothing")
_MALFORMED = Proof("tests/attack/test_malformed.py::test_damaged_credentials_are_refused_without_a_hint")
_DELETED = Proof("tests/attack/test_everyway.py::test_a_deleted_credential_is_refused_at_once_on_an_open_connection")
_SUPERVISOR = "tests/server/test_supervisor.py::"
_AGENT_TOKENS = "tests/plane/sharedkeys/test_agenttokens.py::"
_NOBODY = Never("A signer decides about stored requests, and authenticates no one.")
_ONE_CHAIN = Never("Every way in over HTTP passes the same chain of authenticators.")
_OWN_REQUESTS = Never("Each server authenticates its own requests, whichever leads.")
_NOT_REMEMBERED = Never("No verdict outlives its process.")
_WATCH_ENDS = Proof("tests/server/test_openwatches.py::test_a_watch_ends_with_its_credential")
_WATCH_OF_OUTSIDE = Proof(
    "tests/server/test_openwatches.py::test_a_watch_with_a_verdict_that_nobody_remembers_ends_after_its_time"
)
_JUDGED_AGAIN = Never("The credential is judged again after the body and after the queue, by the same authenticator.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="bad-credentials-are-never-anonymous",
        sentence="A credential that no authenticator accepts is refused, and never anonymous.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_authentication.py::test_a_bad_token_is_401_although_anonymous_access_is_on"
                ),
                Door.K3S: Proof(
                    _SUPERVISOR
                    + "test_protected_paths_answer_forbidden_without_a_credential_and_not_authorized_to_a_wrong_one"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_authentication.py::test_an_unverifiable_certificate_alone_is_401"
                ),
                Door.SIGNER: _NOBODY,
                Door.LOGIN: _MALFORMED,
                Door.SERVICE_ACCOUNT: _MALFORMED,
                Door.REVIEW: Proof(
                    "tests/authn/test_review.py::test_a_bad_token_is_unauthenticated_and_only_the_operator_learns_why"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof("tests/authn/test_anonymous.py::test_a_bad_credential_is_never_anonymous"),
                Moment.BODY: _BODY,
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: Proof(
                    "tests/authn/test_websocketchain.py::test_a_malformed_token_is_refused_and_never_anonymous"
                ),
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Never("The chain is the same, whatever is stored."),
                Moment.UNREADABLE: Proof(
                    _STANDING + "test_a_credential_that_becomes_unreadable_is_503_and_grants_nothing"
                ),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/server/test_authentication.py::"
                    "test_a_certificate_that_expires_on_an_open_connection_is_401_from_then_on"
                ),
            },
        ),
    ),
    Promise(
        key="refusals-give-no-reason",
        sentence="The response to a failed authentication is the same for every reason. The operator finds the reason under its "
        "Audit-Id.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_refusedrequests.py::"
                    "test_an_unknown_token_and_a_wrong_one_look_the_same_from_outside"
                ),
                Door.K3S: Proof(_SUPERVISOR + "test_the_operator_finds_the_reason_of_a_refusal"),
                Door.ADMINISTRATOR: Proof(
                    "tests/cli/test_auth_live.py::test_a_refusal_is_explained_under_the_id_that_the_caller_got"
                ),
                Door.SIGNER: _NOBODY,
                Door.LOGIN: Documented(
                    "A user who is authenticated and gets no login is told why.",
                    "docs/authentication/login.md#who-gets-none",
                ),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/authn/test_review.py::test_a_bad_token_is_unauthenticated_and_only_the_operator_learns_why"
                ),
                Door.OTHER_SERVER: Documented(
                    "The record is in the memory of the server that refused, and in its audit log.",
                    "docs/authentication/explain.md",
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_siblings.py::test_a_refusal_of_another_worker_is_found_by_its_audit_id"
                ),
                Door.REVIEW: Proof(
                    "tests/authn/test_review.py::test_a_bad_token_is_unauthenticated_and_only_the_operator_learns_why"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The words of a response do not depend on what is stored."),
            {
                Moment.AT_REST: _MALFORMED,
                Moment.BODY: Proof(_STANDING + "test_the_operator_sees_why_a_request_ended"),
                Moment.QUEUED: Proof(_STANDING + "test_the_operator_sees_why_a_request_ended"),
                Moment.WATCH: Proof(
                    "tests/server/test_websockets.py::test_a_bad_token_is_401_and_the_operator_learns_why"
                ),
                Moment.RESTART: Documented(
                    "The record is gone; the audit log has the reason under the same id.",
                    "docs/authentication/explain.md",
                ),
            },
        ),
    ),
    Promise(
        key="bootstrap-tokens-end-at-once",
        sentence="A bootstrap token that was deleted, or has expired, neither authenticates nor signs from that second on.",
        doors=doors(
            Never("This way in takes no bootstrap token."),
            {
                Door.KUBEADM: Proof(
                    "tests/authn/test_bootstraptoken.py::test_refused_with_a_reason_and_the_public_id_only"
                ),
                Door.K3S: Never("The supervisor asks the same authenticator."),
                Door.ADMINISTRATOR: Never("An administrator needs no bootstrap token."),
                Door.SIGNER: Never("What becomes of requests of an ended token is a promise of its own."),
                Door.OTHER_SERVER: Never("Every server reads the Secret itself, and remembers no token."),
                Door.OTHER_WORKER: Never("Every worker reads the Secret itself, and remembers no token."),
                Door.SERVING: Never("The same authenticator judges a token here; a request of one waits for a person."),
                Door.PERSON: Never(
                    "A person needs no bootstrap token; what becomes of the requests of one is a promise of its own."
                ),
                Door.REVIEW: Proof(
                    "tests/server/test_reviews.py::test_a_token_that_has_ended_is_invalid_in_its_review"
                ),
                Door.ELSEWHERE: elsewhere(
                    "That API server refuses an ended token itself. Its signature goes once the process "
                    "that leads sees the end."
                ),
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: _DELETED,
                Moment.BODY: _BODY,
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: _WATCH_ENDS,
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Proof(
                    "tests/authn/test_bootstraptoken.py::test_a_token_that_was_deleted_before_the_store_was_restored"
                ),
                Moment.UNREADABLE: Never(
                    "A Secret that cannot be read is absent, and an absent token authenticates no one."
                ),
                Moment.LEADER: Proof(
                    "tests/reconcile/test_endtoend.py::test_a_signature_is_removed_at_expiry_without_the_cleaner"
                ),
                Moment.CLOCK: Proof(
                    "tests/reconcile/test_endtoend.py::"
                    "test_a_token_is_signed_and_deleted_with_its_signature_after_the_clock_jumps"
                ),
            },
        ),
    ),
    Promise(
        key="service-account-tokens-end-with-their-objects",
        sentence="A token of a ServiceAccount ends with the account and with the object that it is bound to, also when another of "
        "that name is created.",
        doors=doors(
            Never("This way in takes no token of a ServiceAccount."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_serviceaccounttokens.py::test_a_secrets_token_is_its_account_until_the_secret_is_gone"
                ),
                Door.SIGNER: Proof(
                    "tests/controllers/test_requester.py::test_a_request_is_worth_what_its_requester_is"
                ),
                Door.LOGIN: Proof(
                    "tests/server/test_login.py::test_who_comes_with_what_a_cluster_gives_out_is_refused"
                ),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_serviceaccounttokens.py::test_a_token_ends_with_what_it_is_bound_to"
                ),
                Door.OTHER_SERVER: Documented(
                    "Programs that verify a token by the published keys alone do not see the end.",
                    "docs/authentication/service-accounts.md",
                ),
                Door.OTHER_WORKER: Never("Every worker looks up the objects at each request."),
                Door.SERVING: Never(
                    "The same authenticator judges the token of a ServiceAccount that makes such a request."
                ),
                Door.PERSON: Proof(
                    "tests/server/test_standing.py::test_a_credential_that_ends_before_the_commit_grants_nothing"
                ),
                Door.REVIEW: Proof(
                    "tests/server/test_reviews.py::test_a_token_that_has_ended_is_invalid_in_its_review"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof(
                    "tests/authn/test_serviceaccount.py::test_live_objects_are_looked_at_on_every_request"
                ),
                Moment.BODY: _BODY,
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: _WATCH_ENDS,
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Documented(
                    "A snapshot brings back accounts that were deleted after it.", "docs/back-up-and-restore.md"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/authn/test_serviceaccount.py::test_about_an_object_that_cannot_be_read_there_is_no_verdict"
                ),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/authn/test_serviceaccount.py::test_a_service_account_on_its_way_out_may_call_for_a_minute"
                ),
            },
        ),
    ),
    Promise(
        key="signed-tokens-count-for-their-audience",
        sentence="A signed token counts for its issuer, its audience and its time only, verified by a key and an algorithm that "
        "the "
        "server chose.",
        doors=doors(
            Never("This way in takes no signed token."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/authn/test_idtoken.py::test_algorithms_that_are_not_allowed_are_refused_before_a_key_is_looked_at"
                ),
                Door.SIGNER: _NOBODY,
                Door.LOGIN: Proof(
                    "tests/authn/test_usertoken.py::"
                    "test_a_service_account_token_is_none_and_this_is_none_of_a_service_account"
                ),
                Door.SERVICE_ACCOUNT: Proof("tests/pki/test_jwt.py::test_refused_tokens"),
                Door.OTHER_SERVER: Proof(
                    "tests/attack/test_everyway.py::test_a_token_review_runs_the_chain_for_every_kind_of_token"
                ),
                Door.OTHER_WORKER: Never("Each worker verifies tokens itself, with the keys of the same files."),
                Door.SERVING: Never("The same authenticators judge a signed token here as at every request."),
                Door.PERSON: Never("The same authenticators judge the signed token of a person as at every request."),
                Door.REVIEW: Proof(
                    "tests/attack/test_everyway.py::test_a_token_review_runs_the_chain_for_every_kind_of_token"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof("tests/pki/test_keyset.py::test_which_key_may_have_signed"),
                Moment.BODY: _BODY,
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: Never("A token keeps its audiences."),
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Never("Keys and issuers stand in files, which a restore leaves alone."),
                Moment.UNREADABLE: Proof(
                    "tests/authn/test_tokenkeys.py::test_a_file_that_cannot_be_used_changes_nothing"
                ),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/authn/test_serviceaccount.py::"
                    "test_a_signature_is_verified_once_until_expiry_and_anew_when_the_clock_goes_back"
                ),
            },
        ),
    ),
    Promise(
        key="headers-name-users-for-a-proxy-only",
        sentence="Headers that name a user count behind a certificate of the proxy's own CA only, and reach no endpoint.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.K3S: Proof("tests/trust/k3s/test_identity.py::test_a_request_that_impersonates_is_refused"),
                Door.ADMINISTRATOR: Proof(
                    "tests/attack/test_everyway.py::test_headers_of_a_proxy_are_ignored_unless_the_proxy_sends_them"
                ),
                Door.SIGNER: _NOBODY,
                Door.SERVICE_ACCOUNT: Proof("tests/authn/test_requestheader.py::test_who_may_speak"),
                Door.LOGIN: Proof("tests/server/test_login.py::test_whom_a_proxy_names_gets_nothing_that_goes_past_it"),
                Door.REVIEW: Proof(
                    "tests/attack/test_everyway.py::test_headers_of_a_proxy_are_ignored_unless_the_proxy_sends_them"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof("tests/attack/test_everyway.py::test_endpoints_receive_no_credential"),
                Moment.BODY: _BODY,
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: Proof("tests/server/test_revocation.py::test_a_revoked_proxy_speaks_for_no_user"),
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Never("The CA of proxies stands in a file, which a restore leaves alone."),
                Moment.UNREADABLE: Proof(
                    "tests/authn/test_clientcasruntime.py::test_a_bundle_that_is_none_leaves_the_last_good_one_in_force"
                ),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/authn/test_requestheader.py::"
                    "test_a_proxy_that_expired_may_not_speak_although_its_connection_is_open"
                ),
            },
        ),
    ),
    Promise(
        key="identities-are-compared-byte-for-byte",
        sentence="Names of users, groups and objects are compared byte for byte: nothing is trimmed, folded or replaced "
        "before, and a name that is not UTF-8 is refused.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.K3S: Proof("tests/server/test_k3scertificates.py::test_passwords_are_compared_byte_by_byte"),
                Door.ADMINISTRATOR: Proof(
                    "tests/attack/test_everyway.py::test_a_proxy_that_sends_names_in_latin_1_is_refused_with_the_reason"
                ),
                Door.PERSON: Proof("tests/attack/test_everyway.py::test_impersonation_in_latin_1_is_a_bad_request"),
                Door.SIGNER: _NOBODY,
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_paths.py::test_a_name_that_is_not_utf8_is_refused_before_it_is_compared"
                ),
                Door.REVIEW: Proof("tests/authn/test_chain.py::test_no_authenticator_lets_in_a_user_that_is_not_text"),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The bytes of a name are the same at every moment; what is stored is UTF-8."),
            {
                Moment.AT_REST: Proof("tests/authn/test_impersonation.py::test_names_are_taken_as_they_are"),
            },
        ),
    ),
    Promise(
        key="clients-are-verified-by-issuing-cas",
        sentence="Client certificates count under the CAs that issue for clients, and never under one that only verifies the "
        "server.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.KUBEADM: Proof("tests/agent/test_serving_trust_live.py::test_a_join_keeps_both_cas_apart"),
                Door.K3S: Never("The supervisor's chain has the same authenticator of certificates."),
                Door.ADMINISTRATOR: Proof(
                    "tests/plane/test_trustpublisher.py::test_a_ca_that_only_verifies_the_server_certifies_no_client"
                ),
                Door.SIGNER: Proof(
                    "tests/plane/test_signerauthorities.py::"
                    "test_a_root_for_kubelets_signs_by_both_ways_and_verifies_no_client"
                ),
                Door.REVIEW: Never(
                    "A review judges a token, and no certificate. Its caller passes the chain of every request."
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof("tests/authn/test_clientcert.py::test_a_certificate_is_refused"),
                Moment.BODY: Proof(_STANDING + "test_unfinished_requests_on_a_connection_end_with_its_key"),
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: Proof(
                    "tests/server/test_revocation.py::"
                    "test_watches_end_when_another_bundle_no_longer_verifies_their_certificate"
                ),
                Moment.RESTART: Never("The bundles are read from their files at each start."),
                Moment.RESTORE: Never("The bundles stand in files, which a restore leaves alone."),
                Moment.UNREADABLE: Proof(
                    "tests/authn/test_clientcasruntime.py::test_a_bundle_that_is_none_leaves_the_last_good_one_in_force"
                ),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/authn/test_clientcert.py::"
                    "test_the_chain_is_walked_once_per_connection_and_dates_are_checked_on_every_request"
                ),
            },
        ),
    ),
    Promise(
        key="k3s-tokens-open-the-supervisor-only",
        sentence="The server token and the agent token of k3s open the paths of the supervisor and nothing of the Kubernetes API; "
        "its groups count from a token only.",
        doors=doors(
            Never("The authenticator of these tokens is not in the chain of this way in."),
            {
                Door.K3S: Proof(_SUPERVISOR + "test_groups_of_k3s_count_from_a_token_only"),
                Door.ADMINISTRATOR: Proof(_SUPERVISOR + "test_a_token_opens_nothing_of_the_kubernetes_api"),
                Door.SIGNER: Proof(
                    "tests/server/test_k3scertificates.py::test_attributes_of_the_supervisor_come_from_no_user"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/server/test_supervisorservers.py::test_only_servers_reach_these_paths_and_only_with_their_methods"
                ),
                Door.REVIEW: Never(
                    "A review runs the authenticators of the Kubernetes API, without that of these tokens."
                ),
                Door.ELSEWHERE: Never("mooring controllers neither has nor takes these tokens."),
            },
        ),
        moments=moments(
            Never("The path decides which chain judges, before a credential is read."),
            {
                Moment.AT_REST: Proof(_SUPERVISOR + "test_each_level_is_open_to_its_groups_alone"),
                Moment.BODY: _BODY,
                Moment.QUEUED: Proof(
                    _STANDING + "test_a_credential_that_ends_while_an_agent_of_k3s_waits_gets_no_certificate"
                ),
                Moment.WATCH: Proof(_SUPERVISOR + "test_a_session_ends_when_its_certificate_is_revoked"),
            },
        ),
    ),
    Promise(
        key="a-rotated-server-token-ends-with-its-grace",
        sentence="A server token that was replaced works until the end of its grace and no longer, on every server.",
        doors=doors(
            Never("This way in takes no server token."),
            {
                Door.K3S: Proof(
                    _SUPERVISOR + "test_a_rotated_token_is_good_during_its_grace_and_in_force_without_a_restart"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/plane/sharedkeys/test_share.py::test_without_a_grace_the_former_token_ends_on_every_server"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_supervisorworkers.py::test_workers_follow_a_token_that_is_replaced"
                ),
            },
        ),
        moments=moments(
            Never("The time of each use is compared with the end, which is stored with the keys."),
            {
                Moment.AT_REST: Proof("tests/trust/k3s/test_acceptedtokens.py::test_judgement"),
                Moment.BODY: _BODY,
                Moment.QUEUED: _BODY,
                Moment.WATCH: Never("A token opens no watch: sessions of the tunnel have certificates."),
                Moment.RESTART: Proof("tests/trust/k3s/test_acceptedtokens.py::test_former_tokens_survive_the_file"),
                Moment.RESTORE: Proof(
                    "tests/scenarios/test_ends.py::"
                    "test_what_ended_after_a_copy_of_the_store_stays_ended_until_it_is_applied"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/trust/k3s/test_acceptedtokens.py::test_a_damaged_file_is_a_clear_error"
                ),
                Moment.CLOCK: Proof(
                    "tests/plane/sharedkeys/test_share.py::"
                    "test_a_given_token_is_refused_after_its_end_while_its_wrap_is_there"
                ),
            },
        ),
    ),
    Promise(
        key="a-rotated-agent-token-ends-with-its-grace",
        sentence="An agent token that was replaced works until the end of its grace and no longer, on every server, and nothing "
        "that a server is given brings it back.",
        doors=doors(
            Never("This way in takes no agent token."),
            {
                Door.K3S: Proof(
                    _SUPERVISOR + "test_a_rotated_agent_token_is_good_during_its_grace_and_wins_over_the_flag"
                ),
                Door.OTHER_SERVER: Proof(
                    _AGENT_TOKENS + "test_every_server_learns_the_new_token_and_ends_the_former_one_with_its_grace"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/scenarios/test_agent_token_rotation.py::test_the_agent_token_of_two_servers_is_rotated"
                ),
            },
        ),
        moments=moments(
            Never("The time of each use is compared with the end, which is stored with the keys."),
            {
                Moment.AT_REST: Proof("tests/trust/k3s/test_acceptedtokens.py::test_judgement"),
                Moment.BODY: _BODY,
                Moment.QUEUED: _BODY,
                Moment.WATCH: Never("A token opens no watch: sessions of the tunnel have certificates."),
                Moment.RESTART: Proof(
                    _AGENT_TOKENS + "test_a_server_that_is_given_another_agent_token_says_so_and_does_not_use_it"
                ),
                Moment.RESTORE: Proof(
                    _AGENT_TOKENS + "test_a_store_from_an_earlier_backup_brings_no_former_token_back"
                ),
                Moment.UNREADABLE: Proof(
                    _SUPERVISOR + "test_a_rotated_agent_token_is_good_during_its_grace_and_wins_over_the_flag"
                ),
                Moment.CLOCK: Proof(
                    _SUPERVISOR + "test_a_rotated_agent_token_is_good_during_its_grace_and_wins_over_the_flag"
                ),
            },
        ),
    ),
    Promise(
        key="a-login-needs-a-credential-of-its-provider",
        sentence="No credential that a cluster gave out obtains a login, so that a stolen one cannot renew itself.",
        doors=doors(
            Never("It is no login."),
            {
                Door.ADMINISTRATOR: Proof("tests/server/test_login.py::test_nobody_logs_in_as_somebody_else"),
                Door.LOGIN: Proof("tests/server/test_login.py::test_an_hour_does_not_renew_itself"),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_login.py::test_who_comes_with_what_a_cluster_gives_out_is_refused"
                ),
                Door.OTHER_SERVER: Documented(
                    "Two clusters that accept each other's tokens by a webhook could renew in turn.",
                    "docs/threats/tokens.md",
                ),
                Door.OTHER_WORKER: Never("Each worker refuses by the same table of authenticators."),
            },
        ),
        moments=moments(
            Never("The authenticator that accepted the credential decides, and no state."),
            {
                Moment.AT_REST: Proof("tests/authn/test_login.py::test_who_may_log_in"),
                Moment.BODY: _BODY,
                Moment.RESTORE: Proof("tests/server/test_endsgate.py::test_what_issues_answers_503_while_an_end_waits"),
                Moment.CLOCK: Proof("tests/server/test_login.py::test_the_certificate_is_its_user_until_it_expires"),
            },
        ),
    ),
    Promise(
        key="logins-name-no-system-user",
        sentence="A login names the user who was authenticated, and nobody whose name or group begins with system:.",
        doors=doors(
            Never("It is no login."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_login.py::"
                    "test_a_certificate_names_who_was_authenticated_and_not_who_is_in_the_request"
                ),
                Door.LOGIN: Proof("tests/server/test_login.py::test_a_name_of_the_system_is_refused"),
                Door.OTHER_WORKER: Never("Each worker refuses by the same rule."),
            },
        ),
        moments=moments(
            Never("The name of the user decides, and no state."),
            {
                Moment.AT_REST: Proof("tests/authn/test_login.py::test_who_may_log_in"),
                Moment.BODY: _BODY,
            },
        ),
    ),
    Promise(
        key="what-is-known-here-goes-to-no-service",
        sentence="A credential that a local authenticator recognises, valid or not, is sent to no webhook, Keystone or other "
        "service.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_webhook.py::test_what_is_ours_is_revoked_at_once_and_shown_to_nobody"
                ),
                Door.K3S: Proof(_SUPERVISOR + "test_a_token_opens_nothing_of_the_kubernetes_api"),
                Door.ADMINISTRATOR: Proof(
                    "tests/attack/test_everyway.py::test_a_forged_id_token_is_not_sent_to_the_webhook"
                ),
                Door.SIGNER: _NOBODY,
                Door.LOGIN: Proof(
                    "tests/server/test_keystone.py::test_a_user_of_the_password_file_is_not_keystones_to_name"
                ),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_webhook.py::test_a_token_of_our_issuer_is_shown_to_nobody_however_malformed"
                ),
                Door.REVIEW: Never("A review runs the same chain, which sends what is known here to no service."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof("tests/authn/test_webhook.py::test_tokens_of_ours_are_shown_to_nobody"),
                Moment.WATCH: _ONE_CHAIN,
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Documented(
                    "A bootstrap token whose Secret is gone is unknown here, and is asked about.",
                    "docs/authentication/webhook.md",
                ),
                Moment.UNREADABLE: Documented(
                    "A bootstrap token whose Secret cannot be read is unknown here, and is asked about.",
                    "docs/authentication/webhook.md",
                ),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/server/test_webhook.py::test_what_is_ours_and_has_expired_is_shown_to_nobody"
                ),
            },
        ),
    ),
    Promise(
        key="an-expired-certificate-asks-and-nothing-else",
        sentence="An expired certificate of a node is good for requesting a certificate of the same name, and for nothing else.",
        doors=doors(
            Never("Only the authenticator of recovery accepts a certificate after its end."),
            {
                Door.RENEWAL: Proof(
                    "tests/server/test_authentication.py::"
                    "test_a_certificate_that_expires_on_an_open_connection_is_401_from_then_on"
                ),
                Door.RECOVERY: Proof("tests/registry/test_admission.py::test_a_recovering_node"),
                Door.LOGIN: Never("A login takes no credential of a certificate."),
                Door.SIGNER: Proof("tests/controllers/test_noderecovery.py::test_another_name_is_denied"),
                Door.SERVING: Proof("tests/registry/test_admission.py::test_a_recovering_node"),
                Door.PERSON: Proof("tests/registry/test_admission.py::test_a_recovering_node"),
                Door.REVIEW: Documented(
                    "A machine that recovers may ask for reviews of its own rights, which store nothing.",
                    "docs/come-back-after-expiry.md#the-exchange",
                ),
                Door.ELSEWHERE: Never(
                    "That API server refuses an expired certificate, and mooring controllers has no rule of recovery."
                ),
            },
        ),
        moments=moments(
            Never("The certificate and the objects of the node are judged at each request."),
            {
                Moment.AT_REST: Proof("tests/authn/test_recovery.py::test_rejected"),
                Moment.QUEUED: Proof(
                    "tests/controllers/test_noderecovery.py::test_every_other_fault_holds_the_request_for_a_person"
                ),
                Moment.WATCH: Proof("tests/registry/test_admission.py::test_a_recovering_node"),
                Moment.UNREADABLE: Proof("tests/authn/test_recovery.py::test_the_checks_of_client_certificates_apply"),
                Moment.CLOCK: Proof(
                    "tests/scenarios/test_way_back.py::test_machines_come_back_after_their_certificates_have_expired"
                ),
            },
        ),
    ),
    Promise(
        key="own-authenticators-name-no-system-user",
        sentence="An authenticator of the operator's own names no user and no group of the system, and sees no credential that "
        "others "
        "recognise.",
        doors=doors(
            _ONE_CHAIN,
            {
                Door.K3S: Never("The supervisor's chain has no authenticator of the operator's own."),
                Door.ADMINISTRATOR: Proof("tests/authn/test_customauthenticator.py::test_who_is_not_let_in"),
                Door.SIGNER: _NOBODY,
                Door.LOGIN: Never("A login exchanges what the authenticator accepted, whose names were judged."),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/authn/test_customruntime.py::test_what_others_know_is_not_shown_to_it"
                ),
                Door.REVIEW: Never(
                    "A review runs the same chain: the names that such an authenticator gives are judged in it."
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _JUDGED_AGAIN,
            {
                Moment.AT_REST: Proof("tests/authn/test_customauthenticator.py::test_whatever_it_answers_is_read"),
                Moment.QUEUED: Proof(_STANDING + "test_a_credential_for_one_use_is_not_asked_about_again"),
                Moment.WATCH: _WATCH_OF_OUTSIDE,
                Moment.RESTART: _NOT_REMEMBERED,
                Moment.RESTORE: Never("Nothing of it is stored."),
                Moment.UNREADABLE: Never("Nothing of it is stored."),
                Moment.LEADER: _OWN_REQUESTS,
                Moment.CLOCK: Proof(
                    "tests/authn/test_customauthenticator.py::"
                    "test_an_acceptance_is_remembered_for_its_time_and_not_longer"
                ),
            },
        ),
    ),
    Promise(
        key="refusals-can-be-explained",
        sentence="An administrator finds the reason of every 401 and 403 under its Audit-Id.",
        doors=doors(
            Never("Every refusal over HTTP is recorded by the same function."),
            {
                Door.KUBEADM: Proof(
                    "tests/cli/test_members_live.py::"
                    "test_a_join_from_a_network_that_the_token_does_not_allow_fails_at_once_and_can_be_explained"
                ),
                Door.K3S: Proof(
                    "tests/trust/k3s/test_exchanges.py::test_a_refusal_ends_with_the_command_that_explains_it"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_refusedrequests.py::"
                    "test_a_request_that_admission_refuses_is_told_with_the_reason_that_the_client_got"
                ),
                Door.SIGNER: Never("A signer refuses in the conditions of a request, and not by 401 or 403."),
                Door.RENEWAL: Proof(
                    "tests/cli/test_members_live.py::"
                    "test_a_join_without_a_token_after_the_deletion_of_the_node_fails_at_once_and_can_be_explained"
                ),
                Door.OTHER_SERVER: Documented(
                    "The record is in the memory of the server that refused, and in its audit log.",
                    "docs/authentication/explain.md",
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_siblings.py::test_a_refusal_of_another_worker_is_found_by_its_audit_id"
                ),
                Door.REVIEW: Proof(
                    "tests/authn/test_review.py::test_a_bad_token_is_unauthenticated_and_only_the_operator_learns_why"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The record is made in memory when the request is refused, whatever is stored."),
            {
                Moment.AT_REST: Proof(
                    "tests/server/test_refusedrequests.py::"
                    "test_a_forbidden_request_is_told_with_who_asked_and_what_decided"
                ),
                Moment.BODY: Proof("tests/server/test_standing.py::test_the_operator_sees_why_a_request_ended"),
                Moment.QUEUED: Proof("tests/server/test_standing.py::test_the_operator_sees_why_a_request_ended"),
                Moment.WATCH: Proof(
                    "tests/server/test_websockets.py::test_a_bad_token_is_401_and_the_operator_learns_why"
                ),
                Moment.RESTART: Documented(
                    "The record is gone; the audit log has the reason under the same id.",
                    "docs/authentication/explain.md",
                ),
            },
        ),
    ),
)
