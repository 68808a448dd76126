"""Passwords that the supervisor accepts now: the server token, the agent token, and tokens that were rotated away."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import ConfigError, MooringError
from mooring.secret import Secret
from mooring.trust.k3s.identity import AGENT_USER, SERVER_USER
from mooring.trust.k3s.token import NODE, TokenFormatError, parse_token

# Agent token: the password with which agents join, when it is not the server token.
#
# Rules kept here:
# * It is one line of printable characters in the grammar of k3s (`mooring.trust.k3s.token`). Its password alone counts.
# * The user is `node`, or none. A bootstrap token is refused: it has a Secret of its own, and an end.
# * It is as long as a server token at least: nothing but the limit on guesses protects it. `--allow-short-server-token` accepts a
#   shorter one, too.

MIN_PASSWORD, MAX_PASSWORD = 16, 512
"""Characters, as of a server token (`mooring.trust.sharedkeys.servertoken`)."""
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")


def parse_agent_token(data: bytes, place: str, least: int = MIN_PASSWORD) -> Secret:
    """Return the password of the agent token that `place` holds. Raises ConfigError, which names the place and not the token.

    `least`: characters that it must have.
    """
    try:
        token = parse_token(data.strip())
    except TokenFormatError as error:
        raise ConfigError(f"{place}: {error}: an agent token is a password, or ends with ::node:<password>") from None
    if token.bootstrap is not None:
        raise ConfigError(f"{place}: this is a bootstrap token; machines join with it without any setting")
    if token.username not in ("", NODE):
        raise ConfigError(f"{place}: the agent token must end with ::node:<password>, or be the password alone")
    password = token.password or Secret(b"")
    if len(password.reveal()) > MAX_PASSWORD or _PRINTABLE.fullmatch(password.reveal()) is None:
        raise ConfigError(
            f"{place}: an agent token is one line of {least} to {MAX_PASSWORD} printable ASCII characters without spaces"
        )
    check_agent_token(password, place, least)
    return password


def check_agent_token(password: Secret, place: str, least: int) -> None:
    """Raise ConfigError for an agent token of fewer than `least` characters."""
    if len(password.reveal()) < least:
        raise ConfigError(
            f"{place}: an agent token is one line of {least} to {MAX_PASSWORD} printable ASCII characters without spaces; "
            "--allow-short-server-token accepts a shorter one, as k3s does"
        )


# Passwords that the supervisor accepts now: the server token, the agent token, and tokens that were rotated away.
#
#     server/token                 the server token in force
#     server/former-tokens.json    {"formerTokens": [{"sha256": "<hex>", "until": "<RFC 3339>"}]}: digests of former ones, each
#                                  with the end of its grace
#
# Rules kept here (docs/protocol/k3s.md#authentication-of-the-supervisor, docs/adr/0051-the-supervisor-api.md):
# * Tokens are kept as SHA-256 digests.
# * A former token is accepted before the end of its grace, which is checked at each use. Afterwards it is refused as
#   `rotated-token`, even by a server in whose data directory it still stands as the present one: that one could not learn the new
#   token.
# * Without an agent token, user `node` has the passwords of user `server`.
# * A former agent token is judged likewise for user `node`, as `rotated-agent-token` after its grace. Its digest stands beside
#   the present one (`mooring.trust.sharedkeys.servertoken`).
# * Values are immutable. A rotation replaces the whole object.

ACCEPTED, UNKNOWN, WRONG, ROTATED = "accepted", "unknown-user", "wrong-join-token", "rotated-token"
ROTATED_AGENT = "rotated-agent-token"
"""Judgements of a user and a password."""

MAX_FORMER = 16
"""Former tokens that are kept: more rotations than fall into the longest grace."""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FormerToken:
    """A token that was rotated away: the digest of its password, and the end of its grace."""

    sha256: bytes = field(repr=False)
    until: datetime


@dataclass(frozen=True, slots=True)
class AcceptedTokens:
    """Passwords of users `server` and `node`, as digests. `agent` is None when the server token is the agent token, too.

    `server` is None while there is no server token: then former ones are all that may be accepted.
    """

    server: bytes | None = field(repr=False)
    agent: bytes | None = field(default=None, repr=False)
    former: tuple[FormerToken, ...] = ()
    former_agents: tuple[FormerToken, ...] = ()

    def judge(self, user: str, password: Secret, now: datetime) -> str:
        """Return the judgement: ACCEPTED, WRONG, UNKNOWN for another user name, ROTATED or ROTATED_AGENT after a grace."""
        if user not in (SERVER_USER, AGENT_USER):
            return UNKNOWN
        presented = digest(password)
        if user == AGENT_USER and self.agent is not None:
            is_agent = hmac.compare_digest(presented, self.agent)
            return _judgement(presented, self.former_agents, now, ROTATED_AGENT) or (ACCEPTED if is_agent else WRONG)
        is_current = self.server is not None and hmac.compare_digest(presented, self.server)
        # A former one even when it still is in server/token, on a server that could not learn the new one.
        return _judgement(presented, self.former, now, ROTATED) or (ACCEPTED if is_current else WRONG)


def _judgement(presented: bytes, former: Sequence[FormerToken], now: datetime, over: str) -> str:
    """Return ACCEPTED for a former token before its end, `over` after it, and "" for another password."""
    # All are compared, each in constant time: how long a refusal takes tells nothing about them.
    matching = [one for one in former if hmac.compare_digest(presented, one.sha256)]
    if not matching:
        return ""
    return ACCEPTED if any(now < one.until for one in matching) else over


def digest(password: Secret) -> bytes:
    """Return the form in which a password is kept."""
    # Tokens are random, or as long as a server token must be, and guesses are limited: a slow hash for each request
    # would let a stranger occupy the processor.
    return hashlib.sha256(password.reveal()).digest()


def encode_former(tokens: Sequence[FormerToken]) -> bytes:
    """Return the content of `former-tokens.json`; the newest MAX_FORMER are kept."""
    kept = sorted(tokens, key=lambda one: one.until)[-MAX_FORMER:]
    return encode_json({"formerTokens": [{"sha256": one.sha256.hex(), "until": rfc3339(one.until)} for one in kept]})


def decode_former(data: bytes) -> tuple[FormerToken, ...]:
    """Return the former tokens in a file; an empty one has none. Raises ConfigError."""
    if not data:
        return ()
    try:
        rows = decode_json(data)["formerTokens"]
        return tuple(FormerToken(_digest_of(row["sha256"]), parse_rfc3339(row["until"])) for row in rows)
    except (MooringError, ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError("former-tokens.json is damaged; without it rotated tokens have no grace") from None


def _digest_of(text: str) -> bytes:
    if _DIGEST.fullmatch(text) is None:
        raise ValueError
    return bytes.fromhex(text)
