"""Promises: may this key have this node name."""

from __future__ import annotations

from tests.promises.columns import LEAVING, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_GATE = "tests/controllers/test_nameownership.py::"
_K3S = "tests/controllers/test_k3sjoin.py::"
_TAKEOVER = "tests/scenarios/test_name_takeover.py::"
_WAITED = Proof(_GATE + "test_a_request_that_waited_gains_nothing_by_a_change")
_HELD = Proof(_GATE + "test_what_is_held_or_denied")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="a-name-belongs-to-its-machine",
        sentence="The name of a node belongs to its machine until its Node is deleted, a token names it, or a person decides.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_TAKEOVER + "test_a_token_does_not_take_over_the_name_of_a_live_node"),
            Door.K3S: Proof(_K3S + "test_what_is_held"),
            Door.ADMINISTRATOR: Documented(
                "A person who approves a request gives its key the name.",
                "docs/names-and-membership.md#a-name-belongs-to-its-first-key",
            ),
            Door.SIGNER: _HELD,
            Door.RENEWAL: _WAITED,
            Door.RECOVERY: _WAITED,
            Door.LOGIN: Never("A login is that of a person, and names no node."),
            Door.SERVICE_ACCOUNT: Never("The name of a service account is not that of a node."),
            Door.OTHER_SERVER: Never("A name is claimed by compare-and-swap on an object of the store."),
            Door.OTHER_WORKER: Never("A name is claimed by compare-and-swap on an object of the store."),
            Door.SERVING: Proof("tests/controllers/test_servingapprover.py::test_faults_that_cannot_heal_deny_at_once"),
            Door.PERSON: Documented(
                "A person who approves a request gives its key the name.",
                "docs/names-and-membership.md#a-name-belongs-to-its-first-key",
            ),
            Door.REVIEW: Never("A review gives no name."),
            Door.ELSEWHERE: elsewhere(
                "The name is compared at the approval and at the signature by these controllers: "
                "another approver or signer does not look."
            ),
        },
        moments={
            Moment.AT_REST: _HELD,
            Moment.BODY: Never("The approver and the signer decide about a stored request."),
            Moment.QUEUED: _WAITED,
            Moment.WATCH: Never("A watch gives no certificate."),
            Moment.RESTART: Proof(_TAKEOVER + "test_a_token_does_not_take_over_the_name_of_a_live_node"),
            Moment.RESTORE: Never("A restored store is the subject of the promises about ends."),
            Moment.UNREADABLE: Proof(
                "tests/server/test_k3scertificates.py::test_a_name_whose_password_cannot_be_read_is_not_free"
            ),
            Moment.LEADER: Proof(
                "tests/server/test_unreadable.py::test_machines_join_while_a_secret_cannot_be_read_when_the_leader_changes"
            ),
            Moment.CLOCK: Proof(
                "tests/server/test_k3scertificates.py::test_a_machine_that_became_no_node_keeps_its_name"
            ),
        },
    ),
    Promise(
        key="a-deletion-gives-nothing-to-who-waited",
        sentence="A request that waited for a name is approved by a person, or by a token that names the node, and never by a "
        "deletion.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_TAKEOVER + "test_a_stranger_who_waits_gains_nothing_by_the_deletion_of_a_node"),
            Door.K3S: Documented(
                "A password that was refused is the first one once the Node or its Secret is deleted, as in k3s: an agent "
                "asks again by itself.",
                "docs/names-and-membership.md#node-passwords-of-k3s",
            ),
            Door.ADMINISTRATOR: Never("An approval by a person is not one by the deletion."),
            Door.SIGNER: _WAITED,
            Door.RENEWAL: _WAITED,
            Door.RECOVERY: _WAITED,
            Door.LOGIN: Never("A login is that of a person, and names no node."),
            Door.SERVICE_ACCOUNT: Never("The name of a service account is not that of a node."),
            Door.OTHER_SERVER: Proof(
                "tests/reconcile/test_kubernetes.py::test_the_name_of_a_deleted_node_is_free_for_another_machine"
            ),
            Door.OTHER_WORKER: Never("The moment of the deletion stands in the store, beside the request."),
            Door.SERVING: Proof(
                "tests/server/test_servingrequests.py::"
                "test_a_machine_that_ended_while_its_request_was_held_gets_no_serving_certificate"
            ),
            Door.PERSON: Never("An approval by a person is not one by the deletion."),
            Door.REVIEW: Never("A review gives no name."),
            Door.ELSEWHERE: Proof(
                "tests/reconcile/test_kubernetes.py::test_the_name_of_a_deleted_node_is_free_for_another_machine"
            ),
        },
        moments={
            Moment.AT_REST: _WAITED,
            Moment.BODY: Never("A request counts from its creation in the store."),
            Moment.QUEUED: Proof(_TAKEOVER + "test_a_stranger_who_waits_gains_nothing_by_the_deletion_of_a_node"),
            Moment.WATCH: Never("A watch gives no certificate."),
            Moment.RESTART: Never("The moment of the deletion and the reason of the hold stand in the store."),
            Moment.RESTORE: Never("A restored store is the subject of the promises about ends."),
            Moment.UNREADABLE: Proof("tests/api/test_membership.py::test_what_was_made_before_the_name_changed_hands"),
            Moment.LEADER: Never("The moment of the deletion and the reason of the hold stand in the store."),
            Moment.CLOCK: Documented(
                "Servers compare their clocks: a request of the second in which the Node was deleted counts as a new one.",
                "docs/adr/0062-a-deletion-gives-nothing-to-a-request-that-waited.md",
            ),
        },
    ),
    Promise(
        key="node-passwords-guard-names",
        sentence="A name that a machine obtained by k3s's way is given only to who proves its node password, and the server "
        "keeps a hash "
        "of it.",
        doors=doors(
            Never("This way in takes no node password."),
            {
                Door.KUBEADM: Proof(
                    "tests/server/test_k3scertificates.py::test_a_name_of_a_machine_that_joined_by_k3ss_way_is_not_given_to_kubeadms"
                ),
                Door.K3S: Proof(
                    "tests/server/test_k3scertificates.py::test_the_first_password_of_a_name_is_the_one_that_counts"
                ),
                Door.ADMINISTRATOR: Documented(
                    "Who deletes the Secret gives the name to the next machine with a token, as in k3s.",
                    "docs/names-and-membership.md#node-passwords-of-k3s",
                ),
                Door.RENEWAL: Proof(
                    "tests/server/test_k3scertificates.py::test_a_machine_that_proves_its_password_may_have_a_new_key"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/server/test_k3scertificates.py::test_of_two_first_passwords_at_once_one_wins"
                ),
                Door.OTHER_WORKER: Proof(
                    "tests/scenarios/test_k3scertificates.py::test_both_workers_give_a_machine_its_four_certificates"
                ),
                Door.PERSON: Documented(
                    "A person who approves a request gives its key the name.",
                    "docs/names-and-membership.md#a-name-belongs-to-its-first-key",
                ),
            },
        ),
        moments=moments(
            Never("The hash stands in the store, where each request finds it."),
            {
                Moment.AT_REST: Proof(
                    "tests/trust/k3s/test_nodepassword.py::test_lines_are_verified_with_their_own_numbers"
                ),
                Moment.BODY: Proof("tests/server/test_k3scertificates.py::test_headers_of_a_kubelet_are_checked"),
                Moment.QUEUED: Proof(
                    "tests/server/test_k3scertificates.py::"
                    "test_no_password_is_stored_for_a_credential_that_ends_while_it_is_computed"
                ),
                Moment.RESTART: Proof(
                    "tests/scenarios/test_k3scertificates.py::"
                    "test_a_server_that_is_killed_after_the_password_was_stored_goes_on_where_it_was"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/server/test_k3scertificates.py::test_a_secret_without_a_hash_refuses_and_says_what_to_do"
                ),
                Moment.CLOCK: Proof(
                    "tests/server/test_k3scertificates.py::test_a_machine_that_became_no_node_keeps_its_name"
                ),
            },
        ),
    ),
    Promise(
        key="who-reads-an-entry-proves-nothing",
        sentence="An entry of the inventory is used by one machine, which proves its key or its code. Who reads the entry, or a "
        "request, "
        "can prove neither.",
        doors=doors(
            Never("This way in uses no entry."),
            {
                Door.KUBEADM: Proof("tests/trust/test_machinecode.py::test_proofs"),
                Door.K3S: Proof(
                    "tests/controllers/test_k3sjoin.py::test_the_client_certificate_uses_the_entry_of_an_authorized_machine"
                ),
                Door.ADMINISTRATOR: Documented(
                    "A person may approve any machine.", "docs/approve-requests.md#authorized-machines"
                ),
                Door.SIGNER: Proof("tests/controllers/test_inventory.py::test_a_required_entry_is_claimed"),
                Door.OTHER_SERVER: Never("An entry is used by compare-and-swap on an object of the store."),
                Door.OTHER_WORKER: Never("An entry is used by compare-and-swap on an object of the store."),
                Door.SERVING: Proof(
                    "tests/controllers/test_certifiednames.py::"
                    "test_an_entry_counts_for_the_machine_that_proved_it_and_for_no_later_one"
                ),
                Door.PERSON: Documented(
                    "A person may approve any machine.", "docs/approve-requests.md#authorized-machines"
                ),
                Door.ELSEWHERE: Proof(
                    "tests/controllers/test_inventory.py::"
                    "test_where_clients_write_the_address_no_request_comes_from_a_network_of_an_entry"
                ),
            },
        ),
        moments=moments(
            Never("The proof is over the key and the name of the request, whenever it is judged."),
            {
                Moment.AT_REST: Proof("tests/trust/test_machinecode.py::test_proofs"),
                Moment.QUEUED: Proof(
                    "tests/controllers/test_inventory.py::test_an_authorized_machine_is_approved_after_its_entry_was_claimed"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/controllers/test_inventory.py::test_an_entry_that_cannot_be_read_authorizes_nobody_and_stops_no_other"
                ),
            },
        ),
    ),
)
