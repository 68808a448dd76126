"""Join lines in a shell: each address arrives as it is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mooring.cli.join.join import join
from mooring.cli.joinline import agent_line, join_line
from tests.support.rows import each_row

ENDPOINTS = ("192.0.2.1:6443", "[fd00::1]:6443", "cp.example:443")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(
            join_line("mooring", ENDPOINTS, "a.b", ["sha256:1"]),
            ["mooring", "join", *ENDPOINTS, "--token", "a.b", "--discovery-token-ca-cert-hash", "sha256:1"],
            id="kubeadm's way",
        ),
        pytest.param(
            agent_line("mooring", ENDPOINTS, "K10a::b"),
            [
                "mooring",
                "agent",
                *(word for one in ENDPOINTS for word in ("--server", f"https://{one}")),
                "--token",
                "K10a::b",
            ],
            id="k3s's way",
        ),
    ],
)
def test_a_shell_reads_the_line_as_it_is_meant(line: str, words: list[str], tmp_path: Path) -> None:
    for name in ("f:6443", "https:/f:6443"):  # files that brackets of an address match as a pattern
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    shown = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines() == words


LINE = join_line("mooring", ("192.0.2.1:6443",), "abcdef.0123456789abcdef", ["sha256:" + "0123456789abcdef" * 4])


MISSING = (
    "give an API server address with --discovery-token|requires an argument|No such option|must be host",
    "characters behind|requires an argument",
    "without --discovery-token-ca-cert-hash|requires an argument|No such option|ambiguous|must be host",
    "--discovery-token-ca-cert-hash: |requires an argument",
)
"""Words of the error for a line that ends before the token, in it, before the pin, and in it."""


@each_row("length", range(len("mooring join"), len(LINE)), lambda length: LINE[:length])
def test_every_beginning_of_a_join_line_is_refused_before_a_request(length: int, tmp_path: Path) -> None:
    """A line that was cut while it was copied lacks the token, the pin or a part of one. Exit code 2: no request was sent."""
    begun = LINE[:length]
    outcome = CliRunner().invoke(join, ["--root", str(tmp_path), *begun.split()[2:]], env={})
    assert outcome.exit_code == 2
    place = sum(length > LINE.index(text) + len(text) - 1 for text in (" --token", "abcdef.0123456789abcdef", "-hash"))
    assert re.search(MISSING[place], outcome.output), outcome.output
