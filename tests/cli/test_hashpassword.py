"""`mooring auth hash-password`, and the flags whose former names are understood."""

from __future__ import annotations

import io
import sys

import click
import pytest

from mooring.authn.keystone import KeystoneSettings
from mooring.authn.passwordhash import parse_hash
from mooring.authn.tokenfile import rows
from mooring.cli.options.declared import settings_options
from mooring.secret import Secret
from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize(
    ("data", "password"),
    [
        pytest.param(b"hunter2", b"hunter2", id="without a line end"),
        pytest.param(b"hunter2\n", b"hunter2", id="with a line end, which is not part of it"),
        pytest.param(b"hunter2\r\n", b"hunter2", id="with the line end of another system"),
        pytest.param(b' a, "b" \n', b' a, "b" ', id="nothing else is trimmed"),
        pytest.param("kůň\n".encode(), "kůň".encode(), id="with other letters"),
    ],
)
def test_what_is_printed_goes_into_the_file_as_it_is(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, data: bytes, password: bytes
) -> None:
    given(monkeypatch, data)
    printed = mooring.done("auth", "hash-password")
    assert printed.count("\n") == 1
    (row,) = rows(f"{printed.strip()},jane,42\n".encode(), "password")
    assert row.user.username == "jane"
    stored = parse_hash(row.secret.reveal().decode())
    assert stored.derive(Secret(password)) == stored.expected


def test_two_hashes_of_one_password_differ(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, b"hunter2\n")
    first = mooring.done("auth", "hash-password")
    given(monkeypatch, b"hunter2\n")
    assert mooring.done("auth", "hash-password") != first


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "the password is empty", id="nothing"),
        pytest.param(b"\n", "the password is empty", id="an empty line"),
        pytest.param(b"x" * 4097, "the password is longer than 4096 bytes; is it the right file?", id="too much"),
        pytest.param(
            b"a\0\n",
            "the password holds a zero byte, which scrypt does not tell from none; choose another",
            id="a zero byte",
        ),
        pytest.param(b"a\nb\n", "the password has more than one line; give it alone", id="two lines"),
        pytest.param(
            b"\xff\n", "the password is not UTF-8; a client would have to send exactly these bytes", id="no text"
        ),
    ],
)
def test_what_is_no_password_is_one_line_on_stderr(
    mooring: CommandLine, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    given(monkeypatch, data)
    outcome = mooring("auth", "hash-password")
    assert (outcome.code, outcome.out) == (1, "")
    assert why in outcome.err
    assert outcome.err.count("\n") == 1


def test_on_a_terminal_it_is_asked_for_without_an_echo(mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prompt(text: str, **how: object) -> str:
        asked.append((text, how["hide_input"], how["confirmation_prompt"]))
        return "hunter2"

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"")))
    monkeypatch.setattr(click, "prompt", prompt)
    assert mooring.done("auth", "hash-password").startswith('"$scrypt$ln=15,r=8,p=1$')
    assert asked == [("Password", True, True)]


def test_a_password_on_the_command_line_is_not_taken(mooring: CommandLine) -> None:
    assert mooring("auth", "hash-password", "hunter2").code == 2


@pytest.mark.parametrize(
    "flags",
    [("--keystone-url", "--keystone-ca-file"), ("--experimental-keystone-url", "--experimental-keystone-ca-file")],
)
def test_keystones_flags_have_their_former_names_too_and_help_shows_the_new_ones(flags: tuple[str, str]) -> None:
    read: dict[str, object] = {}

    def values_of(**values: object) -> None:
        read.update(values)

    command = click.command()(settings_options(KeystoneSettings.declared())(values_of))
    command.main([flags[0], "https://k", flags[1], "/ca"], standalone_mode=False)
    assert (read["keystone_url"], read["keystone_ca_file"]) == ("https://k", "/ca")
    with click.Context(command) as context:
        assert "experimental" not in command.get_help(context)
