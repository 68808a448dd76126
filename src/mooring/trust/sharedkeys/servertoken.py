"""Server token: the passphrase that opens the sealed keys of a cluster, its settings, and the agent token beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.declaration import BOOLEAN, TEXT, Settings, file_setting, setting
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.k3s import token as k3s
from mooring.trust.k3s.acceptedtokens import MAX_FORMER, FormerToken, digest, parse_agent_token

# Server token: the passphrase that opens the sealed keys of a cluster.
#
# Rules kept here:
# * A token is one line of printable characters, in the grammar of k3s (`mooring.trust.k3s.token`). Its password alone counts: the
#   hash names a CA, and the sealed keys prove theirs by themselves.
# * The user is `server`, or none. A token of another user, such as an agent's, is refused.
# * A bootstrap token is refused: it is made to be given away, and lives a day.
# * A password that begins with `K10` is refused, because k3s and Mooring read it as the whole form.
# * A token that is made here has 128 random bits. One that a person chose has MIN_SECRET characters at least; scrypt makes
#   guesses of it expensive (`envelope`). A cluster that comes from k3s may have a shorter one: `--allow-short-server-token`
#   accepts it.

MIN_SECRET, MAX_SECRET = 16, 512
"""Characters. Anyone who finds the secret has the key of the CA: 16 typed characters are the least that withstands guesses."""
ANY_LENGTH = 1
"""Least number of characters where another place judges the length, or `--allow-short-server-token` accepts what k3s does."""
_RANDOM_BYTES = 16
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")


def generate_token(entropy: Callable[[int], bytes]) -> Secret:
    """Return a new token of 32 hexadecimal digits."""
    return Secret(entropy(_RANDOM_BYTES).hex())


def parse_token(data: bytes, least: int = MIN_SECRET) -> Secret:
    """Return the password of a server token, as a file holds it. Raises ConfigError, which does not repeat it.

    `least`: characters that it must have.
    """
    text = data.strip()
    try:
        token = k3s.parse_token(text)
    except k3s.TokenFormatError as error:
        raise ConfigError(_malformed(text, error)) from None
    if token.bootstrap is not None:
        raise ConfigError("this is a bootstrap token, with which machines join; a server needs the server token")
    if token.username == k3s.NODE:
        raise ConfigError(
            "this is the token of an agent, with which machines join; a server needs the server token, which ends with "
            "::server:<password>, or its password alone"
        )
    if token.username not in ("", k3s.SERVER):
        raise ConfigError("the server token must end with ::server:<password>, or be the password alone")
    password = token.password or Secret(b"")
    if not password or len(password.reveal()) > MAX_SECRET or _PRINTABLE.fullmatch(password.reveal()) is None:
        raise ConfigError(
            f"a server token is one line of {least} to {MAX_SECRET} printable ASCII characters without spaces"
        )
    check_length(password, "a server token", least)
    return password


def is_short(token: Secret) -> bool:
    """Return true for a token that `--allow-short-server-token` alone accepts."""
    return len(token.reveal()) < MIN_SECRET


def check_length(token: Secret, what: str, least: int = MIN_SECRET) -> None:
    """Raise ConfigError for a token of fewer than `least` characters. `what` names it in the error."""
    if len(token.reveal()) < least:
        raise ConfigError(
            f"{what} is one line of {least} to {MAX_SECRET} printable ASCII characters without spaces; --allow-short-server-token "
            "accepts a shorter one, as k3s does"
        )


def _malformed(text: bytes, error: k3s.TokenFormatError) -> str:
    if not text:
        return f"{error}: a server token is one line of {MIN_SECRET} to {MAX_SECRET} printable ASCII characters"
    if not text.startswith(k3s.PREFIX.encode()):
        return str(error)
    return (
        f"{error}; a server token that begins with {k3s.PREFIX} is read as {k3s.PREFIX}<hash of the CA>::server:<password>, with "
        f"{k3s.HASH_LENGTH} digits of the hash or none"
    )


# Agent token of a cluster after its first rotation: one of the files that all its servers share (`keyset`).
#
#     agent-tokens.json    {"token": SECRET, "terms": [{"id": HEX, "sha256": HEX, "created": SECONDS, "until": SECONDS}, …]}
#
# Rules kept here (docs/adr/0076-rotation-of-the-agent-token.md):
# * The first term is that of the present token, `token`, and has no end. Of former tokens the digest is kept, not the token.
# * A rotation gives the token before it an end, which no later rotation moves back. Without a grace all former tokens end at
#   once.
# * Former tokens stay listed after their end, so that a server can say why it refuses them; the MAX_FORMER that end last are
#   kept.
# * A token that is listed, or that is a server token, is refused: its end could not be told, or agents could join servers.
# * Identifiers are random. They and the times are the public part of the file.

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


STORE, FILES = "store", "files"
"""Places of the shared keys: sealed in the store, or in files that an operator copies."""


def _place(text: str, key: str) -> str:
    if text not in (STORE, FILES):
        raise ConfigError(f"{key}: give {STORE} or {FILES}")
    return text


def _server(text: str, key: str) -> str:
    if text and (problem := https_url_problem(text)):
        raise ConfigError(f"{key}: {problem}; give https://<address>:<port> of a server of the cluster")
    return text.rstrip("/")


def _token(text: str, key: str) -> Secret | None:
    try:
        return parse_token(text.encode("utf-8", "surrogateescape"), ANY_LENGTH) if text else None
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeysSettings(Settings):
    """The place of the keys that servers share, and the server token."""

    heading: ClassVar[str] = "Several servers"

    server: str = setting(
        TEXT,
        default="",
        meaning="Server of the cluster to join (--k3s-supervisor). It names the store, which then needs no flag; credentials do.",
        default_note="this server makes a cluster, or finds it in its store",
        metavar="URL",
        parse=_server,
        everyday=True,
    )
    shared_keys: str = setting(
        TEXT,
        default=STORE,
        meaning="Where the servers of one cluster get their common keys: store (sealed in it) or files (copied by you).",
        metavar="store|files",
        parse=_place,
    )
    server_token_file: str = file_setting(
        "File with the token that opens the keys of the cluster in the store; the first server makes one.",
        default_note="server/token in the data directory",
    )
    server_token: Secret | None = setting(
        TEXT,
        default="",
        meaning="The token itself. Other users of the machine see a command line: prefer the file or the environment.",
        metavar="TOKEN",
        secret=True,
        parse=_token,
        everyday=True,
    )

    allow_short_server_token: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Accept a server token and an agent token of fewer than 16 characters, as k3s does, with a warning. A guess of "
        "the server token opens the keys of the cluster: replace it by `mooring token rotate`.",
    )

    @property
    def least_token_length(self) -> int:
        """Characters that a server token or an agent token must have."""
        return ANY_LENGTH if self.allow_short_server_token else MIN_SECRET

    def __post_init__(self) -> None:
        """Raise ConfigError for two tokens, and for one that is too short."""
        if self.server_token is not None:
            check_length(self.server_token, "server-token: a server token", self.least_token_length)
        if self.server_token_file and self.server_token:
            raise ConfigError("server-token-file: give the file or server-token, not both")
