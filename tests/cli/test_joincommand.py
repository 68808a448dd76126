"""Join lines in a shell: each address arrives as it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mooring.cli.join.joincommand import agent_line, join_line

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
