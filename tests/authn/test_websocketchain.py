"""Where a token among WebSocket subprotocols stands among the other credentials.

Source: docs/protocol/authentication.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from mooring.api.view import Views
from mooring.authn.anonymous import Anonymous
from mooring.authn.chain import Outcome, RejectedBy, authenticate
from mooring.authn.credentials import CONNECTION, SECRET, Basic, Credentials, read_credentials
from mooring.authn.reasons import NO_OTHER_SUBPROTOCOL, TOKEN_NOT_BASE64URL, TOKEN_REPEATED
from mooring.authn.verdict import Accepted, NotMine, Rejected, Verdict
from mooring.identity import UserInfo
from mooring.secret import Secret
from tests.authn.test_websocketbearer import protocol

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UPGRADE = {"upgrade": ["websocket"], "connection": ["Upgrade"]}
BASIC = "Basic YW5uOnB3"  # ann:pw


def read(passwords: bool = False, **headers: str | list[str]) -> Credentials:
    """What these headers offer; an underscore stands for a hyphen."""
    given = {name.replace("_", "-"): [value] if isinstance(value, str) else value for name, value in headers.items()}
    return read_credentials(lambda name: given.get(name, []), schemes=("basic",) if passwords else ())


def websocket(*names: str, **headers: str | list[str]) -> dict[str, str | list[str]]:
    """The headers of a request for a WebSocket with these subprotocols."""
    return {**UPGRADE, "sec_websocket_protocol": [", ".join(names)], **headers}


@pytest.mark.parametrize(
    ("headers", "bearer", "second", "refused"),
    [
        pytest.param(websocket(protocol("ws"), "x"), "ws", None, "", id="the token alone is the bearer"),
        pytest.param(
            websocket("x", sec_websocket_protocol=["x", protocol("ws")]), "ws", None, "", id="in a header of its own"
        ),
        pytest.param(
            websocket(protocol("ws"), "x", authorization="Bearer header"),
            "header",
            "ws",
            "",
            id="the header comes first, and the token second",
        ),
        pytest.param(
            websocket(protocol("ws"), "x", authorization="Bearer  lost"),
            "ws",
            None,
            "",
            id="a header that is ignored leaves the token first",
        ),
        pytest.param(
            websocket(protocol("ws"), "x", authorization=BASIC),
            "ws",
            None,
            "",
            id="Basic offers nothing where nobody judges passwords",
        ),
        pytest.param(websocket("x"), None, None, "", id="a WebSocket without a token offers nothing"),
        pytest.param(UPGRADE, None, None, "", id="a WebSocket without subprotocols offers nothing"),
        pytest.param(
            websocket(protocol("ws")), None, None, NO_OTHER_SUBPROTOCOL, id="a token alone in the list is refused"
        ),
        pytest.param(
            websocket(protocol("a"), protocol("b"), "x"),
            None,
            None,
            TOKEN_REPEATED,
            id="two tokens in the list are refused",
        ),
        pytest.param(
            websocket(protocol("ws") + "=", "x", authorization="Bearer header"),
            "header",
            None,
            TOKEN_NOT_BASE64URL,
            id="a malformed token does not hide the header",
        ),
        pytest.param(
            websocket(protocol("ws"), "x", upgrade="h2c"), None, None, "", id="another protocol's list is not read"
        ),
        pytest.param(
            websocket(protocol("ws") + "=", "x", connection="close"),
            None,
            None,
            "",
            id="nor is a list that no connection asks about",
        ),
        pytest.param(
            websocket(protocol("ws"), "x", connection=[]), None, None, "", id="nor without a Connection header at all"
        ),
        pytest.param(
            {"sec_websocket_protocol": protocol("ws"), "authorization": "Bearer header"},
            "header",
            None,
            "",
            id="nor in a request that is no WebSocket",
        ),
    ],
)
def test_what_is_offered(
    headers: Mapping[str, str | list[str]], bearer: str | None, second: str | None, refused: str
) -> None:
    found = read(**headers)  # type: ignore[arg-type] # mypy takes the first keyword for `passwords`
    assert found.bearer == (None if bearer is None else Secret(bearer))
    assert found.second == (None if second is None else Secret(second))
    assert found.refused == refused


def test_where_passwords_are_judged_a_password_comes_before_the_token() -> None:
    found = read(passwords=True, **websocket(protocol("ws"), "x", authorization=BASIC))
    assert (found.basic, found.bearer, found.second) == (Basic("ann", Secret("pw")), None, Secret("ws"))


class Tokens:
    """Accepts some bearers as users of that name, refuses others, and knows no more."""

    name = "tokens"
    judges = SECRET

    def __init__(self, good: Sequence[str] = (), bad: Sequence[str] = ()) -> None:
        self.good, self.bad = good, bad
        self.seen: list[str] = []

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if credentials.bearer is None:
            return NotMine()
        text = credentials.bearer.reveal().decode()
        self.seen.append(text)
        if text in self.good:
            return Accepted(UserInfo(text))
        return Rejected("expired") if text in self.bad else NotMine()


class Peer:
    """Accepts or refuses anyone who has a certificate."""

    name = "peer"
    judges = CONNECTION

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        return self.verdict if credentials.peer else NotMine()


def ask(credentials: Credentials, tokens: Tokens, peer: Peer | None = None) -> Outcome:
    return authenticate(credentials, [*([peer] if peer else []), tokens, Anonymous()], {}, NOW, ())


def told(outcome: Outcome) -> list[tuple[str, str]]:
    return [(refusal.authenticator, refusal.reason) for refusal in outcome.refusals]


BOTH = Credentials(bearer=Secret("header"), second=Secret("ws"))


def test_the_header_wins_and_the_token_is_not_even_looked_at() -> None:
    tokens = Tokens(good=("header", "ws"))
    outcome = ask(BOTH, tokens)
    assert (outcome.user and outcome.user.username, tokens.seen) == ("header", ["header"])


@pytest.mark.parametrize("bad", [("header",), ()], ids=["recognised and refused", "unknown"])
def test_a_good_token_rescues_a_header_that_is(bad: tuple[str, ...]) -> None:
    tokens = Tokens(good=("ws",), bad=bad)
    outcome = ask(BOTH, tokens)
    assert (outcome.user and outcome.user.username, tokens.seen) == ("ws", ["header", "ws"])
    assert told(outcome) == ([("tokens", "expired")] if bad else [("bearer", "unknown-token")])


def test_two_bad_bearers_are_two_reasons_and_never_anonymous() -> None:
    outcome = ask(BOTH, Tokens(bad=("header",)))
    assert outcome.user is None
    assert told(outcome) == [("tokens", "expired"), ("bearer", "unknown-token")]
    assert [step.authenticator for step in outcome.steps] == ["tokens", "tokens"]


def test_a_bad_certificate_is_told_once() -> None:
    both = Credentials(peer=(b"x",), bearer=Secret("header"), second=Secret("ws"))
    outcome = ask(both, Tokens(bad=("header",)), Peer(Rejected("unknown-ca")))
    assert told(outcome) == [("peer", "unknown-ca"), ("tokens", "expired"), ("bearer", "unknown-token")]


def test_a_malformed_token_is_refused_and_never_anonymous() -> None:
    outcome = ask(Credentials(refused=TOKEN_REPEATED), Tokens())
    assert (outcome.user, outcome.refusals) == (None, (RejectedBy("websocket", TOKEN_REPEATED),))
    assert [(step.authenticator, step.verdict) for step in outcome.steps][-1] == ("websocket", Rejected(TOKEN_REPEATED))


@pytest.mark.parametrize(
    ("credentials", "peer"),
    [
        pytest.param(Credentials(bearer=Secret("good"), refused=TOKEN_REPEATED), None, id="a good header"),
        pytest.param(
            Credentials(peer=(b"x",), refused=TOKEN_REPEATED), Peer(Accepted(UserInfo("good"))), id="a good certificate"
        ),
    ],
)
def test_a_malformed_token_does_not_matter_beside(credentials: Credentials, peer: Peer | None) -> None:
    outcome = ask(credentials, Tokens(good=("good",)), peer)
    assert outcome.user is not None
    assert outcome.user.username == "good"


def test_a_good_certificate_comes_before_a_bad_token() -> None:
    outcome = ask(Credentials(peer=(b"x",), bearer=Secret("bad")), Tokens(bad=("bad",)), Peer(Accepted(UserInfo("a"))))
    assert outcome.user is not None


@pytest.mark.parametrize(
    ("headers", "alone"),
    [
        pytest.param(websocket(protocol("ws"), "x", origin="https://a", host="b"), True, id="another host"),
        pytest.param(websocket(protocol("ws"), "x", origin="http://b", host="b"), True, id="without TLS"),
        pytest.param(
            websocket(protocol("ws"), "x", origin=["https://b", "https://a"], host="b"), True, id="two origins"
        ),
        pytest.param(websocket(protocol(""), "x", origin="https://a", host="b"), True, id="an empty token"),
        pytest.param(websocket(protocol("ws"), "x", origin="HTTPS://B", host="b"), False, id="the same host"),
        pytest.param(websocket(protocol("ws"), "x", host="b"), False, id="no browser"),
        pytest.param(
            websocket("x", origin="https://a", host="b"), False, id="no token: the handshake is refused later"
        ),
        pytest.param(
            {"sec_websocket_protocol": protocol("ws"), "origin": "https://a", "host": "b"}, False, id="no handshake"
        ),
    ],
)
def test_a_token_of_another_site_stands_alone(headers: dict[str, str | list[str]], alone: bool) -> None:
    given = {name.replace("_", "-"): [value] if isinstance(value, str) else value for name, value in headers.items()}
    given["authorization"] = [BASIC]
    found = read_credentials(lambda name: given.get(name, []), (b"leaf",), schemes=("basic",))
    assert (found.peer == (), found.basic is None) == (alone, alone)
    given["authorization"] = ["Bearer header"]
    found = read_credentials(lambda name: given.get(name, []), (b"leaf",))
    assert found.peer == (b"leaf",), "a script cannot set this header"
