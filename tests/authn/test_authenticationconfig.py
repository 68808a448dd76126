"""The AuthenticationConfiguration file and the flags that it replaces.

Source: docs/protocol/openid-connect.md.
"""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.anonymous import AnonymousAccess
from mooring.authn.cel import CLAIMS, TEXT, TEXTS, TRUTH, USER, compile_expression
from mooring.authn.claims import Claim, Identification, Required, ValidationRule
from mooring.authn.oidc.authenticationconfig import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_ISSUERS,
    VERSIONS,
    AuthenticationConfiguration,
    from_flags,
    parse,
)
from mooring.authn.oidc.authenticator import IssuerConfig
from mooring.authn.oidc.settings import SIGNING_ALGORITHMS, OidcSettings
from mooring.errors import MAX_FIELD_ERRORS, ConfigError
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA().certificate_pem.decode()
GONE = object()
"""The field is left out."""

LEAST: dict[str, Any] = {
    "issuer": {"url": "https://id.example", "audiences": ["kubernetes"]},
    "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
}
FULL: dict[str, Any] = {
    "issuer": {
        "url": "https://id.example",
        "discoveryURL": "https://inside.example/discovery",
        "certificateAuthority": CA,
        "audiences": ["kubernetes", "dashboard"],
        "audienceMatchPolicy": "MatchAny",
        "egressSelectorType": "cluster",
    },
    "claimValidationRules": [
        {"claim": "hd", "requiredValue": "example.com"},
        {"expression": "claims.exp - claims.nbf <= 86400", "message": "a day at most"},
    ],
    "claimMappings": {
        "username": {"expression": "claims.sub + '@id'"},
        "groups": {"claim": "groups", "prefix": "id:"},
        "uid": {"claim": "oid"},
        "extra": [{"key": "example.com/team", "valueExpression": "claims.team"}],
    },
    "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "not one of ours"}],
}


def text(*jwt: Any, version: str = VERSIONS[0], **more: Any) -> bytes:
    return yaml.safe_dump(
        {"apiVersion": version, "kind": "AuthenticationConfiguration", "jwt": list(jwt), **more}
    ).encode()


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a dotted path."""
    made = copy.deepcopy(base)
    part: Any = made
    *steps, last = path.split(".")
    for step in steps:
        part = part[int(step)] if step.isdigit() else part.setdefault(step, {})
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return made


def mistake(*jwt: Any, **more: Any) -> str:
    """What is said, after the name of the file."""
    with pytest.raises(ConfigError) as refused:
        parse(text(*jwt), "auth.yaml", **more)
    said = str(refused.value)
    assert said.startswith("auth.yaml: ")
    return said.removeprefix("auth.yaml: ")


def one(issuer: dict[str, Any]) -> IssuerConfig:
    return parse(text(issuer), "auth.yaml").issuers[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_can_be_said_in_every_version(version: str) -> None:
    found = parse(text(FULL, version=version, anonymous={"enabled": True, "conditions": [{"path": "/livez"}]}), "f")
    identification = Identification(
        username=compile_expression("claims.sub + '@id'", CLAIMS, TEXT),
        groups=Claim("groups", "id:"),
        uid=Claim("oid"),
        extra=(("example.com/team", compile_expression("claims.team", CLAIMS, TEXTS)),),
        claim_rules=(
            Required("hd", "example.com"),
            ValidationRule(compile_expression("claims.exp - claims.nbf <= 86400", CLAIMS, TRUTH), "a day at most"),
        ),
        user_rules=(
            ValidationRule(compile_expression("!user.username.startsWith('system:')", USER, TRUTH), "not one of ours"),
        ),
    )
    issuer = IssuerConfig(
        url="https://id.example",
        audiences=("kubernetes", "dashboard"),
        identification=identification,
        discovery_url="https://inside.example/discovery",
        ca_pem=CA.encode(),
        algorithms=SIGNING_ALGORITHMS,
    )
    assert found == AuthenticationConfiguration((issuer,), AnonymousAccess(True, frozenset({"/livez"})))


def test_the_least_that_must_be_said() -> None:
    found = one(LEAST)
    assert found.identification == Identification(username=Claim("sub"))
    assert (found.discovery_url, found.ca_pem, found.audiences) == ("", b"", ("kubernetes",))


def test_json_is_yaml_and_no_issuers_are_no_mistake() -> None:
    document = b'{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration"}'
    assert parse(document, "f") == AuthenticationConfiguration((), None)


ABSENT: dict[str, tuple[Any, ...]] = {
    "issuer.discoveryURL": (None, ""),
    "issuer.certificateAuthority": (None, ""),
    "issuer.audienceMatchPolicy": (None, ""),
    "issuer.egressSelectorType": (None, ""),
    "claimMappings.groups": (
        None,
        {},
        {"claim": ""},
        {"claim": None, "prefix": None},
        {"prefix": ""},
        {"expression": ""},
    ),
    "claimMappings.uid": (None, {}, {"claim": "", "expression": ""}),
    "claimMappings.extra": (None, []),
    "claimMappings.username.expression": (None, ""),
    "claimValidationRules": (None, []),
    "userValidationRules": (None, []),
}


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, empty in ABSENT.items() for value in empty], ids=str
)
def test_null_and_empty_are_absent(path: str, value: Any) -> None:
    """kube-apiserver's decoder and validation accept each. Programs in Go write `groups: {}` and `uid: {}`."""
    assert one(changed(LEAST, path, value)) == one(LEAST)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(
            {"claim": "hd", "requiredValue": None, "expression": "", "message": ""}, Required("hd", ""), id="a claim"
        ),
        pytest.param(
            {"claim": "", "requiredValue": "", "expression": "true", "message": None},
            ValidationRule(compile_expression("true", CLAIMS, TRUTH)),
            id="an expression",
        ),
    ],
)
def test_empty_members_of_a_rule_are_absent(rule: dict[str, Any], expected: Required | ValidationRule) -> None:
    found = one(changed(LEAST, "claimValidationRules", [rule])).identification
    assert found.claim_rules == (expected,)


