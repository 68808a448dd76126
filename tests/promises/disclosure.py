"""Promises: where secrets may appear."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, Documented, Door, Moment, Never, Promise, Proof, doors, moments

_OUT = "tests/test_redaction.py::"
_EVERY_WAY = Proof(_OUT + "test_no_secret_of_any_way_in_comes_out")
_STORY = Proof(_OUT + "test_no_secret_comes_out")
_SAME_OUTPUT = Never("Every process writes through the same functions.")
_NO_STATE = Never("What is written out does not depend on the state.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="secrets-are-not-printed",
        sentence="No token, private key or password appears in an error, a log line, a metric, an audit record, an event or the "
        "title of a process.",
        doors=doors(
            _SAME_OUTPUT,
            {
                Door.KUBEADM: _STORY,
                Door.K3S: Proof("tests/agent/k3s/test_membership.py::test_no_secret_is_told"),
                Door.ADMINISTRATOR: _EVERY_WAY,
                Door.SIGNER: Proof("tests/plane/test_tokenkey.py::test_a_wrong_pin_is_tried_once"),
                Door.RENEWAL: Proof(
                    "tests/agent/test_hooks.py::test_a_hook_runs_after_a_change_with_its_facts_and_without_a_token"
                ),
                Door.LOGIN: Proof(
                    "tests/server/test_login.py::test_what_was_issued_is_in_the_audit_record_and_the_credential_is_not"
                ),
                Door.SERVICE_ACCOUNT: _EVERY_WAY,
                Door.OTHER_SERVER: Proof("tests/server/test_supervisor.py::test_bodies_are_in_no_audit_log"),
                Door.REVIEW: Proof(
                    "tests/server/test_auditor.py::test_no_policy_gets_the_bodies_of_secrets_and_tokens"
                ),
                Door.ELSEWHERE: Proof("tests/reconcile/test_loop.py::test_the_loop_logs_keys_and_never_contents"),
            },
        ),
        moments=moments(
            _NO_STATE,
            {
                Moment.AT_REST: Proof("tests/test_secret.py::test_a_secret_is_not_printed"),
                Moment.WATCH: Proof(
                    "tests/server/test_websockets.py::test_a_token_s_watch_leaves_a_record_of_101_without_the_token"
                ),
                Moment.RESTART: Proof(
                    "tests/cli/test_processtitle.py::test_a_running_command_shows_its_flags_and_no_secret"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/trust/test_encryptionconfiguration.py::test_a_key_appears_in_no_output"
                ),
            },
        ),
    ),
    Promise(
        key="files-of-secrets-are-private",
        sentence="A file with a key, a token or a stored object is readable by its owner only, from its first byte.",
        doors=doors(
            Never("It writes no file on the server."),
            {
                Door.KUBEADM: Proof(
                    "tests/client/test_files.py::test_a_file_is_for_its_owner_only_from_its_first_byte"
                ),
                Door.K3S: Proof(
                    "tests/agent/k3s/test_membership.py::"
                    "test_the_files_are_those_of_a_k3s_agent_and_only_for_their_owner"
                ),
                Door.ADMINISTRATOR: Proof("tests/cli/test_certs.py::test_files_are_for_their_owner_alone"),
                Door.RENEWAL: Proof(
                    "tests/agent/test_state.py::test_keys_that_others_reach_are_told_with_the_command_that_mends_them"
                ),
                Door.LOGIN: Proof("tests/client/test_loginfiles.py::test_a_login_is_kept_for_its_user_alone"),
                Door.OTHER_SERVER: Proof(
                    "tests/plane/test_keystore.py::test_files_are_for_their_owner_only_whatever_the_umask"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/storage/test_sqlite_file.py::test_the_files_are_for_their_owner_alone_whatever_the_umask"
                ),
            },
        ),
        moments=moments(
            Never("The mode is given when the file is created, and no state changes it."),
            {
                Moment.AT_REST: Proof("tests/plane/test_exposed.py::test_a_start_refuses_keys_that_others_reach"),
                Moment.RESTART: Proof("tests/storage/test_sqlite_file.py::test_a_file_others_could_read_is_narrowed"),
                Moment.RESTORE: Proof(
                    "tests/client/test_files.py::test_a_file_is_for_its_owner_only_from_its_first_byte"
                ),
            },
        ),
    ),
    Promise(
        key="keys-stay-on-their-machine",
        sentence="A private key is made on the machine that uses it. The keys of the cluster leave a server sealed only.",
        doors=doors(
            Never("It sends a request with the public key."),
            {
                Door.K3S: Proof(
                    "tests/agent/k3s/test_membership.py::test_a_join_sends_the_requests_of_a_k3s_agent_in_its_order"
                ),
                Door.SIGNER: Proof("tests/plane/test_tokenkey.py::test_the_key_cannot_be_copied_or_written_out"),
                Door.LOGIN: Proof(
                    "tests/client/test_loginrequest.py::test_a_certificate_is_kept_with_the_key_that_never_left"
                ),
                Door.SERVICE_ACCOUNT: Never("A token has no key of its holder."),
                Door.OTHER_SERVER: Proof(
                    "tests/server/test_supervisorservers.py::test_keys_are_served_sealed_with_the_place_of_the_store"
                ),
                Door.OTHER_WORKER: Never("Workers are processes of one machine and one user."),
                Door.PERSON: Never("An approval sends no key."),
                Door.REVIEW: Never("A review sends a token, and no key."),
                Door.ELSEWHERE: Never(
                    "csrsigner reads the key of its CA from a file or a token, and sends it nowhere."
                ),
            },
        ),
        moments=moments(
            Never("No request and no state asks for a private key."),
            {
                Moment.AT_REST: Proof("tests/plane/sharedkeys/test_share.py::test_nothing_secret_stands_in_the_store"),
                Moment.RESTORE: Proof(
                    "tests/trust/sharedkeys/test_envelope.py::"
                    "test_a_removed_token_opens_neither_the_row_nor_with_its_old_wrap_what_comes_later"
                ),
                Moment.UNREADABLE: Proof("tests/cli/test_tokenrotate_live.py::test_keys_in_clear_are_never_served"),
            },
        ),
    ),
    Promise(
        key="output-is-printable",
        sentence="What others wrote reaches a log as one bounded line, and a terminal without control characters.",
        doors=doors(
            _SAME_OUTPUT,
            {
                Door.KUBEADM: Proof(
                    "tests/attack/test_dirtytext_live.py::test_each_line_of_the_log_is_printable_bounded_and_its_own"
                ),
                Door.ADMINISTRATOR: Proof("tests/attack/test_dirtytext_live.py::test_what_commands_print_is_printable"),
                Door.LOGIN: Proof("tests/trust/test_oidcclient.py::test_an_answer_that_cannot_be_shown_to_a_person"),
                Door.PERSON: Proof("tests/attack/test_dirtytext_live.py::test_what_commands_print_is_printable"),
            },
        ),
        moments=moments(
            _NO_STATE,
            {
                Moment.AT_REST: Proof(
                    "tests/cli/test_plaintext.py::test_a_record_is_one_line_whatever_its_arguments_hold"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/cli/test_plaintext.py::test_no_line_of_a_traceback_begins_like_a_record"
                ),
            },
        ),
    ),
    Promise(
        key="configured-kinds-are-encrypted",
        sentence="Objects of the kinds that the operator names are encrypted before any store sees them, and in every copy of it.",
        doors=doors(
            Never("Its objects are written by the same registry, above the encryption."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/registry/test_encryptionatrest.py::"
                    "test_only_configured_resources_are_encrypted_and_every_reader_sees_plain_objects"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/storage/encryption/test_files.py::"
                    "test_a_thief_of_etcd_finds_no_secret_and_its_prefix_is_authenticated"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/cli/test_secretsencryption_live.py::test_keys_are_replaced_while_two_workers_serve"
                ),
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The store gets ciphertext, whatever waits or leads."),
            {
                Moment.AT_REST: Proof(
                    "tests/storage/encryption/test_files.py::test_a_thief_of_the_files_finds_no_secret"
                ),
                Moment.RESTORE: Proof("tests/plane/snapshots/test_encrypted.py::test_encrypted_values_stay_encrypted"),
                Moment.UNREADABLE: Proof(
                    "tests/registry/test_encryptionatrest.py::test_an_object_that_no_key_decrypts_hides_no_other"
                ),
                Moment.CLOCK: Proof(
                    "tests/trust/test_encryptionenvelope.py::test_writing_ends_some_time_after_the_last_news"
                ),
            },
        ),
    ),
    Promise(
        key="a-value-stays-with-its-object",
        sentence="An encrypted value that was changed, or copied over another object, is not served.",
        doors=doors(
            Never("Its objects are read by the same registry, above the encryption."),
            {
                Door.ADMINISTRATOR: Proof("tests/trust/test_encryptionciphers.py::test_any_changed_byte_is_noticed"),
                Door.OTHER_SERVER: Proof(
                    "tests/registry/test_encryptionatrest.py::"
                    "test_a_value_that_is_copied_over_another_is_not_served_under_its_name"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("The value is judged when it is read."),
            {
                Moment.AT_REST: Proof(
                    "tests/registry/test_encryptionatrest.py::"
                    "test_a_value_that_is_copied_over_another_is_not_served_under_its_name"
                ),
                Moment.WATCH: Proof(
                    "tests/registry/test_encryptionatrest.py::"
                    "test_an_object_that_becomes_unreadable_is_absent_from_views_and_its_watches_see_no_deletion"
                ),
                Moment.RESTORE: Documented(
                    "An older value of the same object can be put back.", "docs/threats/store-and-backup.md"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/trust/test_encryptiontransformer.py::test_an_unreadable_value_names_provider_and_key"
                ),
            },
        ),
    ),
    Promise(
        key="compacted-values-are-overwritten",
        sentence="What compaction removes from the SQLite file is overwritten.",
        doors=doors(
            Never("Compaction is of the store, whoever wrote."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/storage/test_sqlite_file.py::test_compacted_values_are_gone_from_the_file"
                ),
                Door.OTHER_SERVER: Documented(
                    "etcd keeps freed pages until it is defragmented.", "docs/encrypt-at-rest.md#turn-it-on"
                ),
                Door.REVIEW: Never("A review is never stored."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            Never("Each connection to the file sets secure_delete, and each compaction overwrites what it removes."),
            {
                Moment.AT_REST: Proof(
                    "tests/storage/test_sqlite_file.py::test_commits_are_synchronous_and_deleted_values_are_overwritten"
                ),
            },
        ),
    ),
)
