"""Promises: what a user may do."""

from __future__ import annotations

from tests.promises.columns import ITS_OWN, Documented, Door, Moment, Never, Promise, Proof, doors, elsewhere, moments

_STANDING = "tests/server/test_standing.py::"
_BODY = Proof(_STANDING + "test_a_credential_that_ends_while_the_body_is_awaited_grants_nothing")
_QUEUE = Proof(_STANDING + "test_a_credential_that_ends_while_the_request_is_queued_grants_nothing")
_AT_ONCE = Proof("tests/authz/test_rbac.py::test_every_change_takes_effect_at_once")
_SAME_RULES = Never("Every server and worker reads the same objects, and judges by the same rules.")
_UNREADABLE = Never("A role, a binding or a Pod that cannot be read is absent, and grants nothing.")
_MADE_OF_STORE = Never("Rights are read from the store, and nothing of them is kept beside it.")
_WAITED = Proof("tests/server/test_standing.py::test_who_may_no_longer_impersonate_after_a_wait_does_nothing")

_AT_THE_EFFECT = Proof("tests/server/test_standing.py::test_a_right_that_ends_before_the_commit_takes_no_effect")

ROWS: tuple[Promise, ...] = (
    Promise(
        key="nodes-keep-to-their-own",
        sentence="A node reads and changes its own objects and those of its Pods, and no others.",
        doors=doors(
            Never("A request of a node is one over HTTP, which the same authorizer and admission judge."),
            {
                Door.KUBEADM: Proof("tests/authz/test_node.py::test_a_node_may_not"),
                Door.K3S: Proof(
                    "tests/server/test_k3scertificates.py::test_a_node_asks_for_itself_and_while_its_node_exists"
                ),
                Door.ADMINISTRATOR: Documented(
                    "Who may create Pods chooses the objects that a node may read.", "docs/threats/machines.md"
                ),
                Door.SIGNER: Proof(
                    "tests/registry/test_podcertificaterequests.py::"
                    "test_a_node_requests_certificates_for_its_own_pods_only"
                ),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_serviceaccounttokens.py::test_a_node_gets_tokens_for_the_audiences_of_its_pods"
                ),
                Door.OTHER_SERVER: _SAME_RULES,
                Door.OTHER_WORKER: _SAME_RULES,
                Door.SERVING: Proof("tests/registry/test_admission.py::test_a_node_may_not_create"),
                Door.PERSON: Never("A node has no right to approve, and admission asks for that on the signer."),
                Door.REVIEW: Never("A review shows no object. What a node may do is answered by the same authorizers."),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _MADE_OF_STORE,
            {
                Moment.AT_REST: Proof("tests/registry/test_admission.py::test_a_node_may_not_change"),
                Moment.BODY: Never("The authorizer judges again after the body, and admission at the write."),
                Moment.QUEUED: Proof("tests/authz/test_nodegraph.py::test_edges_are_updated_incrementally"),
                Moment.WATCH: Proof(
                    "tests/server/test_openwatches.py::test_a_node_watches_a_secret_for_as_long_as_a_pod_of_it_refers_to_it"
                ),
                Moment.UNREADABLE: _UNREADABLE,
            },
        ),
    ),
    Promise(
        key="a-deleted-machine-puts-no-node-back",
        sentence="A machine whose Node was deleted does not create its Node again without a token or a person.",
        doors=doors(
            Never("It creates no Node."),
            {
                Door.KUBEADM: Proof(
                    "tests/registry/test_deletionrecords.py::test_a_machine_does_not_create_its_node_again"
                ),
                Door.K3S: Proof(
                    "tests/agent/k3s/test_live.py::test_after_the_deletion_of_its_node_a_machine_needs_a_valid_token"
                ),
                Door.ADMINISTRATOR: Documented(
                    "A Node that a person creates again has another uid, and lets no machine back.",
                    "docs/names-and-membership.md#when-a-node-is-deleted",
                ),
                Door.RENEWAL: Proof(
                    "tests/agent/test_membership_live.py::"
                    "test_an_agent_whose_node_was_deleted_does_not_put_it_back_until_it_joins_again"
                ),
                Door.RECOVERY: Proof("tests/registry/test_admission.py::test_a_recovering_node"),
                Door.OTHER_SERVER: Proof(
                    "tests/registry/test_deletionrecords.py::test_a_server_that_dies_in_between_leaves_a_member"
                ),
                Door.OTHER_WORKER: _SAME_RULES,
                Door.ELSEWHERE: elsewhere("The machine may create its Node again, as with reregisters."),
            },
        ),
        moments=moments(
            _MADE_OF_STORE,
            {
                Moment.AT_REST: Proof("tests/registry/test_deletionrecords.py::test_a_deletion_ends_the_membership"),
                Moment.BODY: _BODY,
                Moment.QUEUED: Proof(
                    "tests/registry/test_deletionrecords.py::test_a_machine_that_joined_again_in_between_stays_a_member"
                ),
                Moment.WATCH: Never("A watch creates no Node."),
                Moment.RESTART: Proof(
                    "tests/scenarios/test_membership.py::test_the_deletion_of_a_node_ends_the_membership"
                ),
                Moment.RESTORE: Proof(
                    "tests/authn/test_membership.py::test_a_node_that_came_back_with_a_restored_store_is_no_member"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/server/test_unreadable.py::test_a_membership_that_cannot_be_read_is_503_for_that_node_alone"
                ),
            },
        ),
    ),
    Promise(
        key="nobody-grants-what-they-lack",
        sentence="No user writes a role or a binding with rights that the user does not have, without escalate or bind.",
        doors=doors(
            Never("It writes no role and no binding."),
            {
                Door.ADMINISTRATOR: Proof("tests/authz/test_escalation.py::test_a_role_may_not_be_written_with"),
                Door.SERVICE_ACCOUNT: Proof("tests/authz/test_escalation.py::test_a_binding_may_not_be_written_to"),
                Door.OTHER_SERVER: _SAME_RULES,
                Door.OTHER_WORKER: _SAME_RULES,
            },
        ),
        moments=moments(
            _MADE_OF_STORE,
            {
                Moment.AT_REST: Proof(
                    "tests/authz/test_escalation.py::test_a_covered_role_allows_nothing_that_its_grantor_may_not"
                ),
                Moment.BODY: _BODY,
                Moment.QUEUED: _QUEUE,
                Moment.WATCH: Never("A watch writes nothing."),
                Moment.UNREADABLE: Proof("tests/authz/test_escalation.py::test_resolution_errors_are_reported"),
            },
        ),
    ),
    Promise(
        key="impersonation-is-granted-in-parts",
        sentence="Each part of an impersonated identity needs a grant of its own, and the request the rights of that identity.",
        doors=doors(
            Never("Every way in over HTTP passes the same step, before authorization."),
            {
                Door.K3S: Proof("tests/server/test_supervisor.py::test_a_request_that_impersonates_is_refused"),
                Door.ADMINISTRATOR: Proof("tests/authn/test_impersonation.py::test_every_part_wants_its_grant"),
                Door.SIGNER: Proof(
                    "tests/server/test_requester.py::test_an_impersonator_that_is_revoked_takes_its_requests_along"
                ),
                Door.LOGIN: Proof("tests/server/test_login.py::test_nobody_logs_in_as_somebody_else"),
                Door.SERVICE_ACCOUNT: Proof(
                    "tests/server/test_associatednode.py::test_a_pod_may_act_as_the_node_it_runs_on"
                ),
                Door.REVIEW: Proof(
                    "tests/attack/test_everyway.py::test_a_self_review_has_uid_and_extra_of_the_impersonated_user"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _MADE_OF_STORE,
            {
                Moment.AT_REST: Proof("tests/server/test_authentication.py::test_constrained_impersonation"),
                Moment.BODY: _WAITED,
                Moment.QUEUED: _WAITED,
                Moment.WATCH: Proof(
                    "tests/server/test_openwatches.py::test_a_watch_ends_with_the_right_to_impersonate"
                ),
                Moment.UNREADABLE: _UNREADABLE,
            },
        ),
    ),
    Promise(
        key="a-right-ends-with-its-binding",
        sentence="A right that was taken away is gone at the next request and for writes under way, and open watches end with it.",
        doors=doors(
            Never("Every way in over HTTP passes the same authorizers."),
            {
                Door.ADMINISTRATOR: Proof("tests/authz/test_rbac.py::test_a_role_that_is_deleted_grants_nothing"),
                Door.SIGNER: Proof(
                    "tests/registry/test_admission.py::test_approving_needs_the_right_on_the_signer_or_its_domain"
                ),
                Door.SERVICE_ACCOUNT: _AT_THE_EFFECT,
                Door.LOGIN: Proof("tests/server/test_login.py::test_an_administrator_can_take_the_login_away"),
                Door.OTHER_SERVER: _AT_THE_EFFECT,
                Door.OTHER_WORKER: _SAME_RULES,
                Door.PERSON: Proof(
                    "tests/server/test_standing.py::test_a_right_that_admission_asked_for_is_judged_at_the_commit"
                ),
                Door.REVIEW: Proof(
                    "tests/server/test_standing.py::"
                    "test_who_may_not_ask_any_more_gets_no_answer_to_a_review_that_waited"
                ),
                Door.ELSEWHERE: ITS_OWN,
            },
        ),
        moments=moments(
            _MADE_OF_STORE,
            {
                Moment.AT_REST: _AT_ONCE,
                Moment.BODY: _WAITED,
                Moment.QUEUED: _WAITED,
                Moment.WATCH: Proof("tests/server/test_openwatches.py::test_a_watch_ends_with_its_right"),
                Moment.RESTORE: Documented(
                    "A snapshot brings back bindings that were deleted after it.", "docs/back-up-and-restore.md"
                ),
                Moment.UNREADABLE: _UNREADABLE,
            },
        ),
    ),
    Promise(
        key="controllers-elsewhere-have-least-rights",
        sentence="The rights that mooring controllers prints for another cluster are those that its controllers need, without "
        "wildcard.",
        doors=doors(
            Never("It is a way into a Mooring server, and not into another cluster."),
            {
                Door.ADMINISTRATOR: Proof(
                    "tests/controllers/test_manifests.py::test_no_rule_grants_everything_and_none_comes_twice"
                ),
                Door.SIGNER: Proof(
                    "tests/controllers/test_standalonetable.py::"
                    "test_the_rights_are_no_more_than_those_of_the_same_controller_of_kubernetes"
                ),
                Door.OTHER_SERVER: Proof(
                    "tests/scenarios/test_controllers.py::"
                    "test_two_processes_with_the_printed_rights_and_the_death_of_the_one_that_works"
                ),
                Door.ELSEWHERE: Proof(
                    "tests/scenarios/test_controllers.py::"
                    "test_two_processes_with_the_printed_rights_and_the_death_of_the_one_that_works"
                ),
            },
        ),
        moments=moments(
            Never("The other API server judges each request by its own objects."),
            {
                Moment.AT_REST: Proof(
                    "tests/controllers/test_manifests.py::test_the_account_may_do_what_the_controllers_do_and_no_more"
                ),
                Moment.UNREADABLE: Proof(
                    "tests/reconcile/test_standalonecontrollers.py::"
                    "test_a_controller_whose_kind_is_refused_does_not_run_and_the_others_do"
                ),
                Moment.LEADER: Proof(
                    "tests/scenarios/test_controllers.py::"
                    "test_two_processes_with_the_printed_rights_and_the_death_of_the_one_that_works"
                ),
                Moment.CLOCK: Proof(
                    "tests/plane/test_controllersprocess.py::test_a_process_with_a_wrong_clock_does_not_lead"
                ),
            },
        ),
    ),
)