@pytest.mark.parametrize(
    "document", [{}, {"jwt": None}, {"jwt": []}, {"anonymous": None}, {"jwt": None, "anonymous": None}]
)
def test_no_issuers_and_no_anonymous_access_may_be_null(document: dict[str, Any]) -> None:
    head = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration"}
    assert parse(json.dumps({**head, **document}).encode(), "f") == AuthenticationConfiguration((), None)


@pytest.mark.parametrize("anonymous", [{}, {"enabled": None, "conditions": None}, {"enabled": False, "conditions": []}])
def test_empty_anonymous_access_is_off(anonymous: dict[str, Any]) -> None:
    head = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration"}
    assert parse(json.dumps({**head, "anonymous": anonymous}).encode(), "f").anonymous == AnonymousAccess(
        False, frozenset()
    )


URL = "jwt[0].issuer.url: Invalid value: "
WHERE = "jwt[0].claimMappings."


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        pytest.param("issuer.url", GONE, "jwt[0].issuer.url: Required value: the issuer of the tokens", id="no url"),
        pytest.param("issuer.url", None, "jwt[0].issuer.url: Required value: the issuer of the tokens", id="a null url"),
        pytest.param("issuer.url", "http://a", f'{URL}"http://a": the scheme must be https', id="http"),
        pytest.param("issuer.url", "", f'{URL}"": the scheme must be https', id="an empty url"),
        pytest.param("issuer.url", "https://a?b", f'{URL}"https://a?b": it must not contain a query', id="a query"),
        pytest.param("issuer.url", "https://a#b", f'{URL}"https://a#b": it must not contain a fragment', id="a fragment"),
        pytest.param(
            "issuer.url", "https://u@a", f'{URL}"https://u@a": it must not contain a user name or a password', id="a user"
        ),
        pytest.param(
            "issuer.url", "https://mooring.example",
            f"{URL}\"https://mooring.example\": it is the issuer of this server's own tokens", id="our own issuer",
        ),
        pytest.param(
            "issuer.discoveryURL", "https://id.example",
            'jwt[0].issuer.discoveryURL: Invalid value: "https://id.example": it must differ from url; leave it out',
            id="discovery at the issuer",
        ),
        pytest.param(
            "issuer.discoveryURL", "https://a?b=c",
            'jwt[0].issuer.discoveryURL: Invalid value: "https://a?b=c": it must not contain a query',
            id="discovery with a query",
        ),
        pytest.param(
            "issuer.audiences", [], "jwt[0].issuer.audiences: Required value: give at least one", id="no audience"
        ),
        pytest.param(
            "issuer.audiences", ["a", ""],
            "jwt[0].issuer.audiences[1]: Required value: give the name of an audience", id="an empty audience",
        ),
        pytest.param(
            "issuer.audiences", ["a", "a"], 'jwt[0].issuer.audiences[1]: Duplicate value: "a"', id="an audience twice"
        ),
        pytest.param(
            "issuer", {**LEAST["issuer"], "audiences": [f"a{n}" for n in range(65)], "audienceMatchPolicy": "MatchAny"},
            "jwt[0].issuer.audiences: Too many: 65: must have at most 64 items", id="too many audiences",
        ),
        pytest.param(
            "issuer.audiences", ["a", "b"],
            'jwt[0].issuer.audienceMatchPolicy: Invalid value: "": it must be MatchAny when there are several',
            id="several audiences and no policy",
        ),
        pytest.param(
            "issuer.audienceMatchPolicy", "MatchAll",
            'jwt[0].issuer.audienceMatchPolicy: Unsupported value: "MatchAll": supported values: "MatchAny"',
            id="another policy",
        ),
        pytest.param(
            "issuer.egressSelectorType", "etcd",
            'jwt[0].issuer.egressSelectorType: Unsupported value: "etcd": supported values: "controlplane", "cluster"',
            id="another way out",
        ),
        pytest.param(
            "issuer.audience", "a", 'jwt[0].issuer.audience: unknown field, did you mean "audiences"?', id="a slip"
        ),
        pytest.param(
            "issuer", "a", 'jwt[0].issuer: Invalid value: "a": it must be an object; '
            "jwt[0].issuer.url: Required value: the issuer of the tokens; "
            "jwt[0].issuer.audiences: Required value: give at least one", id="an issuer in words",
        ),
        pytest.param(
            "claimMappings.username", GONE,
            f"{WHERE}username: Required value: give a claim or an expression", id="no user name",
        ),
        pytest.param(
            "claimMappings.username", {}, f"{WHERE}username: Required value: give a claim or an expression", id="an empty one"
        ),
        pytest.param(
            "claimMappings.username", {"claim": "sub"},
            f'{WHERE}username.prefix: Required value: it goes with a claim; "" puts nothing before it', id="no prefix",
        ),
        pytest.param(
            "claimMappings.username", {"claim": "sub", "expression": "claims.sub"},
            f'{WHERE}username: Invalid value: "sub": give a claim or an expression, not both', id="both",
        ),
        pytest.param(
            "claimMappings.username", {"expression": "claims.sub", "prefix": "a:"},
            f'{WHERE}username.prefix: Invalid value: "a:": it goes with a claim; an expression can put it there itself',
            id="a prefix of an expression",
        ),
        pytest.param(
            "claimMappings.username", {"expression": "claims."},
            f'{WHERE}username.expression: Invalid value: "claims.": '
            "compilation failed: column 8: Syntax error: no viable alternative at input '.'", id="half an expression",
        ),
        pytest.param(
            "claimMappings.username", {"expression": "['a']"},
            f'{WHERE}username.expression: Invalid value: "[\'a\']": must evaluate to a string, not to list<string>',
            id="a list for a name",
        ),
        pytest.param(
            "claimMappings.groups", {"claim": "g"},
            f'{WHERE}groups.prefix: Required value: it goes with a claim; "" puts nothing before it', id="groups, no prefix",
        ),
        pytest.param(
            "claimMappings.groups", {"prefix": "g"},
            f"{WHERE}groups: Required value: give a claim or an expression", id="a prefix of nothing",
        ),
        pytest.param(
            "claimMappings.groups", {"expression": "[1]"},
            f'{WHERE}groups.expression: Invalid value: "[1]": '
            "must evaluate to a string or a list of strings, not to list<int>", id="groups that are numbers",
        ),
        pytest.param(
            "claimMappings.uid", {"claim": "oid", "prefix": ""}, f"{WHERE}uid.prefix: unknown field", id="a prefix of a uid"
        ),
        *(
            pytest.param(
                "claimMappings.extra", [{"key": key, "valueExpression": "claims.a"}], f"{WHERE}extra[0].key: {said}", id=name
            )
            for key, said, name in (
                ("", "Required value: a domain and a path, such as example.com/department", "no key"),
                ("example.com/Team", 'Invalid value: "example.com/Team": it must be in lower case', "upper case"),
                *(
                    (key, f'Invalid value: "{key}": it must be a domain and a path, such as example.com/department', name)
                    for key, name in (
                        ("team", "no domain"), ("example.com/", "no path"), ("/team", "no domain before the path"),
                        ("exa_mple.com/team", "no domain name"),
                    )
                ),
                *(
                    (
                        f"{domain}/team",
                        f'Invalid value: "{domain}/team": k8s.io and kubernetes.io and what is below them are Kubernetes\'s own',
                        f"a key of {domain}",
                    )
                    for domain in ("k8s.io", "a.k8s.io", "kubernetes.io", "authentication.kubernetes.io")
                ),
            )
        ),
        pytest.param(
            "claimMappings.extra", [{"key": "a.example/b", "valueExpression": "'x'"}] * 2,
            f'{WHERE}extra[1].key: Duplicate value: "a.example/b"', id="a key twice",
        ),
        pytest.param(
            "claimMappings.extra", [{"key": "a.example/b"}],
            f"{WHERE}extra[0].valueExpression: Required value: give an expression", id="a key without a value",
        ),
        pytest.param(
            "claimMappings.extra", [{"key": "a.example/b", "valueExpression": "5"}],
            f'{WHERE}extra[0].valueExpression: Invalid value: "5": '
            "must evaluate to a string or a list of strings, not to int", id="a value that is a number",
        ),
        pytest.param(
            "claimMappings.extra", [{"key": f"a.example/{n}", "valueExpression": "'x'"} for n in range(MAX_ENTRIES + 1)],
            f"{WHERE}extra: Too many: 65: must have at most 64 items", id="too many keys",
        ),
        pytest.param(
            "claimValidationRules", [{}],
            "jwt[0].claimValidationRules[0]: Required value: give a claim or an expression", id="an empty rule",
        ),
        pytest.param(
            "claimValidationRules", [{"claim": "a", "expression": "true"}],
            'jwt[0].claimValidationRules[0]: Invalid value: "a": give a claim or an expression, not both', id="a rule of both",
        ),
        pytest.param(
            "claimValidationRules", [{"claim": "a", "requiredValue": "b", "message": "c"}],
            'jwt[0].claimValidationRules[0].message: Invalid value: "c": it goes with an expression', id="a claim's message",
        ),
        pytest.param(
            "claimValidationRules", [{"expression": "true", "requiredValue": "b"}],
            'jwt[0].claimValidationRules[0].requiredValue: Invalid value: "b": it goes with a claim', id="a rule's value",
        ),
        pytest.param(
            "claimValidationRules", [{"claim": "a"}, {"expression": "true"}, {"claim": "b"}, {"claim": "a"}],
            'jwt[0].claimValidationRules[3].claim: Duplicate value: "a"', id="a claim required twice",
        ),
        pytest.param(
            "claimValidationRules", [{"expression": "claims.admin"}],
            'jwt[0].claimValidationRules[0].expression: Invalid value: "claims.admin": must evaluate to a bool, not to dyn',
            id="a rule that may be anything",
        ),
        pytest.param(
            "userValidationRules", [{"expression": "user.name == ''"}],
            "jwt[0].userValidationRules[0].expression: Invalid value: \"user.name == ''\": "
            "compilation failed: user has no name; it has username, uid, groups, extra", id="a rule about nothing",
        ),
        pytest.param(
            "userValidationRules", [{"message": "x"}],
            "jwt[0].userValidationRules[0].expression: Required value: give an expression", id="a rule without one",
        ),
        pytest.param(
            "userValidationRule", [],
            'jwt[0].userValidationRule: unknown field, did you mean "userValidationRules"?', id="another slip",
        ),
    ],
)  # fmt: skip
def test_one_mistake(path: str, value: Any, said: str) -> None:
    assert mistake(changed(LEAST, path, value), own_issuers=["https://mooring.example"]) == said


