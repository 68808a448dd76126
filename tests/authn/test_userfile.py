"""CSV files of users.

Source: docs/protocol/authentication.md; Go's encoding/csv with its settings of kube-apiserver.
"""

from __future__ import annotations

import csv
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooring.authn.tokenfile import records, rows
from mooring.errors import ConfigError
from mooring.identity import UserInfo

QUOTED = "a field that begins with a quote must end with one, before a comma or the line's end"
BARE = "there is a quote in a field that does not begin with one; quote it whole and double it"


def read(text: str) -> list[list[str]]:
    return [fields for _, fields in records(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("", [], id="an empty file has no records"),
        pytest.param("a,b,c\n", [["a", "b", "c"]], id="a record ends with a line feed"),
        pytest.param("a,b,c", [["a", "b", "c"]], id="the last record needs none"),
        pytest.param("a,b\r\nc\r\n", [["a", "b"], ["c"]], id="a carriage return before the line feed belongs to it"),
        pytest.param("a,b\r", [["a", "b"]], id="a carriage return at the end of the file is dropped"),
        pytest.param("a\rb,c", [["a\rb", "c"]], id="a carriage return elsewhere is content"),
        pytest.param("a\r\r\n", [["a\r"]], id="of two carriage returns one belongs to the line's end"),
        pytest.param("\n\r\na\n\n\nb\n\n", [["a"], ["b"]], id="empty lines are skipped"),
        pytest.param(" \n", [[" "]], id="a line of spaces is a record"),
        pytest.param(",\n", [["", ""]], id="fields may be empty"),
        pytest.param("a,", [["a", ""]], id="a comma at the end begins an empty field"),
        pytest.param(" a , b ", [[" a ", " b "]], id="nothing is trimmed"),
        pytest.param("# a,b\n", [["# a", "b"]], id="there are no comments"),
        pytest.param("a\nb,c,d\n", [["a"], ["b", "c", "d"]], id="records may differ in length"),
        pytest.param('"a,b",c', [["a,b", "c"]], id="a comma in quotes is content"),
        pytest.param('"a""b",""', [['a"b', ""]], id="two quotes in quotes are one"),
        pytest.param('""""', [['"']], id="a quote alone"),
        pytest.param('"a\nb",c\nd', [["a\nb", "c"], ["d"]], id="a line feed in quotes is content"),
        pytest.param('"a\r\nb"\r\n', [["a\nb"]], id="a line end in quotes becomes a line feed"),
        pytest.param('"\n\n",a', [["\n\n", "a"]], id="empty lines in quotes are content"),
        pytest.param("\ufeffa,b", [["\ufeffa", "b"]], id="a byte order mark is content"),
        pytest.param("a\x00b,c", [["a\x00b", "c"]], id="a NUL is content"),
        pytest.param("a\u2028b\x0cc,d", [["a\u2028b\x0cc", "d"]], id="only a line feed ends a line"),
    ],
)  # fmt: skip
def test_records_are_read_as_go_reads_them(text: str, found: list[list[str]]) -> None:
    assert read(text) == found


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        pytest.param('a,b"c\n', 1, BARE, id="a quote within a plain field"),
        pytest.param('a\n\nb, "c"\n', 3, BARE, id="a quote after a space"),
        pytest.param('a\n"b"c,d\n', 2, QUOTED, id="something after the closing quote"),
        pytest.param('a\n"b" ,d\n', 2, QUOTED, id="a space after the closing quote"),
        pytest.param('"b"\rc\n', 1, QUOTED, id="a carriage return after the closing quote"),
        pytest.param('a\n"b\nc\n', 2, QUOTED, id="a quote that never closes"),
        pytest.param('"a\nb",c\n"', 3, QUOTED, id="a quote at the end of the file"),
        pytest.param('"a""', 1, QUOTED, id="a doubled quote at the end of the file"),
        pytest.param('"a\n\nb",c"\n', 3, BARE, id="a quote behind a field of three lines"),
    ],
)
def test_what_is_no_csv_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert str(refused.value) == f"line {line}: {why}"


def test_a_record_knows_the_line_it_begins_in() -> None:
    assert [line for line, _ in records('a\n\n"b\n\nc",d\r\n"e"\nf')] == [1, 3, 6, 7]


