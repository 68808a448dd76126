"""Promises: whom a machine and a command trust, and what they send."""

from __future__ import annotations

from tests.promises.columns import Door, Moment, Never, Promise, Proof, doors, moments

_TOKEN = "tests/trust/test_discoverytoken.py::"
_EXCHANGES = "tests/trust/k3s/test_exchanges.py::"
_NO_DISCOVERY = Never("The client has a verified server by then.")
_ON_THE_CLIENT = Never("The client decides by what it was given and what it fetched, and reads no state of a server.")
_NOT_A_SERVER = Never("The client verifies each server in the same way.")
_UNVERIFIED = Proof(_TOKEN + "test_credentials_are_never_sent_without_verified_tls")
_REFRESH = "tests/trust/test_refresh.py::"
_FIRST_TOKEN = "tests/cli/test_firsttoken.py::"

ROWS: tuple[Promise, ...] = (
    Promise(
        key="a-joiner-trusts-what-was-proved",
        sentence="A machine that joins trusts the CA that its pin names, or that a signature by its token proves, and none "
        "beside it.",
        doors=doors(
            _NO_DISCOVERY,
            {
                Door.KUBEADM: Proof(_TOKEN + "test_a_thief_of_the_token_cannot_put_his_own_ca_beside_the_pinned_one"),
                Door.K3S: Proof(_EXCHANGES + "test_a_hash_does_not_vouch_for_a_ca_beside_the_pinned_one"),
                Door.RENEWAL: Proof(
                    "tests/trust/test_refresh.py::test_a_change_of_ca_has_to_be_authenticated_by_the_ca_before"
                ),
                Door.RECOVERY: Proof(
                    "tests/trust/test_refresh.py::test_a_change_of_ca_has_to_be_authenticated_by_the_ca_before"
                ),
                Door.LOGIN: Proof("tests/trust/test_pinnedca.py::test_a_ca_beside_the_pinned_one_is_not_trusted"),
                Door.OTHER_SERVER: Proof(
                    "tests/client/test_cluster.py::test_a_server_of_another_ca_is_passed_over_and_gets_no_credential"
                ),
                Door.OTHER_WORKER: _NOT_A_SERVER,
                Door.ELSEWHERE: Never(
                    "mooring controllers reads the CA from its kubeconfig or its Pod, and discovers none."
                ),
            },
        ),
        moments=moments(
            _ON_THE_CLIENT,
            {
                Moment.AT_REST: Proof(_TOKEN + "test_no_signed_junk_makes_it_crash_or_trust"),
                Moment.RESTART: Proof(
                    "tests/agent/k3s/test_membership.py::"
                    "test_a_server_that_is_not_the_one_of_the_first_use_is_refused_later"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/agent/k3s/test_membership.py::"
                    "test_a_member_without_its_ca_does_not_fall_back_to_the_roots_of_the_machine"
                ),
                Moment.CLOCK: Proof(
                    "tests/client/test_httprequests.py::test_a_certificate_outside_its_time_is_told_with_our_clock"
                ),
            },
        ),
    ),
    Promise(
        key="secrets-go-to-verified-servers-only",
        sentence="Tokens, passwords and keys are sent to servers that were verified, and to no other. A node is no "
        "server, although the same CA signs its certificate.",
        doors=doors(
            Never("Its requests are built by the same type, which refuses a secret without verified TLS."),
            {
                Door.KUBEADM: _UNVERIFIED,
                Door.K3S: Proof(
                    "tests/client/test_httprequests.py::"
                    "test_a_node_is_no_api_server_whatever_names_of_loopback_its_certificate_has"
                ),
                Door.RENEWAL: Proof(
                    "tests/client/test_cluster.py::test_a_server_of_another_ca_is_passed_over_and_gets_no_credential"
                ),
                Door.LOGIN: Proof(
                    "tests/client/test_loginbrowser.py::test_a_provider_under_another_ca_is_shown_nothing"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/trust/sharedkeys/test_serverjoin.py::test_nothing_secret_is_sent_to_a_server_of_another_ca"
                ),
                Door.OTHER_WORKER: _NOT_A_SERVER,
                Door.ELSEWHERE: Proof(
                    "tests/client/test_httprequests.py::test_credentials_go_out_only_where_the_server_is_verified"
                ),
            },
        ),
        moments=moments(
            _ON_THE_CLIENT,
            {
                Moment.AT_REST: Proof(
                    "tests/client/test_httprequests.py::test_credentials_go_out_only_where_the_server_is_verified"
                ),
                Moment.QUEUED: Proof("tests/client/test_httprequests.py::test_redirects_are_not_followed"),
                Moment.RESTART: Proof(
                    "tests/agent/k3s/test_membership.py::"
                    "test_nothing_secret_is_sent_to_a_server_with_another_ca_than_the_token_names"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/client/test_httprequests.py::test_a_ca_that_cannot_be_read_is_the_callers_fault"
                ),
            },
        ),
    ),
    Promise(
        key="a-discovery-document-runs-nothing",
        sentence="Credentials of a discovery document, programs among them, are used only with a flag that allows them.",
        doors=doors(
            Never("It reads no discovery document."),
            {
                Door.KUBEADM: Proof("tests/trust/test_discoveryfile.py::test_credentials_are_refused_by_default"),
            },
        ),
        moments=moments(
            _ON_THE_CLIENT,
            {
                Moment.AT_REST: Proof(
                    "tests/trust/test_discoveryfile.py::"
                    "test_credentials_of_any_user_are_refused_not_only_of_the_current_one"
                ),
            },
        ),
    ),
    Promise(
        key="a-login-goes-to-its-own-cluster",
        sentence="A stored login is handed out for its own server and CA only, unless its user allows clients that name none.",
        doors=doors(
            Never("It uses no stored login."),
            {
                Door.LOGIN: Proof("tests/trust/test_loginrecord.py::test_the_credential_is_for_no_other"),
                Door.OTHER_SERVER: Proof(
                    "tests/cli/test_login_live.py::test_the_plugin_hands_nothing_out_for_another_cluster"
                ),
                Door.PERSON: Never("A stored login of the person is handed out by the command that every client runs."),
                Door.REVIEW: Never("A stored login of the caller is handed out by the command that every client runs."),
                Door.ELSEWHERE: Never(
                    "A login that the kubeconfig names is handed out by the command that every client runs."
                ),
            },
        ),
        moments=moments(
            _ON_THE_CLIENT,
            {
                Moment.AT_REST: Proof("tests/trust/test_loginrecord.py::test_the_credential_is_for_no_other"),
                Moment.RESTART: Proof("tests/client/test_loginfiles.py::test_a_record_of_somebody_else_is_refused"),
                Moment.UNREADABLE: Proof(
                    "tests/trust/test_loginrecord.py::test_a_record_that_was_cut_or_changed_is_one_error"
                ),
                Moment.CLOCK: Proof(
                    "tests/trust/test_loginrecord.py::test_when_a_credential_is_good_and_when_it_is_renewed"
                ),
            },
        ),
    ),
    Promise(
        key="a-member-keeps-what-works",
        sentence="An agent replaces its certificate only by one that the server accepts, and keeps a whole pair at every moment.",
        doors=doors(
            Never("It replaces no certificate of a machine."),
            {
                Door.KUBEADM: Proof("tests/crash/test_kill_joiner.py::test_killed_between_any_two_changes_of_its_disk"),
                Door.K3S: Proof(
                    "tests/agent/k3s/test_kill_live.py::test_a_pair_is_replaced_whole_wherever_the_process_dies"
                ),
                Door.RENEWAL: Proof(
                    "tests/scenarios/test_renewal.py::"
                    "test_killed_between_any_two_changes_of_its_disk_an_agent_still_renews_and_runs_its_hook"
                ),
                Door.RECOVERY: Proof(
                    "tests/agent/test_membership_live.py::test_an_agent_that_was_off_for_too_long_comes_back_by_itself"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/scenarios/test_agent_failover.py::test_an_agent_outlives_either_server"
                ),
                Door.SERVING: Proof("tests/agent/test_state.py::test_a_crash_in_the_swap_leaves_a_current_pair"),
            },
        ),
        moments=moments(
            Never("The files of the machine are replaced by a rename, whatever the server does."),
            {
                Moment.AT_REST: Proof("tests/agent/test_state.py::test_a_crash_in_the_swap_leaves_a_current_pair"),
                Moment.QUEUED: Proof(
                    "tests/agent/certificates/test_renewal.py::"
                    "test_a_decision_against_the_request_ends_its_wait_and_another_follows"
                ),
                Moment.RESTART: Proof(
                    "tests/agent/test_state.py::test_the_pending_key_outlives_a_crash_and_goes_when_dropped"
                ),
                Moment.UNREADABLE: Proof("tests/agent/test_state.py::test_an_unusable_pair_reads_as_none"),
                Moment.CLOCK: Proof(
                    "tests/agent/test_clockskew.py::"
                    "test_a_new_certificate_that_is_not_valid_here_tells_which_clock_differs"
                ),
            },
        ),
    ),
    Promise(
        key="the-way-is-proved-before-it-is-written",
        sentence="A file of a member names a way to a server (address, CA, name, proxy) after a server has responded by exactly "
        "that way; one that was set by hand stays.",
        doors=doors(
            Never("It writes no file of a machine."),
            {
                Door.KUBEADM: Proof(
                    "tests/agent/test_join_live.py::test_discovery_alone_writes_the_way_that_has_responded"
                ),
                Door.K3S: Proof(
                    "tests/agent/k3s/test_membership.py::"
                    "test_kubeconfigs_name_no_load_balancer_behind_which_a_server_does_not_verify"
                ),
                Door.RENEWAL: Proof(_REFRESH + "test_the_way_to_an_address_is_merged_field_by_field_and_proved"),
                Door.RECOVERY: Proof(_REFRESH + "test_a_token_that_is_given_again_keeps_the_way_that_was_set_here"),
                Door.OTHER_SERVER: Proof(
                    _REFRESH + "test_the_way_to_a_further_address_changes_only_when_it_leads_there"
                ),
            },
        ),
        moments=moments(
            _ON_THE_CLIENT,
            {
                Moment.AT_REST: Proof(_REFRESH + "test_a_published_way_that_does_not_lead_there_is_not_written"),
                Moment.RESTART: Proof(_REFRESH + "test_a_published_way_that_leads_there_later_is_written_then"),
                Moment.UNREADABLE: Proof(
                    "tests/agent/test_state.py::"
                    "test_a_further_address_whose_proxy_cannot_be_used_does_not_make_the_file_unusable"
                ),
            },
        ),
    ),
    Promise(
        key="join-lines-work",
        sentence="A server that starts prints a join line only for an address by which a machine can join.",
        doors=doors(
            Never("It prints no join line."),
            {
                Door.KUBEADM: Proof(_FIRST_TOKEN + "test_a_join_line_has_the_addresses_that_the_certificate_names"),
                Door.ADMINISTRATOR: Proof(_FIRST_TOKEN + "test_a_join_line_that_no_machine_could_use_is_not_printed"),
            },
        ),
        moments=moments(
            Never("The line is made when it is printed, from the certificate and the addresses of that moment."),
            {
                Moment.AT_REST: Proof(_FIRST_TOKEN + "test_the_certificate_of_the_cluster_names_every_address"),
            },
        ),
    ),
)
