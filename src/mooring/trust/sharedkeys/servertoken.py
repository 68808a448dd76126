"""Server token: the passphrase that opens the sealed keys of a cluster.

Rules kept here:
* A token is one line of printable characters. Of the form `K10<hash>::server:<secret>`, which k3s writes, the secret alone counts.
  The hash names a CA, and the sealed keys prove theirs by themselves.
* A bootstrap token is refused: it is made to be given away, and lives a day.
* A token that is made here has 128 random bits. One that a person chose has MIN_SECRET characters at least; scrypt makes guesses of
  it expensive (`envelope`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mooring.errors import ConfigError
from mooring.secret import Secret

MIN_SECRET, MAX_SECRET = 16, 512
"""Characters. Whoever finds the secret has the key of the CA: 16 typed characters are the least that withstands guesses."""
_RANDOM_BYTES = 16
_PREFIX = "K10"
_USER = "server"
_BOOTSTRAP_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}", re.ASCII)
_PRINTABLE = re.compile(r"[\x21-\x7e]+", re.ASCII)


def generate_token(entropy: Callable[[int], bytes]) -> Secret:
    """Return a new token of 32 hexadecimal digits."""
    return Secret(entropy(_RANDOM_BYTES).hex())


def parse_token(data: bytes) -> Secret:
    """Return the secret of a server token, as a file holds it. Raises ConfigError, which does not repeat it."""
    text = data.decode("ascii", "replace").strip()
    if text.startswith(_PREFIX) and "::" in text:
        credential = text.partition("::")[2]
        user, colon, secret = credential.partition(":")
        if _BOOTSTRAP_TOKEN.fullmatch(credential) is None and (not colon or user != _USER):
            raise ConfigError("the server token must end with ::server:<secret>, or be the secret alone")
        text = secret if colon else credential
    if _BOOTSTRAP_TOKEN.fullmatch(text):
        raise ConfigError("this is a bootstrap token, with which machines join; a server needs the server token")
    if not MIN_SECRET <= len(text) <= MAX_SECRET or _PRINTABLE.fullmatch(text) is None:
        raise ConfigError(
            f"a server token is one line of {MIN_SECRET} to {MAX_SECRET} printable ASCII characters without spaces"
        )
    return Secret(text)
