"""Identity tokens of joining machines judged.

Source: docs/join-by-identity-token.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj
from mooring.authn.chain import Found, Outcome, judge
from mooring.authn.credentials import Credentials
from mooring.authn.joinrule import JoinRuleAuthenticator
from mooring.authn.oidc.authenticator import HOLD, KEEP
from mooring.authn.verdict import Accepted, Deferred, NotMine, Rejected
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.pki.jwt.keyset import KeySet
from mooring.secret import Secret
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpResponse
from mooring.trust.joinrule import use_of
from tests.support.jwtsigner import encoded, key_for, key_set, public, signed, signed_with_secret, unsigned
from tests.support.plans import thing
from tests.support.testca import ThrowawayCA
from tests.support.urlresponder import UrlResponder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
ISSUER = "https://id.example"
DOCUMENT, JWKS = f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/jwks"
CLUSTER = "a-cluster-id"
KEY, NEW_KEY, STRANGER = (key_for("RS256", which) for which in range(3))
SOURCE = "10.1.2.3"
CA = ThrowawayCA(now=NOW).certificate_pem.decode()


def metadata(issuer: str = ISSUER, jwks: str = JWKS) -> bytes:
    return json.dumps({"issuer": issuer, "jwks_uri": jwks}).encode()


def rule(name: str = "ci", metadata: Mapping[str, Any] | None = None, **spec: Any) -> Obj:
    full = {
        "issuer": {"url": ISSUER}, "claims": [{"claim": "ref", "value": "refs/heads/main"}], "nodeName": "ci-{run}", **spec,
    }  # fmt: skip
    return thing(name, metadata=dict(metadata or {}), spec=full)


class Rules:
    """View of rules that a test changes, with the changes since any revision."""

    def __init__(self, *rules: Obj) -> None:
        self.objects = {one["metadata"]["name"]: one for one in rules}
        self.revision = 1
        self.changes: list[str] = []

    def put(self, *rules: Obj) -> None:
        for one in rules:
            self.objects[one["metadata"]["name"]] = one
            self._changed(one["metadata"]["name"])

    def delete(self, name: str) -> None:
        del self.objects[name]
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.revision += 1
        self.changes.append(name)

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self.objects.get(name)

    def list(self, namespace: str = "") -> Iterable[Obj]:
        return [self.objects[name] for name in sorted(self.objects)]

    def changed(self, since: int) -> Sequence[tuple[str, str]]:
        return [("", name) for name in self.changes[since - 1 :]]

    def problem(self, name: str, namespace: str = "") -> str:
        return ""

    def unreadable(self, namespace: str = "") -> Mapping[tuple[str, str], str]:
        return {}


PAGES: dict[str, bytes | HttpResponse | HttpFailure] = {DOCUMENT: metadata(), JWKS: key_set(public(KEY))}
CLUSTER_ID = FixedView([thing("kube-system", metadata={"uid": CLUSTER})])


class Room:
    """The authenticator with rules, and the issuers that it may ask."""

    def __init__(self, *rules: Obj, pages: Mapping[str, bytes | HttpResponse | HttpFailure] = PAGES) -> None:
        self.world = UrlResponder(pages)
        self.rules = Rules(*(rules or (rule(),)))
        self.views: dict[str, View] = {"joinrules": self.rules, "namespaces": CLUSTER_ID}
        self.targets: list[tuple[str, bytes]] = []
        self.changes = 0
        self.unusable = b"none"
        self.authenticator = JoinRuleAuthenticator(self.target_for, self.keys_changed, max_remembered=8)

    def target_for(self, url: str, ca_pem: bytes) -> str:
        if ca_pem == self.unusable:
            raise ConfigError("the CA to verify the server with cannot be used: unknown")
        self.targets.append((url, ca_pem))
        return f"join-rule/{url}"

    def keys_changed(self) -> None:
        self.changes += 1

    def first(self, token: str | bytes | None, now: datetime = NOW, source: str = SOURCE) -> Any:
        """Return the verdict before anything is fetched."""
        credentials = Credentials(bearer=None if token is None else Secret(token), source=source)
        return self.authenticator.authenticate(credentials, self.views, now, ("api",))

    def outcome(self, token: str, now: datetime = NOW, source: str = SOURCE) -> Outcome:
        """Return the verdict of the chain, with everything fetched."""
        credentials = Credentials(bearer=Secret(token), source=source)
        chain = judge(credentials, [self.authenticator], self.views, now, ("api",))
        try:
            pending = next(chain)
            while True:
                assert pending.deferred.exchange is not None
                pending = chain.send(Found(self.world.run(pending.deferred.exchange(now)), now))
        except StopIteration as done:
            outcome: Outcome = done.value
            return outcome

    def refusal(self, token: str, now: datetime = NOW, source: str = SOURCE) -> tuple[str, str]:
        outcome = self.outcome(token, now, source)
        assert outcome.user is None
        return outcome.refusals[0].reason, outcome.refusals[0].detail

    def node(self, token: str, now: datetime = NOW) -> str:
        """Return rule and node name of an accepted token; "" for another one."""
        user = self.outcome(token, now).user
        if user is None:
            return ""
        return (
            f"{user.username.removeprefix('system:joinrule:')} {user.extra.get('join.mooring.dev/node-name', ('',))[0]}"
        )


def claims(**changed: Any) -> dict[str, Any]:
    whole = {
        "iss": ISSUER, "aud": CLUSTER, "exp": (NOW + HOUR).timestamp(), "sub": "repo:o/r", "jti": "j1",
        "ref": "refs/heads/main", "run": "17", **changed,
    }  # fmt: skip
    return {name: value for name, value in whole.items() if value is not None}


def token(**changed: Any) -> str:
    return signed(claims(**changed), KEY)


def raw_token(payload: str) -> str:
    """Return a signed token whose payload is this text."""
    good = signed({}, KEY).split(".")
    return f"{good[0]}.{encoded(payload.encode('utf-8', 'surrogatepass'))}.{good[2]}"


def test_a_machine_with_a_good_token_is_the_user_of_its_rule() -> None:
    room = Room()
    user = room.outcome(token()).user
    assert user is not None
    (digest,) = user.extra.pop("join.mooring.dev/rule-digest")  # type: ignore[attr-defined]  # a dict
    assert len(digest) == 64
    assert user == UserInfo(
        "system:joinrule:ci",
        groups=("system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"),
        extra={
            "join.mooring.dev/issuer": (ISSUER,),
            "join.mooring.dev/subject": ("repo:o/r",),
            "join.mooring.dev/use": (use_of(ISSUER, "j1"),),
            "join.mooring.dev/node-name": ("ci-17",),
            "join.mooring.dev/expires": (rfc3339(NOW + HOUR),),
        },
    )
    assert room.world.urls == [DOCUMENT, JWKS], "keys are fetched at the first token"
    assert room.changes == 1
    assert room.targets == [(ISSUER, b"")]


@pytest.mark.parametrize(
    "offered",
    [
        pytest.param(None, id="no bearer"),
        pytest.param("abcdef", id="no dot"),
        pytest.param("abcdef.0123456789abcdef", id="a bootstrap token"),
        pytest.param(b"\xff.\xfe", id="bytes that are no text"),
        pytest.param("a.b.c", id="three segments of nothing"),
        pytest.param(token(iss="https://other.example"), id="another issuer"),
        pytest.param(token(iss=f"{ISSUER}/"), id="an issuer with a slash more"),
        pytest.param(token(iss=[ISSUER]), id="an issuer that is a list"),
        pytest.param(raw_token('{"iss": "\ud800"}'), id="a lone surrogate in the bytes of the issuer"),
        pytest.param(raw_token('{"iss": "https://id.example", "sub": "\\ud800"}'), id="an escaped lone surrogate in sub"),
        pytest.param(raw_token('{"iss": "https://id.example", "exp": 1e400}'), id="a number that is too large"),
        pytest.param(
            raw_token('{"iss": "https://id.example", "a": ' + "[" * 20_000 + "]" * 20_000 + "}"), id="deep nesting"
        ),
        pytest.param(token(x="x" * 60_000), id="a token of 80 kB"),
    ],
)  # fmt: skip
def test_not_mine(offered: str | bytes | None) -> None:
    assert Room().first(offered) == NotMine()


@pytest.mark.parametrize(
    "aud",
    [pytest.param("kubernetes", id="a text"), pytest.param(["a", "b"], id="a list"), pytest.param(None, id="none")],
)
def test_a_token_for_another_audience_goes_on_to_the_authenticator_of_people(aud: Any) -> None:
    room = Room()
    assert room.first(token(aud=aud)) == NotMine("wrong-audience")
    assert room.world.urls == []


def test_a_cluster_without_an_id_has_no_audience() -> None:
    for namespaces in (FixedView(), FixedView([thing("kube-system", metadata={"uid": ""})])):
        room = Room()
        room.views["namespaces"] = namespaces
        assert room.first(token(aud=["", CLUSTER])) == NotMine("wrong-audience")


@pytest.mark.parametrize("aud", ["one", ["x", "two"]])
def test_audiences_of_a_rule_are_those_that_count(aud: Any) -> None:
    room = Room(rule(audiences=["one", "two"]))
    assert room.node(token(aud=aud)) == "ci ci-17"
    assert room.first(token()) == NotMine("wrong-audience"), "and not the id of the cluster"


@pytest.mark.parametrize(
    ("offered", "code"),
    [
        pytest.param(unsigned(claims()), "unsupported-algorithm", id="alg none"),
        pytest.param(unsigned(claims())[:-2], "unsupported-algorithm", id="alg none without a signature"),
        pytest.param(
            signed_with_secret(claims(), KEY.as_pem(private=False)), "unsupported-algorithm", id="HS256 with the public key"
        ),
        pytest.param(token(exp=None), "missing-expiry", id="no exp"),
        pytest.param(token(exp=NOW.timestamp() - 1), "expired", id="exp in the past"),
        pytest.param(token(exp="1e400"), "malformed", id="exp without end, in quotes"),
        pytest.param(token(exp=1e300), "malformed", id="exp beyond every calendar"),
        pytest.param(token(exp=[1]), "malformed", id="exp that is a list"),
        pytest.param(token(nbf=NOW.timestamp() + 3600), "not-yet-valid", id="nbf in the future"),
        pytest.param(token(aud={"a": "b"}), "malformed", id="an audience that is an object"),
        pytest.param(token(sub=["a"]), "malformed", id="a subject that is a list"),
        pytest.param(token(x="x" * 32_768), "too-large", id="too long"),
        pytest.param(signed(claims(), KEY, crit=["b64"]), "malformed", id="a critical extension"),
        pytest.param(signed(claims(), KEY, x="x" * 4000), "too-large", id="a long header"),
        pytest.param(token() + ".x", "malformed", id="four segments"),
    ],
)  # fmt: skip
def test_a_token_of_the_issuer_that_is_refused_before_a_key_is_used(offered: str, code: str) -> None:
    room = Room()
    verdict = room.first(offered)
    assert isinstance(verdict, Rejected)
    assert verdict.reason == code
    assert room.world.urls == []


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"pad": "x" * 12_000}, id="a token of 16 kB"),
        pytest.param({"sub": "a\nb\0"}, id="a newline and a NUL in the subject"),
        pytest.param({"jti": "a\nb\0"}, id="a newline and a NUL in jti"),
        pytest.param({"sub": None}, id="no subject"),
        pytest.param({"jti": 7}, id="a jti that is a number"),
        pytest.param({"exp": 253_402_300_799}, id="the end of time"),
        pytest.param({"ref": ["x", {"a": "b"}, "refs/heads/main"]}, id="an element of a list with objects"),
        pytest.param({"odd": [{"a": [{"b": None}]}] * 10}, id="claims that no condition names"),
        pytest.param({"huge": 10**30}, id="a huge number"),
    ],
)
def test_a_strange_token_that_fits(changed: dict[str, Any]) -> None:
    assert Room().node(token(**changed)) == "ci ci-17"


def test_a_long_subject_is_cut_where_it_is_stated() -> None:
    user = Room().outcome(token(sub="s" * 9000)).user
    assert user is not None
    assert user.extra["join.mooring.dev/subject"] == ("s" * 1024,)


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        pytest.param({"ref": "refs/heads/x"}, "the claim ref does not fit", id="another value"),
        pytest.param({"ref": None}, "the claim ref is not there", id="an absent claim"),
        pytest.param({"ref": {"refs/heads/main": 1}}, "the claim ref does not fit", id="an object"),
        pytest.param({"ref": [{"ref": "refs/heads/main"}]}, "the claim ref does not fit", id="a list of objects"),
        pytest.param({"run": "*"}, "the claim run is no part of a node's name", id="a star for the name"),
        pytest.param({"run": "A"}, "the claim run is no part of a node's name", id="upper case for the name"),
        pytest.param({"run": ""}, "the claim run is no part of a node's name", id="nothing for the name"),
        pytest.param({"run": "a" * 300}, "it makes a name that no node can have", id="300 characters for the name"),
        pytest.param(
            {"jti": None, "sub": None}, "the claim jti or sub, by which one key joins", id="no value of its own"
        ),
    ],
)
def test_claims_that_fit_no_rule(changed: dict[str, Any], detail: str) -> None:
    code, told = Room().refusal(token(**changed))
    assert (code, told.startswith(f"join rule ci: {detail}")) == ("claims-not-allowed", True), told


EXPRESSION: dict[str, Any] = {"claims": [{"expression": "claims.ref == 'refs/heads/main' && claims.n > 3"}]}


@pytest.mark.parametrize(
    ("spec", "changed", "told"),
    [
        pytest.param(EXPRESSION, {"n": 4}, "ci ci-17", id="an expression that is true"),
        pytest.param(EXPRESSION, {"n": 3}, " is false", id="an expression that is false"),
        pytest.param(EXPRESSION, {}, "Key not found", id="an expression about a claim that is not there"),
        pytest.param({"claims": [{"expression": "claims.n"}]}, {}, None, id="a condition that may give anything is refused"),
        pytest.param({"nodeName": "", "nodeNameExpression": "'n-' + claims.run"}, {}, "ci n-17", id="a computed name"),
        pytest.param({"nodeName": "", "nodeNameExpression": "'n-' + claims.run"}, {"run": "*"}, "no node can have",
                     id="a star in a computed name is no pattern"),
        pytest.param({"nodeName": "", "nodeNameExpression": "claims.run"}, {"run": ""}, "no node can have",
                     id="an empty computed name"),
        pytest.param({"nodeName": "", "nodeNameExpression": "claims.run"}, {"run": 7}, "gives no text",
                     id="a computed name that is a number"),
        pytest.param({"nodeName": "", "nodeNameExpression": "claims.a.b"}, {"a": "x"}, "cannot be evaluated|No matching",
                     id="a name that cannot be computed"),
        pytest.param({"nodeName": ""}, {}, "ci ", id="a rule that gives no name"),
        pytest.param({"uniqueClaim": "run_attempt"}, {}, "run_attempt, by which one key joins", id="no unique claim"),
    ],
)  # fmt: skip
def test_expressions_and_names(spec: dict[str, Any], changed: dict[str, Any], told: str | None) -> None:
    room = Room(rule(**spec))
    if told is None:
        assert room.first(token()) == NotMine(), "the rule cannot be read"
        assert list(room.authenticator.rules.problems) == ["ci"]
    elif told.startswith("ci "):
        assert room.node(token(**changed)) == told
    else:
        assert any(part in room.refusal(token(**changed))[1] for part in told.split("|"))


def test_no_expression_sees_claims_that_nobody_signed() -> None:
    room = Room(rule(**EXPRESSION))
    assert room.refusal(signed(claims(n=1), STRANGER))[0] == "bad-signature"


def test_the_first_rule_that_fits_by_its_name_lets_in() -> None:
    fitting, other = rule("b", nodeName="b"), rule("c", nodeName="c")
    no_fit = rule("a", claims=[{"claim": "ref", "value": "x"}])
    assert Room(other, fitting, no_fit).node(token()) == "b b"
    code, detail = Room(no_fit, rule("z", claims=[{"claim": "ref", "value": "y"}])).refusal(token())
    assert (code, detail) == (
        "claims-not-allowed", "join rule a: the claim ref does not fit; join rule z: the claim ref does not fit",
    )  # fmt: skip


def test_a_refusal_holds_the_reasons_of_three_rules() -> None:
    room = Room(*(rule(f"r{number}", claims=[{"claim": "ref", "value": "x"}]) for number in range(5)))
    assert room.refusal(token())[1].count("join rule") == 3


def test_refusals_hold_no_value_of_a_claim() -> None:
    room = Room()
    for offered in (token(ref="topsecret"), token(run="Topsecret"), signed(claims(sub="topsecret"), STRANGER)):
        code, detail = room.refusal(offered)
        assert "opsecret" not in f"{code}{detail}"
        assert offered.split(".")[2] not in detail


# -- limits and changes of rules ------------------------------------------------------------------------------------------


def test_a_rule_with_networks_lets_in_from_there_and_judges_each_time() -> None:
    room = Room(rule(allowedCIDRs=["10.0.0.0/8"]))
    assert room.node(token()) == "ci ci-17"
    assert room.refusal(token(), source="192.0.2.1") == (
        "network-not-allowed", "join rule ci: used from 192.0.2.1, and it is for 10.0.0.0/8",
    )  # fmt: skip
    assert room.refusal(token(), source="")[0] == "network-not-allowed"
    assert room.node(token()) == "ci ci-17"


def test_a_rule_that_has_ended_lets_nobody_in_whom_it_let_in_before() -> None:
    room = Room(rule(expirationTimestamp=rfc3339(NOW + SECOND)))
    assert room.node(token()) == "ci ci-17"
    assert room.refusal(token(), NOW + SECOND) == ("join-rule-ended", "join rule ci: it has ended")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(lambda room: room.rules.put(rule(nodeName="other")), "ci other", id="edited"),
        pytest.param(lambda room: room.rules.put(rule(audiences=["x"])), "", id="edited to another audience"),
        pytest.param(lambda room: room.rules.delete("ci"), "", id="deleted"),
        pytest.param(lambda room: room.rules.put(rule(metadata={"deletionTimestamp": "x"})), "", id="being deleted"),
        pytest.param(lambda room: room.rules.put(rule(claims=[])), "", id="edited to one that cannot be read"),
        pytest.param(lambda room: room.rules.put(rule(nodeName="", nodeNameExpression="(")), "", id="an expression that is none"),
        pytest.param(lambda room: room.views.update(joinrules=FixedView(revision=7)), "", id="in a view that cannot read it"),
        pytest.param(lambda room: room.rules.put(rule("a", nodeName="a")), "a a", id="one in front of it"),
        pytest.param(lambda room: room.rules.put(rule(issuer={"url": f"{ISSUER}/"})), "", id="edited to another issuer"),
    ],
)  # fmt: skip
def test_a_change_of_a_rule_counts_at_once(change: Any, told: str) -> None:
    room = Room()
    assert room.node(token()) == "ci ci-17"
    change(room)
    assert room.node(token()) == told
    if told:
        assert room.world.urls == [DOCUMENT, JWKS], "the keys of an issuer that is still named stay"


def test_a_rule_that_is_mended_lets_in_again() -> None:
    room = Room(rule(claims=[]))
    assert room.node(token()) == ""
    assert "spec.claims" in room.authenticator.rules.problems["ci"]
    room.rules.put(rule())
    assert room.node(token()) == "ci ci-17"
    assert room.authenticator.rules.problems == {}


def test_keys_of_an_issuer_that_no_rule_names_are_forgotten() -> None:
    room = Room(rule(), rule("z", issuer={"url": "https://z.example"}))
    assert room.node(token()) == "ci ci-17"
    assert [one.config.url for one in room.authenticator.issuers] == [ISSUER]
    room.rules.delete("ci")
    assert room.first(token(iss="https://z.example")).key.startswith(b"https://z.example")
    assert [one.config.url for one in room.authenticator.issuers] == ["https://z.example"]


def count_verifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    real = KeySet.verify

    def verify(self: KeySet, text: str, header: Mapping[str, Any]) -> None:
        seen.append(text)
        real(self, text, header)

    monkeypatch.setattr(KeySet, "verify", verify)
    return seen


def test_a_signature_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(rule(expirationTimestamp=None))
    seen = count_verifications(monkeypatch)
    for _ in range(3):
        assert room.node(token()) == "ci ci-17"
    assert len(seen) == 1
    room.rules.put({**rule(), "status": {"joins": []}})
    assert room.node(token()) == "ci ci-17"
    assert len(seen) == 1, "a use of the rule changes its status alone"


# -- keys of the issuer ---------------------------------------------------------------------------------------------------


def test_keys_in_the_rule_are_used_and_nothing_is_fetched() -> None:
    own = rule(issuer={"url": "kubernetes/other", "jwks": key_set(public(KEY)).decode()})
    room = Room(own)
    assert room.node(token(iss="kubernetes/other")) == "ci ci-17"
    assert room.refusal(signed(claims(iss="kubernetes/other"), NEW_KEY, kid="new"))[0] == "unknown-key"
    assert (room.world.urls, room.targets) == ([], [])
    century = token(iss="kubernetes/other", exp=(NOW + 40 * 365 * 24 * HOUR).timestamp())
    assert room.node(century, NOW + 30 * 365 * 24 * HOUR) == "ci ci-17"


def test_two_rules_may_have_two_keys_for_one_issuer() -> None:
    old, new = (
        rule(name, issuer={"url": ISSUER, "jwks": key_set(public(key)).decode()})
        for name, key in (("a", KEY), ("b", NEW_KEY))
    )
    room = Room(old, new)
    assert (room.node(token()), room.node(signed(claims(), NEW_KEY))) == ("a ci-17", "b ci-17")
    assert room.refusal(signed(claims(), STRANGER))[0] == "bad-signature"


def test_a_rotated_key_is_fetched_once() -> None:
    room = Room()
    assert room.node(token()) == "ci ci-17"
    room.world.pages[JWKS] = key_set(public(NEW_KEY, "new"))
    rotated = signed(claims(), NEW_KEY, kid="new")
    assert room.node(rotated, NOW + HOLD) == "ci ci-17"
    assert room.node(rotated, NOW + HOLD) == "ci ci-17"
    assert room.world.urls == [DOCUMENT, JWKS] * 2
    assert room.changes == 2
    assert room.refusal(token(), NOW + HOLD)[0] == "unknown-key", "what the withdrawn key verified has ended"


def test_random_key_ids_make_the_issuer_asked_once_in_a_while() -> None:
    room = Room()
    assert room.node(token()) == "ci ci-17"
    for number in range(20):
        assert room.refusal(signed(claims(), STRANGER, kid=f"r{number}"), NOW + HOLD)[0] == "unknown-key"
    assert room.world.urls == [DOCUMENT, JWKS] * 2
    assert room.node(token(), NOW + HOLD) == "ci ci-17"


def test_after_their_life_keys_are_fetched_again_for_a_token_that_is_remembered_too() -> None:
    room = Room()
    long = token(exp=(NOW + 100 * HOUR).timestamp())
    assert room.node(long) == "ci ci-17"
    room.world.pages[JWKS] = key_set(public(NEW_KEY, "new"))
    assert room.node(long, NOW + HOUR) == "ci ci-17"
    assert room.refusal(long, NOW + HOUR + SECOND)[0] == "unknown-key"


def test_a_watch_of_a_machine_goes_on_while_stale_keys_are_fetched_again() -> None:
    room = Room()
    long = token(exp=(NOW + 100 * HOUR).timestamp())
    assert room.node(long) == "ci ci-17"
    stale = NOW + HOUR + SECOND
    remembered, new = room.first(long, stale), room.first(token(jti="new"), NOW + HOUR)
    assert isinstance(remembered, Deferred)
    assert remembered.basis == new.basis, "nothing says that the credential has ended"
    first = room.first(token(exp=(NOW + 100 * HOUR).timestamp(), jti="another"), stale)
    assert isinstance(first, Deferred)
    assert first.basis != new.basis


def test_while_the_issuer_is_down_known_keys_are_used_for_a_day() -> None:
    room = Room()
    long = token(exp=(NOW + 100 * HOUR).timestamp())
    assert room.node(long) == "ci ci-17"
    room.world.pages[DOCUMENT] = HttpFailure(UNREACHABLE, "down")
    for now in (NOW + HOUR + SECOND, NOW + HOUR + 2 * SECOND, NOW + HOUR + KEEP):
        assert room.node(long, now) == "ci ci-17"
    (issuer,) = room.authenticator.issuers
    assert issuer.problem == "the discovery document: down"
    assert room.refusal(long, NOW + HOUR + KEEP + HOLD)[0] == "keys-not-fetched"
    code, detail = room.refusal(long, NOW + HOUR + KEEP + HOLD + SECOND)
    assert (code, detail) == ("provider-not-ready", f"issuer {ISSUER}: the discovery document: down")
    room.world.pages[DOCUMENT] = metadata()
    assert room.node(long, NOW + HOUR + KEEP + 2 * HOLD) == "ci ci-17"


def test_an_issuer_that_never_answered_is_not_ready() -> None:
    room = Room(pages={})
    assert room.refusal(token())[0] == "keys-not-fetched"
    assert room.refusal(token())[0] == "provider-not-ready"
    assert room.world.urls == [DOCUMENT]


def test_tokens_during_a_fetch_wait_for_its_result() -> None:
    room = Room()
    first, second = (room.first(token(jti=jti)) for jti in "ab")
    assert (type(first), first.key, first.recognised) == (Deferred, second.key, True)
    assert room.world.run(first.exchange(NOW)) is None
    assert all(isinstance(room.first(token(jti=jti)), Accepted) for jti in "ab")


def test_rules_that_find_one_issuer_in_two_ways_wait_for_two_fetches() -> None:
    inside = "https://inside.example/doc"
    room = Room(
        rule("a"), rule("b", issuer={"url": ISSUER, "discoveryURL": inside}, audiences=["b"], nodeName="b"),
        pages={**PAGES, inside: metadata()},
    )  # fmt: skip
    assert room.first(token()).key != room.first(token(aud="b")).key
    assert (room.node(token()), room.node(token(aud="b"))) == ("a ci-17", "b b")
    assert inside in room.world.urls


@pytest.mark.parametrize("issuer", [f"{ISSUER}/realms/a", f"{ISSUER}/", f"{ISSUER}/realms/a/"])
def test_an_issuer_with_a_path_or_a_final_slash_is_taken_letter_for_letter(issuer: str) -> None:
    document = issuer.rstrip("/") + "/.well-known/openid-configuration"
    room = Room(rule(issuer={"url": issuer}), pages={document: metadata(issuer), JWKS: key_set(public(KEY))})
    assert room.node(token(iss=issuer)) == "ci ci-17"
    assert room.first(token(iss=issuer.rstrip("/") if issuer.endswith("/") else f"{issuer}/")) == NotMine()


def test_an_issuer_that_calls_itself_otherwise_is_not_believed() -> None:
    room = Room(pages={DOCUMENT: metadata(f"{ISSUER}/other"), JWKS: key_set(public(KEY))})
    assert room.refusal(token())[0] == "keys-not-fetched"


def test_a_private_ca_goes_to_the_target() -> None:
    room = Room(rule(issuer={"url": ISSUER, "certificateAuthority": CA}))
    assert room.node(token()) == "ci ci-17"
    assert room.targets == [(ISSUER, CA.encode())]


def test_a_ca_that_cannot_be_used_refuses_the_tokens_of_its_rule_and_no_others() -> None:
    with_ca = rule("a", issuer={"url": ISSUER, "certificateAuthority": CA})
    for rules, told in (((with_ca,), ""), ((with_ca, rule("b")), "b ci-17")):
        room = Room(*rules)
        room.unusable = CA.encode()
        assert room.node(token()) == told
    room = Room(with_ca)
    room.unusable = CA.encode()
    assert room.refusal(token()) == (
        "provider-not-ready", "join rule a: the CA to verify the server with cannot be used: unknown",
    )  # fmt: skip


def test_an_acceptance_stands_on_the_rule() -> None:
    room = Room()
    assert room.node(token()) == "ci ci-17"
    before = room.first(token()).basis
    room.rules.put(rule(nodeName="other"))
    assert room.first(token()).basis != before != b""


ROOM = Room(rule(issuer={"url": ISSUER, "jwks": key_set(public(KEY)).decode()}))


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "exp", "nbf", "sub", "ref", "run", "jti"]),
        st.none() | st.text() | st.integers() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()),
    )
)
def test_any_claims_give_a_verdict(changed: dict[str, Any]) -> None:
    assert isinstance(ROOM.first(token(**changed)), Accepted | NotMine | Rejected)
