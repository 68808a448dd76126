"""Promises: which names and addresses a certificate may carry."""

from __future__ import annotations

from tests.promises.columns import LEAVING, Documented, Door, Moment, Never, Promise, Proof, elsewhere

_GATE = "tests/pki/test_namegate.py::"
_CHECK = "tests/controllers/test_certifiednames.py::"
_LIVE = "tests/scenarios/test_k3scertificates.py::"
_SIGNED_LATER = Proof(_CHECK + "test_what_became_reserved_after_the_approval_is_not_signed")
_PROVED = _CHECK + "test_an_entry_counts_for_the_machine_that_proved_it_and_for_no_later_one"
_WAITED = "tests/server/test_k3scertificates.py::test_a_stranger_that_waits_gets_no_serving_certificate_by_a_grant"
_STRANGER = _CHECK + "test_what_a_machine_was_granted_counts_in_no_request_of_a_stranger_that_a_person_approves"
_ELSEWHERE = "docs/adr/0056-one-gate-for-names.md"
_CLIENT_ONLY = Never("It gives no certificate whose purpose is that of a server.")
_NOT_A_CERTIFICATE = Never("It gives a token, which names no address.")
_SAME_GATE = Never("The controllers of one leader decide for all workers and servers.")
_NO_WATCH = Never("A watch hands out no certificate.")
_AFTER_BODY = Never("The names are judged from the stored request, after its whole body.")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="names-of-api-servers-are-reserved",
        sentence="No machine is certified for a name or an address of an API server, of a Service or of loopback, in any spelling, "
        "unless an administrator has granted it to that machine.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_CHECK + "test_names_of_every_server_are_reserved_even_when_a_person_approves"),
            Door.K3S: Proof(_LIVE + "test_a_token_is_no_permission_to_be_the_api_server"),
            Door.ADMINISTRATOR: Proof(_CHECK + "test_names_of_every_server_are_reserved_even_when_a_person_approves"),
            Door.SIGNER: Proof(
                _CHECK + "test_every_signer_whose_certificates_can_serve_keeps_the_names_of_api_servers"
            ),
            Door.RENEWAL: Proof(_GATE + "test_a_certificate_does_not_outweigh_a_reservation_or_another_certificate"),
            Door.RECOVERY: _CLIENT_ONLY,
            Door.LOGIN: _CLIENT_ONLY,
            Door.SERVICE_ACCOUNT: _NOT_A_CERTIFICATE,
            Door.OTHER_SERVER: Proof(_LIVE + "test_each_server_publishes_the_names_of_its_certificate"),
            Door.OTHER_WORKER: _SAME_GATE,
            Door.SERVING: Proof(
                "tests/controllers/test_certifiednames.py::"
                "test_names_of_every_server_are_reserved_even_when_a_person_approves"
            ),
            Door.PERSON: Proof(
                "tests/controllers/test_certifiednames.py::"
                "test_names_of_every_server_are_reserved_even_when_a_person_approves"
            ),
            Door.REVIEW: Never("A review gives no certificate."),
            Door.ELSEWHERE: elsewhere(
                "Reserved are the published addresses, the Service kubernetes and loopback: the names "
                "in the certificate of that API server are not known."
            ),
        },
        moments={
            Moment.AT_REST: Proof(_GATE + "test_names_of_other_servers"),
            Moment.BODY: _AFTER_BODY,
            Moment.QUEUED: _SIGNED_LATER,
            Moment.WATCH: _NO_WATCH,
            Moment.RESTART: Proof(_CHECK + "test_names_of_a_replaced_certificate_are_reserved_until_it_ends"),
            Moment.RESTORE: Documented(
                "The names of a server that was added after the copy are reserved once that server has started again.",
                "docs/approve-requests.md#reserved-names",
            ),
            Moment.UNREADABLE: Proof(
                _CHECK + "test_nothing_is_certified_while_the_published_names_of_a_server_cannot_be_read"
            ),
            Moment.LEADER: _SIGNED_LATER,
            Moment.CLOCK: Proof(_CHECK + "test_names_of_a_server_are_reserved_until_its_certificate_ends"),
        },
    ),
    Promise(
        key="names-of-other-machines",
        sentence="No machine is certified for a name or an address that another machine has; either belongs to the identity that "
        "has a certificate for it until that ends, whatever its Node reports.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_CHECK + "test_an_address_belongs_to_the_identity_that_has_a_certificate_for_it"),
            Door.K3S: Proof(_CHECK + "test_a_certified_name_stays_with_its_machine_whatever_its_node_reports"),
            Door.ADMINISTRATOR: Documented(
                "A person may approve a request for a name or an address that another machine has.",
                "docs/approve-requests.md#serving-certificates",
            ),
            Door.SIGNER: Documented(
                "The signing policy of an operator decides about names that are not those of API servers.",
                "docs/choose-the-signers.md#rules",
            ),
            Door.RENEWAL: Proof(_CHECK + "test_a_certified_name_stays_with_its_machine_whatever_its_node_reports"),
            Door.RECOVERY: _CLIENT_ONLY,
            Door.LOGIN: _CLIENT_ONLY,
            Door.SERVICE_ACCOUNT: _NOT_A_CERTIFICATE,
            Door.OTHER_SERVER: _SAME_GATE,
            Door.OTHER_WORKER: _SAME_GATE,
            Door.SERVING: Proof(
                "tests/controllers/test_certifiednames.py::"
                "test_an_address_belongs_to_the_identity_that_has_a_certificate_for_it"
            ),
            Door.PERSON: Documented(
                "A person may approve a request for a name or an address that another machine has.",
                "docs/approve-requests.md#serving-certificates",
            ),
            Door.REVIEW: Never("A review gives no certificate."),
            Door.ELSEWHERE: elsewhere(
                "The names are judged by these controllers alone: another approver or signer does not look."
            ),
        },
        moments={
            Moment.AT_REST: Proof(_GATE + "test_no_spelling_of_a_name_of_another_machine_is_allowed"),
            Moment.BODY: _AFTER_BODY,
            Moment.QUEUED: Proof(_CHECK + "test_two_claims_of_one_moment_do_not_both_get_the_certificate"),
            Moment.WATCH: _NO_WATCH,
            Moment.RESTART: Proof(_CHECK + "test_no_name_is_dropped_from_the_record_before_its_certificate_ends"),
            Moment.RESTORE: Documented(
                "A certificate that was issued after the copy was made is not recorded; what Nodes report still counts.",
                _ELSEWHERE,
            ),
            Moment.UNREADABLE: Proof(_CHECK + "test_a_machine_that_cannot_be_read_keeps_its_names_and_stops_no_other"),
            Moment.LEADER: Proof(_CHECK + "test_two_claims_of_one_moment_do_not_both_get_the_certificate"),
            Moment.CLOCK: Proof(_CHECK + "test_a_certified_address_becomes_free"),
        },
    ),
    Promise(
        key="grants-count-for-their-machine",
        sentence="A name that an administrator has granted to a machine counts in requests of that machine, and one that it had to "
        "prove for only until its name changes hands.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_PROVED),
            Door.K3S: Proof(_PROVED),
            Door.ADMINISTRATOR: Proof(_STRANGER),
            Door.SIGNER: Never("A signer of the operator issues nothing by an entry or a label."),
            Door.RENEWAL: Proof(_PROVED),
            Door.RECOVERY: _CLIENT_ONLY,
            Door.LOGIN: _CLIENT_ONLY,
            Door.SERVICE_ACCOUNT: _NOT_A_CERTIFICATE,
            Door.OTHER_SERVER: _SAME_GATE,
            Door.OTHER_WORKER: _SAME_GATE,
            Door.SERVING: Proof(_PROVED),
            Door.PERSON: Proof(_STRANGER),
            Door.REVIEW: Never("A review gives no certificate."),
            Door.ELSEWHERE: Proof(
                "tests/controllers/test_certifiednames.py::"
                "test_an_entry_without_a_proof_grants_names_in_requests_from_its_networks"
            ),
        },
        moments={
            Moment.AT_REST: Proof(_CHECK + "test_an_entry_without_a_proof_grants_names_in_requests_from_its_networks"),
            Moment.BODY: _AFTER_BODY,
            Moment.QUEUED: Proof(_WAITED),
            Moment.WATCH: _NO_WATCH,
            Moment.RESTART: Never("The entry and the record of the name are in the store."),
            Moment.RESTORE: Never("The entry and the record of the name are of one moment."),
            Moment.UNREADABLE: Never("An entry that cannot be read grants nothing, and the request waits."),
            Moment.LEADER: Proof(_STRANGER),
            Moment.CLOCK: Proof(
                "tests/controllers/test_inventory.py::"
                "test_a_key_that_comes_again_after_the_name_changed_hands_claims_its_entry_again"
            ),
        },
    ),
    Promise(
        key="the-word-of-a-node",
        sentence="What a node says of itself is proof for its own name and its own addresses, and for no further DNS name.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof(_GATE + "test_names_that_it_may_not_have_by_its_own_word"),
            Door.K3S: Proof(
                "tests/server/test_k3scertificates.py::"
                "test_a_machine_that_gets_the_name_of_another_by_its_own_password_takes_nothing_over"
            ),
            Door.ADMINISTRATOR: Proof(_CHECK + "test_a_person_outweighs_what_is_held_and_the_names_are_recorded"),
            Door.SIGNER: Never("A node has no part in what the rules of a signing policy allow."),
            Door.RENEWAL: Proof(_CHECK + "test_the_names_of_a_certificate_are_recorded_until_it_ends"),
            Door.RECOVERY: _CLIENT_ONLY,
            Door.LOGIN: _CLIENT_ONLY,
            Door.SERVICE_ACCOUNT: _NOT_A_CERTIFICATE,
            Door.OTHER_SERVER: _SAME_GATE,
            Door.OTHER_WORKER: _SAME_GATE,
            Door.SERVING: Proof(_GATE + "test_names_that_it_may_not_have_by_its_own_word"),
            Door.PERSON: Proof(_CHECK + "test_a_person_outweighs_what_is_held_and_the_names_are_recorded"),
            Door.REVIEW: Never("A review gives no certificate."),
            Door.ELSEWHERE: Proof(
                "tests/controllers/test_certifiednames.py::test_the_dns_is_proof_for_the_address_that_makes_the_request"
            ),
        },
        moments={
            Moment.AT_REST: Proof(_GATE + "test_the_word_of_a_node_is_never_proof_for_a_further_name"),
            Moment.BODY: _AFTER_BODY,
            Moment.QUEUED: Proof(_CHECK + "test_the_dns_is_proof_for_the_address_that_makes_the_request"),
            Moment.WATCH: _NO_WATCH,
            Moment.RESTART: Proof(_CHECK + "test_the_names_of_a_certificate_are_recorded_until_it_ends"),
            Moment.RESTORE: Never("Without a record the name needs a proof again."),
            Moment.UNREADABLE: Never(
                "A record, a Node or an entry that cannot be read proves nothing, and the request waits."
            ),
            Moment.LEADER: Never("The record of a name is in the store before the approval."),
            Moment.CLOCK: Proof(_CHECK + "test_the_names_of_a_certificate_are_recorded_until_it_ends"),
        },
    ),
)
