"""Tokens in a file, and the rows of such files."""

from __future__ import annotations

import codecs
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from mooring.api.view import Views
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.secret import Secret
from mooring.settings.declaration import Settings, file_setting

# Rows of the CSV files that name users: a secret, a user name, a uid, and perhaps groups.
#
# Rules kept here (docs/protocol/authentication.md#token-file; RFC 4180 as Go's encoding/csv reads it, so that files of
# kube-apiserver have the same meaning):
# 1. Fields are separated by commas and not trimmed. Records end with a line feed, with or without a carriage return before it.
#    Empty lines are skipped. There are no comments, and records may differ in their number of columns.
# 2. A field that begins with a quote ends with one. Inside, two quotes are one, and commas and line ends are content. A quote in
#    a field that does not begin with one is an error, and so is text between the closing quote and the comma.
# 3. There are three columns at least. The fourth holds groups, separated by commas and not trimmed. Further columns are ignored,
#    with a warning. A heading is a user, with a warning.
# 4. Stricter than kube-apiserver: the file is UTF-8, a user has a name, and an empty name is not a group.
# 5. An error names the line and none of its content: with a column too many or too few, a secret stands in the place of a name.

COLUMNS = 3
_GROUPS = "group,group"
_PLAIN = re.compile(r'[^,\n"]*+')
_QUOTED = re.compile(r'"([^"]*+(?:""[^"]*+)*+)"(?=[,\n]|\Z)')


@dataclass(frozen=True, slots=True)
class UserRow:
    """One user and its secret. `line` is the line where the row begins, from 1."""

    line: int
    secret: Secret
    user: UserInfo
    warning: str = ""
    """Warning about a row that its owner may have meant otherwise; "" for a usual row."""


def rows(data: bytes, what: str) -> Iterator[UserRow]:
    """Return the rows of a file whose first column is `what`. Raises ConfigError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"line {line}: it is not UTF-8") from None
    for line, fields in records(text):
        if len(fields) < COLUMNS:
            raise ConfigError(f"line {line}: it has {len(fields)} of {COLUMNS} columns; give {what},user,uid")
        if not fields[1]:
            raise ConfigError(f"line {line}: the user has no name")
        groups = tuple(group for group in fields[3].split(",") if group) if len(fields) > COLUMNS else ()
        yield UserRow(line, Secret(fields[0]), UserInfo(fields[1], fields[2], groups), _warning(line, fields, what))


def warn_of_form(data: bytes, what: str) -> list[str]:
    """Return warnings for what kube-apiserver, too, reads as content: a byte order mark, and line ends of old Macs."""
    found = []
    if data.startswith(codecs.BOM_UTF8):
        found.append(
            f"line 1: the file begins with a byte order mark, which is part of the first {what}; save it without one"
        )
    if data.rstrip(b"\r").replace(b"\r\n", b"").count(b"\r"):
        found.append("a carriage return alone ends no line; save the file with line feeds")
    return found


def _warning(line: int, fields: list[str], what: str) -> str:
    if len(fields) > COLUMNS + 1:
        return f'line {line}: columns after the fourth are ignored; several groups stand in one: "{_GROUPS}"'
    if [one.strip().lower() for one in fields[:COLUMNS]] in ([what, "user", "uid"], [what, "username", "uid"]):
        return f'line {line}: a file has no heading: "{fields[0]}" is the {what} of {fields[1]} here; remove the line'
    return ""


def records(text: str) -> Iterator[tuple[int, list[str]]]:
    """Return the first line and the fields of each record. Raises ConfigError."""
    text = text.replace("\r\n", "\n").removesuffix("\r")
    line, place = 1, 0
    while place < len(text):
        if text[place] == "\n":
            line, place = line + 1, place + 1
            continue
        began, fields, ended = line, [], False
        while not ended:
            field, place = _field(text, place, line)
            line += field.count("\n")
            fields.append(field)
            ended = not text.startswith(",", place)
            place += 1
        line += 1
        yield began, fields


def _field(text: str, place: int, line: int) -> tuple[str, int]:
    """Return the field that begins at `place`, and its end."""
    if text.startswith('"', place):
        quoted = _QUOTED.match(text, place)
        if quoted is None:
            raise ConfigError(
                f"line {line}: a field that begins with a quote must end with one, before a comma or the line's end"
            )
        return quoted[1].replace('""', '"'), quoted.end()
    plain = _PLAIN.match(text, place)
    assert plain is not None  # it matches nothing, too
    if text.startswith('"', plain.end()):
        raise ConfigError(
            f"line {line}: there is a quote in a field that does not begin with one; quote it whole and double it"
        )
    return plain[0], plain.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFileSettings(Settings):
    """Bearer tokens from a file."""

    heading: ClassVar[str] = "Token file"

    token_auth_file: str = file_setting('CSV of bearer tokens: token,user,uid,"group,..."; read again when it changes.')


# Bearer tokens from a file.
#
# Rules kept here (docs/protocol/authentication.md#token-file; rows: `mooring.authn.tokenfile`):
# 1. An empty token is skipped, and of two rows with one token the last counts; both cause warnings.
# 2. An unknown token is not mine: another authenticator may know it.
# 3. Tokens are kept as HMAC-SHA256 under a key of this process, so that memory holds no token and the time of a lookup reveals
#    none. Known and unknown tokens cost the same: one HMAC and one comparison.
# 4. A changed file replaces all rows at once, or none when it is wrong.
# 5. The token names no audience. The groups of the file are used unchanged, `system:masters` too.

_NOT_MINE = NotMine()


@dataclass(frozen=True, slots=True)
class _Holder:
    digest: bytes
    user: UserInfo


_NOBODY = _Holder(bytes(hashlib.sha256().digest_size), UserInfo(""))


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Content of one version of the file, and warnings for its owner."""

    holders: Mapping[bytes, _Holder] = field(repr=False)
    warnings: tuple[str, ...]


class TokenFileAuthenticator:
    """Judges bearer tokens. `key`: KEY_BYTES of entropy. Without users until `replace`."""

    name = "token-file"
    judges = SECRET

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._holders: Mapping[bytes, _Holder] = {}

    def replace(self, data: bytes) -> tuple[str, ...]:
        """Use this content of the file and return warnings for its owner. After ConfigError nothing has changed."""
        table = self.read(data)
        self.take(table)
        return table.warnings

    def take(self, table: TokenTable) -> None:
        """Use content that `read` returned."""
        self._holders = table.holders

    def read(self, data: bytes) -> TokenTable:
        """Parse the content of a file. May run in a thread, because a large file takes a second. Raises ConfigError."""
        holders: dict[bytes, _Holder] = {}
        warnings = warn_of_form(data, "token")
        for row in rows(data, "token"):
            if row.warning:
                warnings.append(row.warning)
            if not row.secret:
                warnings.append(f"line {row.line}: the token is empty, the line is skipped")
                continue
            digest = self._digest(row.secret)
            if digest in holders:
                warnings.append(f"line {row.line}: the token is in a line before, too; this line counts")
            holders[digest] = _Holder(digest, row.user)
        return TokenTable(holders, tuple(warnings))

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if credentials.bearer is None:
            return _NOT_MINE
        digest = self._digest(credentials.bearer)
        holder = self._holders.get(digest, _NOBODY)
        if not hmac.compare_digest(holder.digest, digest):
            return _NOT_MINE
        return Accepted(holder.user)

    def _digest(self, token: Secret) -> bytes:
        return hmac.digest(self._key, token.reveal(), "sha256")
