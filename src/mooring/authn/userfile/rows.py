"""Rows of the CSV files that name users: a secret, a user name, a uid, and perhaps groups.

Rules kept here (docs/protocol/authentication.md#token-file; RFC 4180 as Go's encoding/csv reads it, so that files of
kube-apiserver have the same meaning):
1. Fields are separated by commas and not trimmed. Records end with a line feed, with or without a carriage return before it.
   Empty lines are skipped. There are no comments, and records may differ in their number of columns.
2. A field that begins with a quote ends with one. Inside, two quotes are one, and commas and line ends are content. A quote in a
   field that does not begin with one is an error, and so is text between the closing quote and the comma.
3. There are three columns at least. The fourth holds groups, separated by commas and not trimmed. Further columns are ignored,
   with a warning. A heading is a user, with a warning.
4. Stricter than kube-apiserver: the file is UTF-8, a user has a name, and an empty name is not a group.
5. An error names the line and none of its content: with a column too many or too few, a secret stands in the place of a name.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mooring.errors import ConfigError
from mooring.identity import UserInfo
from mooring.secret import Secret

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
