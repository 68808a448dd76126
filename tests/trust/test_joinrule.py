"""Join rules: what a rule may say, which claims fit, the names that come of claims, and what a request says of a token."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError
from mooring.trust.bootstraptoken.restrictions import Restrictions
from mooring.trust.joinrule import (
    MAX_AUDIENCES,
    MAX_CONDITIONS,
    MAX_DOCUMENT,
    MAX_ELEMENTS,
    MAX_EXPRESSION,
    MAX_TEXT,
    Condition,
    JoinIdentity,
    JoinRuleError,
    checked_name,
    claim_in,
    errors_of,
    fits,
    fits_pattern,
    join_identity,
    looks_like_jwt,
    named_node,
    node_name_from,
    placeholders,
    read_rule,
    stated,
    texts_of,
    unique_value,
    use_of,
)
from tests.support.jwtsigner import key_for, key_set, public
from tests.support.testca import ThrowawayCA

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ISSUER = "https://id.example"
JWKS = key_set(public(key_for("ES256"))).decode()
CA = ThrowawayCA(now=NOW).certificate_pem.decode()
BRANCH = {"claim": "ref", "value": "refs/heads/main"}


def rule(**spec: Any) -> Obj:
    """Return a rule; None leaves a field out."""
    full = {"issuer": {"url": ISSUER}, "claims": [BRANCH], **spec}
    return {"metadata": {"name": "ci"}, "spec": {name: value for name, value in full.items() if value is not None}}


def issuer(**fields: str) -> Obj:
    return {"url": ISSUER, **fields}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="an issuer and a claim"),
        pytest.param({"issuer": issuer(url=f"{ISSUER}/realms/a")}, id="an issuer with a path"),
        pytest.param({"issuer": issuer(url=f"{ISSUER}/")}, id="an issuer with a final slash"),
        pytest.param({"issuer": issuer(discoveryURL="https://inside.example/doc")}, id="another discovery document"),
        pytest.param({"issuer": issuer(certificateAuthority=CA)}, id="a private CA"),
        pytest.param({"issuer": issuer(jwks=JWKS)}, id="keys in the rule"),
        pytest.param({"issuer": {"url": "kubernetes/other", "jwks": JWKS}}, id="an issuer that is no URL, with its keys"),
        pytest.param({"audiences": ["a", "b"]}, id="audiences"),
        pytest.param({"claims": [{"claim": "sub", "pattern": "repo:o/*:ref:refs/heads/main"}]}, id="a pattern"),
        pytest.param({"claims": [{"expression": "claims.ref == 'x'"}]}, id="an expression"),
        pytest.param({"claims": [{"claim": "/google/project", "value": "p"}]}, id="a pointer"),
        pytest.param({"nodeName": "ci-{run_id}"}, id="a template"),
        pytest.param({"nodeName": "{a}-{/b/c}.*.example.com"}, id="a template with a pointer and a star"),
        pytest.param({"nodeNameExpression": "'ci-' + claims.run"}, id="an expression for the name"),
        pytest.param({"uniqueClaim": "run_id"}, id="a unique claim"),
        pytest.param({"maxJoins": 1}, id="the fewest joins"),
        pytest.param({"maxJoins": 1000}, id="the most joins"),
        pytest.param({"allowedCIDRs": ["10.0.0.0/8", "fd00::/8"], "ephemeral": "30m"}, id="networks and a silence"),
    ],
)  # fmt: skip
def test_a_rule_may_have(spec: Obj) -> None:
    assert errors_of(rule(**spec)) == []
    assert read_rule(rule(**spec)).name == "ci"


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param({"issuer": None}, ["spec.issuer.url"], id="no issuer"),
        pytest.param({"issuer": {"url": "http://id.example"}}, ["spec.issuer.url"], id="an issuer without TLS"),
        pytest.param({"issuer": issuer(url="https://a:b@id.example")}, ["spec.issuer.url"], id="a password in the issuer"),
        pytest.param({"issuer": issuer(discoveryURL="http://d")}, ["spec.issuer.discoveryURL"], id="discovery without TLS"),
        pytest.param({"issuer": issuer(url=f"{ISSUER}/{'x' * MAX_TEXT}")}, ["spec.issuer.url"], id="a long issuer"),
        pytest.param({"issuer": {"url": "a\nb", "jwks": JWKS}}, ["spec.issuer.url"], id="a newline in an issuer"),
        pytest.param(
            {"issuer": issuer(jwks=JWKS, discoveryURL="https://d.example")}, ["spec.issuer.jwks"], id="keys twice"
        ),
        pytest.param({"issuer": issuer(jwks=JWKS, certificateAuthority=CA)}, ["spec.issuer.jwks"], id="keys and a CA"),
        pytest.param({"issuer": issuer(jwks="{}")}, ["spec.issuer.jwks"], id="keys that are none"),
        pytest.param(
            {"issuer": issuer(jwks=JWKS.replace('"kty"', '"d":"AA","kty"'))}, ["spec.issuer.jwks"], id="a private key"
        ),
        pytest.param({"issuer": issuer(jwks="\ud800")}, ["spec.issuer.jwks"], id="keys with a lone surrogate"),
        pytest.param({"issuer": issuer(jwks=" " * MAX_DOCUMENT + "{}")}, ["spec.issuer.jwks"], id="a long key set"),
        pytest.param({"issuer": issuer(certificateAuthority="x")}, ["spec.issuer.certificateAuthority"], id="no CA"),
        pytest.param({"audiences": [""]}, ["spec.audiences[0]"], id="an empty audience"),
        pytest.param({"audiences": ["a", "a"]}, ["spec.audiences[1]"], id="an audience twice"),
        pytest.param({"audiences": ["a\0"]}, ["spec.audiences[0]"], id="a NUL in an audience"),
        pytest.param(
            {"audiences": [str(number) for number in range(MAX_AUDIENCES + 1)]}, ["spec.audiences"], id="many audiences"
        ),
        pytest.param({"claims": []}, ["spec.claims"], id="no claim: every machine that the issuer knows"),
        pytest.param({"claims": [BRANCH] * (MAX_CONDITIONS + 1)}, ["spec.claims"], id="many claims"),
        pytest.param({"claims": [{}]}, ["spec.claims[0]"], id="a condition without anything"),
        pytest.param({"claims": [{"claim": "ref"}]}, ["spec.claims[0]"], id="a claim without a value"),
        pytest.param({"claims": [{"value": "x"}]}, ["spec.claims[0]"], id="a value without a claim"),
        pytest.param({"claims": [{**BRANCH, "pattern": "x"}]}, ["spec.claims[0]"], id="a value and a pattern"),
        pytest.param({"claims": [{"claim": "a", "expression": "true"}]}, ["spec.claims[0]"], id="a claim and an expression"),
        pytest.param({"claims": [{"claim": "a", "value": "x\ny"}]}, ["spec.claims[0].value"], id="a newline in a value"),
        pytest.param({"claims": [{"claim": "a" * 1025, "value": "x"}]}, ["spec.claims[0].claim"], id="a long claim"),
        pytest.param({"claims": [{"claim": "sub", "pattern": "*"}]}, ["spec.claims[0].pattern"], id="a bare star"),
        pytest.param({"claims": [{"claim": "sub", "pattern": "*:*/*"}]}, ["spec.claims[0].pattern"], id="only stars"),
        pytest.param(
            {"claims": [{"expression": "x" * (MAX_EXPRESSION + 1)}]}, ["spec.claims[0].expression"], id="a long expression"
        ),
        pytest.param(
            {"nodeName": "a", "nodeNameExpression": "'a'"}, ["spec.nodeNameExpression"], id="a template and an expression"
        ),
        pytest.param(
            {"nodeNameExpression": "x" * (MAX_EXPRESSION + 1)}, ["spec.nodeNameExpression"], id="a long name expression"
        ),
        pytest.param({"nodeName": "CI"}, ["spec.nodeName"], id="a template in upper case"),
        pytest.param({"nodeName": "ci-{a{b}c}"}, ["spec.nodeName"], id="braces in braces"),
        pytest.param({"nodeName": "{" + "a" * MAX_TEXT + "}"}, ["spec.nodeName"], id="a long template"),
        pytest.param({"nodeName": "ci-{}"}, ["spec.nodeName"], id="empty braces"),
        pytest.param({"nodeName": "ci-{a}-{}"}, ["spec.nodeName"], id="empty braces behind others"),
        pytest.param({"uniqueClaim": "a\0"}, ["spec.uniqueClaim"], id="a NUL in the unique claim"),
        pytest.param({"maxJoins": 0}, ["spec.maxJoins"], id="no joins"),
        pytest.param({"maxJoins": 1001}, ["spec.maxJoins"], id="more joins than a rule records"),
        pytest.param({"allowedCIDRs": ["10.0.0.0/33"]}, ["spec.allowedCIDRs"], id="no network"),
        pytest.param({"allowedCIDRs": [""]}, ["spec.allowedCIDRs"], id="an empty network"),
        pytest.param({"ephemeral": "soon"}, ["spec.ephemeral"], id="no duration"),
    ],
)  # fmt: skip
def test_a_rule_with_a_mistake_lets_nobody_in(spec: Obj, fields: list[str]) -> None:
    errors: list[FieldError] = errors_of(rule(**spec))
    assert [one.field for one in errors] == fields
    assert not any("mooring.dev/" in str(one) for one in errors), "no annotation of a Secret is named"
    with pytest.raises(JoinRuleError):
        read_rule(rule(**spec))


def test_a_rule_without_a_spec_has_mistakes() -> None:
    assert [one.field for one in errors_of({})] == ["spec.issuer.url", "spec.claims"]


def test_a_rule_is_read() -> None:
    found = read_rule(
        rule(
            issuer=issuer(discoveryURL="https://d.example/doc", certificateAuthority=CA), audiences=["a"],
            claims=[BRANCH, {"expression": "true"}], nodeName="ci-{run_id}", uniqueClaim="run_id", maxJoins=2,
            allowedCIDRs=["10.0.0.0/8"], ephemeral="30m", requireApproval=True, expirationTimestamp="2026-01-01T00:00:00Z",
        )
    )  # fmt: skip
    assert (found.issuer, found.discovery_url, found.ca_pem) == (ISSUER, "https://d.example/doc", CA.encode())
    assert found.conditions == (Condition("ref", "refs/heads/main"), Condition(expression="true"))
    assert found.expressions == ("true",)
    limits = found.restrictions
    assert (limits.max_joins, limits.node_name, limits.ephemeral) == (2, "", timedelta(minutes=30))
    assert (limits.require_approval, list(map(str, limits.networks))) == (True, ["10.0.0.0/8"])
    assert [found.has_ended(NOW + timedelta(seconds=one)) for one in (-1, 0, 1)] == [False, True, True]
    assert found.names_node
    assert found.keys is None


def test_a_rule_with_little_has_no_limits_and_no_end() -> None:
    found = read_rule(rule(issuer=issuer(jwks=JWKS)))
    assert found.keys is not None
    assert found.restrictions == Restrictions()
    assert not found.has_ended(datetime.max.replace(tzinfo=UTC))
    assert not found.names_node
    assert JWKS not in repr(found)


def test_an_end_that_another_server_stores_and_that_is_no_time_is_a_mistake() -> None:
    with pytest.raises(JoinRuleError, match="expirationTimestamp"):
        read_rule(rule(expirationTimestamp="2026-01-01 00:00:00"))


@pytest.mark.parametrize(
    ("spec", "is_another"),
    [
        pytest.param({"audiences": ["a"]}, True, id="the audience"),
        pytest.param({"claims": [{**BRANCH, "value": "x"}]}, True, id="a claim"),
        pytest.param({"issuer": issuer(discoveryURL="https://d.example/")}, True, id="where the keys come from"),
        pytest.param({"nodeName": "a"}, True, id="the name"),
        pytest.param({"nodeNameExpression": "'a'"}, True, id="the expression of the name"),
        pytest.param({"uniqueClaim": "sub"}, True, id="the unique claim"),
        pytest.param({"maxJoins": 1, "requireApproval": True, "ephemeral": "1h"}, False, id="limits, judged again"),
        pytest.param({"expirationTimestamp": "2026-01-01T00:00:00Z"}, False, id="the end"),
    ],
)
def test_the_digest_covers_what_decides_about_a_token(spec: Obj, is_another: bool) -> None:
    assert (read_rule(rule(**spec)).digest != read_rule(rule()).digest) is is_another


CLAIMS: Mapping[str, Any] = {
    "ref": "refs/heads/main", "empty": "", "number": 7, "zero": 0, "yes": True, "no": False, "null": None, "part": 1.5,
    "list": ["a", 7, True, ["deep"], {"a": "b"}, None], "none": [], "objects": [{"name": "x"}], "object": {"in": {"it": "x"}},
    "long": ["x"] * MAX_ELEMENTS + ["last"], "/odd": "slash", "a/b": "ab", "~": "tilde", "huge": 10**30,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        pytest.param("ref", ["refs/heads/main"], id="a text"),
        pytest.param("empty", [""], id="an empty text"),
        pytest.param("number", ["7"], id="a number"),
        pytest.param("huge", ["1" + "0" * 30], id="a huge number"),
        pytest.param("yes", ["true"], id="true"),
        pytest.param("no", ["false"], id="false"),
        pytest.param("part", [], id="a fraction equals nothing"),
        pytest.param("list", ["a", "7", "true"], id="a list, without lists and objects in it"),
        pytest.param("objects", [], id="a list of objects"),
        pytest.param("object", [], id="an object"),
        pytest.param("none", [], id="an empty list"),
        pytest.param("long", ["x"] * MAX_ELEMENTS, id="a long list to its bound"),
        pytest.param("/object/in/it", ["x"], id="a pointer"),
        pytest.param("/~1odd", ["slash"], id="a pointer to a name with a slash"),
        pytest.param("/a~1b", ["ab"], id="a pointer to a name with a slash inside"),
        pytest.param("/~0", ["tilde"], id="a pointer to a tilde"),
        pytest.param("a/b", ["ab"], id="a name with a slash inside is no pointer"),
    ],
)
def test_texts_of_a_claim(name: str, texts: list[str]) -> None:
    assert texts_of(claim_in(CLAIMS, name)) == texts


@pytest.mark.parametrize("name", ["absent", "null", "/object/absent", "/ref/0", "/list/0", "/", "object.in", "/odd"])
def test_a_claim_that_is_not_there(name: str) -> None:
    with pytest.raises(JoinRuleError, match="is not there"):
        claim_in(CLAIMS, name)


@pytest.mark.parametrize(
    ("condition", "is_fit"),
    [
        pytest.param(Condition("ref", "refs/heads/main"), True, id="its value"),
        pytest.param(Condition("ref", "refs/heads/Main"), False, id="another case"),
        pytest.param(Condition("number", "7"), True, id="a number"),
        pytest.param(Condition("yes", "true"), True, id="true"),
        pytest.param(Condition("yes", "True"), False, id="true in Python's way"),
        pytest.param(Condition("yes", "1"), False, id="true is not 1"),
        pytest.param(Condition("list", "a"), True, id="an element"),
        pytest.param(Condition("list", "deep"), False, id="an element of an element"),
        pytest.param(Condition("long", "last"), False, id="an element beyond the bound"),
        pytest.param(Condition("object", "x"), False, id="an object"),
        pytest.param(Condition("ref", pattern="refs/heads/*"), True, id="a pattern"),
        pytest.param(Condition("ref", pattern="refs/*"), False, id="a star for two parts"),
        pytest.param(Condition("list", pattern="a*"), True, id="a pattern for an element"),
    ],
)
def test_conditions(condition: Condition, is_fit: bool) -> None:
    assert fits(condition, CLAIMS) is is_fit


@pytest.mark.parametrize(
    ("pattern", "text", "is_fit"),
    [
        pytest.param("repo:o/*:ref:refs/heads/main", "repo:o/r:ref:refs/heads/main", True, id="one repository of o"),
        pytest.param("repo:o/*:ref:refs/heads/main", "repo:o/r:pull_request", False, id="a pull request"),
        pytest.param("repo:o/*", "repo:o/r:pull_request", False, id="a star does not skip a colon"),
        pytest.param("repo:o/r*", "repo:o/r/x", False, id="a star does not skip a slash"),
        pytest.param("repo:o*/r", "repo:other/r", True, id="a star within a part stands for any characters"),
        pytest.param("a*b", "ab", True, id="a star for nothing"),
        pytest.param("a*a", "a", False, id="ends that overlap"),
        pytest.param("a*c*b", "axxcxb", True, id="stars in order"),
        pytest.param("a", "a\n", False, id="a newline at the end"),
        pytest.param("a*", "a\n\0", True, id="control characters under a star"),
        pytest.param("a.c", "abc", False, id="no regular expression"),
        pytest.param("*/x", "/x", True, id="an empty part"),
    ],
)
def test_patterns(pattern: str, text: str, is_fit: bool) -> None:
    assert fits_pattern(pattern, text) is is_fit


def test_a_pattern_of_many_stars_is_no_search_without_end() -> None:
    """Backtracking would take more steps than there are atoms."""
    assert not fits_pattern("*a" * 500 + "b", "a" * 32_000)
    assert fits_pattern("*a" * 500, "a" * 32_000)


@pytest.mark.parametrize(
    ("template", "claims", "name"),
    [
        pytest.param("web-1", {}, "web-1", id="a name"),
        pytest.param("ci-*", {}, "ci-*", id="a pattern of the rule"),
        pytest.param("ci-{run}", {"run": 17}, "ci-17", id="a number"),
        pytest.param("{a}-{b}", {"a": "x", "b": ["y"]}, "x-y", id="two claims, one a list of one"),
        pytest.param("{/vm/name}", {"vm": {"name": "db-1.prod"}}, "db-1.prod", id="a pointer to a name with a dot"),
    ],
)
def test_a_template_gives_a_name(template: str, claims: Mapping[str, Any], name: str) -> None:
    assert node_name_from(template, claims) == name


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param("*", id="a star"),
        pytest.param("a*", id="a star behind a letter"),
        pytest.param("Web", id="upper case"),
        pytest.param("", id="empty"),
        pytest.param("x" * 300, id="300 characters"),
        pytest.param("a..b", id="two dots"),
        pytest.param("-a", id="a dash in front"),
        pytest.param("a.", id="a dot at the end"),
        pytest.param("a\n", id="a newline"),
        pytest.param("a\0", id="a NUL"),
        pytest.param("ä", id="no ASCII"),
        pytest.param("١", id="another digit"),
        pytest.param("{sub}", id="braces: they are not read again"),
        pytest.param(["a", "b"], id="two texts"),
        pytest.param([], id="no text"),
        pytest.param({"a": "b"}, id="an object"),
        pytest.param([{"a": "b"}], id="a list of objects"),
        pytest.param(None, id="null"),
    ],
)
def test_a_claim_that_is_no_part_of_a_name(claim: Any) -> None:
    with pytest.raises(JoinRuleError) as refused:
        node_name_from("{run}", {"run": claim})
    assert str(claim or "-" * 9) not in str(refused.value), "no value is told"


@pytest.mark.parametrize("name", ["", "*", "ci-*", "Web", "x" * 300, "a\n"])
def test_no_node_has_such_a_name(name: str) -> None:
    with pytest.raises(JoinRuleError, match="no node can have"):
        checked_name(name)
    assert checked_name("web-1") == "web-1"


@pytest.mark.parametrize(
    ("named", "claims", "value"),
    [
        pytest.param("", {"jti": "a", "sub": "s"}, "a", id="jti"),
        pytest.param("", {"sub": "s"}, "s", id="the subject of a token without jti"),
        pytest.param("", {"jti": "", "sub": "s"}, "s", id="an empty jti is none"),
        pytest.param("", {"jti": {}, "sub": "s"}, "s", id="a jti that is an object is none"),
        pytest.param("", {"jti": ["a", "b"], "sub": "s"}, "s", id="two are none"),
        pytest.param("", {"jti": 7}, "7", id="a number"),
        pytest.param("", {"jti": "a\nb\0"}, "a\nb\0", id="control characters are part of it"),
        pytest.param("run", {"run": "r", "jti": "a"}, "r", id="the claim that the rule names"),
        pytest.param("/a/b", {"a": {"b": "r"}}, "r", id="a pointer"),
    ],
)
def test_the_value_of_which_one_key_joins(named: str, claims: Mapping[str, Any], value: str) -> None:
    assert unique_value(named, claims) == value


@pytest.mark.parametrize(
    ("named", "claims"),
    [
        pytest.param("", {}, id="neither"),
        pytest.param("", {"jti": None, "sub": ""}, id="empty ones"),
        pytest.param("run", {"jti": "a", "sub": "s"}, id="no other in place of the one that the rule names"),
    ],
)
def test_a_token_without_such_a_value_lets_nobody_in(named: str, claims: Mapping[str, Any]) -> None:
    with pytest.raises(JoinRuleError, match="by which one key joins, is not there"):
        unique_value(named, claims)


def test_a_use_tells_issuers_and_values_apart_and_shows_neither() -> None:
    uses = {use_of(*pair) for pair in ((ISSUER, "a"), (ISSUER, "b"), (f"{ISSUER}/", "a"), (ISSUER, "\ud800"))}
    assert len(uses) == 4
    assert all(len(use) == len("sha256:") + 64 for use in uses)


IDENTITY = JoinIdentity(
    rule="ci", digest="d", issuer=ISSUER, subject="s", use=use_of(ISSUER, "a"), node_name="ci-1", expires=NOW
)
EXTRA = IDENTITY.extra()


def without(name: str, **more: str) -> dict[str, tuple[str, ...]]:
    kept = {key: value for key, value in EXTRA.items() if key != f"join.mooring.dev/{name}"}
    return kept | {f"join.mooring.dev/{key}": (value,) for key, value in more.items()}


def test_what_is_stated_is_read_again() -> None:
    assert join_identity("system:joinrule:ci", EXTRA) == IDENTITY
    assert join_identity("system:bootstrap:abcdef", EXTRA) is None
    bare = JoinIdentity(rule="ci", digest="d", issuer=ISSUER, subject="", use=IDENTITY.use, node_name="", expires=NOW)
    assert join_identity("system:joinrule:ci", bare.extra()) == bare


def test_a_claim_that_another_server_states_is_hashed_here() -> None:
    assert join_identity("system:joinrule:ci", without("use", use="claim:a")) == IDENTITY


def test_a_long_subject_is_cut() -> None:
    found = join_identity("system:joinrule:ci", without("subject", subject="s" * 20_000))
    assert found is not None
    assert found.subject == "s" * MAX_TEXT


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({}, id="nothing"),
        pytest.param(without("expires"), id="no end"),
        pytest.param(without("expires", expires="tomorrow"), id="an end that is no time"),
        pytest.param({**EXTRA, "join.mooring.dev/expires": ()}, id="an empty end"),
        pytest.param(without("rule-digest"), id="no rule"),
        pytest.param(without("issuer"), id="no issuer"),
        pytest.param(without("use"), id="no use"),
        pytest.param(without("use", use="sha256:" + "A" * 64), id="a use in upper case"),
        pytest.param(without("use", use=IDENTITY.use + "\n"), id="a use with a newline"),
        pytest.param(without("use", use="a"), id="a claim without its prefix"),
    ],
)
def test_a_part_of_what_is_stated_is_an_error(extra: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(JoinRuleError, match="not stated"):
        join_identity("system:joinrule:ci", extra)


# -- what a joining machine reads -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "name"),
    [
        pytest.param({"extra": {"join.mooring.dev/node-name": ["ci-1"]}}, "ci-1", id="a name"),
        pytest.param({"extra": {"join.mooring.dev/node-name": ["ci-*"]}}, "", id="a pattern"),
        pytest.param({"extra": {"join.mooring.dev/node-name": []}}, "", id="an empty list"),
        pytest.param({"extra": {"join.mooring.dev/node-name": "ci-1"}}, "", id="no list"),
        pytest.param({"extra": {"join.mooring.dev/node-name": [1]}}, "", id="no text"),
        pytest.param({"extra": {}}, "", id="no name"),
        pytest.param({"extra": []}, "", id="no attributes"),
        pytest.param({}, "", id="nothing"),
    ],
)
def test_the_name_that_a_rule_gives(user: Obj, name: str) -> None:
    assert named_node(user) == name


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        pytest.param({}, "it names no issuer", id="nothing"),
        pytest.param(
            {"iss": ISSUER, "aud": ["a", "b"]}, f'issuer "{ISSUER}", audience "a", "b"', id="issuer and audiences"
        ),
        pytest.param({"aud": list("abcd")}, 'audience "a", "b", "c"', id="three of many audiences"),
        pytest.param({"iss": "x" * 1000}, f'issuer "{"x" * 128}"', id="a long issuer"),
        pytest.param({"exp": NOW.timestamp()}, "until 2026-01-01T00:00:00Z", id="an end"),
        *(
            pytest.param({"iss": "i", "exp": exp}, 'issuer "i"', id=f"an end that is none: {exp!r}")
            for exp in (1e300, float("inf"), float("nan"), "x", None, [1])
        ),
        pytest.param({"iss": {"a": "b"}, "sub": "secret"}, "it names no issuer", id="an issuer that is an object"),
    ],
)
def test_what_a_token_says_of_itself(claims: Mapping[str, Any], text: str) -> None:
    assert stated(claims) == text


@pytest.mark.parametrize(
    ("text", "is_token"),
    [
        pytest.param("eyJhIjoxfQ.eyJhIjoxfQ.AA", True, id="a token"),
        pytest.param(" eyJhIjoxfQ.eyJhIjoxfQ.AA\n", True, id="with blanks"),
        pytest.param("eyJhIjoxfQ.eyJhIjoxfQ.", True, id="without a signature"),
        pytest.param("token.jwt", False, id="a file"),
        pytest.param("eyJ.txt", False, id="a file that begins like one"),
        pytest.param("cat eyJhIjoxfQ.eyJhIjoxfQ.AA", False, id="a command"),
    ],
)
def test_a_token_in_place_of_a_file(text: str, is_token: bool) -> None:
    assert looks_like_jwt(text) is is_token


def test_claims_of_a_template() -> None:
    assert list(placeholders("{a}-{/b/c}.{a}")) == ["a", "/b/c", "a"]
