"""Promises: what is recorded, and what cannot be taken out of a record."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_CHAIN = Proof("tests/scenarios/test_lineage.py::test_records_survive_kills_and_betray_every_change")
_BEFORE = Proof("tests/controllers/test_certificaterequests.py::test_a_certificate_is_recorded_before_it_is_published")
_APPENDED = Proof("tests/registry/test_admission.py::test_lineage_records_are_only_appended")
_FILES = "tests/server/test_auditfaults.py::"
_WRITES = "tests/server/test_serverwrites.py::"
_NO_CERTIFICATE = Never("It gives no certificate.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="certificates-are-recorded-before-they-appear",
        sentence="Every certificate that the signing controller issues is recorded, with its requester, before it is published.",
        doors=doors(
            Never("Every certificate of the controller is recorded by the same function, before its publication."),
            {
                Door.KUBEADM: _CHAIN,
                Door.ADMINISTRATOR: _BEFORE,
                Door.SIGNER: _BEFORE,
                Door.LOGIN: Documented(
                    "Certificates of logins and of mooring certs are not recorded.",
                    "docs/trace-a-certificate.md#what-is-recorded-and-what-is-not",
                ),
                Door.SERVICE_ACCOUNT: _NO_CERTIFICATE,
                Door.OTHER_SERVER: Proof("tests/reconcile/test_lineage.py::test_two_writers_never_fork_the_chain"),
                Door.REVIEW: _NO_CERTIFICATE,
                Door.ELSEWHERE: elsewhere("What csrsigner signs is recorded: another signer there records nothing."),
            },
        ),
        moments=moments(
            Never("The record is stored before the certificate is."),
            {
                Moment.AT_REST: Proof("tests/trust/test_lineage.py::test_certificates_without_an_entry_are_found"),
                Moment.QUEUED: Proof(
                    "tests/reconcile/test_lineage.py::test_a_failure_reaches_every_caller_and_the_next_entry_is_written"
                ),
                Moment.RESTART: _CHAIN,
                Moment.RESTORE: Proof(
                    "tests/plane/storemark/test_storemark.py::test_a_lineage_record_that_is_gone_stays_as_evidence"
                ),
                Moment.LEADER: Proof(
                    "tests/reconcile/test_lineage.py::test_a_new_writer_goes_on_where_the_last_one_ended"
                ),
            },
        ),
    ),
    Promise(
        key="records-are-only-appended",
        sentence="No user changes or deletes a record of a certificate through the API, and a change in the store is found.",
        doors=doors(
            Never("It writes no record."),
            {
                Door.ADMINISTRATOR: _APPENDED,
                Door.SIGNER: Never("The signer appends by the one writer of the chain, and changes nothing."),
                Door.SERVICE_ACCOUNT: _APPENDED,
                Door.OTHER_SERVER: Proof("tests/trust/test_lineage.py::test_the_first_bad_record_is_named"),
                Door.SERVING: Never("The signer appends by the one writer of the chain, and changes nothing."),
                Door.ELSEWHERE: elsewhere(
                    "Who has the right to change a record there may; the chain of hashes shows it."
                ),
            },
        ),
        moments=moments(
            Never("Each record has the hash of the one before, whenever it is read."),
            {
                Moment.AT_REST: Proof(
                    "tests/cli/test_audit_live.py::test_the_database_is_read_and_not_the_memory_of_the_server"
                ),
                Moment.RESTART: _CHAIN,
                Moment.WATCH: Never("A watch writes nothing."),
                Moment.RESTORE: Proof(
                    "tests/trust/test_lineage.py::test_a_chain_written_anew_with_the_key_meets_the_checkpoint"
                ),
            },
        ),
    ),
    Promise(
        key="requests-leave-audit-records",
        sentence="Every request leaves an audit record as the policy says, which other users' requests do not displace.",
        doors=doors(
            Never("Every request over HTTP is recorded by the same auditor."),
            {
                Door.KUBEADM: Proof("tests/server/test_auditlogfile.py::test_one_record_a_request"),
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_auditor.py::test_failed_authentication_is_recorded_by_the_rules_for_everybody"
                ),
                Door.LOGIN: Proof(
                    "tests/server/test_login.py::test_what_was_issued_is_in_the_audit_record_and_the_credential_is_not"
                ),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_serviceaccounttokens.py::test_a_generated_token_brings_a_warning_and_the_audit_record_names_it"
                ),
                Door.SIGNER: Never("A signer makes no request over HTTP; its writes are a promise of their own."),
                Door.OTHER_WORKER: Proof("tests/server/test_auditworkers.py::test_workers_append_to_one_file"),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The record is made by the process that serves the request, whatever is stored."),
            {
                Moment.AT_REST: Proof(
                    "tests/server/test_audittruncate.py::test_a_flood_of_refused_requests_pushes_out_no_other_record"
                ),
                Moment.BODY: Proof(
                    "tests/server/test_auditor.py::test_a_request_is_recorded_when_it_arrives_and_when_it_is_over"
                ),
                Moment.QUEUED: Proof("tests/server/test_standing.py::test_the_operator_sees_why_a_request_ended"),
                Moment.WATCH: Proof("tests/server/test_auditor.py::test_a_watch_is_recorded_when_it_begins_too"),
                Moment.RESTART: Documented(
                    "Records of the last 0.2 s may be lost when the process is killed.",
                    "docs/threats/operators-and-files.md",
                ),
            },
        ),
    ),
    Promise(
        key="the-crl-lists-what-is-revoked",
        sentence="The CRL has every revoked serial number that the cluster knows, is signed by its CA, and is made again each day.",
        doors=doors(
            Never("It reads the list of the server, or does not need one."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_revocation.py::test_openssl_verifies_the_list_and_refuses_a_certificate_on_it"
                ),
                Door.OTHER_SERVER: Never("Each server signs the list of the same denylist."),
                Door.OTHER_WORKER: Proof(
                    "tests/server/test_revocation.py::test_the_file_is_replaced_and_a_failure_is_logged"
                ),
                Door.ELSEWHERE: elsewhere("No CRL is made there."),
            },
        ),
        moments=moments(
            Never("The list is made of the denylist in the store."),
            {
                Moment.AT_REST: Proof("tests/server/test_revocation.py::test_the_crl_lists_what_is_revoked"),
                Moment.UNREADABLE: Documented(
                    "An entry that cannot be read is in force on the server, and not on the list.",
                    "docs/threats/certificates-and-ca.md",
                ),
                Moment.CLOCK: Proof(
                    "tests/server/test_revocation.py::test_the_crl_is_signed_again_after_a_change_and_after_a_day"
                ),
            },
        ),
    ),
    Promise(
        key="server-writes-leave-audit-records",
        sentence="Every write of an object by the server itself leaves an audit record that names the part that wrote.",
        doors=doors(
            Never("The write belongs to a request, which has a record of its own."),
            {
                Door.ADMINISTRATOR: Proof(_WRITES + "test_the_end_of_a_node_records_the_end_of_its_identity"),
                Door.SIGNER: Proof(_WRITES + "test_each_controller_is_named_in_the_records_of_its_writes"),
                Door.OTHER_SERVER: Never("Each server records its own writes in its own audit log."),
                Door.OTHER_WORKER: Never("Each worker records its own writes, in the audit log of all."),
                Door.SERVING: Proof(
                    "tests/server/test_serverwrites.py::test_each_controller_is_named_in_the_records_of_its_writes"
                ),
                Door.REVIEW: Never("A review writes no object."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The record is made by the process that writes, whatever is stored."),
            {
                Moment.AT_REST: Proof(_WRITES + "test_each_controller_is_named_in_the_records_of_its_writes"),
                Moment.RESTORE: Documented(
                    "A command that writes to a store while no server runs leaves no record.",
                    "docs/operate.md#audit-log",
                ),
                Moment.QUEUED: Proof(_WRITES + "test_a_write_whose_outcome_is_not_known_is_recorded"),
                Moment.RESTART: Proof(_WRITES + "test_first_boot_leaves_a_record_of_each_object"),
                Moment.LEADER: Documented(
                    "Without a policy the renewals of the server's own Leases are left out.",
                    "docs/operate.md#audit-log",
                ),
            },
        ),
    ),
    Promise(
        key="audit-records-outlive-their-file",
        sentence="Each accepted audit record is in one file once, or counted, whatever happens to the file. With blocking-strict a "
        "request whose record cannot be written is refused.",
        doors=doors(
            Never("Its requests are recorded by the same log."),
            {
                Door.ADMINISTRATOR: Proof(_FILES + "test_blocking_strict_refuses_what_it_cannot_record"),
                Door.OTHER_SERVER: Proof(
                    "tests/compat/test_kubectl_audit.py::test_two_servers_with_one_audit_log_keep_a_log_each"
                ),
                Door.OTHER_WORKER: Proof(_FILES + "test_every_record_is_in_one_file_once_or_counted"),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("A record is written after its request, and depends on no state of the store."),
            {
                Moment.AT_REST: Proof(_FILES + "test_every_record_is_in_one_file_once_or_counted"),
                Moment.QUEUED: Proof(_FILES + "test_a_rotation_that_fails_at_any_step_keeps_every_file"),
            },
        ),
    ),
    Promise(
        key="audit-records-hold-no-secret",
        sentence="No audit record has the body of a Secret or a token, whatever the policy says.",
        doors=doors(
            Never("Every record is made by the same auditor."),
            {
                Door.K3S: Proof("tests/server/test_supervisor.py::test_bodies_are_in_no_audit_log"),
                Door.ADMINISTRATOR: Proof(
                    "tests/server/test_auditor.py::test_no_policy_gets_the_bodies_of_secrets_and_tokens"
                ),
                Door.SIGNER: Proof(_WRITES + "test_no_policy_records_the_body_of_a_secret"),
                Door.LOGIN: Proof(
                    "tests/server/test_login.py::test_what_was_issued_is_in_the_audit_record_and_the_credential_is_not"
                ),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_auditor.py::test_no_policy_gets_the_bodies_of_secrets_and_tokens"
                ),
                Door.REVIEW: Proof(
                    "tests/server/test_auditor.py::test_no_policy_gets_the_bodies_of_secrets_and_tokens"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The kind of the object decides, and no state."),
            {
                Moment.AT_REST: Proof(_WRITES + "test_no_policy_records_the_body_of_a_secret"),
            },
        ),
    ),
)