def test_a_certificate_authority_must_be_one_and_is_not_repeated() -> None:
    said = mistake(changed(LEAST, "issuer.certificateAuthority", "-----BEGIN KEY-----"))
    assert said.startswith('jwt[0].issuer.certificateAuthority: Invalid value: "<omitted>": ')


def test_all_mistakes_are_told_at_once() -> None:
    bad = changed(changed(LEAST, "issuer.url", "http://a"), "claimMappings.username", {"claim": "sub"})
    assert mistake(bad) == (
        'jwt[0].issuer.url: Invalid value: "http://a": the scheme must be https; '
        'jwt[0].claimMappings.username.prefix: Required value: it goes with a claim; "" puts nothing before it'
    )


def test_of_very_many_mistakes_the_first_are_told() -> None:
    rules = [{f"x{n}": 1, "claim": f"c{n}"} for n in range(MAX_ENTRIES)]
    said = mistake(
        changed(changed(LEAST, "claimValidationRules", rules), "userValidationRules", [{"y": 1}] * MAX_ENTRIES)
    )
    assert said.endswith(f"and {3 * MAX_ENTRIES - MAX_FIELD_ERRORS} more")


@pytest.mark.parametrize(
    ("where", "base"),
    [
        pytest.param("claimMappings.username", "claims.email_verified ? claims.email : ''", id="in the name itself"),
        pytest.param("claimMappings.extra.0.valueExpression", "string(claims.email_verified)", id="in an extra value"),
        pytest.param(
            "claimValidationRules.1.expression", "claims.?email_verified.orValue(false) == true", id="in a rule"
        ),
        pytest.param("", "", id="nowhere"),
    ],
)
def test_an_address_is_trusted_only_together_with_its_verification(where: str, base: str) -> None:
    expression = base if where == "claimMappings.username" else "claims.email"
    issuer = changed(FULL, "claimMappings.username.expression", expression)
    if where and where != "claimMappings.username":
        issuer = changed(issuer, where, base)
    if where:
        assert one(issuer).identification.username == compile_expression(expression, CLAIMS, TEXT)
    else:
        assert mistake(issuer).startswith(
            'jwt[0].claimMappings.username.expression: Invalid value: "claims.email": claims.email can be trusted only '
        )


