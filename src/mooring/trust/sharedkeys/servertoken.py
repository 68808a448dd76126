"""Server token: the passphrase that opens the sealed keys of a cluster.

Rules kept here:
* A token is one line of printable characters, in the grammar of k3s (`mooring.trust.k3s.token`). Its password alone counts: the
  hash names a CA, and the sealed keys prove theirs by themselves.
* The user is `server`, or none. A token of another user, such as an agent's, is refused.
* A bootstrap token is refused: it is made to be given away, and lives a day.
* A password that begins with `K10` is refused, because k3s and Mooring read it as the whole form.
* A token that is made here has 128 random bits. One that a person chose has MIN_SECRET characters at least; scrypt makes guesses of
  it expensive (`envelope`). A cluster that comes from k3s may have a shorter one: `--allow-short-server-token` accepts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.k3s import token as k3s

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
