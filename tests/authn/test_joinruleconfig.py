"""Join rules as an AuthenticationConfiguration: Mooring's own reader of such files gives the user that the rules give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.schema import Obj
from mooring.authn import claims as claimsmapping
from mooring.authn.claims import ClaimsRefusedError
from mooring.authn.joinrule import CompiledJoinRule, compile_rule, identify, user_of
from mooring.authn.joinruleconfig import authentication_configuration, literal
from mooring.authn.oidc.authenticationconfig import AuthenticationConfiguration, parse
from mooring.authn.oidc.authenticator import IssuerConfig
from mooring.identity import CREDENTIAL_ID, UserInfo
from mooring.trust.joinrule import CLAIM_USE, JoinRule, JoinRuleError, join_identity, read_rule
from tests.support.jwtsigner import key_for, key_set, public
from tests.support.rows import each_row
from tests.support.testca import ThrowawayCA

ISSUER = "https://issuer.example/a"
CLUSTER = "5a1c-cluster"
EXPIRES = datetime(2026, 11, 30, 3, 0, tzinfo=UTC)
CA = ThrowawayCA().certificate_pem.decode()
KEYS = key_set(public(key_for("ES256"))).decode()
USE = "join.mooring.dev/use"


def rule(name: str, *claims: Obj, issuer: str = ISSUER, issuer_fields: Mapping[str, str] = {}, **spec: Any) -> JoinRule:
    return read_rule(
        {
            "metadata": {"name": name},
            "spec": {"issuer": {"url": issuer, **issuer_fields}, "claims": list(claims), **spec},
        }
    )


def value(claim: str, text: str) -> Obj:
    return {"claim": claim, "value": text}


def pattern(claim: str, text: str) -> Obj:
    return {"claim": claim, "pattern": text}


def expression(text: str) -> Obj:
    return {"expression": text}


def configuration(*rules: JoinRule) -> AuthenticationConfiguration:
    return parse(encode_yaml(authentication_configuration(rules, CLUSTER)), "printed")


def claims(**found: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "sub": "it", "aud": CLUSTER, "exp": int(EXPIRES.timestamp()), "ref": "main", **found}


def has_audience(token: Mapping[str, Any], wanted: Sequence[str]) -> bool:
    return (
        not {token["aud"]}.isdisjoint(wanted)
        if isinstance(token["aud"], str)
        else not set(token["aud"]).isdisjoint(wanted)
    )


def by_rules(rules: Sequence[CompiledJoinRule], token: dict[str, Any]) -> UserInfo | None:
    """Return the user of the first rule that fits, whose audience the token has."""
    for one in sorted(rules, key=lambda one: one.rule.name):
        if has_audience(token, one.rule.audiences or (CLUSTER,)):
            try:
                return user_of(identify(one, token, EXPIRES))
            except JoinRuleError:
                continue
    return None


def by_configuration(issuer: IssuerConfig, token: Mapping[str, Any]) -> UserInfo | None:
    try:
        return claimsmapping.identify(token, issuer.identification) if has_audience(token, issuer.audiences) else None
    except ClaimsRefusedError:
        return None


MAIN = value("ref", "main")
TOKENS: Mapping[str, dict[str, Any]] = {
    "plain": claims(),
    "another value": claims(ref="other"),
    "null": claims(ref=None),
    "a number": claims(ref=7, run=41, sub="x"),
    "a negative number": claims(ref=-7),
    "a number with a fraction": claims(ref=7.0),
    "true": claims(ref=True),
    "false": claims(ref=False),
    "a list with it": claims(ref=["other", "main"]),
    "a list of numbers": claims(ref=[1, 7]),
    "a list of truths": claims(ref=[True]),
    "an empty list": claims(ref=[]),
    "a list in a list": claims(ref=[["main"]]),
    "an object": claims(ref={"main": "main"}),
    "an object in a list": claims(ref=[{"main": 1}, "main"]),
    "a path": claims(ref="org/app:ref/main"),
    "a path with more parts": claims(ref="org/app/x:ref/main"),
    "a path with a line": claims(ref="org/a\npp:ref/main"),
    "a line at its end": claims(ref="main\n"),
    "quotes": claims(ref='a"b\\c'),
    "beyond ASCII": claims(ref="Zürich 🐳"),
    "a regular expression": claims(ref="mxin"),
    "a sign of regular expressions": claims(ref="m.in-x"),
    "a text of digits": claims(ref="07"),
    "a name": claims(ref="node-1.rack"),
    "a name in capitals": claims(ref="Node-1"),
    "a long name": claims(ref="a" * 250),
    "a star": claims(ref="*"),
    "a name with a star": claims(ref="node-*"),
    "a name with a dot at its end": claims(ref="node."),
    "a name in a list": claims(ref=["node-1"]),
    "two names in a list": claims(ref=["node-1", "node-2"]),
    "a jti": claims(jti="one-time", ref="main"),
    "an empty jti": claims(jti="", ref="main"),
    "a jti that is a number": claims(jti=12, ref="main"),
    "a jti that is true": claims(jti=True, ref="main"),
    "no subject": {key: one for key, one in claims().items() if key != "sub"},
    "a subject that is null": claims(sub=None),
    "a subject with controls": claims(sub="a\x1b[2Jb"),
    "another audience": claims(aud=["team", "x"]),
    "two audiences": claims(aud=["team", CLUSTER]),
    "a member": claims(google={"compute": {"name": "vm-1", "a/b~c": 3}}),
    "a member of a text": claims(google="compute"),
    "a member that is null": claims(google={"compute": None}),
    "an address": claims(email="a@x.example"),
}
RULES: Mapping[str, tuple[JoinRule, ...]] = {
    "a value": (rule("r", MAIN),),
    "a value with quotes": (rule("r", value("ref", 'a"b\\c')),),
    "a value beyond ASCII": (rule("r", value("ref", "Zürich 🐳")),),
    "a number": (rule("r", value("ref", "7")),),
    "a negative number": (rule("r", value("ref", "-7")),),
    "a number that JSON does not write so": (rule("r", value("ref", "07")),),
    "a truth": (rule("r", value("ref", "true")),),
    "a falsehood": (rule("r", value("ref", "false")),),
    "a pattern": (rule("r", pattern("ref", "org/*:ref/main")),),
    "a pattern in a word": (rule("r", pattern("ref", "m*n")),),
    "a pattern with a sign of regular expressions": (rule("r", pattern("ref", "m.in*")),),
    "a pattern beyond ASCII": (rule("r", pattern("ref", "Zü* 🐳")),),
    "a pattern of numbers": (rule("r", pattern("ref", "*7")),),
    "a pattern that truths fit": (rule("r", pattern("ref", "t*e")),),
    "an expression": (rule("r", expression('claims.?ref.orValue("") == "main" // a comment')),),
    "an expression that fails": (rule("r", expression('claims.nothing == "main"')),),
    "a pointer": (rule("r", value("/google/compute/name", "vm-1")),),
    "a pointer with signs": (rule("r", value("/google/compute/a~1b~0c", "3")),),
    "a pointer to a claim": (rule("r", value("/ref", "main")),),
    "several conditions": (rule("r", MAIN, pattern("sub", "i*"), expression("has(claims.aud)")),),
    "a fixed name": (rule("r", MAIN, nodeName="node-*"),),
    "a template": (rule("r", pattern("sub", "*t"), nodeName="{ref}"),),
    "a template with texts": (rule("r", pattern("sub", "*t"), nodeName="ci-{ref}-{sub}.x"),),
    "a template of a pointer": (rule("r", pattern("sub", "*t"), nodeName="{/google/compute/name}"),),
    "a template with a star": (rule("r", pattern("sub", "*t"), nodeName="{ref}-*"),),
    "a name by an expression": (rule("r", pattern("sub", "*t"), nodeNameExpression='"n-" + claims.ref'),),
    "a unique claim": (rule("r", pattern("sub", "*t"), uniqueClaim="ref"),),
    "a unique pointer": (rule("r", MAIN, uniqueClaim="/google/compute/name"),),
    "an address": (rule("r", pattern("email", "*@x.example")), rule("s", MAIN)),
    "audiences": (rule("r", MAIN, audiences=["team", "other"]),),
    "several rules": (
        rule("b", MAIN, audiences=["team"], nodeName="team-*"),
        rule("a", value("ref", "7"), nodeName="seven"),
        rule("c", pattern("ref", "m*"), uniqueClaim="sub"),
    ),
}


@each_row("name", RULES)
def test_both_give_the_same_user(name: str) -> None:
    rules, compared = [compile_rule(one) for one in RULES[name]], 0
    (issuer,) = configuration(*RULES[name]).issuers
    for label, token in TOKENS.items():
        wanted, found = by_rules(rules, token), by_configuration(issuer, token)
        assert (found is None) == (wanted is None), label
        if wanted is None or found is None:
            continue
        assert (found.username, found.groups) == (wanted.username, wanted.groups), label
        extra = {key: texts for key, texts in found.extra.items() if key not in (USE, CREDENTIAL_ID)}
        assert extra == {key: texts for key, texts in wanted.extra.items() if key != USE}, label
        assert found.extra[USE][0].startswith(CLAIM_USE), label
        assert join_identity(found.username, found.extra) == join_identity(wanted.username, wanted.extra), label
        compared += 1
    assert bool(compared) == (name != "an expression that fails"), "each rule fits a token"


@each_row("end, accepted", [("2026-11-30T03:00:00Z", True), ("2026-11-30T02:59:59Z", False)])
def test_a_token_that_outlives_its_rule_is_rejected(end: str, accepted: bool) -> None:
    (issuer,) = configuration(rule("r", MAIN, expirationTimestamp=end)).issuers
    assert (by_configuration(issuer, claims()) is not None) == accepted


def test_an_issuer_has_what_its_rules_have() -> None:
    obj = authentication_configuration(
        [
            rule("one", MAIN, issuer="https://z.example", issuer_fields={"certificateAuthority": CA}, audiences=["x"]),
            rule("two", MAIN, issuer_fields={"discoveryURL": "https://x.example/d"}, audiences=["x"]),
            rule("three", MAIN, issuer_fields={"discoveryURL": "https://x.example/d"}),
        ],
        CLUSTER,
    )
    assert [one["issuer"] for one in obj["jwt"]] == [
        {
            "url": ISSUER,
            "audiences": [CLUSTER, "x"],
            "audienceMatchPolicy": "MatchAny",
            "discoveryURL": "https://x.example/d",
        },
        {"url": "https://z.example", "audiences": ["x"], "certificateAuthority": CA},
    ]


@each_row(
    "rules, message",
    [
        (
            [rule("keys", MAIN, issuer_fields={"jwks": KEYS})],
            "join rule keys: kube-apiserver takes no keys from a file",
        ),
        (
            [rule("a", MAIN), rule("b", MAIN, issuer_fields={"discoveryURL": "https://x.example/d"})],
            "join rule b: its discovery URL is not that of a",
        ),
        (
            [rule("a", MAIN), rule("b", MAIN, issuer_fields={"certificateAuthority": CA})],
            "join rule b: its CA is not that of a",
        ),
        ([rule("bad", expression("true) || (true"))], "join rule bad: compilation failed"),
    ],
)
def test_what_a_configuration_cannot_express(rules: list[JoinRule], message: str) -> None:
    with pytest.raises(JoinRuleError) as caught:
        authentication_configuration(rules, CLUSTER)
    assert str(caught.value).startswith(message)


def test_a_text_stays_in_its_literal() -> None:
    assert literal('a"b\\\n\x00é🐳') == r'"a\"b\\\U0000000a\U00000000\U000000e9\U0001f433"'
