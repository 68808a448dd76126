"""The chain of authenticators.

Source: docs/protocol/authentication.md#chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from mooring.api.view import Views
from mooring.authn.anonymous import Anonymous, AnonymousAccess
from mooring.authn.chain import ChainStep, Found, Outcome, Pending, RejectedBy, authenticate, judge, judge_at_once
from mooring.authn.credentials import CONNECTION, SECRET, UNREADABLE_BASIC, Authenticator, Credentials, SchemeCredential
from mooring.authn.credentials import NOTHING as FALLBACK
from mooring.authn.reasons import NOT_ASKED
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.identity import ANONYMOUS_USER, AUTHENTICATED, UNAUTHENTICATED, UserInfo
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ALICE = UserInfo("alice", groups=("dev",))
BOB = UserInfo("bob")


class Says:
    """An authenticator with one answer, or with one after the other."""

    def __init__(
        self, name: str, *verdicts: FirstVerdict, judges: Literal["connection", "secret", "nothing"] = SECRET
    ) -> None:
        self.name = name
        self.judges = judges
        self.verdicts = list(verdicts)
        self.asked: list[datetime] = []

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        self.asked.append(now)
        return self.verdicts[min(len(self.asked), len(self.verdicts)) - 1]


NOT_MINE = Says("silent", NotMine())
BAD = Says("bad", Rejected("expired", "why"))
GOOD = Says("good", Accepted(ALICE))
OTHER = Says("other", Accepted(BOB))
ANYONE = Anonymous()
BEARER = Credentials(bearer=Secret("t"))
NOTHING = Credentials()


@pytest.mark.parametrize(
    ("user", "unreadable"),
    [
        (UserInfo("M\udcfcller"), "the user name"),
        (UserInfo("\ud800"), "the user name"),
        (UserInfo("a", "\udcfc"), "the uid"),
        (UserInfo("a", "ü", ("b", "\udcfc")), "a group"),
        (UserInfo("a", extra={"\udcfc": ()}), "an extra attribute"),
        (UserInfo("a", extra={"ü": ("b", "\udfff")}), "an extra attribute"),
        (UserInfo("Müller", "张", ("\ufffd",), {"ü": ("\x00\n",)}), ""),
    ],
)
def test_no_authenticator_lets_in_a_user_that_is_not_text(user: UserInfo, unreadable: str) -> None:
    assert user.unreadable == unreadable
    outcome = authenticate(BEARER, (Says("any", Accepted(user)),), {}, NOW, ())
    if unreadable:
        assert outcome.user is None
        assert outcome.refusals == (RejectedBy("any", "name-not-utf8", f"{unreadable} is not UTF-8"),)
    else:
        assert outcome.user == user.with_groups(AUTHENTICATED)


def test_a_rejection_that_ends_the_chain_is_rescued_by_nothing() -> None:
    ended = Says("proxy", Rejected("name-not-utf8", ends_chain=True), judges=CONNECTION)
    both = Credentials(peer=(b"x",), bearer=Secret("t"), second=Secret("s"))
    outcome = authenticate(both, (ended, GOOD, ANYONE), {}, NOW, ())
    assert (outcome.user, outcome.rejected_reason) == (None, "name-not-utf8")
    assert outcome.refusals == (RejectedBy("proxy", "name-not-utf8", ends_chain=True),)


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
        pytest.param(NOTHING, (Says("closed", NotMine(), judges=FALLBACK),), None, [], id="a fallback may decline"),
        pytest.param(
            Credentials(peer=(b"x",)),
            (NOT_MINE, ANYONE),
            "system:anonymous",
            [],
            id="a certificate nobody claims is anonymous",
        ),
        pytest.param(
            Credentials(basic=UNREADABLE_BASIC),
            (NOT_MINE, ANYONE),
            None,
            ["unknown-password"],
            id="an unclaimed password never becomes anonymous",
        ),
    ],
)
def test_who_is_it(
    credentials: Credentials, authenticators: tuple[Authenticator, ...], username: str | None, told: list[str]
) -> None:
    outcome = authenticate(credentials, authenticators, {}, NOW, ())
    assert (outcome.user.username if outcome.user else None) == username
    assert [refusal.reason for refusal in outcome.refusals] == told


PROXY_NAME = Says("request-header", Rejected("proxy-name-not-allowed"), judges=CONNECTION)
NO_USER = Says("request-header", NotMine("no-user-header"), judges=CONNECTION)
NO_PROXY_CA = Says("request-header", Rejected("unknown-ca"), judges=CONNECTION)
NO_CLIENT_CA = Says("client-certificate", Rejected("unknown-ca"), judges=CONNECTION)
EXPIRED = Says("client-certificate", Rejected("expired"), judges=CONNECTION)
NO_SUCH_USER = Says("password-file", NotMine("unknown-user"))
PASSWORD = Credentials(basic=UNREADABLE_BASIC)
TICKET = Credentials(other=SchemeCredential("negotiate", Secret("x")))


@pytest.mark.parametrize(
    ("credentials", "authenticators", "why"),
    [
        pytest.param(NOTHING, (), "nothing-offered", id="nothing"),
        pytest.param(
            NOTHING, (Anonymous(AnonymousAccess(True, frozenset({"/a"}))),), "path-not-anonymous", id="a path"
        ),
        pytest.param(
            NOTHING, (Says("odd", Rejected("x"), judges=FALLBACK),), "nothing-offered", id="a fallback that refuses"
        ),
        pytest.param(BEARER, (BAD, Says("worse", Rejected("wrong-secret"))), "wrong-secret", id="the last refusal"),
        pytest.param(BEARER, (PROXY_NAME, NO_CLIENT_CA, BAD), "expired", id="a refused token beside a certificate"),
        pytest.param(BEARER, (), "unknown-token", id="an unclaimed token"),
        pytest.param(BEARER, (Says("w", NotMine("token-too-long")),), "token-too-long", id="a token that is not sent"),
        pytest.param(TICKET, (NOT_MINE,), "unknown-credential", id="a credential of another scheme"),
        pytest.param(TICKET, (Says("k", NotMine("no-ticket")),), "no-ticket", id="a credential that is no ticket"),
        pytest.param(PASSWORD, (NO_SUCH_USER, NOT_MINE), "unknown-user", id="a user whom no file names"),
        pytest.param(PASSWORD, (NOT_MINE,), "unknown-password", id="a password that nobody judges"),
        pytest.param(NOTHING, (PROXY_NAME, NO_CLIENT_CA), "proxy-name-not-allowed", id="a proxy of another name"),
        pytest.param(NOTHING, (NO_USER, NO_CLIENT_CA), "no-user-header", id="a proxy that names nobody"),
        pytest.param(NOTHING, (NO_PROXY_CA, EXPIRED), "expired", id="a client whose certificate expired"),
        pytest.param(NOTHING, (NO_PROXY_CA, NO_CLIENT_CA), "unknown-ca", id="a certificate of a stranger"),
    ],
)
def test_one_reason_heads_the_record(
    credentials: Credentials, authenticators: tuple[Authenticator, ...], why: str
) -> None:
    assert authenticate(credentials, authenticators, {}, NOW, ()).rejected_reason == why


def test_what_an_acceptance_says_beside_the_name_comes_with_the_outcome() -> None:
    said = Says("old", Accepted(ALICE, (), ("it will not do for long",), (("stale", "by an hour"),)))
    outcome = authenticate(BEARER, (BAD, said, OTHER), {}, NOW, ())
    assert outcome.warnings == ("it will not do for long",)
    assert outcome.annotations == (("stale", "by an hour"),)
    assert authenticate(BEARER, (OTHER, said), {}, NOW, ()).warnings == ()
    assert authenticate(BEARER, (BAD,), {}, NOW, ()).annotations == ()


def test_the_operator_gets_every_refusal_with_its_authenticator() -> None:
    outcome = authenticate(BEARER, (BAD, Says("worse", Rejected("wrong-secret"))), {}, NOW, ())
    assert outcome.refusals == (RejectedBy("bad", "expired", "why"), RejectedBy("worse", "wrong-secret"))


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


LATER = Deferred()
ASKS = Says("asks", LATER)
LATER_NOW = NOW + timedelta(seconds=3)


def driven(
    credentials: Credentials, authenticators: Sequence[Authenticator], *found: Verdict | None
) -> tuple[list[str], Outcome]:
    """Who had something found out, in order, and the outcome when this is what was found."""
    chain = judge(credentials, authenticators, {}, NOW, ("api",))
    asked, answers = list[str](), iter(found)
    try:
        pending = next(chain)
        while True:
            assert isinstance(pending, Pending)
            asked.append(pending.authenticator)
            pending = chain.send(Found(next(answers), LATER_NOW))
    except StopIteration as done:
        outcome: Outcome = done.value
        return asked, outcome


OUT = Says("webhook", LATER)
RECKONS = Says("file", Deferred(compute=lambda: None, recognised=True))
BAD_CERTIFICATE = Says("certificate", Rejected("unknown-ca"), judges=CONNECTION)


@pytest.mark.parametrize(
    ("authenticators", "found", "asked", "username", "told"),
    [
        pytest.param((ASKS, OUT, GOOD), (), [], "alice", [], id="who knows at once is believed before anybody asks outside"),
        pytest.param((ASKS, OUT), (Accepted(BOB),), ["asks"], "bob", [], id="the first that finds out wins"),
        pytest.param((ASKS, OUT), (NotMine(), Accepted(BOB)), ["asks", "webhook"], "bob", [], id="not mine asks the next"),
        pytest.param(
            (ASKS, OUT), (Rejected("down"), Accepted(BOB)), ["asks", "webhook"], "bob", ["down"],
            id="a stage that fails does not end the asking",
        ),
        pytest.param((BAD, ASKS), (), [], None, ["expired"], id="a token that is ours and bad is not shown to strangers"),
        pytest.param(
            (BAD_CERTIFICATE, OUT), (Accepted(BOB),), ["webhook"], "bob", ["unknown-ca"],
            id="a bad certificate keeps nobody from asking about the token",
        ),
        pytest.param(
            (RECKONS, OUT), (Rejected("wrong-password"),), ["file"], None, ["wrong-password"],
            id="nor is a password that a computation found wrong",
        ),
        pytest.param(
            (RECKONS, OUT), (NotMine(), Accepted(BOB)), ["file", "webhook"], "bob", [],
            id="what a computation does not know is asked outside",
        ),
        pytest.param(
            (Says("keys", Deferred(recognised=True), Rejected("bad-signature")), OUT), (None,), ["keys"], None, ["bad-signature"],
            id="nor is a token of ours that new keys do not verify",
        ),
        pytest.param(
            (Says("keys", Deferred(recognised=True), Accepted(BOB, ("vault",))), OUT), (None,), ["keys"], None, ["wrong-audience"],
            id="nor is one of ours that is for somebody else",
        ),
        pytest.param(
            (Says("keys", Deferred(recognised=True)), OUT), (Rejected("keys-not-fetched"),), ["keys"], None, ["keys-not-fetched"],
            id="nor is one of ours that could not be judged",
        ),
        pytest.param(
            (Says("keys", Deferred(recognised=True), Accepted(BOB)), BAD, OUT), (None,), ["keys"], "bob", ["expired"],
            id="keys are fetched for a token that another authenticator of its issuer rejects",
        ),
        pytest.param(
            (Says("keys", Deferred(recognised=True), NotMine()), BAD, OUT), (None,), ["keys"], None, ["expired"],
            id="and the token is still not shown to strangers",
        ),
        pytest.param((ASKS, ANYONE), (NotMine(),), ["asks"], None, ["unknown-token"], id="what nobody claims is unknown"),
        pytest.param(
            (ASKS, ANYONE), (Accepted(BOB, ("vault",)),), ["asks"], None, ["wrong-audience"],
            id="what is found out must be for our audience",
        ),
        pytest.param((Says("keys", LATER, Accepted(BOB)),), (None,), ["keys"], "bob", [], id="who was told more is asked again"),
        pytest.param(
            (Says("keys", LATER, LATER, Accepted(BOB)),), (None, None), ["keys", "keys"], "bob", [],
            id="and may then ask for something else",
        ),
        pytest.param((Says("keys", LATER),), (None, None), ["keys", "keys"], None, ["undecided"], id="but only twice"),
    ],
)  # fmt: skip
def test_the_second_stage(
    authenticators: tuple[Authenticator, ...],
    found: tuple[Verdict | None, ...],
    asked: list[str],
    username: str | None,
    told: list[str],
) -> None:
    for one in authenticators:
        if isinstance(one, Says):
            one.asked.clear()
    was_asked, outcome = driven(BEARER, authenticators, *found)
    assert was_asked == asked
    assert (outcome.user.username if outcome.user else None) == username
    assert [refusal.reason for refusal in outcome.refusals] == told


def test_who_is_asked_again_sees_the_time_of_the_finding() -> None:
    keys = Says("keys", LATER, Accepted(BOB))
    driven(BEARER, (keys,), None)
    assert keys.asked == [NOW, LATER_NOW]


def test_without_a_second_stage_whoever_would_ask_is_undecided() -> None:
    outcome = authenticate(BEARER, (Says("asks", LATER), ANYONE), {}, NOW, ())
    assert outcome.refusals == (RejectedBy("asks", "undecided"),)


def test_the_operator_reads_every_step() -> None:
    _, outcome = driven(BEARER, (Says("silent", NotMine("no-jwt")), BAD, Says("asks", LATER)))
    assert outcome.steps == (
        ChainStep("silent", NotMine("no-jwt")),
        ChainStep("bad", Rejected("expired", "why")),
        ChainStep("asks", NotMine(NOT_ASKED)),
    )


def test_who_was_asked_and_accepted_is_told_once() -> None:
    _, outcome = driven(BEARER, (NOT_MINE, Says("asks", LATER), Says("webhook", LATER)), Accepted(BOB))
    assert outcome.authenticator == "asks"
    assert outcome.steps == (
        ChainStep("silent", NotMine()),
        ChainStep("asks", Accepted(BOB)),
        ChainStep("webhook", NotMine(NOT_ASKED)),
    )


def test_the_last_step_of_an_acceptance_is_the_acceptance() -> None:
    outcome = authenticate(BEARER, (NOT_MINE, GOOD), {}, NOW, ())
    assert outcome.steps == (ChainStep("silent", NotMine()), ChainStep("good", Accepted(ALICE)))


@pytest.mark.parametrize(
    ("authenticators", "expected"),
    [
        pytest.param(
            (Says("mine", NotMine()), Says("asks", Deferred())), None, id="a service beside it is not waited for"
        ),
        pytest.param(
            (Says("asks", Deferred()), Says("mine", Accepted(ALICE))), "alice", id="it goes on beside a service"
        ),
        pytest.param((Says("asks", Deferred()), Says("mine", Deferred())), "mine", id="who accepted may be asked"),
    ],
)
def test_without_waiting_only_who_accepted_a_credential_keeps_it_in_force(
    authenticators: tuple[Says, ...], expected: str | None
) -> None:
    found = judge_at_once(BEARER, authenticators, {}, NOW, (), "mine")
    if isinstance(found, Pending):
        assert found.authenticator == expected
    else:
        assert (found.user and found.user.username) == expected
