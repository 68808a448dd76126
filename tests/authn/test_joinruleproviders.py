"""The files of docs/identity-token-providers.md, with claims as each provider sends them.

Source: the documentation of the providers (GitHub "OpenID Connect reference", GitLab "ID token payload", Microsoft "Access token
claims reference" and "How to use managed identities on a VM", Google "Verify VM identity", Keycloak "Audience support" and "Service
accounts", Kubernetes "Managing Service Accounts"), and the builder of SPIRE (`BuildWorkloadJWTSVIDClaims`). Ids are made up.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.joinrule import PLURAL
from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj
from mooring.authn.chain import authenticate
from mooring.authn.credentials import Credentials
from mooring.authn.joinrule import JoinRuleAuthenticator, compile_rule, identify
from mooring.authn.serviceaccount import ServiceAccountAuthenticator
from mooring.authn.verdict import Accepted, FirstVerdict, NotMine, Rejected
from mooring.identity import BOOTSTRAPPERS
from mooring.pki.jwt.keyset import parse_key_set
from mooring.secret import Secret
from mooring.trust.joinrule import JoinRuleError, read_rule, use_of
from tests.support.jwtsigner import key_for, key_set, public, signed

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs/identity-token-providers.md"
FILES: dict[str, Obj] = {
    name: yaml.safe_load(text)
    for name, text in re.findall(r"^## ([^\n]+)\n.*?^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
}
TENANT = "11111111-2222-3333-4444-555555555555"
OBJECT = "aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb"
ACCOUNT = "system:serviceaccount:machines:joiner"
GITHUB = {
    "jti": "0f1c6ad4-1e0b-4d0c-8a43-2f3d5b8f6a11",
    "sub": "repo:octo@583231/app@1296269:ref:refs/heads/main",
    "repository": "octo/app",
    "repository_id": "1296269",
    "repository_owner": "octo",
    "repository_owner_id": "583231",
    "ref": "refs/heads/main",
    "ref_type": "branch",
    "event_name": "push",
    "run_id": "9876543210",
    "run_attempt": "1",
    "check_run_id": "27654321",
    "runner_environment": "self-hosted",
    "workflow_ref": "octo/app/.github/workflows/nodes.yml@refs/heads/main",
}
GITLAB = {
    "jti": "6f3e5a0c-90a7-4a85-8a35-3a3e2f1d0b77",
    "sub": "project_path:ops/nodes:ref_type:branch:ref:main",
    "namespace_id": "72",
    "namespace_path": "ops",
    "project_id": "20",
    "project_path": "ops/nodes",
    "pipeline_id": "574",
    "pipeline_source": "push",
    "job_id": "302",
    "ref": "main",
    "ref_type": "branch",
    "ref_protected": "true",
    "runner_id": 1,
    "runner_environment": "self-hosted",
}
ENTRA = {
    "tid": TENANT,
    "oid": OBJECT,
    "sub": OBJECT,
    "appid": "cccccccc-0000-1111-2222-dddddddddddd",
    "appidacr": "2",
    "idp": f"https://sts.windows.net/{TENANT}/",
    "roles": ["Machine.Join"],
    "uti": "pQ7xWc0kV0ar3mT1bA9EAA",
    "ver": "1.0",
}
INSTANCE = {
    "project_id": "workers-123456",
    "project_number": 739419398126,
    "zone": "europe-west1-b",
    "instance_id": "152986662232938449",
    "instance_name": "worker-7",
    "instance_creation_timestamp": 1764500000,
}
GOOGLE = {
    "sub": "112233445566778899001",
    "azp": "112233445566778899001",
    "email": "workers@workers-123456.iam.gserviceaccount.com",
    "email_verified": True,
    "google": {"compute_engine": INSTANCE},
}
KEYCLOAK = {
    "jti": "trrtcc:3b4a4bd0-63a0-4a5a-9f6e-0f1a3a0d9c55",
    "sub": "5b0c2f2e-3d3a-4f43-8b5f-6f6f5f0a7d10",
    "typ": "Bearer",
    "azp": "machine-7",
    "client_id": "machine-7",
    "preferred_username": "service-account-machine-7",
    "scope": "profile email",
}
SPIFFE = {"sub": "spiffe://example.org/host/ci-7"}
POD = {"name": "vm-7-launcher", "uid": "0d8b260e-ef0e-45fb-be8e-ff44f97722e8"}
SERVICE_ACCOUNT = {
    "jti": "e51f1fbc-4733-4b85-a59f-ba80c0523874",
    "sub": ACCOUNT,
    "kubernetes.io": {
        "namespace": "machines",
        "serviceaccount": {"name": "joiner", "uid": "e6a8680e-d103-4cce-80ea-03acbbeacf7d"},
        "pod": POD,
        "node": {"name": "host-3", "uid": "517eb86e-b863-451b-bf70-86cb61439a3a"},
    },
}
AUDIENCES: dict[str, Any] = {
    "Entra ID": "api://99999999-8888-7777-6666-555555555555",
    "Google": "https://cluster-a.example.com",
    "Keycloak": ["cluster-a", "account"],
    "SPIFFE": ["cluster-a"],
    "ServiceAccount of another cluster": ["cluster-a"],
}
SENT: dict[str, dict[str, Any]] = {
    "GitHub Actions": GITHUB,
    "GitLab": GITLAB,
    "Entra ID": ENTRA,
    "Google": GOOGLE,
    "Keycloak": KEYCLOAK,
    "SPIFFE": SPIFFE,
    "ServiceAccount of another cluster": SERVICE_ACCOUNT,
}


def times() -> dict[str, int]:
    issued = int(NOW.timestamp())
    return {"iat": issued, "nbf": issued, "exp": issued + 300}


def token_of(provider: str, claims: dict[str, Any]) -> dict[str, Any]:
    """Return the complete claims: those of the provider, with its issuer, its audience and times where they are not given."""
    issuer = FILES[provider]["spec"]["issuer"]["url"]
    return {"iss": issuer, "aud": AUDIENCES.get(provider, "cluster-a"), **times(), **claims}


def views_of(provider: str) -> dict[str, View]:
    """Return the rule of the page. The key of the test stands for those of the issuer."""
    file = FILES[provider]
    keys = key_set(public(key_for("RS256"))).decode()
    rule = {**file, "spec": {**file["spec"], "issuer": {"url": file["spec"]["issuer"]["url"], "jwks": keys}}}
    return {PLURAL: FixedView([rule]), "namespaces": FixedView()}


def bearer_of(provider: str, claims: dict[str, Any]) -> Credentials:
    return Credentials(bearer=Secret(signed(token_of(provider, claims), key_for("RS256")).encode()))


def authenticator_of() -> JoinRuleAuthenticator:
    return JoinRuleAuthenticator(lambda url, ca: "")


def judged(provider: str, claims: dict[str, Any]) -> FirstVerdict:
    """Return the verdict about a signed token, by the rule of the page."""
    return authenticator_of().authenticate(bearer_of(provider, claims), views_of(provider), NOW, ())


def without(claims: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in claims.items() if name not in names}


def test_each_provider_of_the_page_has_a_file_and_claims() -> None:
    assert list(FILES) == list(SENT)


@pytest.mark.parametrize("provider", SENT)
def test_the_server_stores_the_file(provider: str) -> None:
    kind = BY_PLURAL[PLURAL]
    file = FILES[provider]
    assert (file["apiVersion"], file["kind"]) == (kind.resource.api_version, kind.resource.kind)
    assert kind.validate is not None
    assert kind.validate(file) == []
    assert compile_rule(read_rule(file)).rule.name == file["metadata"]["name"]


@pytest.mark.parametrize(
    ("provider", "node_name", "unique"),
    [
        ("GitHub Actions", "ci-9876543210-27654321", GITHUB["jti"]),
        ("GitLab", "ci-302", GITLAB["jti"]),
        ("Entra ID", f"vm-{OBJECT}", ENTRA["uti"]),
        ("Google", "worker-7", INSTANCE["instance_id"]),
        ("Keycloak", "machine-7", KEYCLOAK["jti"]),
        ("SPIFFE", "ci-7", SPIFFE["sub"]),
        ("ServiceAccount of another cluster", "vm-7-launcher", POD["uid"]),
    ],
    ids=str,
)
def test_a_token_of_the_provider_lets_one_key_join_under_the_name(provider: str, node_name: str, unique: str) -> None:
    rule = read_rule(FILES[provider])
    ends = NOW + timedelta(minutes=5)
    found = identify(compile_rule(rule), token_of(provider, SENT[provider]), ends)
    assert (found.node_name, found.use) == (node_name, use_of(rule.issuer, unique))
    assert (found.rule, found.issuer, found.subject) == (rule.name, rule.issuer, SENT[provider]["sub"])
    verdict = judged(provider, SENT[provider])
    assert isinstance(verdict, Accepted)
    assert verdict.user.username == f"system:joinrule:{rule.name}"
    assert BOOTSTRAPPERS in verdict.user.groups
    stated = replace(found, digest="").extra()
    assert {name: verdict.user.extra.get(name) for name in stated} == stated


@pytest.mark.parametrize(
    ("provider", "claims", "detail"),
    [
        pytest.param(
            "GitHub Actions",
            GITHUB | {"event_name": "pull_request", "ref": "refs/pull/7/merge"},
            "ref",
            id="a pull request",
        ),
        pytest.param(
            "GitHub Actions",
            GITHUB | {"event_name": "pull_request_target"},
            "event_name",
            id="a fork's pull request on the base branch",
        ),
        pytest.param("GitHub Actions", GITHUB | {"repository_id": "1296270"}, "repository_id", id="a fork"),
        pytest.param("GitHub Actions", GITHUB | {"ref": "refs/heads/topic"}, "ref", id="another branch"),
        pytest.param("GitHub Actions", GITHUB | {"check_run_id": "a_b"}, "check_run_id", id="a text that is no name"),
        pytest.param("GitLab", GITLAB | {"project_id": "21"}, "project_id", id="a fork's merge request since 18.2.2"),
        pytest.param(
            "GitLab",
            GITLAB | {"ref_protected": "false", "pipeline_source": "merge_request_event"},
            "ref_protected",
            id="a merge request in the project",
        ),
        pytest.param("Entra ID", ENTRA | {"tid": OBJECT}, "tid", id="another tenant"),
        pytest.param("Entra ID", without(ENTRA, "roles"), "roles", id="an identity without the role"),
        pytest.param("Entra ID", ENTRA | {"roles": ["Machine.Read"]}, "roles", id="an identity with another role"),
        pytest.param("Entra ID", without(ENTRA, "uti"), "uti", id="a token without its id"),
        pytest.param("Google", without(GOOGLE, "google"), "project_id", id="format=standard, or from elsewhere"),
        pytest.param(
            "Google",
            GOOGLE | {"google": {"compute_engine": INSTANCE | {"project_id": "others"}}},
            "project_id",
            id="a machine of another project",
        ),
        pytest.param("Google", GOOGLE | {"sub": "1"}, "sub", id="another service account of the project"),
        pytest.param("Keycloak", KEYCLOAK | {"azp": "portal"}, "azp", id="a client for people"),
        pytest.param("Keycloak", KEYCLOAK | {"azp": "machine-a/b"}, "azp", id="a client with a path"),
        pytest.param("SPIFFE", {"sub": "spiffe://example.com/host/ci-7"}, "sub", id="another trust domain"),
        pytest.param("SPIFFE", {"sub": "spiffe://example.org/host/ci-7/ns/x"}, "sub", id="a workload below the host"),
        pytest.param("SPIFFE", {"sub": "spiffe://example.org/ns/ci-7"}, "sub", id="another kind of workload"),
        pytest.param(
            "ServiceAccount of another cluster",
            SERVICE_ACCOUNT | {"sub": "system:serviceaccount:default:joiner"},
            "sub",
            id="the account of another namespace",
        ),
        pytest.param(
            "ServiceAccount of another cluster",
            SERVICE_ACCOUNT | {"kubernetes.io": without(SERVICE_ACCOUNT["kubernetes.io"], "pod")},  # type: ignore[arg-type]  # it is an object
            "pod",
            id="a token of kubectl create token",
        ),
    ],
)
def test_claims_that_the_file_refuses(provider: str, claims: dict[str, Any], detail: str) -> None:
    with pytest.raises(JoinRuleError, match=detail):
        identify(compile_rule(read_rule(FILES[provider])), token_of(provider, claims), NOW)
    verdict = judged(provider, claims)
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "claims-not-allowed"


@pytest.mark.parametrize("provider", SENT)
@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        pytest.param({"aud": "cluster-b"}, "wrong-audience", id="for another cluster"),
        pytest.param({"aud": ["account", "https://github.com/octo"]}, "wrong-audience", id="for other services"),
        pytest.param({"iss": "https://issuer.example.net"}, "", id="of another issuer"),
    ],
)
def test_tokens_that_are_not_for_the_rule(provider: str, claims: dict[str, Any], reason: str) -> None:
    verdict = judged(provider, SENT[provider] | claims)
    assert isinstance(verdict, NotMine)
    assert verdict.reason == reason


@pytest.mark.parametrize("provider", SENT)
def test_a_token_that_has_ended_lets_nobody_in(provider: str) -> None:
    verdict = judged(provider, SENT[provider] | {"exp": int(NOW.timestamp()) - 1})
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "expired"


def test_a_cluster_with_the_same_issuer_name_takes_the_token_by_the_keys_of_the_rule() -> None:
    provider = "ServiceAccount of another cluster"
    issuer = FILES[provider]["spec"]["issuer"]["url"]
    own = ServiceAccountAuthenticator([issuer], parse_key_set(key_set(public(key_for("RS256", 1), "own"))))
    outcome = authenticate(bearer_of(provider, SERVICE_ACCOUNT), (own, authenticator_of()), views_of(provider), NOW, ())
    assert outcome.user is not None
    assert outcome.user.username == "system:joinrule:machines-of-cluster-b"
    assert isinstance(own.authenticate(bearer_of(provider, SERVICE_ACCOUNT), {}, NOW, ()), Rejected)
