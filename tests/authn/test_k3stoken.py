"""The authenticator of the server token and the agent token."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.authn.credentials import SECRET, Basic, Credentials
from mooring.authn.k3stoken import K3sTokenAuthenticator
from mooring.authn.verdict import Accepted, FirstVerdict, NotMine, Rejected
from mooring.identity import UserInfo
from mooring.secret import Secret
from mooring.trust.k3s.acceptedtokens import AcceptedTokens, FormerToken, digest
from tests.support.emptyviews import EMPTY

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOKEN, AGENT, OLD = (Secret(text * 16) for text in ("s", "a", "o"))


def judged(user: str, password: Secret) -> FirstVerdict:
    authenticator = K3sTokenAuthenticator(
        AcceptedTokens(digest(TOKEN), digest(AGENT), (FormerToken(digest(OLD), NOW),))
    )
    assert authenticator.judges == SECRET
    return authenticator.authenticate(Credentials(basic=Basic(user, password)), EMPTY, NOW, ())


@pytest.mark.parametrize(
    ("user", "password", "verdict"),
    [
        ("server", TOKEN, Accepted(UserInfo("server", groups=("k3s:server",)))),
        ("node", AGENT, Accepted(UserInfo("node", groups=("k3s:agent",)))),
        ("server", AGENT, Rejected("wrong-join-token", "user server")),
        ("node", TOKEN, Rejected("wrong-join-token", "user node")),
        ("server", OLD, Rejected("rotated-token", "user server")),
        ("jane", TOKEN, NotMine()),
        ("", TOKEN, NotMine()),
    ],
)
def test_verdicts(user: str, password: Secret, verdict: FirstVerdict) -> None:
    assert judged(user, password) == verdict


def test_other_credentials_are_not_judged() -> None:
    authenticator = K3sTokenAuthenticator(AcceptedTokens(digest(TOKEN)))
    assert authenticator.authenticate(Credentials(bearer=TOKEN), EMPTY, NOW, ()) == NotMine()


def test_tokens_are_replaced_while_the_server_runs() -> None:
    authenticator = K3sTokenAuthenticator(AcceptedTokens(digest(TOKEN)))
    new = Credentials(basic=Basic("server", AGENT))
    assert isinstance(authenticator.authenticate(new, EMPTY, NOW, ()), Rejected)
    authenticator.accepted = AcceptedTokens(digest(AGENT))
    assert isinstance(authenticator.authenticate(new, EMPTY, NOW, ()), Accepted)


def test_tokens_are_read_again_at_once() -> None:
    new = AcceptedTokens(digest(Secret("n" * 16)), None)
    authenticator = K3sTokenAuthenticator(AcceptedTokens(None, None), lambda: new)
    authenticator.read_again()
    assert authenticator.accepted is new
    fixed = K3sTokenAuthenticator(new)
    fixed.read_again()
    assert fixed.accepted is new
