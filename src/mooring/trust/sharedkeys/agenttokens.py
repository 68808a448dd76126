"""Agent token of a cluster after its first rotation: one of the files that all its servers share (`keyset`).

    agent-tokens.json    {"token": SECRET, "terms": [{"id": HEX, "sha256": HEX, "created": SECONDS, "until": SECONDS}, …]}

Rules kept here (docs/adr/0076-rotation-of-the-agent-token.md):
* The first term is that of the present token, `token`, and has no end. Of former tokens the digest is kept, not the token.
* A rotation gives the token before it an end, which no later rotation moves back. Without a grace all former tokens end at once.
* Former tokens stay listed after their end, so that a server can say why it refuses them; the MAX_FORMER that end last are kept.
* A token that is listed, or that is a server token, is refused: its end could not be told, or agents could join servers.
* Identifiers are random. They and the times are the public part of the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import msgspec

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.k3s.acceptedtokens import MAX_FORMER, FormerToken, digest
from mooring.trust.k3s.agenttoken import parse_agent_token

NAME = "agent-tokens.json"
MAX_BYTES = 16384
"""Size of the file: MAX_FORMER terms, and the longest token."""
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class AgentRotationRefusedError(ConfigError):
    """The new agent token, the number of former ones, or the time of the rotation is not accepted."""


@dataclass(frozen=True, slots=True)
class AgentTerm:
    """An agent token by the digest of its password, and the time for which it is accepted, in seconds since 1970."""

    id: str
    sha256: bytes = field(repr=False)
    created: int = 0
    """0 when it is not known."""
    until: int = 0
    """0 for the present token."""

    def is_over(self, now: float) -> bool:
        """Return whether the token has an end, and that is past."""
        return 0 < self.until <= now


@dataclass(frozen=True, slots=True)
class AgentTokens:
    """The present agent token, and the terms of all, that of the present one first."""

    token: Secret
    terms: tuple[AgentTerm, ...]

    @property
    def former(self) -> tuple[FormerToken, ...]:
        """Former tokens, as an authenticator judges them."""
        return tuple(FormerToken(one.sha256, datetime.fromtimestamp(one.until, UTC)) for one in self.terms[1:])


def rotated(
    terms: Sequence[AgentTerm],
    new: Secret,
    new_id: str,
    server_tokens: Sequence[bytes],
    grace: timedelta,
    now: datetime,
) -> AgentTokens:
    """Return the agent tokens after a rotation. Raises AgentRotationRefusedError.

    `terms`: tokens with which agents join until now. `server_tokens`: digests of the server tokens.
    """
    given = digest(new)
    if given in server_tokens:
        raise AgentRotationRefusedError("the new agent token is a server token, which opens more; give another one")
    if any(one.sha256 == given for one in terms):
        raise AgentRotationRefusedError(
            "the new agent token is the present one, or one that was replaced; give another one"
        )
    seconds = int(now.timestamp())
    end = seconds + int(grace.total_seconds())
    former = [one if one.is_over(seconds) else replace(one, until=min(one.until or end, end)) for one in terms]
    if sum(not one.is_over(seconds) for one in former) > MAX_FORMER:
        raise AgentRotationRefusedError(
            f"{MAX_FORMER} former agent tokens work already: wait until the grace of one ends, or end them all with --grace 0"
        )
    kept = sorted(former, key=lambda one: one.until, reverse=True)[:MAX_FORMER]
    return AgentTokens(new, (AgentTerm(new_id, given, seconds), *kept))


class _TermMessage(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    sha256: str
    created: int
    until: int


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    terms: list[_TermMessage]


def encode_agent_tokens(tokens: AgentTokens) -> Secret:
    """Return the content of the file."""
    terms = [_TermMessage(one.id, one.sha256.hex(), one.created, one.until) for one in tokens.terms]
    return Secret(msgspec.json.encode(_Message(tokens.token.reveal().decode(), terms)))


def decode_agent_tokens(data: bytes) -> AgentTokens:
    """Return the tokens in a file. Raises ConfigError, which repeats none."""
    problem = f"{NAME}: it has no agent tokens"
    try:
        message = msgspec.json.decode(data, type=_Message)
        token = parse_agent_token(message.token.encode(), NAME, least=1)
        terms = tuple(AgentTerm(one.id, _digest_of(one.sha256), one.created, one.until) for one in message.terms)
        for one in terms:
            datetime.fromtimestamp(one.until, UTC)
    except (msgspec.MsgspecError, ConfigError, ValueError, OverflowError, OSError):
        raise ConfigError(problem) from None
    present = [one.sha256 for one in terms if not one.until]
    if len(terms) > MAX_FORMER + 1 or present != [digest(token)] or terms[0].until:
        raise ConfigError(problem)
    return AgentTokens(token, terms)


def public_part(data: bytes) -> bytes:
    """Return what the fingerprint of a set of keys has of the file: nothing that tests a guess of a token."""
    return msgspec.json.encode([(one.id, one.created, one.until) for one in decode_agent_tokens(data).terms])


def _digest_of(text: str) -> bytes:
    if _DIGEST.fullmatch(text) is None:
        raise ValueError
    return bytes.fromhex(text)
