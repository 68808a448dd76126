"""The files of docs/authentication/oidc-providers.md, with claims as each provider sends them.

Source: the providers' own documentation of their ID tokens (Dex "ID tokens", Keycloak "Protocol mappers", Microsoft "ID token
claims reference", Okta "ID token payload", Google "OpenID Connect", GitHub "OpenID Connect reference"), and UAA's source of the ID
token (`IdTokenCreator`). Ids are made up.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mooring.authn.claims import ClaimsRefusedError, identify
from mooring.authn.oidc.authenticationconfig import parse
from mooring.identity import UserInfo

PAGE = Path(__file__).parents[2] / "docs/authentication/oidc-providers.md"
FILES = dict(re.findall(r"^## ([^\n]+)\n.*?^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S))
TENANT = "11111111-2222-3333-4444-555555555555"
OBJECT = "aaaaaaaa-0000-1111-2222-bbbbbbbbbbbb"
DEX = {"sub": "CgVqYW5lEgRsZGFw", "email": "jane@example.com", "email_verified": True, "groups": ["ops", "dev"]}
KEYCLOAK = {"sub": "f:1", "preferred_username": "jane", "groups": ["ops"], "realm_access": {"roles": ["x"]}}
ENTRA = {
    "tid": TENANT,
    "oid": OBJECT,
    "sub": "3OBtLX",
    "preferred_username": "jane@example.com",
    "groups": ["0760b6cf"],
}
OVERAGE = {
    **{name: value for name, value in ENTRA.items() if name != "groups"},
    "_claim_names": {"groups": "src1"},
    "_claim_sources": {"src1": {"endpoint": "https://graph.windows.net/x"}},
}
OKTA = {"sub": "00uixa271s6x7qt8I0h7", "groups": ["k8s-ops"], "ver": 1}
UAA = {
    "sub": "7f791ea9-9a2b-4d5c-8d5c-0a5d2b1c3e4f",
    "user_name": "jane",
    "origin": "ldap",
    "roles": ["ops"],
    "azp": "kubernetes",
    "zid": "uaa",
}
GOOGLE = {"sub": "1098", "email": "jane@example.com", "email_verified": True, "hd": "example.com"}
GITHUB = {
    "sub": "repo:octo/app:environment:prod",
    "repository": "octo/app",
    "repository_owner": "octo",
    "repository_owner_id": "1234567",
    "ref": "refs/heads/main",
    "event_name": "push",
    "environment": "prod",
}


def by(provider: str, claims: dict[str, Any]) -> UserInfo:
    (issuer,) = parse(FILES[provider].encode(), "page").issuers
    return identify(claims, issuer.identification)


def test_each_provider_of_the_page_has_a_file() -> None:
    assert list(FILES) == ["Dex", "Keycloak", "Entra ID", "Okta", "UAA", "Google", "GitHub Actions"]


@pytest.mark.parametrize(
    ("provider", "claims", "username", "groups"),
    [
        ("Dex", DEX, "oidc:jane@example.com", ("oidc:ops", "oidc:dev")),
        ("Keycloak", KEYCLOAK, "oidc:jane", ("oidc:ops",)),
        ("Entra ID", ENTRA, f"entra:{OBJECT}", ("entra:0760b6cf",)),
        ("Okta", OKTA, "okta:00uixa271s6x7qt8I0h7", ("okta:k8s-ops",)),
        ("UAA", UAA, "uaa:jane", ("uaa:ops",)),
        ("UAA", {name: value for name, value in UAA.items() if name != "roles"}, "uaa:jane", ()),
        ("Google", GOOGLE, "google:jane@example.com", ()),
        ("GitHub Actions", GITHUB, "github:octo/app", ("github:octo", "github:env:prod")),
        (
            "GitHub Actions",
            {name: value for name, value in GITHUB.items() if name != "environment"},
            "github:octo/app",
            ("github:octo",),
        ),
    ],
    ids=str,
)
def test_who_a_token_of_the_provider_is(
    provider: str, claims: dict[str, Any], username: str, groups: tuple[str, ...]
) -> None:
    found = by(provider, claims)
    assert (found.username, found.groups) == (username, groups)


@pytest.mark.parametrize(
    ("provider", "claims", "message"),
    [
        pytest.param("Dex", DEX | {"email_verified": False}, "was verified", id="an address that nobody verified"),
        pytest.param("Entra ID", OVERAGE, "more groups than a token holds", id="groups beyond the token"),
        pytest.param("Entra ID", ENTRA | {"tid": "another"}, "tid", id="another tenant"),
        pytest.param("UAA", UAA | {"origin": "uaa"}, "origin", id="a user of another origin"),
        pytest.param("Google", {**GOOGLE, "hd": "gmail.com"}, "hd", id="an account of somebody else"),
        pytest.param(
            "Google", {name: value for name, value in GOOGLE.items() if name != "hd"}, "hd", id="a private account"
        ),
        pytest.param(
            "GitHub Actions",
            GITHUB | {"repository_owner_id": "666"},
            "our organization",
            id="a name that was taken over",
        ),
        pytest.param("GitHub Actions", GITHUB | {"event_name": "pull_request"}, "main branch", id="a pull request"),
        pytest.param("GitHub Actions", GITHUB | {"ref": "refs/pull/7/merge"}, "main branch", id="a fork's merge"),
    ],
)
def test_whom_the_file_refuses(provider: str, claims: dict[str, Any], message: str) -> None:
    with pytest.raises(ClaimsRefusedError, match=message):
        by(provider, claims)