@pytest.mark.parametrize(
    ("jwt", "said"),
    [
        pytest.param([LEAST, LEAST], 'jwt[1].issuer.url: Duplicate value: "https://id.example"', id="an issuer twice"),
        pytest.param(
            [changed(changed(LEAST, "issuer.url", f"https://{n}"), "issuer.discoveryURL", "https://d") for n in "ab"],
            'jwt[1].issuer.discoveryURL: Duplicate value: "https://d"', id="a document twice",
        ),
        pytest.param(
            [changed(LEAST, "issuer.url", f"https://id{n}.example") for n in range(MAX_ISSUERS + 1)],
            "jwt: Too many: 65: must have at most 64 items", id="too many issuers",
        ),
    ],
)  # fmt: skip
def test_issuers_together(jwt: list[Any], said: str) -> None:
    assert mistake(*jwt) == said


def test_as_many_issuers_as_may_be() -> None:
    many = [changed(LEAST, "issuer.url", f"https://id{n}.example") for n in range(MAX_ISSUERS)]
    assert len(parse(text(*many), "f").issuers) == MAX_ISSUERS


@pytest.mark.parametrize(
    ("anonymous", "found"),
    [
        pytest.param(None, None, id="nothing said"),
        pytest.param({"enabled": True}, AnonymousAccess(True), id="everywhere"),
        pytest.param({"enabled": False}, AnonymousAccess(False), id="nowhere"),
        pytest.param({}, AnonymousAccess(False), id="an empty object says no"),
        pytest.param(
            {"enabled": True, "conditions": [{"path": "/livez"}, {"path": "/readyz"}]},
            AnonymousAccess(True, frozenset({"/livez", "/readyz"})), id="some paths",
        ),
    ],
)  # fmt: skip
def test_anonymous_access(anonymous: Any, found: AnonymousAccess | None) -> None:
    assert parse(text(LEAST, anonymous=anonymous), "f").anonymous == found


