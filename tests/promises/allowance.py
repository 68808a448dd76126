"""Promises: does the token, rule or inventory entry still allow this."""

from __future__ import annotations

from tests.promises.columns import LEAVING, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_ONE_MOMENT = Proof(
    "tests/server/test_requester.py::test_of_requests_approved_at_one_moment_one_gets_a_certificate_for_a_fresh_key"
)
_RULE = Proof("tests/controllers/test_signerpolicy.py::test_a_key_that_was_certified_is_not_fresh")
_CHAIN = Proof("tests/reconcile/test_lineage.py::test_of_requests_for_one_key_at_one_moment_the_chain_takes_one")
_LISTED = Proof("tests/controllers/test_k3sjoin.py::test_where_entries_are_required")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="fresh-keys",
        sentence="Where the policy of a signer wants a fresh key, a key has one valid certificate.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: _RULE,
            Door.K3S: Never("Requests of the supervisor pass the same check and the same signer."),
            Door.ADMINISTRATOR: _ONE_MOMENT,
            Door.SIGNER: Proof("tests/controllers/test_signerpolicy.py::test_the_signer_claims_a_fresh_key"),
            Door.RENEWAL: _RULE,
            Door.RECOVERY: _RULE,
            Door.LOGIN: Never("A login is not a request to a signer, and no policy is for it."),
            Door.SERVICE_ACCOUNT: Never("A token has no key of its holder."),
            Door.OTHER_SERVER: _CHAIN,
            Door.OTHER_WORKER: _CHAIN,
            Door.SERVING: _RULE,
            Door.PERSON: _ONE_MOMENT,
            Door.REVIEW: Never("A review gives no certificate."),
            Door.ELSEWHERE: _CHAIN,
        },
        moments={
            Moment.AT_REST: _RULE,
            Moment.BODY: Never("The signer decides, and not the request that creates the object."),
            Moment.QUEUED: _ONE_MOMENT,
            Moment.WATCH: Never("A watch shows a certificate, and issues none."),
            Moment.RESTART: Proof("tests/reconcile/test_lineage.py::test_a_claim_waits_for_the_newest_record"),
            Moment.RESTORE: Documented(
                "A snapshot lacks the records that were appended after it.", "docs/back-up-and-restore.md"
            ),
            Moment.UNREADABLE: Proof("tests/reconcile/test_lineage.py::test_a_claim_waits_for_the_newest_record"),
            Moment.LEADER: _CHAIN,
            Moment.CLOCK: Proof(
                "tests/reconcile/test_lineage.py::test_a_key_is_free_again_when_its_certificate_has_ended"
            ),
        },
    ),
    Promise(
        key="a-listed-machine-keeps-its-entry",
        sentence="Where an inventory is required, a machine joins under a listed name only with the entry that it fits.",
        doors={
            Door.LEAVE: LEAVING,
            Door.KUBEADM: Proof("tests/controllers/test_inventory.py::test_without_a_fitting_entry_a_person_decides"),
            Door.K3S: _LISTED,
            Door.ADMINISTRATOR: Documented(
                "A person may approve any machine.", "docs/approve-requests.md#authorized-machines"
            ),
            Door.SIGNER: Never("The signer repeats the check of the approver."),
            Door.RENEWAL: Never("A member proved its name before, and needs no entry."),
            Door.RECOVERY: Never("A machine that comes back proved its name before, and needs no entry."),
            Door.LOGIN: Never("A login is that of a person, and names no node."),
            Door.SERVICE_ACCOUNT: Never("The name of a service account is not that of a node."),
            Door.OTHER_SERVER: Never("An entry is used by compare-and-swap on an object of the store."),
            Door.OTHER_WORKER: Never("An entry is used by compare-and-swap on an object of the store."),
            Door.SERVING: Never("A node that requests one has joined, and needs no entry."),
            Door.PERSON: Documented(
                "A person may approve any machine.", "docs/approve-requests.md#authorized-machines"
            ),
            Door.REVIEW: Never("A review lets no machine in."),
            Door.ELSEWHERE: Proof(
                "tests/controllers/test_inventory.py::"
                "test_where_clients_write_the_address_no_request_comes_from_a_network_of_an_entry"
            ),
        },
        moments={
            Moment.AT_REST: _LISTED,
            Moment.BODY: Never("The approver and the signer decide about a stored request."),
            Moment.QUEUED: Proof(
                "tests/server/test_k3scertificates.py::"
                "test_a_stranger_whose_request_waits_for_the_inventory_keeps_no_name_from_the_listed_machine"
            ),
            Moment.WATCH: Never("A watch gives no certificate."),
            Moment.RESTART: Never("The use of an entry stands in the store."),
            Moment.RESTORE: Never("A restored store is the subject of the promises about ends."),
            Moment.UNREADABLE: Never("A plan that reads an object which cannot be read does not run."),
            Moment.LEADER: Never("The use of an entry stands in the store."),
            Moment.CLOCK: Never("An entry has no end."),
        },
    ),
    Promise(
        key="joins-are-counted",
        sentence="A token with a number of joins lets in so many machines and no more, on any number of servers.",
        doors=doors(
            Never("This way in needs no token of the cluster."),
            {
                Door.KUBEADM: Proof(
                    "tests/scenarios/test_limited_tokens.py::test_exactly_as_many_machines_join_as_the_token_allows"
                ),
                Door.K3S: Proof("tests/server/test_k3scertificates.py::test_a_join_counts_once_for_a_token"),
                Door.ADMINISTRATOR: Documented(
                    "A person who approves a request by hand may go beyond the number.",
                    "docs/limit-what-a-token-can-do.md#how-joins-are-counted",
                ),
                Door.SIGNER: Proof(
                    "tests/controllers/test_tokenlimits.py::test_a_second_name_for_a_key_is_another_join"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/scenarios/test_limited_tokens.py::test_exactly_as_many_machines_join_as_the_token_allows"
                ),
                Door.OTHER_WORKER: Never("The count is written by compare-and-swap on the Secret."),
                Door.PERSON: Documented(
                    "A person who approves a request by hand may go beyond the number.",
                    "docs/limit-what-a-token-can-do.md#how-joins-are-counted",
                ),
                Door.REVIEW: Never("A review lets no machine in."),
                Door.ELSEWHERE: elsewhere(
                    "The joins are counted by these controllers. That API server accepts the token itself "
                    "until it ends."
                ),
            },
        ),
        moments=moments(
            Never("The count stands in the Secret, and is written before the approval."),
            {
                Moment.AT_REST: Proof(
                    "tests/controllers/test_tokenlimits.py::test_a_new_key_is_counted_before_its_approval"
                ),
                Moment.QUEUED: Proof(
                    "tests/scenarios/test_limited_tokens.py::test_exactly_as_many_machines_join_as_the_token_allows"
                ),
                Moment.RESTORE: Proof("tests/api/test_ends.py::test_what_a_store_would_bring_back"),
                Moment.UNREADABLE: Proof(
                    "tests/trust/test_restrictions.py::test_an_unreadable_record_of_keys_is_an_error"
                ),
            },
        ),
    ),
    Promise(
        key="tokens-keep-to-their-networks-and-names",
        sentence="A token with networks or a name is refused from elsewhere and for other names, and so is one whose limits "
        "cannot be "
        "read.",
        doors=doors(
            Never("This way in needs no token of the cluster."),
            {
                Door.KUBEADM: Proof(
                    "tests/registry/test_admission.py::test_a_bootstrap_token_requests_only_names_that_it_allows"
                ),
                Door.K3S: Proof("tests/controllers/test_k3sjoin.py::test_limits_of_a_token"),
                Door.ADMINISTRATOR: Documented(
                    "A person who approves a request by hand decides about its name and network.",
                    "docs/limit-what-a-token-can-do.md#how-joins-are-counted",
                ),
                Door.SIGNER: Proof(
                    "tests/controllers/test_tokenlimits.py::test_an_automatic_approval_meets_an_objection"
                ),
                Door.OTHER_SERVER: Documented(
                    "Another API server ignores the limits when a token authenticates.",
                    "docs/limit-what-a-token-can-do.md#with-another-api-server",
                ),
                Door.OTHER_WORKER: Never("The limits stand in the Secret, which every worker reads."),
                Door.PERSON: Documented(
                    "A person who approves a request by hand decides about its name and network.",
                    "docs/limit-what-a-token-can-do.md#how-joins-are-counted",
                ),
                Door.REVIEW: Proof(
                    "tests/authn/test_bootstraptoken.py::test_a_token_with_networks_is_accepted_from_there"
                ),
                Door.ELSEWHERE: Documented(
                    "Another API server ignores the limits when a token authenticates.",
                    "docs/limit-what-a-token-can-do.md#with-another-api-server",
                ),
            },
        ),
        moments=moments(
            Never("The limits are read from the Secret at each use."),
            {
                Moment.AT_REST: Proof(
                    "tests/authn/test_bootstraptoken.py::test_a_token_with_networks_is_accepted_from_there"
                ),
                Moment.QUEUED: Proof(
                    "tests/controllers/test_tokenlimits.py::test_an_automatic_approval_meets_an_objection"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/trust/test_restrictions.py::test_an_annotation_that_cannot_be_read_refuses_the_token"
                ),
            },
        ),
    ),
    Promise(
        key="source-addresses-are-the-servers",
        sentence="The source address of a request is that of its connection: no client writes it, and no update changes it.",
        doors=doors(
            Never("Every creation of a request records the address of its connection."),
            {
                Door.KUBEADM: Proof(
                    "tests/api/test_certificatesigningrequest.py::test_the_server_records_the_address_of_the_requester"
                ),
                Door.ADMINISTRATOR: Proof(
                    "tests/api/test_certificatesigningrequest.py::test_no_update_changes_the_recorded_address"
                ),
                Door.LOGIN: Never("A login makes no request."),
                Door.SERVICE_ACCOUNT: Never("A token has no source address."),
                Door.OTHER_SERVER: Documented(
                    "Behind a balancer that hides addresses, the address is that of the balancer.",
                    "docs/limit-what-a-token-can-do.md#networks-and-load-balancers",
                ),
                Door.PERSON: Proof(
                    "tests/api/test_certificatesigningrequest.py::test_no_update_changes_the_recorded_address"
                ),
                Door.REVIEW: Never("A review makes no request for a certificate."),
                Door.ELSEWHERE: Proof(
                    "tests/controllers/test_inventory.py::"
                    "test_where_clients_write_the_address_no_request_comes_from_a_network_of_an_entry"
                ),
            },
        ),
        moments=moments(
            Never("The address is stored with the request when it is created."),
            {
                Moment.AT_REST: Proof(
                    "tests/api/test_certificatesigningrequest.py::test_the_server_records_the_address_of_the_requester"
                ),
                Moment.QUEUED: Proof(
                    "tests/api/test_certificatesigningrequest.py::test_no_update_changes_the_recorded_address"
                ),
            },
        ),
    ),
)
