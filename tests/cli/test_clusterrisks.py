"""Findings of `mooring doctor --cluster`: what is a risk, and what is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import binding, cluster_binding, cluster_role, path_rule, role, rule
from mooring.authz.rbac.bootstrappolicy import default_policy, k3s_policy, kubeadm_policy
from mooring.cli.doctor import clusterrisks
from mooring.cli.doctor.clusterrisks import accepted_ids, lines
from mooring.cli.serverreport import ServerReport
from mooring.cli.status.sections import token_states
from mooring.clock import rfc3339
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.restrictions import Restrictions, join_record, parse_networks, with_joined_key
from mooring.trust.bootstraptoken.token import parse_token

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def token(
    *, ttl: timedelta = DAY, joined: int = 0, age: timedelta = DAY, used: timedelta | None = None, **limits: Any
) -> Obj:
    record = tokensecret.new_record(
        parse_token("abcdef.0123456789abcdef"), NOW, ttl=ttl, restrictions=Restrictions(**limits)
    )
    found = tokensecret.to_secret(record)
    for number in range(joined):
        found = with_joined_key(found, join_record(f"{number:064x}", f"system:node:n{number}"))
    found["metadata"]["creationTimestamp"] = rfc3339(NOW - age)
    if used is not None:
        found["metadata"].setdefault("annotations", {})["mooring.dev/last-used"] = rfc3339(NOW - used)
    return found


@pytest.mark.parametrize(
    ("secret", "found"),
    [
        pytest.param(token(), [], id="any number of machines for a day"),
        pytest.param(token(ttl=2 * DAY), ["unlimited_token"], id="any number of machines for two days"),
        pytest.param(token(ttl=2 * DAY, max_joins=3), [], id="three machines"),
        pytest.param(token(ttl=2 * DAY, node_name="worker-*"), [], id="machines of a name"),
        pytest.param(token(ttl=2 * DAY, node_name="*"), ["unlimited_token"], id="machines of any name"),
        pytest.param(token(ttl=2 * DAY, networks=parse_networks("10.0.0.0/8")), [], id="machines of a network"),
        pytest.param(
            token(ttl=2 * DAY, networks=parse_networks("0.0.0.0/0,::/0")), ["unlimited_token"], id="machines of every network"
        ),
        pytest.param(token(ttl=2 * DAY, require_approval=True), [], id="machines that a person approves"),
        pytest.param(token(ttl=timedelta(0)), ["endless_token", "unlimited_token"], id="no end and no limit"),
        pytest.param(token(ttl=timedelta(0), max_joins=3), ["endless_token"], id="no end"),
        pytest.param(token(max_joins=1, joined=1), ["idle_token"], id="used up"),
        pytest.param(token(age=8 * DAY), ["idle_token"], id="never used"),
        pytest.param(token(age=8 * DAY, used=DAY), [], id="used yesterday"),
        pytest.param(token(age=30 * DAY, used=8 * DAY), ["idle_token"], id="used last week"),
    ],
)  # fmt: skip
def test_risks_of_a_token(secret: Obj, found: list[str]) -> None:
    judges = ("endless_token", "unlimited_token", "idle_token")
    states = set(token_states(secret, NOW))
    risks = {name: getattr(clusterrisks, name)(secret, states, NOW) for name in judges}
    assert [name for name, risk in risks.items() if risk is not None] == found
    assert all(risk is None or risk.subject == "abcdef" for risk in risks.values())
    assert "0123456789abcdef" not in repr(risks)


EVERYBODY = {"kind": "Group", "name": "system:unauthenticated", "apiGroup": "rbac.authorization.k8s.io"}
ANONYMOUS = {"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}
AUTHENTICATED = {**EVERYBODY, "name": "system:authenticated"}
TOKENS = {**EVERYBODY, "name": "system:bootstrappers:mine"}
DEVELOPERS = {**EVERYBODY, "name": "developers"}
READER = cluster_role("reader", rule("get,list", "", "configmaps"))
SECRETS = cluster_role("secrets", rule("get", "", "secrets"))
APPROVER = cluster_role("approver", rule("approve", "certificates.k8s.io", "signers"))
NODE_APPROVER = cluster_role(
    "approver", rule("approve", "certificates.k8s.io", "signers", "kubernetes.io/kubelet-serving")
)
LITERAL_APPROVER = cluster_role("approver", rule("approve", "certificates.k8s.io", "signers", "*"))
ADMIN = cluster_role("cluster-admin", rule("*", "*", "*"), path_rule("*", "*"))
CLUSTER_INFO = role("kube-public", "info", rule("get", "", "configmaps", "cluster-info"))


def bound(role_obj: Obj, *subjects: Obj) -> list[Obj]:
    return [role_obj, cluster_binding("given", role_obj["metadata"]["name"], *subjects)]


IN_A_NAMESPACE = [
    APPROVER,
    {**bound(APPROVER, DEVELOPERS)[1], "kind": "RoleBinding", "metadata": {"name": "given", "namespace": "a"}},
]


@pytest.mark.parametrize(
    ("objects", "messages"),
    [
        pytest.param([*default_policy(), *kubeadm_policy(), *k3s_policy()], [], id="what a cluster brings"),
        pytest.param(
            bound(READER, EVERYBODY),
            ['system:unauthenticated may get,list configmaps'],
            id="everybody reads ConfigMaps",
        ),
        pytest.param(
            bound(ADMIN, ANONYMOUS),
            ['system:anonymous may * *.* and 1 more'],
            id="everybody is an administrator",
        ),
        pytest.param(bound(READER, AUTHENTICATED), [], id="every user reads ConfigMaps"),
        pytest.param(
            bound(SECRETS, AUTHENTICATED),
            ['system:authenticated may get secrets'],
            id="every user reads Secrets",
        ),
        pytest.param(
            bound(READER, TOKENS),
            ['system:bootstrappers:mine may get,list configmaps'],
            id="each token reads ConfigMaps",
        ),
        pytest.param(
            [*default_policy(), cluster_binding("mine", "system:node-bootstrapper", TOKENS)], [], id="other tokens join"
        ),
        pytest.param(
            [CLUSTER_INFO, binding("kube-public", "given", "info", ANONYMOUS)], [], id="everybody reads cluster-info"
        ),
        pytest.param(
            [{**CLUSTER_INFO, "metadata": {"name": "info", "namespace": "other"}}, binding("other", "given", "info", ANONYMOUS)],
            ['system:anonymous may get configmaps cluster-info'],
            id="everybody reads a ConfigMap of that name elsewhere",
        ),
        pytest.param(bound(ADMIN, DEVELOPERS), [], id="a group of administrators"),
        pytest.param([cluster_binding("given", "gone", EVERYBODY)], [], id="a role that does not exist"),
    ],
)  # fmt: skip
def test_rights_of_everybody(objects: list[Obj], messages: list[str]) -> None:
    risks = clusterrisks.broad_rights(clusterrisks.bindings_of(objects))
    assert [risk.message for risk in risks] == messages
    assert {risk.remedy for risk in risks} <= {
        "kubectl delete clusterrolebinding given",
        "kubectl -n other delete rolebinding given",
    }


def test_a_binding_that_the_cluster_brings_is_edited_and_not_deleted() -> None:
    widened = [
        {**one, "rules": [*one["rules"], rule("list", "", "secrets")]}
        if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "system:public-info-viewer")
        else one
        for one in default_policy()
    ]
    risks = clusterrisks.broad_rights(clusterrisks.bindings_of(widened))
    assert {risk.remedy for risk in risks} == {
        "kubectl edit clusterrolebinding system:public-info-viewer: take out the subject, or the rule out of its role"
    }


def test_bindings_of_one_name_in_two_namespaces_are_two_subjects() -> None:
    roles = [role(namespace, "r", rule("get", "", "secrets")) for namespace in ("a", "b")]
    objects = [*roles, *(binding(namespace, "x", "r", EVERYBODY) for namespace in ("a", "b"))]
    risks = clusterrisks.broad_rights(clusterrisks.bindings_of(objects))
    assert [risk.subject for risk in risks] == ["RoleBinding/a/x", "RoleBinding/b/x"]


@pytest.mark.parametrize(
    ("objects", "subjects"),
    [
        pytest.param([*default_policy(), *kubeadm_policy(), *k3s_policy()], [], id="what a cluster brings"),
        pytest.param(bound(APPROVER, DEVELOPERS), ["ClusterRoleBinding/given"], id="every signer"),
        pytest.param(bound(NODE_APPROVER, DEVELOPERS), [], id="one signer"),
        pytest.param(bound(LITERAL_APPROVER, DEVELOPERS), [], id="a signer of the name *, which is no pattern"),
        pytest.param(IN_A_NAMESPACE, [], id="in a namespace, where no signer is"),
        pytest.param(bound(ADMIN, DEVELOPERS), [], id="administrators"),
    ],
)  # fmt: skip
def test_approval_for_every_signer(objects: list[Obj], subjects: list[str]) -> None:
    risks = clusterrisks.broad_approval(clusterrisks.bindings_of(objects))
    assert [risk.subject for risk in risks] == subjects


def server_report(name: str = "a", **changes: Any) -> Obj:
    found = {
        "server": name,
        "time": "2026-01-01T00:00:00.000000Z",
        "certificates": [],
        "encryption": {"configured": True},
        "snapshots": {"scheduled": True, "problem": "", "last": None, "directory": "/s", "onDiskOfStore": False},
        "auditLog": {"enabled": True},
        "signing": {"ownSigners": [], "hasPolicy": False},
        "servingKey": "ECDSA-P256",
    }
    return found | changes


def certificate(left: timedelta, *, renewed: bool) -> Obj:
    return {
        "name": "ca",
        "description": "the CA of the cluster",
        "notAfter": rfc3339(NOW + left),
        "renewedByServer": renewed,
        "advice": "" if renewed else "replace it",
    }


SNAPSHOTS = server_report()["snapshots"]
BESIDE = SNAPSHOTS | {"onDiskOfStore": True}
LAX = {"ownSigners": ["example.com/x"], "hasPolicy": False}
OLDER = {
    key: value for key, value in server_report(auditLog={}).items() if key not in ("signing", "servingKey", "time")
}


@pytest.mark.parametrize(
    ("report", "found"),
    [
        pytest.param(server_report(), [], id="a server in order"),
        pytest.param(server_report(encryption={"configured": False}), ["secrets-unencrypted"], id="no encryption"),
        pytest.param(
            server_report(encryption={"configured": True, "encryptsSecrets": False}),
            ["secrets-unencrypted"],
            id="a file that leaves Secrets as they are",
        ),
        pytest.param(server_report(snapshots=SNAPSHOTS | {"scheduled": False}), ["no-snapshot"], id="no snapshots"),
        pytest.param(server_report(snapshots=SNAPSHOTS | {"problem": "disk full"}), ["no-snapshot"], id="snapshots that fail"),
        pytest.param(server_report(snapshots=BESIDE), ["no-snapshot"], id="snapshots beside the store"),
        pytest.param(server_report(auditLog={"enabled": False}), ["audit-off"], id="no audit log"),
        pytest.param(server_report(signing=LAX), ["signer-without-policy"], id="no policy"),
        pytest.param(server_report(signing=LAX | {"hasPolicy": True}), [], id="a policy"),
        pytest.param(server_report(servingKey="RSA-2048"), ["rsa-serving-key"], id="an RSA key"),
        pytest.param(server_report(certificates=[certificate(29 * DAY, renewed=False)]), ["certificate-ends"], id="a CA that ends"),
        pytest.param(server_report(certificates=[certificate(31 * DAY, renewed=False)]), [], id="a CA that ends later"),
        pytest.param(server_report(certificates=[certificate(DAY, renewed=True)]), [], id="a certificate that the server renews"),
        pytest.param(server_report(certificates=[certificate(-DAY, renewed=True)]), ["certificate-ends"], id="not renewed"),
        pytest.param(OLDER, [], id="an older server"),
    ],
)  # fmt: skip
def test_risks_of_a_server(report: Obj, found: list[str]) -> None:
    judges = {
        "secrets-unencrypted": clusterrisks.unencrypted,
        "no-snapshot": clusterrisks.without_snapshot,
        "certificate-ends": clusterrisks.ending_certificates,
        "audit-off": clusterrisks.without_audit,
        "signer-without-policy": clusterrisks.without_policy,
        "rsa-serving-key": clusterrisks.rsa_key,
    }
    assert [name for name, judge in judges.items() for _ in judge(report, NOW)] == found


@pytest.mark.parametrize(
    ("offsets", "uncertainty", "apart"),
    [
        ((0.0, 4.0), 0.0, []),
        ((0.0, 6.0), 0.0, ["a,b"]),
        ((-100.0, 6.0, 7.0), 0.0, ["a,b", "a,c"]),
        ((0.0, 6.0), 1.0, []),
    ],
)
def test_clocks_apart(offsets: tuple[float, ...], uncertainty: float, apart: list[str]) -> None:
    answers = [
        ServerReport(name, server_report(name), offset=offset, uncertainty=uncertainty)
        for name, offset in zip("abc", offsets, strict=False)
    ]
    older = ServerReport("old", {"server": "old"}, offset=1e6)
    risks = clusterrisks.clocks_apart([*answers, older, ServerReport("gone", problem="no answer")])
    assert [risk.subject for risk in risks] == apart


def identity(name: str, key: str) -> Obj:
    return {"metadata": {"name": name}, "spec": {"keys": [{"publicKey": key, "notAfter": "2027-01-01T00:00:00Z"}]}}


def test_keys_of_several_machines() -> None:
    one, other = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    risks = clusterrisks.shared_keys([identity("n1", one), identity("n2", one), identity("n3", other)], ())
    assert [(risk.subject, risk.remedy.split(":")[0]) for risk in risks] == [(one, "mooring node revoke n2")]
    assert not clusterrisks.shared_keys([identity("n1", one), identity("n2", one)], (), [{"spec": {"publicKey": one}}])


def join_rule(issuer: str, *claims: Obj) -> Obj:
    return {"metadata": {"name": "r"}, "spec": {"issuer": {"url": issuer}, "claims": list(claims)}}


def equals(*names: str) -> list[Obj]:
    return [{"claim": name, "value": "x"} for name in names]


GITHUB, GITLAB, GOOGLE = (
    "https://token.actions.githubusercontent.com",
    "https://gitlab.com",
    "https://accounts.google.com",
)
OWN = "https://id.example"


@pytest.mark.parametrize(
    ("obj", "messages"),
    [
        pytest.param(join_rule(OWN, *equals("sub")), [], id="one subject"),
        pytest.param(join_rule(OWN, *equals("department")), [], id="a claim of an issuer of one's own"),
        pytest.param(join_rule(OWN, {"expression": "true"}), ["expressions alone"], id="an expression alone"),
        pytest.param(
            join_rule(GITHUB, {"expression": "true"}), ["expressions alone"], id="an expression alone at GitHub"
        ),
        pytest.param(
            join_rule(OWN, {"claim": "sub", "pattern": "*/app"}),
            ["the pattern */app of sub fits"],
            id="a pattern with any beginning",
        ),
        pytest.param(join_rule(OWN, {"claim": "sub", "pattern": "org/*"}), [], id="a pattern with an owner"),
        pytest.param(join_rule(GITHUB, *equals("repository", "event_name")), [], id="an event of a repository"),
        pytest.param(join_rule(GITHUB, *equals("/repository_id", "/event_name")), [], id="the same as JSON pointers"),
        pytest.param(join_rule(GITHUB, *equals("repository_id", "environment")), [], id="what reviewers decide about"),
        pytest.param(
            join_rule(GITHUB, *equals("repository", "ref")),
            ["no claim keeps out pull requests"],
            id="a branch of a repository, which jobs of pull requests have, too",
        ),
        *(
            pytest.param(
                join_rule(GITHUB, *equals("repository_id"), event), ["no claim keeps out pull requests"], id=str(event)
            )
            for event in (
                {"claim": "event_name", "pattern": "p*"},
                {"claim": "event_name", "value": "pull_request_target"},
            )
        ),
        *(
            pytest.param(
                join_rule(GITHUB, *equals("event_name"), {"claim": claim, "pattern": pattern}),
                ["no claim says whose tokens"],
                id=f"anybody may be the owner of {pattern}",
            )
            for claim, pattern in (("sub", "repo:*/app:ref:refs/heads/main"), ("repository", "o*/*"))
        ),
        pytest.param(
            join_rule(GITHUB, {"claim": "sub", "pattern": "repo:org/app:*"}),
            ["no claim keeps out pull requests"],
            id="every subject of a repository",
        ),
        pytest.param(
            join_rule(GITHUB, {"claim": "sub", "pattern": "repo:org/app:environment:*"}),
            [],
            id="environments of a repository",
        ),
        pytest.param(
            join_rule(GITHUB, *equals("repository_id"), {"expression": 'claims.event_name == "push"'}),
            [],
            id="an expression about the event",
        ),
        pytest.param(
            join_rule(GITHUB, *equals("repository_id")), ["no claim keeps out pull requests"], id="every event"
        ),
        pytest.param(
            join_rule(GITHUB, *equals("event_name")), ["no claim says whose tokens"], id="an event of every repository"
        ),
        pytest.param(
            join_rule(GITHUB, *equals("actor")),
            ["no claim says whose tokens", "no claim keeps out"],
            id="an actor anywhere",
        ),
        pytest.param(
            join_rule(GITLAB, *equals("ref")), ["no claim says whose tokens"], id="the branch of every project"
        ),
        pytest.param(join_rule(GITLAB, *equals("project_id")), [], id="a project"),
        pytest.param(
            join_rule(GOOGLE, *equals("hd")), ["no claim says whose tokens"], id="a claim of every Google account"
        ),
        pytest.param(join_rule(GOOGLE, *equals("/google/compute_engine/project_id")), [], id="machines of a project"),
        pytest.param(join_rule(OWN), [], id="one that lets nobody in"),
    ],
)
def test_join_rules_that_let_in_too_many(obj: Obj, messages: list[str]) -> None:
    found = clusterrisks.wide_rules([obj])
    assert [one.subject for one in found] == ["r"] * len(messages)
    for one, message in zip(found, messages, strict=True):
        assert one.message.startswith(message)
        assert "--claim" in one.remedy


def test_an_accepted_finding_is_shown_and_counts_no_more() -> None:
    risk = clusterrisks.Risk("a", "no snapshot is scheduled", "set it")
    documents = [
        risk.document("no-snapshot", accepted)
        for accepted in ((), ("no-snapshot",), ("no-snapshot/a",), ("no-snapshot/b",))
    ]
    assert [one["accepted"] for one in documents] == [False, True, True, False]
    text = "\n".join(lines({"findings": documents[1:2], "checks": [{"id": "no-snapshot", "result": "found"}]}))
    assert "a: no snapshot is scheduled (accepted)" in text


def test_accepting_a_check_that_does_not_exist_is_an_error() -> None:
    assert accepted_ids(["audit-off,no-snapshot/a"]) == {"audit-off", "no-snapshot/a"}
    with pytest.raises(click.UsageError, match="unknown check; give one of token-without-end, "):
        accepted_ids(["audit-on"])


def test_a_check_with_many_findings_shows_some_and_counts_the_others() -> None:
    risks = [clusterrisks.Risk(f"t{number}", "it never expires", "delete it") for number in range(7)]
    found = {"findings": [risk.document("token-without-end", ()) for risk in risks], "checks": []}
    assert lines(found)[-2:] == ["        and 2 more: -o json has them all", "0 of 0 checks found nothing."]
