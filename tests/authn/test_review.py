"""TokenReview and SelfSubjectReview.

Source: docs/protocol/authentication-reviews.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authn.anonymous import Anonymous
from mooring.authn.chain import Found, Outcome
from mooring.authn.credentials import SECRET, Authenticator, Credentials
from mooring.authn.review import Reviewed, review_self, review_token
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected
from mooring.identity import UserInfo
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JANE = UserInfo("jane", "42", ("dev",), {"k": ("v",)})


class Doorman:
    """Knows `good` (valid for audience `vault` and `api`), `any` (which names none), and refuses `bad`."""

    name = "doorman"
    judges = SECRET

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        if credentials.bearer == Secret("good"):
            return Accepted(JANE, ("vault", "api"))
        if credentials.bearer == Secret("any"):
            return Accepted(UserInfo("any"))
        return Rejected("expired") if credentials.bearer == Secret("bad") else NotMine()


CHAIN: tuple[Authenticator, ...] = (Doorman(), Anonymous())


def reviewed(spec: Obj, audiences: tuple[str, ...] = ("api",)) -> Reviewed:
    asking = review_token({"kind": "TokenReview", "spec": spec}, CHAIN, {}, NOW, audiences)
    try:
        pending = next(asking)
    except StopIteration as done:
        answered: Reviewed = done.value
        return answered
    raise AssertionError(f"{pending} although everybody knows at once")


def test_a_good_token_is_told_with_its_user() -> None:
    user = {"username": "jane", "uid": "42", "groups": ["dev", "system:authenticated"], "extra": {"k": ["v"]}}
    found = reviewed({"token": "good"})
    assert found.review == {
        "kind": "TokenReview",
        "spec": {"token": "good"},
        "status": {"authenticated": True, "user": user, "audiences": ["api"]},
    }
    assert found.outcome.authenticator == "doorman"


@pytest.mark.parametrize(
    ("spec", "server", "audiences"),
    [
        pytest.param(
            {"token": "good", "audiences": ["vault", "x"]}, ("api",), ["vault"], id="those in common come back"
        ),
        pytest.param({"token": "any"}, ("api", "b"), ["api", "b"], id="a token that names none is for the server's"),
        pytest.param(
            {"token": "any", "audiences": ["x", "api"]},
            ("api",),
            ["api"],
            id="and for nobody else's, although asked for",
        ),
        pytest.param({"token": "any"}, (), None, id="nobody asked for audiences"),
        pytest.param(
            {"token": "any", "audiences": ["x"]}, (), ["x"], id="a server that has none answers for everybody's"
        ),
    ],
)
def test_audiences(spec: Obj, server: tuple[str, ...], audiences: list[str] | None) -> None:
    assert reviewed(spec, server).review["status"].get("audiences") == audiences


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"token": "bad"}, "expired", id="a refused token"),
        pytest.param({"token": "whose?"}, "unknown-token", id="a token nobody knows is not anonymous"),
        pytest.param({"token": "\ud800"}, "unknown-token", id="a token that is no text"),
        pytest.param({"token": "\tgood"}, "unknown-token", id="a tab is no part of the separator"),
        pytest.param({"token": "good", "audiences": ["x"]}, "wrong-audience", id="a token for somebody else"),
        pytest.param(
            {"token": "any", "audiences": ["x"]}, "wrong-audience", id="a token that names nobody, for somebody else"
        ),
    ],
)
def test_a_bad_token_is_unauthenticated_and_only_the_operator_learns_why(spec: Obj, reason: str) -> None:
    found = reviewed(spec)
    assert found.review["status"] == {"user": {}, "error": "invalid bearer token"}
    assert [refusal.reason for refusal in found.outcome.refusals] == [reason]


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("good \n", id="blanks behind it"),
        pytest.param("good enough", id="something behind a blank"),
    ],
)
def test_a_token_is_trimmed_as_in_a_bearer_header(token: str) -> None:
    found = reviewed({"token": token})
    assert found.review["status"]["authenticated"] is True
    assert found.review["spec"] == {"token": token}


@pytest.mark.parametrize("token", [" ", "  \n", " good"], ids=repr)
def test_a_token_that_is_empty_in_a_bearer_header_is_unauthenticated_without_an_error(token: str) -> None:
    found = reviewed({"token": token})
    assert found.review["status"] == {"user": {}}
    assert found.outcome == Outcome(None)


def test_the_answer_repeats_the_question() -> None:
    asked = {"token": "good", "audiences": ["api"]}
    assert reviewed(asked).review["spec"] == asked


def test_self_subject_review_tells_the_caller_who_it_is() -> None:
    assert review_self({}, UserInfo("x"), NOW) == {
        "kind": "SelfSubjectReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"userInfo": {"username": "x"}},
    }
    told = review_self({"metadata": {"name": "me"}}, JANE, NOW)
    assert told["metadata"]["name"] == "me"
    assert told["status"]["userInfo"]["groups"] == ["dev"]


def test_a_review_waits_for_what_has_to_be_found_out() -> None:
    class Asks(Doorman):
        def authenticate(
            self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
        ) -> FirstVerdict:
            return Deferred()

    asking = review_token({"spec": {"token": "t"}}, (Asks(),), {}, NOW, ("api",))
    assert next(asking).authenticator == "doorman"
    with pytest.raises(StopIteration) as done:
        asking.send(Found(Accepted(JANE, ("api",)), NOW))
    assert done.value.value.review["status"]["user"]["username"] == "jane"
