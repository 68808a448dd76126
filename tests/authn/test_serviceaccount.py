"""Bound service account tokens.

Source: docs/protocol/service-account-tokens.md#bound-tokens.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.mooring import tombstones
from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj
from mooring.authn import signedtokens
from mooring.authn.credentials import Credentials
from mooring.authn.serviceaccount import ServiceAccountAuthenticator
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.identity import CREDENTIAL_ID, UserInfo
from mooring.pki.jwt.keyset import KeySet, key_set_of
from mooring.pki.jwt.serviceaccount import Bound, bound_claims
from mooring.pki.jwt.token import TokenSigner, verify_token
from mooring.pki.keys import generate_key
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ISSUER = "https://mooring.example"
SIGNER = TokenSigner(generate_key(), ISSUER)
STRANGER = TokenSigner(generate_key(), ISSUER)
KEYS = key_set_of([SIGNER.public_key])
PREFIX = "authentication.kubernetes.io/"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:ns")


def obj(name: str, uid: str, namespace: str = "ns", **metadata: str) -> Obj:
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid, **metadata}}


def cluster(**changed: View | None) -> dict[str, View]:
    views: dict[str, View | None] = {
        "serviceaccounts": FixedView([obj("sa", "sa-uid")]),
        "secrets": FixedView([obj("s", "s-uid")]),
        "nodes": FixedView([{"metadata": {"name": "n", "uid": "n-uid"}}]),
        "pods": FixedView([obj("p", "p-uid")]),
        **changed,
    }
    return {name: view for name, view in views.items() if view is not None}


def claims(**changed: Any) -> dict[str, Any]:
    made = bound_claims(
        issuer=ISSUER,
        namespace="ns",
        service_account=Bound("sa", "sa-uid"),
        audiences=("api", "vault"),
        now=NOW,
        lifetime=HOUR,
        jti="id-1",
    )
    return {key: value for key, value in {**made, **changed}.items() if value is not None}


def private(**changed: Any) -> dict[str, Any]:
    return {**claims()["kubernetes.io"], **changed}


def authenticator(max_remembered: int = 8) -> ServiceAccountAuthenticator:
    return ServiceAccountAuthenticator((ISSUER,), KEYS, max_remembered)


def judged(
    token: str | bytes | None,
    views: dict[str, View] | None = None,
    now: datetime = NOW,
    audiences: tuple[str, ...] = ("api",),
    by: ServiceAccountAuthenticator | None = None,
) -> Verdict:
    credentials = Credentials(bearer=None if token is None else Secret(token))
    return (by or authenticator()).authenticate(credentials, views or cluster(), now, audiences)


def accepted(made: dict[str, Any], **changed: View | None) -> Accepted:
    verdict = judged(SIGNER.sign(made), cluster(**changed))
    assert isinstance(verdict, Accepted)
    return verdict


def reason(verdict: Verdict) -> str:
    assert isinstance(verdict, Rejected)
    return verdict.reason


def test_a_good_token_is_its_service_account() -> None:
    user = UserInfo("system:serviceaccount:ns:sa", "sa-uid", GROUPS, {CREDENTIAL_ID: ("JTI=id-1",)})
    assert accepted(claims()) == Accepted(user, ("api",))


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(None, id="no bearer"),
        pytest.param("abcdef.0123456789abcdef", id="a bootstrap token"),
        pytest.param(b"\xff", id="bytes that are no text"),
        pytest.param(SIGNER.sign(claims(iss="https://elsewhere")), id="a foreign issuer"),
        pytest.param(SIGNER.sign(claims(iss=["x"])), id="an issuer that is no text"),
        pytest.param(SIGNER.sign(claims(iss=None)), id="no issuer"),
    ],
)
def test_not_mine(token: str | bytes | None) -> None:
    assert judged(token) == NotMine()


UNSIGNED = SIGNER.sign(claims()).rpartition(".")[0]
NONE = "eyJhbGciOiJub25lIn0." + UNSIGNED.partition(".")[2]


@pytest.mark.parametrize(
    ("token", "now", "code"),
    [
        pytest.param(STRANGER.sign(claims()), NOW, "unknown-key", id="an unknown key"),
        pytest.param(SIGNER.sign(claims())[:-6] + "AAAAAA", NOW, "bad-signature", id="a changed signature"),
        pytest.param(
            SIGNER.sign(claims()), NOW + HOUR + timedelta(seconds=61), "expired", id="past its time and the leeway"
        ),
        pytest.param(SIGNER.sign(claims()), NOW - timedelta(seconds=61), "not-yet-valid", id="before its time"),
        pytest.param(SIGNER.sign(claims(exp=None)), NOW, "missing-expiry", id="without an end"),
        pytest.param(SIGNER.sign(claims(aud=["vault"])), NOW, "wrong-audience", id="for another audience"),
        pytest.param(SIGNER.sign(claims(aud=["api", 1])), NOW, "malformed", id="an audience that is no text"),
        pytest.param(SIGNER.sign(claims(aud={"api": 1})), NOW, "malformed", id="audiences in an object"),
        pytest.param(SIGNER.sign(claims(iat="now")), NOW, "malformed", id="a time of issue in words"),
        pytest.param(SIGNER.sign(claims(jti=5)), NOW, "malformed", id="a token id that is no text"),
        pytest.param(UNSIGNED + ".", NOW, "malformed", id="the signature cut off"),
        pytest.param(UNSIGNED, NOW, "malformed", id="the signature and its dot cut off"),
        pytest.param(SIGNER.sign(claims()) + ".x.y", NOW, "malformed", id="five segments"),
        pytest.param(NONE + ".", NOW, "unsupported-algorithm", id="the algorithm none without a signature"),
        pytest.param(NONE + ".AAAA", NOW, "unsupported-algorithm", id="the algorithm none with a signature"),
        pytest.param("!" + SIGNER.sign(claims()), NOW, "malformed", id="an unreadable header"),
        pytest.param("h" * 20_000 + SIGNER.sign(claims()), NOW, "too-large", id="too long a header"),
    ],
)
def test_refused(token: str, now: datetime, code: str) -> None:
    assert reason(judged(token, now=now)) == code


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(claims(**{"kubernetes.io": None}), id="no private claims"),
        pytest.param(claims(**{"kubernetes.io": "x"}), id="private claims that are no object"),
        pytest.param(claims(**{"kubernetes.io": private(namespace="")}), id="no namespace"),
        pytest.param(claims(**{"kubernetes.io": private(namespace=1)}), id="a namespace that is no text"),
        pytest.param(claims(**{"kubernetes.io": private(serviceaccount="sa")}), id="an account that is no object"),
        pytest.param(claims(**{"kubernetes.io": private(serviceaccount={"name": "sa"})}), id="an account without uid"),
        pytest.param(claims(**{"kubernetes.io": private(serviceaccount={"uid": "u"})}), id="an account without name"),
        pytest.param(claims(**{"kubernetes.io": private(secret={"name": "s", "uid": 1})}), id="a uid that is no text"),
        pytest.param(claims(sub="system:serviceaccount:ns:other"), id="a subject that disagrees"),
        pytest.param(claims(aud=None), id="no audience"),
    ],
)
def test_malformed_claims_are_refused(made: dict[str, Any]) -> None:
    assert reason(judged(SIGNER.sign(made))) == "malformed-claims"


@pytest.mark.parametrize(
    ("asked", "valid_for"),
    [
        pytest.param(("vault",), ("vault",), id="the common audience comes back"),
        pytest.param(("x", "vault", "api"), ("api", "vault"), id="all common audiences come back"),
        pytest.param((), ("api", "vault"), id="asking for none gets them all"),
    ],
)
def test_audiences(asked: tuple[str, ...], valid_for: tuple[str, ...]) -> None:
    verdict = judged(SIGNER.sign(claims()), audiences=asked)
    assert isinstance(verdict, Accepted)
    assert verdict.audiences == valid_for


def test_a_single_audience_may_be_a_text() -> None:
    assert accepted(claims(aud="api")).audiences == ("api",)


@pytest.mark.parametrize("audience", ["", [""], []], ids=str)
def test_no_audience_is_no_audience(audience: Any) -> None:
    assert reason(judged(SIGNER.sign(claims(aud=audience)))) == "wrong-audience"


@pytest.mark.parametrize(
    ("changed", "extra"),
    [
        pytest.param(dict.fromkeys(("pod", "secret", "node", "warnafter")), {}, id="bound to null"),
        pytest.param({"warnafter": 0}, {}, id="a warning at the moment 0"),
        pytest.param({"pod": None, "node": {"name": "n", "uid": "n-uid"}}, {"node-name": "n", "node-uid": "n-uid"},
                     id="a Node beside a Pod that is null"),
        pytest.param({"pod": {"name": "p", "uid": "p-uid"}, "node": {"name": "n", "uid": None}},
                     {"pod-name": "p", "pod-uid": "p-uid", "node-name": "n"}, id="a Node that was gone"),
    ],
)  # fmt: skip
def test_a_private_claim_that_is_null_is_an_absent_one(changed: dict[str, Any], extra: dict[str, str]) -> None:
    """Kubernetes, pkg/serviceaccount/claims.go: `pod`, `secret`, `node` and `warnafter` are pointers."""
    verdict = accepted(claims(jti=None, **{"kubernetes.io": private(**changed)}))
    assert dict(verdict.user.extra) == {PREFIX + name: (value,) for name, value in extra.items()}
    assert verdict.annotations == ()


@pytest.mark.parametrize("kind", ["pod", "secret", "node", "serviceaccount"])
@pytest.mark.parametrize("empty", [{}, {"name": "", "uid": ""}, {"name": None, "uid": None}, ""], ids=str)
def test_an_object_without_name_is_no_object(kind: str, empty: Any) -> None:
    """kube-apiserver looks up the empty name and finds nothing."""
    assert reason(judged(SIGNER.sign(claims(**{"kubernetes.io": private(**{kind: empty})})))) == "malformed-claims"


def test_a_node_beside_a_pod_that_is_null_must_live() -> None:
    token = SIGNER.sign(claims(**{"kubernetes.io": private(pod=None, node={"name": "n", "uid": "n-uid"})}))
    assert reason(judged(token, cluster(nodes=FixedView()))) == "bound-object-gone"


def test_a_token_id_is_not_required() -> None:
    assert dict(accepted(claims(jti=None)).user.extra) == {}


@pytest.mark.parametrize(
    ("view", "code"),
    [
        pytest.param(FixedView(), "bound-object-gone", id="the service account is gone"),
        pytest.param(FixedView([obj("sa", "new")]), "bound-object-replaced", id="it was made again"),
        pytest.param(
            FixedView([obj("sa", "sa-uid", deletionTimestamp="2025-12-31T23:58:59Z")]),
            "bound-object-deleted",
            id="it has been on its way out for more than a minute",
        ),
        pytest.param(None, "bound-object-unknown-kind", id="nobody knows service accounts here"),
    ],
)
def test_the_service_account_must_live(view: View | None, code: str) -> None:
    assert reason(judged(SIGNER.sign(claims()), cluster(serviceaccounts=view))) == code


def test_a_service_account_on_its_way_out_may_call_for_a_minute() -> None:
    accepted(claims(), serviceaccounts=FixedView([obj("sa", "sa-uid", deletionTimestamp="2025-12-31T23:59:00Z")]))


BOUND: dict[str, tuple[dict[str, Any], str]] = {
    "secret": ({"secret": {"name": "s", "uid": "s-uid"}}, "secrets"),
    "pod": ({"pod": {"name": "p", "uid": "p-uid"}, "node": {"name": "n"}}, "pods"),
    "node": ({"node": {"name": "n", "uid": "n-uid"}}, "nodes"),
}


@pytest.mark.parametrize("kind", BOUND)
def test_a_bound_object_must_live(kind: str) -> None:
    bound, plural = BOUND[kind]
    token = claims(**{"kubernetes.io": private(**bound)})
    accepted(token)
    assert reason(judged(SIGNER.sign(token), cluster(**{plural: FixedView()}))) == "bound-object-gone"
    assert reason(judged(SIGNER.sign(token), cluster(**{plural: None}))) == "bound-object-unknown-kind"


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("secret", {}),
        ("pod", {"pod-name": ("p",), "pod-uid": ("p-uid",), "node-name": ("n",)}),
        ("node", {"node-name": ("n",), "node-uid": ("n-uid",)}),
    ],
)
def test_extra_tells_pod_and_node(kind: str, extra: dict[str, tuple[str, ...]]) -> None:
    told = accepted(claims(**{"kubernetes.io": private(**BOUND[kind][0])})).user.extra
    assert dict(told) == {CREDENTIAL_ID: ("JTI=id-1",), **{PREFIX + key: value for key, value in extra.items()}}


def test_for_a_pod_the_node_is_information_only() -> None:
    accepted(claims(**{"kubernetes.io": private(**BOUND["pod"][0])}), nodes=FixedView())


@pytest.mark.parametrize(
    ("after", "annotations"),
    [
        pytest.param(timedelta(seconds=3607), (), id="at the moment itself it is fresh"),
        pytest.param(
            timedelta(seconds=3667),
            (
                (
                    "authentication.k8s.io/stale-token",
                    "subject: system:serviceaccount:ns:sa, seconds after warning threshold: 60",
                ),
            ),
            id="a minute later it is stale, and good",
        ),
    ],
)
def test_a_token_with_an_extended_life_is_called_stale(after: timedelta, annotations: tuple[Any, ...]) -> None:
    start = int(NOW.timestamp())
    token = SIGNER.sign(claims(exp=start + 365 * 86400, **{"kubernetes.io": private(warnafter=start + 3607)}))
    verdict = judged(token, now=NOW + after)
    assert isinstance(verdict, Accepted)
    assert verdict.annotations == annotations


def test_a_warning_time_that_is_none_is_malformed() -> None:
    assert reason(judged(SIGNER.sign(claims(**{"kubernetes.io": private(warnafter="soon")})))) == "malformed"


@pytest.mark.parametrize(
    ("token", "views", "now", "audiences", "detail"),
    [
        pytest.param(
            SIGNER.sign(claims()), None, NOW + 4 * HOUR, ("api",),
            "the token expired 3h ago, at 2026-01-01T01:00:00Z", id="expired",
        ),
        pytest.param(
            SIGNER.sign(claims()), None, NOW - timedelta(seconds=100), ("api",),
            "the token is not valid for another 100s: compare the clocks", id="not yet valid",
        ),
        pytest.param(
            SIGNER.sign(claims()), None, NOW, ("mesh",),
            "system:serviceaccount:ns:sa: good for api, vault, wants audience mesh", id="another audience",
        ),
        pytest.param(
            SIGNER.sign(claims(aud=[])), None, NOW, ("mesh", "x"),
            "system:serviceaccount:ns:sa: good for no audience, wants audience mesh or x", id="no audience at all",
        ),
        pytest.param(
            SIGNER.sign(claims(**{"kubernetes.io": private(pod={"name": "p", "uid": "old"})})), None, NOW, ("api",),
            "system:serviceaccount:ns:sa: pods ns/p is another one now: its uid is p-uid, the token is for old",
            id="another Pod of that name",
        ),
        pytest.param(
            SIGNER.sign(claims(**{"kubernetes.io": private(node={"name": "n"})})), None, NOW, ("api",),
            "system:serviceaccount:ns:sa: nodes n is another one now: its uid is n-uid, the token is for none",
            id="a Node without uid",
        ),
        pytest.param(
            SIGNER.sign(claims()),
            cluster(serviceaccounts=FixedView([obj("sa", "sa-uid", deletionTimestamp="2025-12-31T23:58:59Z")])),
            NOW, ("api",), "system:serviceaccount:ns:sa: serviceaccounts ns/sa was deleted 61s ago",
            id="an account deleted for more than a minute",
        ),
        pytest.param(
            SIGNER.sign(claims(**{"kubernetes.io": private(secret={"name": "x"})})), None, NOW, ("api",),
            "system:serviceaccount:ns:sa: secrets ns/x is not there any more", id="a Secret that is gone",
        ),
        pytest.param(
            SIGNER.sign(claims(sub="x")), None, NOW, ("api",),
            "the claim sub is missing, or not what it must be", id="a subject that disagrees",
        ),
    ],
)  # fmt: skip
def test_the_operator_is_told_how_much_is_amiss_and_what_is_gone(
    token: str, views: dict[str, View] | None, now: datetime, audiences: tuple[str, ...], detail: str
) -> None:
    verdict = judged(token, views, now, audiences)
    assert isinstance(verdict, Rejected)
    assert verdict.detail == detail


def test_other_keys_are_believed_at_once_and_what_the_old_ones_verified_is_forgotten() -> None:
    by, token = authenticator(), SIGNER.sign(claims())
    assert isinstance(judged(token, by=by), Accepted)
    by.replace(key_set_of([STRANGER.public_key]))
    assert reason(judged(token, by=by)) == "unknown-key"
    assert isinstance(judged(STRANGER.sign(claims()), by=by), Accepted)


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "uid", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["sub", "aud", "jti", "nbf", "exp", "kubernetes.io"]), junk))
def test_claims_of_any_shape_never_fail(made: dict[str, Any]) -> None:
    assert isinstance(judged(SIGNER.sign({**claims(), **made})), Accepted | Rejected)


@given(st.dictionaries(st.sampled_from(["namespace", "serviceaccount", "secret", "pod", "node", "warnafter"]), junk))
def test_private_claims_of_any_shape_never_fail(made: dict[str, Any]) -> None:
    assert isinstance(judged(SIGNER.sign(claims(**{"kubernetes.io": private(**made)}))), Accepted | Rejected)


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """The times at which a signature was verified."""
    seen: list[datetime] = []
    real = verify_token

    def counted(token: str, keys: KeySet, now: datetime, **options: Any) -> dict[str, Any]:
        seen.append(now)
        return real(token, keys, now, **options)

    monkeypatch.setattr(signedtokens, "verify_token", counted)
    return seen


def test_a_signature_is_verified_once_until_expiry_and_anew_when_the_clock_goes_back(
    verifications: list[datetime],
) -> None:
    by, token = authenticator(), SIGNER.sign(claims())
    minute = timedelta(minutes=1)
    for at in (NOW, NOW + minute, NOW + HOUR):
        assert isinstance(judged(token, now=at, by=by), Accepted)
    assert verifications == [NOW]
    assert isinstance(judged(token, now=NOW - minute, by=by), Accepted)
    assert isinstance(judged(token, now=NOW + HOUR + minute, by=by), Accepted)
    assert reason(judged(token, now=NOW + HOUR + 2 * minute, by=by)) == "expired"
    assert len(verifications) == 4


def test_live_objects_are_looked_at_on_every_request() -> None:
    by, token = authenticator(), SIGNER.sign(claims())
    assert isinstance(judged(token, by=by), Accepted)
    assert reason(judged(token, cluster(serviceaccounts=FixedView()), by=by)) == "bound-object-gone"


def test_the_table_of_verified_tokens_is_bounded_and_forgets_the_longest_unused(verifications: list[datetime]) -> None:
    by = authenticator(max_remembered=2)
    one, two, three = (SIGNER.sign(claims(jti=jti)) for jti in "abc")
    for token in (one, two, one, three, one, two):
        judged(token, by=by)
    assert len(verifications) == 4  # one, two, three, and two again


def test_a_refused_token_is_not_remembered(verifications: list[datetime]) -> None:
    by = authenticator()
    for _ in range(2):
        judged(STRANGER.sign(claims()), by=by)
    assert len(verifications) == 2


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param(
            {"node.n": tombstones.entry("n", {"uid": "n-uid"})}, "bound-object-gone", id="deleted before the restore"
        ),
        pytest.param({"node.n": tombstones.entry("n", {"uid": "older"})}, "", id="an earlier Node of the name"),
        pytest.param({tombstones.more_key("node", "s1"): "{}"}, "object-unreadable", id="the list is not complete"),
    ],
)
def test_a_token_of_a_node_that_came_back_with_a_restored_store(waiting: dict[str, str], expected: str) -> None:
    config_map = {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": waiting}
    token = SIGNER.sign(claims(**{"kubernetes.io": private(**BOUND["node"][0])}))
    verdict = judged(token, cluster(configmaps=FixedView([config_map])))
    assert (verdict.reason if isinstance(verdict, Rejected) else "") == expected
    is_undecided = isinstance(verdict, Rejected) and verdict.is_undecided
    assert is_undecided == (expected == "object-unreadable"), "503, and not 401 after which a client gives up"


@pytest.mark.parametrize(
    ("plural", "key", "bound"),
    [
        pytest.param("serviceaccounts", ("ns", "sa"), None, id="the account"),
        pytest.param("secrets", ("ns", "s"), "secret", id="its Secret"),
        pytest.param("pods", ("ns", "p"), "pod", id="its Pod"),
        pytest.param("nodes", ("", "n"), "node", id="its Node"),
    ],
)
def test_about_an_object_that_cannot_be_read_there_is_no_verdict(
    plural: str, key: tuple[str, str], bound: str | None
) -> None:
    made = claims(**{"kubernetes.io": private(**BOUND[bound][0])}) if bound else claims()
    assert isinstance(judged(SIGNER.sign(made)), Accepted)
    unreadable = FixedView(unreadable={key: "no key decrypts it"})
    verdict = judged(SIGNER.sign(made), cluster(**{plural: unreadable}))
    assert isinstance(verdict, Rejected)
    assert (verdict.reason, verdict.is_undecided, verdict.form_only) == ("object-unreadable", True, False)
