"""Processor time of commands, and the memory of an agent that has nothing to do.

Rules kept here: processor time, because a command that waits for a server does not cost its machine anything. The byte code of the
modules is there, as it is after an installation.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.servers import bootstrap_token, poll, server

TOKEN = "abcdef.0123456789abcdef"  # token of a temporary server on loopback
IDLE_SECONDS = 5.0
"""Seconds after its registration in which an agent reaches the memory that it keeps."""


def rows(folder: Path, runs: int, say: Callable[[str], None]) -> Iterator[tuple[str, str, str]]:
    """Yield the work, the wanted figure and Mooring's."""
    with server(folder / "data") as running:
        running.request("POST", "/api/v1/namespaces/kube-system/secrets", bootstrap_token(*TOKEN.split(".")))
        kubeconfig = ("--kubeconfig", str(running.data / "admin.conf"))
        for wanted, arguments in (
            ("≤ 100 ms", ("--version",)),
            ("≤ 150 ms", ("token", "generate")),
            ("≤ 250 ms", ("token", "list", *kubeconfig)),
            ("", ("csr", "list", *kubeconfig)),
        ):
            name = " ".join(("mooring", *(word for word in arguments if word not in kubeconfig)))
            say(name)
            figures = [_processor_seconds(arguments) for _ in range(max(5, runs))]
            yield f"{name}, processor time", wanted, f"{statistics.median(figures) * 1000:.0f} ms"
        say("an idle agent")
        join = ("agent", running.url, "--token", TOKEN, "--discovery-token-unsafe-skip-ca-verification")
        machine = ("--node-name", "bench", "--root", str(folder / "machine"), "--register-node", "ready")
        with (folder / "agent.log").open("wb") as log:
            agent = subprocess.Popen([sys.executable, "-m", "mooring", *join, *machine], stdout=log, stderr=log)
        try:
            is_ready = lambda: bool(_heartbeats(running.request("GET", "/apis/coordination.k8s.io/v1/leases")))  # noqa: E731 - one use
            poll(is_ready, "the first heartbeat of the agent")
            time.sleep(IDLE_SECONDS)
            yield "memory of an idle agent", "≤ 35 MiB", f"{_memory(agent.pid):.0f} MiB"
        finally:
            agent.terminate()
            agent.wait(20)


def _processor_seconds(arguments: tuple[str, ...]) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "mooring", *arguments], check=True, capture_output=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def _heartbeats(leases: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [one["metadata"]["name"] for one in leases["items"] if one["metadata"]["name"] == "bench"]


def _memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
