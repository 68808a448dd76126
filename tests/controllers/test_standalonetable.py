"""Controllers outside of a server: which there are, which run by default, and what each may do."""

from __future__ import annotations

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy import default_policy
from mooring.controllers.actions import EVERYTHING, Scope
from mooring.controllers.standalonetable import (
    CHECK_WRITES,
    CLUSTER_INFO_SIGNER,
    IN_SERVER,
    MEMBER_ENDER,
    NAME_KEEPER,
    SCOPES,
    STANDALONE,
    no_authority,
    scopes_of,
    selected,
    settings,
    watched_kinds,
    written,
)
from mooring.controllers.table import CONTROLLERS, ISSUANCE_CHECKS
from mooring.errors import ConfigError
from mooring.settings.signing import SIGNING_DURATION

UPSTREAM = {
    "bootstrap-signer-controller": "system:controller:bootstrap-signer",
    "token-cleaner-controller": "system:controller:token-cleaner",
    "certificatesigningrequest-approving-controller": "system:controller:certificate-controller",
    "certificatesigningrequest-signing-controller": "system:controller:certificate-controller",
    "certificatesigningrequest-cleaner-controller": "system:controller:certificate-controller",
}
"""Roles of kube-controller-manager's controllers that do the same."""


def test_every_controller_runs_anywhere_or_says_why_not() -> None:
    assert STANDALONE.keys() | IN_SERVER.keys() == CONTROLLERS.keys(), (
        "give each a row in controllers/standalonetable.py"
    )
    assert STANDALONE.keys().isdisjoint(IN_SERVER)


def test_every_issuance_check_says_what_it_writes() -> None:
    assert CHECK_WRITES.keys() == ISSUANCE_CHECKS.keys(), "give each a row in controllers/standalonetable.py"


@pytest.mark.parametrize("name", STANDALONE)
def test_a_controller_that_runs_the_issuance_checks_has_their_rights(name: str) -> None:
    kinds = watched_kinds([name])[name]
    readers = ("revocation-cleaner", "identity-event-controller")  # they issue nothing
    assert STANDALONE[name].checks_issuance is ("certificaterevocations" in kinds and name not in readers)


def test_by_default_those_run_that_do_no_harm_beside_kube_controller_manager() -> None:
    assert selected(["*"]) == (
        "bootstrap-signer-controller",
        "kubelet-serving-approver",
        "machine-inventory-approver",
        NAME_KEEPER,
    )
    assert selected(["csrcleaner"]) == ("certificatesigningrequest-cleaner-controller",)


@pytest.mark.parametrize("name", [name for name, row in STANDALONE.items() if row.checks_issuance])
def test_what_claims_names_runs_with_the_controller_that_frees_them(name: str) -> None:
    assert selected([name]) == (name, NAME_KEEPER)
    assert selected([name, f"-{NAME_KEEPER}"]) == (name,)
    assert NAME_KEEPER not in selected(["*", f"-{NAME_KEEPER}"])


@pytest.mark.parametrize("item", ["garbagecollector", "-garbage-collector-controller"])
def test_a_controller_that_runs_only_in_a_server_is_refused_with_the_reason(item: str) -> None:
    with pytest.raises(ConfigError) as refused:
        selected(["*", item])
    assert str(refused.value) == (
        'controllers: "garbage-collector-controller" runs only in a Mooring server: it would have to know every kind of the '
        "cluster"
    )


@pytest.mark.parametrize("name", STANDALONE)
def test_kinds_that_are_followed_in_part_are_kinds(name: str) -> None:
    assert set(watched_kinds([name])[name]) <= BY_PLURAL.keys()
    assert SCOPES.keys() <= BY_PLURAL.keys()


@pytest.mark.parametrize(("name", "role"), UPSTREAM.items())
def test_the_rights_are_no_more_than_those_of_the_same_controller_of_kubernetes(name: str, role: str) -> None:
    """Apart from objects of Mooring's own kinds, and from what the issuance checks write, which Kubernetes has not."""
    granted = [one for one in default_policy() if (one["metadata"]["name"], "rules" in one) == (role, True)]
    for permission in STANDALONE[name].writes:
        if permission.rule["apiGroups"] == ["mooring.dev"]:
            continue
        places = [one for one in granted if one["metadata"].get("namespace", "") == permission.namespace]
        assert any(covers(rule, permission.rule) for place in places for rule in place["rules"]), permission


def covers(rule: Obj, wanted: Obj) -> bool:
    names = rule.get("resourceNames")
    return all(set(wanted[part]) <= set(rule[part]) for part in ("verbs", "apiGroups", "resources")) and (
        names is None or set(wanted.get("resourceNames", ["*"])) <= set(names)
    )


def test_what_a_controller_writes_includes_the_issuance_checks() -> None:
    (secrets,) = (one for one in written("machine-inventory-approver") if one.rule["resources"] == ["secrets"])
    assert (secrets.namespace, secrets.rule["verbs"]) == ("kube-system", ["update"])
    assert [one for one in written("kubelet-serving-approver") if one.rule["resources"] == ["secrets"]] == []
    assert written("token-cleaner-controller") == STANDALONE["token-cleaner-controller"].writes


def test_scopes_of_kinds() -> None:
    assert scopes_of(["node-lifecycle-controller"]) == {"leases": Scope("kube-node-lease")}
    assert scopes_of([MEMBER_ENDER])["configmaps"] == Scope("kube-system", "metadata.name=mooring-silence")
    assert scopes_of([CLUSTER_INFO_SIGNER])["configmaps"] == Scope("kube-public", "metadata.name=cluster-info")


def test_controllers_of_different_config_maps_do_not_share_a_process() -> None:
    assert selected([MEMBER_ENDER]) == (MEMBER_ENDER,)
    assert selected([MEMBER_ENDER, "nodelifecycle", "tokencleaner"])
    for items in (["*"], ["csrapprover"], ["csrsigner"], ["serving-approver"], ["bootstrapsigner"]):
        with pytest.raises(ConfigError, match="in a process of its own, --controllers=silent"):
            selected([*items, MEMBER_ENDER])


@pytest.mark.parametrize(
    ("scope", "name", "text"),
    [
        (EVERYTHING, "", ""),
        (Scope("a"), "", " in a"),
        (Scope("a", "metadata.name=b"), "b", " in a with metadata.name=b"),
        (Scope("", "type=b"), "", " with type=b"),
        (Scope("", "metadata.name=b,type=c"), "", " with metadata.name=b,type=c"),
    ],
)
def test_a_scope(scope: Scope, name: str, text: str) -> None:
    assert (scope.object_name, str(scope)) == (name, text)


def test_without_a_ca_nothing_can_be_signed() -> None:
    assert (
        settings(no_authority, signing_duration=SIGNING_DURATION).authority_for("kubernetes.io/kubelet-serving") is None
    )
