"""The webhook: what it is asked, how often, what its answers mean, and what is remembered.

Source: docs/protocol/authentication.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.view import Views
from mooring.authn import webhook
from mooring.authn.chain import Found, Pending, judge
from mooring.authn.credentials import Credentials, bearer
from mooring.authn.verdict import Accepted, Deferred, NotMine, Rejected, Verdict
from mooring.authn.webhook import WebhookAuthenticator
from mooring.identity import UserInfo
from mooring.secret import Secret
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpRequest, HttpResponse, Wait

NO_VIEWS: Views = {}
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOKEN = "opaque-token-of-jane-4711"
API = "https://kubernetes.default.svc"
TTL = timedelta(minutes=2)
JANE = {"username": "jane"}
Reply = HttpResponse | HttpFailure


def authenticator(
    version: str = "v1",
    ttl: timedelta = TTL,
    on_verdict: webhook.OnVerdict = lambda verdict, now: None,
    key: bytes = b"k" * 32,
) -> WebhookAuthenticator:
    return WebhookAuthenticator(version, (API,), ttl, key, on_verdict)


def first(
    by: WebhookAuthenticator, token: str = TOKEN, audiences: tuple[str, ...] = (API,), now: datetime = NOW
) -> Verdict | Deferred:
    return by.authenticate(Credentials(bearer=bearer(token)), NO_VIEWS, now, audiences)


def later(by: WebhookAuthenticator, token: str = TOKEN, audiences: tuple[str, ...] = (API,)) -> Deferred:
    found = first(by, token, audiences)
    assert isinstance(found, Deferred)
    return found


def talked(asked: Deferred, *replies: Reply) -> tuple[Verdict | None, list[HttpRequest], list[float]]:
    """The verdict, the calls and the pauses, when the answers are these; the last one is given again and again."""
    assert asked.exchange is not None
    talk, waiting = asked.exchange(NOW), list(replies)
    calls, pauses = [], []
    reply: Reply | None = None
    try:
        while True:
            step = talk.send(reply)
            if isinstance(step, Wait):
                pauses.append(step.seconds)
                reply = None
            else:
                calls.append(step)
                reply = waiting.pop(0) if len(waiting) > 1 else waiting[0]
    except StopIteration as done:
        return done.value, calls, pauses


def status(code: int, **headers: str) -> HttpResponse:
    return HttpResponse(code, b"", {name.replace("_", "-"): value for name, value in headers.items()})


_FORBIDDEN = "it answers 401: it does not let this server ask; look at the user in its kubeconfig"


def refused(error: Any, *, authenticated: bool = False) -> Any:
    """Return the TokenReview of a refused token, as some services send it with 401."""
    return {"kind": "TokenReview", "status": {"authenticated": authenticated, "error": error}}


def review(said: Any = None, version: str = "v1", **more: Any) -> HttpResponse:
    body = {"kind": "TokenReview", "apiVersion": f"authentication.k8s.io/{version}", "status": said, **more}
    return HttpResponse(201, json.dumps({key: value for key, value in body.items() if value is not None}).encode())


def good(**more: Any) -> HttpResponse:
    return review({"authenticated": True, "user": JANE, **more})


def verdict(
    answer: Reply, audiences: tuple[str, ...] = (API,), version: str = "v1", token: str = TOKEN
) -> Verdict | None:
    return talked(later(authenticator(version), token, audiences), answer)[0]


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_review_says_the_token_and_the_audiences_in_the_version_configured(version: str) -> None:
    _, [call], _ = talked(later(authenticator(version)), good())
    assert json.loads(call.body or b"") == {
        "kind": "TokenReview",
        "apiVersion": f"authentication.k8s.io/{version}",
        "spec": {"token": TOKEN, "audiences": [API]},
    }
    assert (call.target, call.method, call.url) == ("webhook", "POST", "")
    assert dict(call.headers) == {"content-type": "application/json", "accept": "application/json"}
    assert TOKEN not in repr(call)


def test_no_audiences_are_asked_for_when_this_server_has_none() -> None:
    _, [call], _ = talked(later(authenticator(), audiences=()), good())
    assert json.loads(call.body or b"")["spec"] == {"token": TOKEN}


@pytest.mark.parametrize(
    ("token", "found"),
    [
        pytest.param("x" * (64 << 10), None, id="the longest that is asked about"),
        pytest.param("x" * ((64 << 10) + 1), NotMine("token-too-long"), id="one that is too long"),
        pytest.param("\ud800", NotMine("token-not-text"), id="half a character out of a JSON escape"),
        pytest.param("tök€n", None, id="letters of any script"),
    ],
)
def test_which_tokens_are_asked_about(token: str, found: Verdict | None) -> None:
    judged = first(authenticator(), token)
    assert isinstance(judged, Deferred) if found is None else judged == found


def test_bytes_that_are_no_text_are_not_asked_about() -> None:
    credentials = Credentials(bearer=Secret(b"\xff\xfe"))
    assert authenticator().authenticate(credentials, NO_VIEWS, NOW, ()) == NotMine("token-not-text")


def test_an_audience_that_is_no_text_is_not_asked_about() -> None:
    assert first(authenticator(), audiences=("\ud800",)) == NotMine("token-not-text")


def test_without_a_bearer_nobody_is_asked() -> None:
    assert authenticator().authenticate(Credentials(), NO_VIEWS, NOW, (API,)) == NotMine()


# ── how often ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reply", "tries"),
    [
        pytest.param(good(), 1, id="an answer is an answer"),
        pytest.param(status(500), 5, id="500 is asked again"),
        pytest.param(status(504), 5, id="so is 504"),
        pytest.param(status(429), 5, id="and 429"),
        pytest.param(status(503), 1, id="503 is not"),
        pytest.param(status(503, retry_after="1"), 5, id="unless it says when to come back"),
        pytest.param(status(400, retry_after="0"), 5, id="whoever says when is asked again"),
        pytest.param(status(200, retry_after="1"), 1, id="but not for an answer"),
        pytest.param(status(302, retry_after="1"), 1, id="nor for a redirect"),
        pytest.param(status(429, retry_after="10"), 5, id="ten seconds are waited"),
        pytest.param(status(429, retry_after="11"), 1, id="eleven are not"),
        pytest.param(status(500, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), 5, id="a date is not read"),
        pytest.param(status(503, retry_after="²"), 1, id="nor what only looks like a digit"),
        pytest.param(status(503, retry_after="9" * 5000), 1, id="nor endless digits"),
        pytest.param(status(401), 1, id="401 is not asked again"),
        pytest.param(
            HttpFailure(UNREACHABLE, "connection reset by peer", broken=True), 5, id="a connection that broke is"
        ),
        pytest.param(HttpFailure(UNREACHABLE, "connection refused"), 1, id="one that never was is not"),
        pytest.param(HttpFailure(UNREACHABLE, "no answer within 10 s"), 1, id="nor one that was too slow"),
    ],
)
def test_what_is_asked_again(reply: Reply, tries: int) -> None:
    _, calls, pauses = talked(later(authenticator()), reply)
    assert (len(calls), len(pauses)) == (tries, tries - 1)
    assert len(set(calls)) == 1


def test_pauses_grow_by_half() -> None:
    assert talked(later(authenticator()), status(500))[2] == [0.5, 0.75, 1.125, 1.6875]


def test_a_pause_is_as_long_as_the_webhook_says_even_when_it_is_cut_by_a_fifth() -> None:
    _, _, pauses = talked(later(authenticator()), status(429, retry_after="1"))
    assert pauses == [1.25, 1.25, 1.25, 1.6875]
    assert min(pauses) * 0.8 >= 1


def test_a_webhook_that_comes_back_is_believed() -> None:
    found, calls, _ = talked(
        later(authenticator()), status(500), HttpFailure(UNREACHABLE, "reset", broken=True), good()
    )
    assert found == Accepted(UserInfo("jane"), (API,))
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        pytest.param(
            HttpFailure(UNREACHABLE, "connection refused"),
            Rejected("webhook-unreachable", "connection refused"),
            id="nobody there",
        ),
        pytest.param(
            HttpFailure(UNREACHABLE, "reset", broken=True),
            Rejected("webhook-unreachable", "reset (5 times)"),
            id="a connection that breaks each time",
        ),
        pytest.param(status(503), Rejected("webhook-error", "it answers 503"), id="503"),
        pytest.param(status(500), Rejected("webhook-error", "it answers 500 (5 times)"), id="500 each time"),
        pytest.param(
            status(401),
            Rejected(
                "webhook-error", "it answers 401: it does not let this server ask; look at the user in its kubeconfig"
            ),
            id="it does not know us",
        ),
        pytest.param(
            status(403),
            Rejected(
                "webhook-error", "it answers 403: it does not let this server ask; look at the user in its kubeconfig"
            ),
            id="it knows us and does not let us ask",
        ),
        *(
            pytest.param(
                HttpResponse(code, json.dumps(body).encode(), {}), Rejected(reason, detail), id=f"{code}: {body}"[:70]
            )
            for code, body, reason, detail in (
                (
                    401,
                    refused("no such session"),
                    "refused-by-webhook",
                    "it answers 401 with a review: no such session",
                ),
                (403, refused("locked"), "refused-by-webhook", "it answers 403 with a review: locked"),
                (400, refused(""), "refused-by-webhook", "it answers 400 with a review: without an error text"),
                (
                    401,
                    refused(f"bad \n token {TOKEN}!"),
                    "refused-by-webhook",
                    "it answers 401 with a review: bad   token [token]!",
                ),
                (401, refused("x", authenticated=True), "webhook-error", f'{_FORBIDDEN}; it says "x"'),
                (401, refused(5), "refused-by-webhook", "it answers 401 with a review: without an error text"),
                (503, refused("down"), "webhook-error", 'it answers 503; it says "down"'),
                (
                    401,
                    {"kind": "Status", "message": "Unauthorized"},
                    "webhook-error",
                    f'{_FORBIDDEN}; it says "Unauthorized"',
                ),
                (401, {"kind": "Status", "message": {"a": 1}}, "webhook-error", _FORBIDDEN),
                (401, {"kind": "TokenReview", "status": None}, "webhook-error", _FORBIDDEN),
                (401, [], "webhook-error", _FORBIDDEN),
                (401, {"message": "hello"}, "webhook-error", _FORBIDDEN),
            )
        ),
        pytest.param(
            status(307),
            Rejected("webhook-error", "it answers 307, and redirects are not followed"),
            id="it sends us elsewhere",
        ),
        pytest.param(status(404), Rejected("webhook-error", "it answers 404"), id="a wrong path"),
        pytest.param(status(101), Rejected("webhook-error", "it answers 101"), id="something else altogether"),
    ],
)
def test_a_webhook_that_does_not_answer_refuses_and_says_why(reply: Reply, found: Verdict) -> None:
    assert verdict(reply) == found


def test_no_reply_at_all_refuses() -> None:
    asked = later(authenticator())
    assert asked.exchange is not None
    talk = asked.exchange(NOW)
    next(talk)
    with pytest.raises(StopIteration) as done:
        talk.send(None)
    assert done.value.value == Rejected("webhook-unreachable", "no answer")


# ── what answers mean ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "user"),
    [
        pytest.param({"user": JANE}, UserInfo("jane"), id="a name is enough"),
        pytest.param(
            {
                "user": {
                    "username": "jane",
                    "uid": "42",
                    "groups": ["dev", "ops"],
                    "extra": {"scopes": ["read", "write"]},
                }
            },
            UserInfo("jane", "42", ("dev", "ops"), {"scopes": ("read", "write")}),
            id="everything",
        ),
        pytest.param(
            {"user": {"username": "jane", "uid": None, "groups": None, "extra": None}}, UserInfo("jane"), id="nulls"
        ),
        pytest.param(
            {"user": {"username": "jane", "groups": [None], "extra": {"a": None, "b": [None]}}},
            UserInfo("jane", groups=("",), extra={"a": (), "b": ("",)}),
            id="nulls in lists, which are empty texts in Go",
        ),
        pytest.param(
            {"user": {"username": "jane", "groups": ["a", "a"]}}, UserInfo("jane", groups=("a",)), id="a group twice"
        ),
        pytest.param(
            {"user": {"username": "jane", "extra": {"Example.com/Scopes": ["R"], "empty": None}}},
            UserInfo("jane", extra={"Example.com/Scopes": ("R",), "empty": ()}),
            id="keys of extra as they are, as in kube-apiserver",
        ),
        pytest.param(
            {"user": {"username": "jane", "extra": {"accessKeyId": ["A"], "accesskeyid": ["B"]}}},
            UserInfo("jane", extra={"accessKeyId": ("A",), "accesskeyid": ("B",)}),
            id="two keys that differ in case",
        ),
        pytest.param(
            {"user": {"username": "system:admin", "groups": ["system:masters"]}},
            UserInfo("system:admin", groups=("system:masters",)),
            id="names of the system too: the operator let it speak for everybody",
        ),
        pytest.param(
            {"user": JANE, "error": "some warning"}, UserInfo("jane"), id="an error text beside an acceptance"
        ),
        pytest.param({"user": {**JANE, "unknown": 1}, "unknown": 1}, UserInfo("jane"), id="fields of later versions"),
    ],
)
def test_who_it_is(said: Mapping[str, Any], user: UserInfo) -> None:
    assert verdict(review({"authenticated": True, **said})) == Accepted(user, (API,))


@pytest.mark.parametrize("code", [200, 201, 202, 206])
def test_every_success_is_one(code: int) -> None:
    assert verdict(HttpResponse(code, good().body)) == Accepted(UserInfo("jane"), (API,))


@pytest.mark.parametrize(
    ("asked", "answered", "found"),
    [
        pytest.param((API,), [API], Accepted(UserInfo("jane"), (API,)), id="the one asked for"),
        pytest.param((API, "b"), ["b", "c"], Accepted(UserInfo("jane"), ("b",)), id="one of those asked for"),
        pytest.param(("b", API), [API, "b"], Accepted(UserInfo("jane"), ("b", API)), id="all, in the order asked"),
        pytest.param(
            (API,), None, Accepted(UserInfo("jane"), (API,)), id="a webhook that knows of none: this server's"
        ),
        pytest.param((API,), [], Accepted(UserInfo("jane"), (API,)), id="an empty list is the same"),
        pytest.param(
            ("vault",), None, Rejected("wrong-audience", "it names none"), id="which is not for somebody else's"
        ),
        pytest.param(("vault",), ["vault"], Accepted(UserInfo("jane"), ("vault",)), id="unless it says so"),
        pytest.param((API,), ["vault"], Rejected("wrong-audience", "good for vault"), id="another one"),
        pytest.param((), ["vault"], Accepted(UserInfo("jane")), id="nothing was asked for"),
    ],
)
def test_audiences(asked: tuple[str, ...], answered: list[str] | None, found: Verdict) -> None:
    assert verdict(good(audiences=answered), asked) == found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        pytest.param({"authenticated": False}, NotMine(), id="not authenticated"),
        pytest.param({}, NotMine(), id="not said"),
        pytest.param({"authenticated": None, "user": {}}, NotMine(), id="null"),
        pytest.param({"authenticated": False, "user": JANE}, NotMine(), id="with a user all the same"),
        pytest.param({"error": ""}, NotMine(), id="an empty text"),
        pytest.param(
            {"authenticated": False, "user": None, "audiences": None, "error": None}, NotMine(), id="nulls everywhere"
        ),
        *(
            pytest.param(
                {"authenticated": True, "user": JANE, "audiences": [empty]},
                Rejected("wrong-audience", "good for "),
                id=f"for the audience {empty!r}",
            )
            for empty in ("", None)
        ),
        pytest.param({"error": "expired"}, Rejected("refused-by-webhook", "expired"), id="a text is a refusal"),
        pytest.param({"error": "a\x1b[31m\nb\u202ec"}, Rejected("refused-by-webhook", "a [31m b c"), id="printable"),
        pytest.param({"error": "x" * 300}, Rejected("refused-by-webhook", "x" * 255 + "…"), id="of 256 characters"),
        pytest.param({"error": "y" * 256}, Rejected("refused-by-webhook", "y" * 256), id="that many are whole"),
        pytest.param(
            {"error": f"unknown token {TOKEN}!"},
            Rejected("refused-by-webhook", "unknown token [token]!"),
            id="no token",
        ),
        pytest.param(
            {"error": f"{TOKEN[3:14]} is unknown"},
            Rejected("refused-by-webhook", "*********** is unknown"),
            id="no part of it",
        ),
        pytest.param(
            {"error": f"token={TOKEN[:10]}..."},
            Rejected("refused-by-webhook", "token=**********..."),
            id="no beginning of it",
        ),
    ],
)
def test_who_it_is_not(said: Mapping[str, Any], found: Verdict) -> None:
    assert verdict(review(said)) == found


WRONG = {
    "no JSON": (b"<html>", "it is not JSON"),
    "nothing": (b"", "it is not JSON"),
    "half of it": (good().body[:-1], "it is not JSON"),
    "other bytes": (b'"\xff"', "it is not JSON"),
    "half a character": (b'{"status":{"error":"\\ud800"}}', "it is not JSON"),
    "endless nesting": (b"[" * 100_000, "it is not JSON"),
    "a list": (b"[]", "the answer is not an object"),
    "null": (b"null", "it has no status"),
    "another kind": (review({}, kind="Status").body, "kind is not TokenReview"),
    "a number as kind": (b'{"kind":1}', "kind is not a text"),
    "another version": (review({}, version="v1beta1").body, "apiVersion is not authentication.k8s.io/v1"),
    "another group": (review({}, apiVersion="v1").body, "apiVersion is not authentication.k8s.io/v1"),
    "the review as it was sent": (review().body, "it has no status"),
    "a text as status": (review("ok").body, "status is not an object"),
    "a text as authenticated": (review({"authenticated": "true"}).body, "status.authenticated is not true or false"),
    "a number as authenticated": (review({"authenticated": 1}).body, "status.authenticated is not true or false"),
    "a list as error": (review({"error": []}).body, "status.error is not a text"),
    "a text as user": (good(user="jane").body, "status.user is not an object"),
    "no user": (good(user=None).body, "status.user.username is missing"),
    "a user without a name": (good(user={"uid": "1"}).body, "status.user.username is missing"),
    "an empty name": (good(user={"username": ""}).body, "status.user.username is missing"),
    "a number as name": (good(user={"username": 1}).body, "status.user.username is not a text"),
    "a number as uid": (good(user={**JANE, "uid": 1}).body, "status.user.uid is not a text"),
    **{
        f"a name that is not text: {name!r}": (good().body.replace(b'"jane"', b'"' + name + b'"'), "it is not JSON")
        for name in (rb"\ud800", rb"\udfff\ud800", b"M\xfcller", b"\xed\xa0\x80")
    },
    "a text as groups": (good(user={**JANE, "groups": "dev"}).body, "status.user.groups is not a list"),
    "numbers as groups": (good(user={**JANE, "groups": [1]}).body, "status.user.groups is not a list of texts"),
    "a list as extra": (good(user={**JANE, "extra": []}).body, "status.user.extra is not an object"),
    "a text in extra": (good(user={**JANE, "extra": {"a": "b"}}).body, "a value of status.user.extra is not a list"),
    "a text as audiences": (good(audiences=API).body, "status.audiences is not a list"),
    "wrong audiences although it says no": (review({"audiences": 1}).body, "status.audiences is not a list"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_answer_refuses(body: bytes, why: str) -> None:
    assert verdict(HttpResponse(200, body)) == Rejected("webhook-bad-answer", why)


@pytest.mark.parametrize(
    "leaves_out",
    [{"kind": None}, {"apiVersion": None}, {"kind": "", "apiVersion": ""}],
    ids=["kind", "version", "both empty"],
)
def test_what_names_no_kind_and_no_version_is_what_was_asked_for(leaves_out: dict[str, Any]) -> None:
    answer = review({"authenticated": True, "user": JANE}, **leaves_out)
    assert verdict(answer) == Accepted(UserInfo("jane"), (API,))


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_answer_is_in_the_version_of_the_question(version: str) -> None:
    answer = review({"authenticated": True, "user": JANE}, version)
    assert verdict(answer, version=version) == Accepted(UserInfo("jane"), (API,))


FIELDS = ["authenticated", "user", "username", "groups", "extra", "error", "uid", "audiences"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=12,
)


@given(JSON)
def test_whatever_it_says_it_is_a_verdict(said: Any) -> None:
    found = verdict(review(said))
    assert isinstance(found, Accepted | Rejected | NotMine)
    if isinstance(found, Accepted):
        assert said["authenticated"] is True
        assert said["user"]["username"] == found.user.username != ""


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_nobody_comes_in(body: bytes) -> None:
    assert isinstance(verdict(HttpResponse(200, body)), Rejected | NotMine)


@given(st.text(min_size=1, max_size=40), st.text(max_size=60), st.text(max_size=60))
def test_no_error_text_shows_a_token(token: str, before: str, after: str) -> None:
    found = verdict(review({"authenticated": False, "error": before + token + after}), token=token)
    assert isinstance(found, Rejected)
    assert len(found.detail) <= webhook.MAX_TEXT
    assert len(token) < webhook.PART or token not in found.detail.replace("[token]", "")


# ── what is remembered ───────────────────────────────────────────────────────────────────────────────────────────


def found_out(by: WebhookAuthenticator, answer: Reply, token: str = TOKEN, audiences: tuple[str, ...] = (API,)) -> None:
    """As the second stage does."""
    asked = later(by, token, audiences)
    verdict, _, _ = talked(asked, answer)
    assert asked.on_verdict is not None
    assert verdict is not None
    asked.on_verdict(verdict, NOW)


REMEMBERED = [
    pytest.param(good(), Accepted(UserInfo("jane"), (API,)), id="an acceptance"),
    pytest.param(review({}), NotMine(), id="a token it does not know"),
    pytest.param(good(audiences=["b"]), Rejected("wrong-audience", "good for b"), id="a token for somebody else"),
]


@pytest.mark.parametrize(("answer", "kept"), REMEMBERED)
def test_what_it_decided_is_remembered_for_its_time(answer: Reply, kept: Verdict) -> None:
    by = authenticator()
    found_out(by, answer)
    assert first(by) == kept
    assert first(by, now=NOW + TTL - timedelta(seconds=1)) == kept
    assert isinstance(first(by, now=NOW + TTL), Deferred)


@pytest.mark.parametrize(("answer", "kept"), REMEMBERED)
def test_zero_remembers_nothing(answer: Reply, kept: Verdict) -> None:
    by = authenticator(ttl=timedelta(0))
    found_out(by, answer)
    assert isinstance(first(by), Deferred)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(review({"error": "the directory is down"}), id="an error text"),
        pytest.param(HttpFailure(UNREACHABLE, "connection refused"), id="nobody there"),
        pytest.param(status(503), id="an error"),
        pytest.param(HttpResponse(200, b"?"), id="a wrong answer"),
    ],
)
def test_what_went_wrong_is_never_remembered(answer: Reply) -> None:
    by = authenticator()
    found_out(by, answer)
    assert isinstance(first(by), Deferred)


def test_each_token_and_each_list_of_audiences_is_remembered_apart() -> None:
    by = authenticator()
    found_out(by, good())
    assert isinstance(first(by, TOKEN + "x"), Deferred)
    assert isinstance(first(by, audiences=(API, "b")), Deferred)
    assert isinstance(first(by, audiences=()), Deferred)


def test_a_storm_of_bad_tokens_pushes_no_good_one_out() -> None:
    by = authenticator()
    found_out(by, good())
    for number in range(5000):
        found = later(by, f"guess-{number}").on_verdict
        assert found is not None
        found(NotMine(), NOW)
    assert first(by) == Accepted(UserInfo("jane"), (API,))
    forgotten = [isinstance(first(by, f"guess-{number}"), Deferred) for number in range(5000)]
    assert forgotten == [True] * (5000 - 4096) + [False] * 4096


def test_what_is_asked_at_once_is_shared_by_token_and_audiences_and_tells_neither() -> None:
    by = authenticator()
    keys = [later(by).key, later(by, TOKEN + "x").key, later(by, audiences=()).key]
    assert len(set(keys)) == 3
    assert later(by).key == keys[0]
    assert all(key is not None and len(key) == 32 for key in keys)
    assert later(authenticator(key=b"q" * 32)).key != keys[0], "another process, another key"


def test_another_webhook_knows_nothing_of_what_the_one_before_decided() -> None:
    by = authenticator()
    found_out(by, good())
    under_way = later(by, "another")
    by.forget()
    assert isinstance(first(by), Deferred)
    assert under_way.on_verdict is not None
    under_way.on_verdict(Accepted(UserInfo("jane")), NOW)
    again = first(by, "another")
    assert isinstance(again, Deferred)
    assert again.key != under_way.key, "nobody waits for what the one before will say"


def test_every_finding_is_told() -> None:
    told: list[Verdict] = []
    by = authenticator(on_verdict=lambda verdict, now: told.append(verdict))
    found_out(by, good())
    found_out(by, status(503), "other")
    assert [type(one) for one in told] == [Accepted, Rejected]


# ── beside the others ────────────────────────────────────────────────────────────────────────────────────────────


class Ours:
    """Knows the form of our tokens."""

    name = "ours"
    judges: Any = "secret"

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def authenticate(self, *asked: Any) -> Verdict:
        return self.verdict


@pytest.mark.parametrize(
    ("ours", "asked"),
    [
        pytest.param(NotMine(), True, id="a token nobody here knows is asked about"),
        pytest.param(Rejected("expired"), False, id="a token of ours that is bad is shown to nobody"),
        pytest.param(Accepted(UserInfo("ann")), False, id="nor one that is good"),
        pytest.param(Rejected("unknown-id", form_only=True), True, id="one that only looks like ours is asked about"),
    ],
)
def test_tokens_of_ours_are_shown_to_nobody(ours: Verdict, asked: bool) -> None:
    chain = judge(Credentials(bearer=bearer(TOKEN)), [Ours(ours), authenticator()], NO_VIEWS, NOW, (API,))
    pending = next(chain, None)
    assert (pending is not None) is asked
    if pending is not None:
        assert isinstance(pending, Pending)
        with pytest.raises(StopIteration) as done:
            chain.send(Found(Accepted(UserInfo("jane"), (API,)), NOW))
        assert done.value.value.authenticator == "webhook"


def test_keys_of_extra_meet_in_ascii_only() -> None:
    answer = good(user={**JANE, "extra": {"\u212aey": ["1"], "Key": ["2"], "\u0130": ["3"]}})
    found = verdict(answer)
    assert isinstance(found, Accepted)
    assert dict(found.user.extra) == {"\u212aey": ("1",), "Key": ("2",), "\u0130": ("3",)}
