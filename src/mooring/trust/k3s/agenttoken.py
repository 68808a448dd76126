"""Agent token: the password with which agents join, when it is not the server token.

Rules kept here:
* It is one line of printable characters in the grammar of k3s (`mooring.trust.k3s.token`). Its password alone counts.
* The user is `node`, or none. A bootstrap token is refused: it has a Secret of its own, and an end.
* It is as long as a server token at least: nothing but the limit on guesses protects it. `--allow-short-server-token` accepts a
  shorter one, too.
"""

from __future__ import annotations

import re

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.k3s.token import NODE, TokenFormatError, parse_token

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
