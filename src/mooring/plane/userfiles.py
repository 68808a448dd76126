"""The files of bearer tokens and of passwords at work: followed while the server runs.

Rules kept here (docs/protocol/authentication.md; better than kube-apiserver, which reads them once):
* A file that is wrong stops the start, and is not used when it becomes wrong later: the error names the flag, the file and the
  line, never what is in it.
* What its owner should know is said each time the file is read: lines that do not count, and secrets that other users of this
  machine can read or change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from mooring.authn import verdictcache
from mooring.authn.passwordfile import authenticator as passwordfile
from mooring.authn.passwordfile.authenticator import PasswordFileAuthenticator, PasswordTable
from mooring.authn.tokenfile import authenticator as tokenfile
from mooring.authn.tokenfile.authenticator import TokenFileAuthenticator, TokenTable
from mooring.authn.verdictcache import VerdictCache
from mooring.errors import ConfigError
from mooring.plane.exposed import warn_if_exposed
from mooring.plane.reloading import Reloading
from mooring.settings.authentication import AuthenticationOptions

log = logging.getLogger("mooring.authentication")

MAX_WARNINGS = 20
"""Lines of the log for one reading; how many more there are is said."""


Entropy = Callable[[int], bytes]
Table = TypeVar("Table", TokenTable, PasswordTable)


def token_file(options: AuthenticationOptions, reloading: Reloading, entropy: Entropy) -> TokenFileAuthenticator | None:
    """Of `--token-auth-file`, which is followed from now on; None without it. Raises ConfigError."""
    if not options.token_auth_file:
        return None
    authenticator = TokenFileAuthenticator(entropy(tokenfile.KEY_BYTES))
    _follow("token-auth-file", options.token_auth_file, authenticator.read, authenticator.take, reloading)
    return authenticator


def password_file(
    options: AuthenticationOptions, reloading: Reloading, entropy: Entropy
) -> PasswordFileAuthenticator | None:
    """Likewise of `--basic-auth-file`."""
    if not options.basic_auth_file:
        return None
    remembered = VerdictCache(entropy(verdictcache.KEY_BYTES), options.cache_ttl)
    authenticator = PasswordFileAuthenticator(entropy(passwordfile.KEY_BYTES), remembered)
    _follow("basic-auth-file", options.basic_auth_file, authenticator.read, authenticator.take, reloading)
    return authenticator


def _follow(
    key: str, path: str, read: Callable[[bytes], Table], take: Callable[[Table], None], reloading: Reloading
) -> None:
    """Let `read` and `take` have what is in `path`, the value of the flag `key`, now and after each change. Raises ConfigError."""

    def prepare(data: bytes) -> Callable[[], None]:
        try:
            table = read(data)
        except ConfigError as error:
            raise ConfigError(f"{key}: {path}: {error}") from None
        return partial(apply, table)

    def apply(table: Table) -> None:
        take(table)
        for warning in table.warnings[:MAX_WARNINGS]:
            log.warning("%s: %s: %s", key, path, warning)
        if len(table.warnings) > MAX_WARNINGS:
            log.warning("%s: %s: %d more warnings", key, path, len(table.warnings) - MAX_WARNINGS)
        warn_if_exposed(Path(path))

    reloading.add_long(path, prepare)
