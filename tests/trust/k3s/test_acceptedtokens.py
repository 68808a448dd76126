"""Accepted tokens: both users, the grace of a rotated token, and the file of former ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.k3s.acceptedtokens import (
    ACCEPTED,
    MAX_FORMER,
    ROTATED,
    ROTATED_AGENT,
    UNKNOWN,
    WRONG,
    AcceptedTokens,
    FormerToken,
    decode_former,
    digest,
    encode_former,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SERVER, AGENT, OLD = (Secret(text * 16) for text in ("s", "a", "o"))
ONE = AcceptedTokens(digest(SERVER))
TWO = AcceptedTokens(digest(SERVER), digest(AGENT))
ROTATING = AcceptedTokens(digest(SERVER), former=(FormerToken(digest(OLD), NOW),))
AGENTS = AcceptedTokens(digest(SERVER), digest(AGENT), former_agents=(FormerToken(digest(OLD), NOW),))
BEFORE = NOW - timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("tokens", "user", "password", "now", "judgement"),
    [
        pytest.param(ONE, "server", SERVER, NOW, ACCEPTED, id="the server token is the password of server"),
        pytest.param(ONE, "node", SERVER, NOW, ACCEPTED, id="without an agent token it is that of node, too"),
        pytest.param(TWO, "node", AGENT, NOW, ACCEPTED, id="the agent token is the password of node"),
        pytest.param(TWO, "node", SERVER, NOW, WRONG, id="with an agent token node cannot use the server token"),
        pytest.param(TWO, "server", AGENT, NOW, WRONG, id="server cannot use the agent token"),
        pytest.param(ONE, "server", Secret(b""), NOW, WRONG, id="an empty password is wrong"),
        pytest.param(AcceptedTokens(None), "server", SERVER, NOW, WRONG, id="without a server token none is accepted"),
        pytest.param(ONE, "Server", SERVER, NOW, UNKNOWN, id="names of users are case-sensitive"),
        pytest.param(ONE, "", SERVER, NOW, UNKNOWN, id="no user is unknown"),
        pytest.param(ROTATING, "server", OLD, BEFORE, ACCEPTED, id="a former token is good until the end of its grace"),
        pytest.param(ROTATING, "node", OLD, BEFORE, ACCEPTED, id="for agents, too"),
        pytest.param(ROTATING, "server", OLD, NOW, ROTATED, id="and not at its end"),
        pytest.param(ROTATING, "server", AGENT, BEFORE, WRONG, id="another token is wrong during a grace"),
        pytest.param(
            AGENTS, "node", OLD, BEFORE, ACCEPTED, id="a former agent token is good until the end of its grace"
        ),
        pytest.param(AGENTS, "node", OLD, NOW, ROTATED_AGENT, id="and not at its end, with a reason of its own"),
        pytest.param(AGENTS, "node", AGENT, NOW, ACCEPTED, id="the new agent token is good"),
        pytest.param(AGENTS, "node", SERVER, BEFORE, WRONG, id="the server token is no former agent token"),
        pytest.param(AGENTS, "server", OLD, BEFORE, WRONG, id="server cannot use a former agent token"),
        pytest.param(ROTATING, "server", SERVER, BEFORE, ACCEPTED, id="the new one is good during a grace"),
    ],
)
def test_judgement(tokens: AcceptedTokens, user: str, password: Secret, now: datetime, judgement: str) -> None:
    assert tokens.judge(user, password, now) == judgement


def test_a_former_agent_token_is_no_agent_token() -> None:
    tokens = AcceptedTokens(digest(SERVER), digest(AGENT), (FormerToken(digest(OLD), NOW),))
    assert tokens.judge("node", OLD, BEFORE) == WRONG


def test_a_token_shows_in_no_repr() -> None:
    shown = repr(AcceptedTokens(digest(SERVER), digest(AGENT), (FormerToken(digest(OLD), NOW),)))
    for secret in (SERVER, AGENT, OLD):
        assert digest(secret).hex() not in shown
        assert repr(digest(secret)) not in shown


def test_former_tokens_survive_the_file() -> None:
    former = (FormerToken(digest(OLD), NOW), FormerToken(digest(AGENT), NOW + timedelta(days=1)))
    assert decode_former(encode_former(former)) == former
    assert decode_former(b"") == ()


def test_the_file_keeps_the_newest_only() -> None:
    many = [FormerToken(digest(OLD), NOW + timedelta(seconds=number)) for number in range(MAX_FORMER + 2)]
    assert decode_former(encode_former(many)) == tuple(many[2:])


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"formerTokens": 1}',
        b'{"formerTokens": [1]}',
        b'{"formerTokens": [{"sha256": 1, "until": "2026-01-02T03:04:05Z"}]}',
        b'{"formerTokens": [{"sha256": "00", "until": "2026-01-02T03:04:05Z"}]}',
        b'{"formerTokens": [{"sha256": "%s", "until": "soon"}]}' % (b"0" * 64),
    ],
)
def test_a_damaged_file_is_a_clear_error(content: bytes) -> None:
    with pytest.raises(ConfigError, match=r"former-tokens\.json is damaged"):
        decode_former(content)
