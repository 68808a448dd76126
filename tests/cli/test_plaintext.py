"""Printable form of untrusted text, on a terminal and in the log."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring import cli
from mooring.cli import printing, serverlogs
from mooring.cli.main import MAX_ERROR, run
from mooring.cli.printing import clean

SOURCES = Path(cli.__file__).parent
EVIL = "csr\n2026-01-02T03:04:05Z ERROR mooring.x forged\r\x1b[2J\x9b31m\u202egnp.exe\u2028\x07\x00\x7f"
SHOWN = r"csr\n2026-01-02T03:04:05Z ERROR mooring.x forged\r\x1b[2J\x9b31m\u202egnp.exe\u2028\x07\x00\x7f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("", ""),
        ("é 漢 🙂", "é 漢 🙂"),
        ("a\tb", r"a\tb"),
        (EVIL, SHOWN),
        ("\u2066x\u2069\u200b\ufeff", r"\u2066x\u2069\u200b\ufeff"),
        ("\udc80", r"\udc80"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_what_is_not_printable_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text())
def test_what_a_stranger_wrote_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
    assert clean(text, 3).isprintable()
    assert clean(clean(text)) == clean(text)


def test_a_text_that_is_cut_says_how_much_is_missing() -> None:
    assert clean("abcdef", 3) == "abc... (3 more characters)"
    assert clean("abc", 3) == "abc"


def record(text: object, *arguments: object, failure: BaseException | None = None) -> logging.LogRecord:
    info = None if failure is None else (type(failure), failure, failure.__traceback__)
    made = logging.LogRecord("mooring.x", logging.ERROR, "", 0, text, arguments, info)
    made.created = 0.0
    return made


@pytest.mark.parametrize("formatter", [serverlogs.PlainFormatter(), serverlogs.LineFormatter()])
def test_a_record_is_one_line_whatever_its_arguments_hold(formatter: logging.Formatter) -> None:
    (line,) = formatter.format(record("refused %s", EVIL)).splitlines()
    assert line.endswith("refused " + SHOWN)
    assert line.isprintable()


def test_a_terminal_gets_no_escape_but_the_colour() -> None:
    text = serverlogs.TerminalFormatter().format(record("refused %s", EVIL))
    assert text.startswith("\x1b[31m")
    assert text.endswith("\x1b[0m")
    assert text.count("\x1b") == 2
    assert "\n" not in text


def test_a_long_record_is_cut() -> None:
    line = serverlogs.PlainFormatter().format(record("x" * 100_000))
    assert len(line) < serverlogs.MAX_LINE + 100
    assert line.endswith("more characters)")


def test_no_line_of_a_traceback_begins_like_a_record() -> None:
    try:
        raise ValueError(EVIL + "\nTraceback of another\n2026-01-02T03:04:05Z INFO mooring.x forged")
    except ValueError as error:
        text = serverlogs.PlainFormatter().format(record("unexpected", failure=error))
    first, *rest = text.split("\n")
    assert first == "1970-01-01T00:00:00Z ERROR mooring.x unexpected"
    assert len(rest) > 3
    assert all(line.startswith(serverlogs.CONTINUED) and line.isprintable() for line in rest)
    assert any("ValueError" in line for line in rest)


def test_a_traceback_keeps_its_end() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("\n".join(["line"] * 300) + "\nthe end " + "x" * 5000)

    try:
        deep(0)
    except ValueError as error:
        lines = serverlogs.PlainFormatter().format(record("unexpected", failure=error)).split("\n")
    assert len(lines) == serverlogs.MAX_TRACEBACK + 2
    assert "lines left out" in lines[1]
    assert lines[-1].startswith(f"{serverlogs.CONTINUED}the end xxx")
    assert max(map(len, lines)) < serverlogs.MAX_LINE + 100


def test_a_stack_and_a_text_of_an_exception_are_cleaned_too() -> None:
    made = record("here")
    made.stack_info = f"Stack\n{EVIL}"
    assert "\x1b" not in serverlogs.PlainFormatter().format(made)
    made.exc_text = "Traceback"
    lines = serverlogs.PlainFormatter().format(made).split("\n")
    assert lines[1:3] == ["  | Traceback", "  | Stack"]


def test_a_key_in_a_traceback_is_cut_out_whole() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----"
    try:
        raise ValueError(key)
    except ValueError as error:
        text = serverlogs.PlainFormatter().format(record("with %s", key, failure=error))
    assert "MIGH" not in text


def test_every_handler_that_commands_set_up_formats_lines() -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("mooring").level
    try:
        serverlogs.configure()
        assert all(isinstance(handler.formatter, serverlogs.LineFormatter) for handler in root.handlers)
    finally:
        root.handlers[:], level, ours = before
        root.setLevel(level)
        logging.getLogger("mooring").setLevel(ours)


def test_what_commands_print_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    printing.echo(EVIL, "second")
    printing.echo()
    printing.echo(EVIL, err=True)
    printing.print_table(("NAME", "AGE"), [(EVIL, "1d"), ("y" * 5000, "2d")])
    printed = capsys.readouterr()
    lines = printed.out.split("\n")
    assert lines[:3] == [SHOWN, "second", ""]
    assert printed.err == SHOWN + "\n"
    assert max(map(len, lines)) < printing.MAX_CELL + 100
    assert all(line.isprintable() for line in lines)


def test_an_error_is_one_bounded_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "create", "--kubeconfig", "/nowhere/" + EVIL.replace("\x00", "") + "x" * 9000]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert len(line) < MAX_ERROR + 100


def test_commands_print_through_one_function_only() -> None:
    """`echo` cleans what it prints; `main` prints help of its own, and errors that it cleans."""
    printing = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "click.echo",
                "click.secho",
                "print",
                "sys.stdout.write",
            }:
                printing.add(path.name)
    assert printing == {"main.py", "printing.py"}