fields = st.text(st.sampled_from('ab ,"\n\r#é'), max_size=5)


@given(st.lists(st.lists(fields, min_size=1, max_size=4), max_size=4))
@example([[""]])
def test_what_is_quoted_comes_back(table: list[list[str]]) -> None:
    text = "".join(",".join('"' + field.replace('"', '""') + '"' for field in row) + "\n" for row in table)
    assert read(text) == [[field.replace("\r\n", "\n") for field in row] for row in table]


@given(st.text(st.sampled_from('ab,"\n'), max_size=20))
@example('a"b')
@example('"a')
@example('"a"b')
def test_where_python_and_go_agree_so_do_we(text: str) -> None:
    """Python's csv in its strict form lets quotes stand in plain fields; everything else without carriage returns is alike."""
    try:
        theirs = [row for row in csv.reader(text.splitlines(keepends=True), strict=True) if row]
    except csv.Error:
        with pytest.raises(ConfigError):
            read(text)
        return
    if any('"' in field for row in theirs for field in row) and _refused(text):
        return
    assert read(text) == theirs


def _refused(text: str) -> bool:
    try:
        read(text)
    except ConfigError as error:
        return str(error).endswith(BARE)
    return False


@given(st.binary(max_size=60) | st.text(st.sampled_from('a,"\n\r\x00é'), max_size=60).map(str.encode))
def test_whatever_a_file_holds_it_is_rows_or_one_error(data: bytes) -> None:
    with suppress(ConfigError):
        for row in rows(data, "token"):
            assert row.user.username
            assert row.line >= 1


def test_a_hostile_file_takes_linear_time() -> None:
    size = 1 << 17
    for text in ('"' * (size + 1), '"' + '""' * size + "a", '"a""' * size):
        with pytest.raises(ConfigError):
            read(text)
    assert len(read("," * size)[0]) == size + 1


@pytest.mark.parametrize(
    ("data", "user"),
    [
        pytest.param(b"t,jane,42\n", UserInfo("jane", "42"), id="three columns name no group"),
        pytest.param(b"t,jane,42,dev\n", UserInfo("jane", "42", ("dev",)), id="one group needs no quotes"),
        pytest.param(b't,jane,42,"dev,ops"\n', UserInfo("jane", "42", ("dev", "ops")), id="groups are separated by commas"),
        pytest.param(b't,jane,42,"dev, ops "\n', UserInfo("jane", "42", ("dev", " ops ")), id="groups are not trimmed"),
        pytest.param(b"t,jane,42,\n", UserInfo("jane", "42"), id="an empty name is no group"),
        pytest.param(b't,jane,42,"dev,,ops,"\n', UserInfo("jane", "42", ("dev", "ops")), id="nor is one among others"),
        pytest.param(b"t,jane,42,dev,ops\n", UserInfo("jane", "42", ("dev",)), id="a fifth column is not looked at"),
        pytest.param(b"t,jane,\n", UserInfo("jane"), id="the uid may be empty"),
        pytest.param(b"t, jane,42\n", UserInfo(" jane", "42"), id="a user name is not trimmed"),
        pytest.param("t,žofie,42\n".encode(), UserInfo("žofie", "42"), id="names are UTF-8"),
        pytest.param(
            b"t,system:admin,1,system:masters\n", UserInfo("system:admin", "1", ("system:masters",)),
            id="the operator may give any name",
        ),
    ],
)  # fmt: skip
def test_a_row_says_who_the_user_is(data: bytes, user: UserInfo) -> None:
    (row,) = rows(data, "token")
    assert (row.user, row.secret.reveal()) == (user, b"t")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"t,jane,1\nu,joe\n", "line 2: it has 2 of 3 columns; give token,user,uid", id="two columns"),
        pytest.param(b"s3cret\n", "line 1: it has 1 of 3 columns; give token,user,uid", id="one column"),
        pytest.param(b"t,,1\n", "line 1: the user has no name", id="a user without a name"),
        pytest.param(b"t,j,1\nt,\xff,1\n", "line 2: it is not UTF-8", id="bytes that are no text"),
    ],
)
def test_a_row_that_names_no_user_is_refused_with_its_line(data: bytes, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        list(rows(data, "token"))
    assert str(refused.value) == why
