"""Passwords in a file."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import ClassVar

from mooring.api.view import Views
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.passwordhash import HASH_BYTES, MIN_SALT, PREFIX, PasswordHash, parse_hash
from mooring.authn.reasons import Code
from mooring.authn.tokenfile import UserRow, rows, warn_of_form
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import VerdictCache
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.secret import Secret
from mooring.settings.declaration import Settings, file_setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordFileSettings(Settings):
    """Passwords from a file."""

    heading: ClassVar[str] = "Password file"

    basic_auth_file: str = file_setting(
        'CSV of passwords: password,user,uid,"group,..."; a password may be hashed (mooring auth hash-password). '
        "Read again when it changes."
    )


UNKNOWN_USER = Code("unknown-user")
WRONG_PASSWORD = Code("wrong-password")


# Passwords from a file, plain or hashed.
#
# Rules kept here (docs/protocol/authentication.md#removed-authenticators; rows: `mooring.authn.tokenfile`; hashes:
# `mooring.authn.passwordhash`):
# 1. The password is looked up by the user. Of two rows with one user the last counts, and a row without a password is skipped;
#    both cause warnings.
# 2. An unknown user is not mine. A wrong password of a known user is rejected, and not sent to other services.
# 3. Plain passwords are kept as HMAC-SHA256 under a key of this process, and compared in constant time.
# 4. An unknown user costs as much time as a wrong password. As soon as one password of the file is hashed, each judgement is one
#    scrypt and two comparisons, in a thread. Users without a hash get a dummy, as costly as the costliest hash of the file.
#    Hashes of different cost would reveal users by time, and cause a warning.
# 5. An acceptance after a scrypt is remembered for a while, until the file changes. A verdict under the file before is not used
#    afterwards, even by requests that still wait for it. What was accepted by a line ends when the line changes or is gone.

_NOT_MINE = NotMine()
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One user. `digest` is of the plain password; `hashed` is there instead when it is not known."""

    user: UserInfo
    digest: bytes = field(repr=False)
    hashed: PasswordHash | None
    basis: bytes = field(default=b"", repr=False)
    """Keyed hash of the line."""


_NOBODY = _Entry(UserInfo(""), _NO_DIGEST, None)


@dataclass(frozen=True, slots=True)
class PasswordTable:
    """Content of one version of the file, and warnings for its owner. `dummy` is the hash for users without one; None when no
    user has a hash.
    """

    entries: Mapping[str, _Entry] = field(repr=False)
    dummy: PasswordHash | None = None
    warnings: tuple[str, ...] = ()


class PasswordFileAuthenticator:
    """Judges passwords. `key`: KEY_BYTES of entropy. Without users until `replace`."""

    name = "password-file"
    judges = SECRET

    def __init__(self, key: bytes, remembered: VerdictCache) -> None:
        self._key = key
        self._remembered = remembered
        self._users = PasswordTable({})
        self._version = 0

    def replace(self, data: bytes) -> tuple[str, ...]:
        """Use this content of the file and return warnings for its owner. After ConfigError nothing has changed."""
        table = self.read(data)
        self.take(table)
        return table.warnings

    def take(self, table: PasswordTable) -> None:
        """Use content that `read` returned."""
        self._users = table
        self._version += 1
        self._remembered.clear()

    def read(self, data: bytes) -> PasswordTable:
        """Parse the content of a file. May run in a thread, because a large file takes a second. Raises ConfigError."""
        entries: dict[str, _Entry] = {}
        warnings = warn_of_form(data, "password")
        for row in rows(data, "password"):
            if row.warning:
                warnings.append(row.warning)
            if not row.secret:
                warnings.append(f"line {row.line}: the password is empty, the line is skipped")
                continue
            if row.user.username in entries:
                warnings.append(f"line {row.line}: the user is in a line before, too; this line counts")
            entries[row.user.username] = self._read_entry(row)
        hashes = [entry.hashed for entry in entries.values() if entry.hashed is not None]
        if len({(one.ln, one.r, one.p) for one in hashes}) > 1:
            warnings.append(
                "hashes differ in their cost: how long a refusal takes tells which users there are; hash all passwords alike"
            )
        dummy = None
        if hashes:
            most = max(hashes, key=lambda one: one.work)
            dummy = PasswordHash(most.ln, most.r, most.p, bytes(MIN_SALT), bytes(HASH_BYTES))
        return PasswordTable(entries, dummy, tuple(warnings))

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        basic, users = credentials.basic, self._users
        if basic is None or not basic.user:
            return _NOT_MINE
        entry = users.entries.get(basic.user, _NOBODY)
        if users.dummy is None:
            return _verdict(entry, hmac.compare_digest(self._digest(basic.password), entry.digest))
        place = self._remembered.place(self._version.to_bytes(8), basic.user.encode(), basic.password.reveal())
        return self._remembered.get(place, now) or Deferred(
            compute=partial(self._judge_hash, entry, entry.hashed or users.dummy, basic.password),
            key=place,
            on_verdict=partial(self._remembered.put, place),
            recognised=True,
            basis=entry.basis,
        )

    def _judge_hash(self, entry: _Entry, hashed: PasswordHash, password: Secret) -> Verdict:
        """Judge a password by its hash, in a thread (rule 4)."""
        right = hmac.compare_digest(hashed.derive(password), hashed.expected)
        right &= b"\0" not in password.reveal()  # scrypt fills passwords up with zero bytes: it takes "a\0" for "a"
        plain = hmac.compare_digest(self._digest(password), entry.digest)
        return _verdict(entry, plain if entry.hashed is None else right)

    def _digest(self, password: Secret) -> bytes:
        return hmac.digest(self._key, password.reveal(), "sha256")

    def _read_entry(self, row: UserRow) -> _Entry:
        user = row.user
        names = (one.encode() for one in (user.username, user.uid, *user.groups))
        basis = self._remembered.place(row.secret.reveal(), *names)
        if not row.secret.reveal().startswith(PREFIX.encode()):
            return _Entry(user, self._digest(row.secret), None, basis)
        try:
            return _Entry(user, _NO_DIGEST, parse_hash(row.secret.reveal().decode()), basis)
        except ConfigError as error:
            raise ConfigError(f"line {row.line}: {error}") from None


def _verdict(entry: _Entry, right: bool) -> Verdict:
    if entry is _NOBODY:
        return NotMine(UNKNOWN_USER)
    return Accepted(entry.user, basis=entry.basis) if right else Rejected(WRONG_PASSWORD, f"user {entry.user.username}")
