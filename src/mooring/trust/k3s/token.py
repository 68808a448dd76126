"""K10 token: the grammar of k3s's join tokens, which carry the hash of a CA beside a password or a bootstrap token.

Rules kept here (docs/protocol/k3s.md#tokens; what k3s itself accepts, with its error texts):
* `K10<hash>::<user>:<password>` and `K10<hash>::<id>.<secret>`. The hash has 64 bytes or none, and its alphabet is not checked.
* A text without the prefix `K10` is a bootstrap token when it has the form of one, and otherwise the password of no user.
* A text with the prefix is never a password, even when the person who chose it meant one: `K10xyz` is `invalid token format`.
* After the prefix the first `::` ends the hash, and the first `:` of the rest ends the user, so that a password may contain both.
* Without `::` there is no hash: `K10user:pass` is a user and a password.
* A text that has a whole token with a hash, but not at its beginning, or the hash of one in another place, is refused: k3s reads it
  as a password, and drops the hash (`mooring.trust.k3s.damagedtoken`).
* A text with the placeholder of a template or a shell is refused, and so are the beginning or the end of a token, where it cannot
  be a password, a text that is nearly a bootstrap token, and the pin of a CA.
* The password is a Secret. A text that was read otherwise than it was meant may have a part of a password in place of the hash or
  the user: neither is printed unless it is a digest or a user that k3s knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken, looks_like_token, parse_token_id, unfilled_placeholder
from mooring.trust.bootstraptoken.token import parse_token as parse_bootstrap_token
from mooring.trust.k3s.damagedtoken import cut_off, damage, damage_without_hash

PREFIX = "K10"
HASH_LENGTH = 64
"""Hexadecimal digits of a SHA-256."""
SERVER, NODE = "server", "node"
"""User names that k3s gives to the two static passwords: servers replace the user of a token by the first, agents by the second."""

DEFAULT_GROUPS = ("system:bootstrappers:k3s:default-node-token",)
"""Groups of a bootstrap token of k3s's format for which none are given."""

_PREFIX = PREFIX.encode()
_HASH = re.compile(r"[0-9a-f]{64}")


class TokenFormatError(ConfigError):
    """The text is not a token that k3s accepts. The message begins with k3s's where k3s refuses it, and repeats no part of it."""


@dataclass(frozen=True, slots=True, repr=False)
class K3sToken:
    """A parsed token: either a bootstrap token, or a user, which may be empty, and a password. The hash may be empty."""

    ca_hash: str
    username: str
    password: Secret | None
    bootstrap: BootstrapToken | None

    @property
    def credential(self) -> Secret:
        """Return the part after the hash: `<user>:<password>` or `<id>.<secret>`."""
        if self.bootstrap is not None:
            return Secret(self.bootstrap.reveal())
        password = self.password.reveal() if self.password is not None else b""
        return Secret(self.username.encode("utf-8", "surrogateescape") + b":" + password)

    def as_user(self, username: str) -> K3sToken:
        """Return the same token for another user: `node` for an agent, `server` for a server. A bootstrap token has no user."""
        return self if self.bootstrap is not None else replace(self, username=username)

    def __repr__(self) -> str:
        ca_hash = self.ca_hash if not self.ca_hash or is_digest(self.ca_hash) else "(no digest)"
        if self.bootstrap is not None:
            return f"K3sToken({ca_hash}::{self.bootstrap})"
        username = self.username if self.username in ("", SERVER, NODE) else "(other user)"
        return f"K3sToken({ca_hash}::{username}:(redacted))"

    __str__ = __repr__


def is_digest(text: str) -> bool:
    """Return True when the hash of a token can be that of a CA: 64 hexadecimal digits, in lower case."""
    return _HASH.fullmatch(text) is not None


def has_prefix(text: str) -> bool:
    """Return True when the text is read as the whole form, and never as a password."""
    return text.startswith(PREFIX)


def parse_token(text: str | bytes) -> K3sToken:
    """Return the token in a text, as k3s reads it. Raises TokenFormatError."""
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise TokenFormatError("invalid token format") from None
    if not data:
        raise TokenFormatError("token must not be empty")
    has_prefix = data.startswith(_PREFIX)
    if problem := unfilled_placeholder(data.removeprefix(_PREFIX).decode("ascii", "replace")):
        raise TokenFormatError(problem)
    if not has_prefix:
        if problem := damage(data):
            raise TokenFormatError(problem)
        data = _PREFIX + (b"::" if _bootstrap_token(data) else b":::") + data
    ca_hash, separator, credential = data.removeprefix(_PREFIX).partition(b"::")
    if not separator:
        ca_hash, credential = b"", ca_hash
    if len(ca_hash) not in (0, HASH_LENGTH):
        raise TokenFormatError(f"invalid token CA hash length{cut_off(data.removeprefix(_PREFIX))}")
    digest = ca_hash.decode("utf-8", "surrogateescape")
    if bootstrap := _bootstrap_token(credential):
        return K3sToken(digest, "", None, bootstrap)
    username, _, password = credential.partition(b":")
    if not password:
        raise TokenFormatError(f"invalid token format{cut_off(data.removeprefix(_PREFIX))}")
    if has_prefix and not digest and (problem := damage_without_hash(credential)):
        raise TokenFormatError(problem)
    return K3sToken(digest, username.decode("utf-8", "surrogateescape"), Secret(password), None)


def bootstrap_token_id(text: str) -> str:
    """Return the id in a text: an id, a bootstrap token, or the whole form of one. Raises ConfigError."""
    if not has_prefix(text):
        return parse_token_id(text)
    token = parse_token(text)
    if token.bootstrap is None:
        raise TokenFormatError("not a bootstrap token but a password, which is no object of the cluster and has no id")
    return token.bootstrap.id


def format_token(ca_hash: str, credential: Secret | BootstrapToken | K3sToken) -> Secret:
    """Return the whole form with this hash. A credential is `<user>:<password>`, or a token; an empty one gives an empty text.

    Raises TokenFormatError for a hash that is not a digest, with which no client could verify a server.
    """
    if isinstance(credential, K3sToken):
        credential = credential.credential
    elif isinstance(credential, BootstrapToken):
        credential = Secret(credential.reveal())
    if not credential:
        return credential
    if not is_digest(ca_hash):
        raise TokenFormatError("the hash of a CA in a token is 64 hexadecimal digits, in lower case")
    return Secret(f"{PREFIX}{ca_hash}::".encode() + credential.reveal())


def password_credential(username: str, password: Secret) -> Secret:
    """Return `<user>:<password>`, the credential of a server token or an agent token."""
    return K3sToken("", username, password, None).credential


def _bootstrap_token(data: bytes) -> BootstrapToken | None:
    text = data.decode("ascii", "replace")
    return parse_bootstrap_token(text) if looks_like_token(text) else None
