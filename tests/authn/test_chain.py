"""The chain of authenticators (reference/kubernetes.md 0, 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from mooring.authn.anonymous import Anonymous
from mooring.authn.authenticator import Authenticator
from mooring.authn.chain import Refusal, authenticate
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.identity import ANONYMOUS_USER, AUTHENTICATED, UNAUTHENTICATED, UserInfo
from mooring.kinds.view import Views
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALICE = UserInfo("alice", groups=("dev",))
BOB = UserInfo("bob")


class Says:
    """An authenticator with one answer."""

    def __init__(self, name: str, verdict: Verdict, fallback: bool = False) -> None:
        self.name = name
        self.fallback = fallback
        self.verdict = verdict

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return self.verdict


NOT_MINE = Says("silent", NotMine())
BAD = Says("bad", Rejected("expired", "why"))
GOOD = Says("good", Accepted(ALICE))
OTHER = Says("other", Accepted(BOB))
ANYONE = Anonymous()
BEARER = Credentials(bearer=Secret("t"))
NOTHING = Credentials()


@pytest.mark.parametrize(
    ("credentials", "authenticators", "username", "told"),
    [
        pytest.param(BEARER, (GOOD, OTHER), "alice", [], id="the first that accepts wins"),
        pytest.param(BEARER, (NOT_MINE, OTHER), "bob", [], id="not mine passes the question on"),
        pytest.param(BEARER, (BAD, OTHER), "bob", ["expired"], id="a good credential rescues a bad one"),
        pytest.param(BEARER, (BAD, ANYONE), None, ["expired"], id="a bad credential never becomes anonymous"),
        pytest.param(
            BEARER, (NOT_MINE, ANYONE), None, ["unknown-token"], id="an unclaimed token never becomes anonymous"
        ),
        pytest.param(BEARER, (), None, ["unknown-token"], id="nobody to ask refuses a token"),
        pytest.param(NOTHING, (NOT_MINE, ANYONE), "system:anonymous", [], id="nothing offered is anonymous"),
        pytest.param(NOTHING, (ANYONE, GOOD), "alice", [], id="a fallback is asked last wherever it stands"),
        pytest.param(NOTHING, (NOT_MINE,), None, [], id="nothing offered without anonymous access is nobody"),
        pytest.param(NOTHING, (Says("closed", NotMine(), fallback=True),), None, [], id="a fallback may decline"),
        pytest.param(
            Credentials(peer=(b"x",)),
            (NOT_MINE, ANYONE),
            "system:anonymous",
            [],
            id="a certificate nobody claims is anonymous",
        ),
    ],
)
def test_who_is_it(
    credentials: Credentials, authenticators: tuple[Authenticator, ...], username: str | None, told: list[str]
) -> None:
    outcome = authenticate(credentials, authenticators, {}, NOW, ())
    assert (outcome.user.username if outcome.user else None) == username
    assert [refusal.reason for refusal in outcome.refusals] == told


def test_the_operator_gets_every_refusal_with_its_authenticator() -> None:
    outcome = authenticate(BEARER, (BAD, Says("worse", Rejected("wrong-secret"))), {}, NOW, ())
    assert outcome.refusals == (Refusal("bad", "expired", "why"), Refusal("worse", "wrong-secret"))


@pytest.mark.parametrize(
    ("valid_for", "asked", "accepted"),
    [
        pytest.param(("a", "b"), ("b",), True, id="one common audience is enough"),
        pytest.param(("a",), ("b",), False, id="a token for others is refused"),
        pytest.param((), ("b",), True, id="a credential not bound to audiences passes"),
        pytest.param(("a",), (), True, id="a server without audiences checks none"),
    ],
)
def test_audiences(valid_for: tuple[str, ...], asked: tuple[str, ...], accepted: bool) -> None:
    outcome = authenticate(BEARER, (Says("sa", Accepted(ALICE, valid_for)),), {}, NOW, asked)
    assert (outcome.user is not None) is accepted
    assert [refusal.reason for refusal in outcome.refusals] == ([] if accepted else ["wrong-audience"])
    assert outcome.audiences == (valid_for if accepted else ())


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        pytest.param(ALICE, ("dev", AUTHENTICATED), id="a user is authenticated"),
        pytest.param(UserInfo("c", groups=(AUTHENTICATED, "x")), (AUTHENTICATED, "x"), id="not twice"),
        pytest.param(UserInfo("c", groups=(UNAUTHENTICATED,)), (UNAUTHENTICATED,), id="not beside its opposite"),
        pytest.param(UserInfo("system:anonymous"), (), id="not system:anonymous, whoever said so"),
    ],
)
def test_system_authenticated_is_added(user: UserInfo, groups: tuple[str, ...]) -> None:
    outcome = authenticate(BEARER, (Says("x", Accepted(user)),), {}, NOW, ())
    assert outcome.user is not None
    assert outcome.user.groups == groups


def test_anonymous_is_unauthenticated_and_nothing_more() -> None:
    assert authenticate(NOTHING, (ANYONE,), {}, NOW, ("api",)).user == ANONYMOUS_USER
    assert ANONYMOUS_USER.groups == (UNAUTHENTICATED,)