@pytest.mark.parametrize(
    ("anonymous", "said"),
    [
        pytest.param(
            {"conditions": [{"path": "/a"}]}, "anonymous.conditions: Forbidden: they want enabled: true", id="not enabled"
        ),
        pytest.param(
            {"enabled": True, "conditions": [{"path": "livez"}]},
            'anonymous.conditions[0].path: Invalid value: "livez": it must be the path of a URL, such as /livez', id="no path",
        ),
        pytest.param(
            {"enabled": True, "conditions": [{"path": "/a"}] * 2},
            'anonymous.conditions[1].path: Duplicate value: "/a"', id="a path twice",
        ),
        pytest.param(
            {"enabled": True, "paths": ["/a"]}, "anonymous.paths: unknown field", id="an unknown field",
        ),
    ],
)  # fmt: skip
def test_anonymous_access_that_cannot_be(anonymous: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text(LEAST, anonymous=anonymous), "f")
    assert str(refused.value) == f"f: {said}"


def test_anonymous_access_is_said_in_one_place_only() -> None:
    document = text(LEAST, anonymous={"enabled": True})
    with pytest.raises(ConfigError, match="anonymous: Forbidden: it cannot be combined with --anonymous-auth; leave"):
        parse(document, "f", anonymous_given=True)
    assert parse(text(LEAST), "f", anonymous_given=True).anonymous is None


WANTED = "one AuthenticationConfiguration of apiserver.config.k8s.io is expected; say so in apiVersion"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", WANTED, id="nothing"),
        pytest.param(b"[]", WANTED, id="a list"),
        pytest.param(b"kind: AuthenticationConfiguration", WANTED, id="no version"),
        pytest.param(text(version="apiserver.config.k8s.io/v2"), WANTED, id="another version"),
        pytest.param(text().replace(b"kind: A", b"kind: B"), WANTED, id="another kind"),
        pytest.param(b"\xff", "the file is not UTF-8 text", id="no text"),
        pytest.param(b"a: [", "yaml: line 1: did not find", id="no YAML"),
        pytest.param(
            b"#" * (MAX_BYTES + 1), f"an authentication configuration is at most {MAX_BYTES} bytes", id="too long"
        ),
        pytest.param(text() + b"jwt: []\n", 'line 4: key "jwt" already set in map', id="a field twice"),
        pytest.param(text(metadata={}), "metadata: unknown field", id="metadata"),
    ],
)
def test_files_that_are_none(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(data, "auth.yaml")
    assert str(refused.value).startswith(f"auth.yaml: {said}")


@pytest.mark.parametrize(
    ("flags", "username"),
    [
        pytest.param({}, Claim("sub", "https://id.example#"), id="the issuer goes before the name"),
        pytest.param({"oidc_username_claim": "email"}, Claim("email"), id="but not before an address"),
        pytest.param({"oidc_username_prefix": "-"}, Claim("sub"), id="a dash puts nothing"),
        pytest.param({"oidc_username_prefix": "p:"}, Claim("sub", "p:"), id="a prefix"),
        pytest.param(
            {"oidc_username_claim": "email", "oidc_username_prefix": "p:"},
            Claim("email", "p:"),
            id="and for an address",
        ),
    ],
)
def test_what_flags_mean_for_the_user_name(flags: dict[str, Any], username: Claim) -> None:
    made = OidcSettings(oidc_issuer_url="https://id.example", oidc_client_id="kubernetes", **flags)
    assert from_flags(made, b"").identification == Identification(username=username)


def test_what_the_other_flags_mean() -> None:
    flags = OidcSettings(
        oidc_issuer_url="https://id.example",
        oidc_client_id="kubernetes",
        oidc_groups_claim="roles",
        oidc_groups_prefix="g:",
        oidc_signing_algs=("ES256",),
        oidc_required_claim=("hd=example.com",),
    )
    with pytest.raises(ConfigError, match=r'^oidc-ca-file: ".*" is empty: without a CA every CA of this machine'):
        from_flags(replace(flags, oidc_ca_file="/etc/ca.crt"), b"\n")
    found = from_flags(flags, b"ca")
    assert (found.url, found.audiences, found.algorithms, found.ca_pem) == (
        "https://id.example", ("kubernetes",), ("ES256",), b"ca",
    )  # fmt: skip
    assert found.identification.groups == Claim("roles", "g:")
    assert found.identification.claim_rules == (Required("hd", "example.com"),)


PATHS = [
    "issuer", "issuer.url", "issuer.audiences", "issuer.certificateAuthority", "claimMappings", "claimMappings.username",
    "claimMappings.username.expression", "claimMappings.groups", "claimMappings.extra", "claimValidationRules",
    "userValidationRules", "claimValidationRules.0", "claimMappings.extra.0.key",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc:/.-", max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["claim", "expression", "prefix", "x"]), inner)
    ),
    max_leaves=6,
)


@given(st.sampled_from(PATHS), JSON)
def test_any_change_gives_a_configuration_or_a_config_error(path: str, value: Any) -> None:
    made = copy.deepcopy(FULL)
    part: Any = made
    *steps, last = path.split(".")
    for step in steps:
        part = part[int(step)] if step.isdigit() else part[step]
    part[int(last) if last.isdigit() else last] = value
    with contextlib.suppress(ConfigError):
        assert parse(text(made), "f").issuers


@given(st.binary(max_size=200))
def test_any_bytes_give_a_configuration_or_a_config_error(data: bytes) -> None:
    with pytest.raises(ConfigError):
        parse(data, "f")
