"""`python -m tests.install [INTERPRETER …]`: install this tree with pip and use it, once for each interpreter.

Contract:
* Each interpreter gets a virtual environment of its own, in a folder that is deleted afterwards, and `pip install TREE` as a user
  would run it: no development requirements, no lock.
* Then the installed `mooring` serves a request with a client certificate, creates a token, serves a request with that token, joins
  a machine, serves a request with its certificate, and stops.
* Warnings that `mooring` prints are shown: they announce removals in the next version of Python.
* Only the standard library is imported, so that any interpreter can run this file itself.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TREE = Path(__file__).parents[1]
START_SECONDS = 60.0
"""Timeout of a start in seconds: the first boot under a new interpreter compiles every module."""
STEP_SECONDS = 60.0
NODE = "machine-1"


class FailedError(Exception):
    """One step failed."""


def command(*arguments: str | Path) -> str:
    """Run a command. Return its output. Raises FailedError."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise FailedError(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def show_warnings(printed: str) -> None:
    for line in printed.splitlines():
        if "Warning" in line:
            show(f"    {line}")


def run(*arguments: str | Path) -> str:
    """Run `mooring` with warnings turned on. Return its output. Raises FailedError."""
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=STEP_SECONDS, check=False, env=environment()
    )
    show_warnings(done.stderr)
    if done.returncode:
        raise FailedError(f"mooring {arguments[1]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONWARNINGS": "default"}


def get(url: str, context: ssl.SSLContext, token: str = "") -> Any:
    """Send one authenticated GET. Return its JSON. Raises OSError."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, context=context, timeout=10) as response:
        return json.load(response)


def wait_until_found(url: str, context: ssl.SSLContext, key: str) -> None:
    """Poll until the `data` of the object at `url` has `key`. Raises FailedError."""
    deadline = time.monotonic() + STEP_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if key in get(url, context)["data"]:
                return
        time.sleep(0.05)
    raise FailedError(f"{key} did not appear")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(mooring: Path, data: Path, port: int) -> Iterator[None]:
    """Run `mooring up` until the end of the block. Raises FailedError unless it starts, and stops with exit code 0."""
    log = data.parent / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [mooring, "up", "--data-dir", data, "--bind-address", "127.0.0.1", "--secure-port", str(port)],
            stdout=output, stderr=output, env=environment(),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(data / "pki" / "ca.crt", port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise FailedError(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield
        process.send_signal(signal.SIGTERM)
        if process.wait(STEP_SECONDS):
            raise FailedError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        show_warnings(log.read_text())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def is_ready(authority: Path, port: int) -> bool:
    if not authority.exists():
        return False
    context = ssl.create_default_context(cafile=str(authority))
    with contextlib.suppress(OSError), urllib.request.urlopen(
        f"https://127.0.0.1:{port}/readyz", context=context, timeout=5
    ) as response:  # fmt: skip
        return bool(response.status == 200)
    return False


def use(mooring: Path, folder: Path) -> None:
    """Do the main job with the installed program. Raises FailedError, OSError."""
    data, root, port = folder / "data", folder / "machine", free_port()
    url = f"https://127.0.0.1:{port}"
    with server(mooring, data, port):
        administrator = ssl.create_default_context(cafile=str(data / "pki" / "ca.crt"))
        pem = folder / "administrator.pem"
        kubeconfig = (data / "admin.conf").read_text()
        pem.touch(mode=0o600)
        for key in ("client-certificate-data", "client-key-data"):
            found = re.search(rf"{key}: (\S+)", kubeconfig)
            if found is None:
                raise FailedError(f"admin.conf has no {key}")
            with pem.open("ab") as output:
                output.write(base64.b64decode(found[1]))
        administrator.load_cert_chain(pem)
        get(f"{url}/api/v1/namespaces/kube-system/secrets", administrator)

        line = run(mooring, "token", "create", "--print-join-command", "--kubeconfig", data / "admin.conf")
        found = re.search(r"--token (\S+) .*(sha256:[0-9a-f]{64})", line)
        if found is None:
            raise FailedError("`mooring token create` printed no join command")
        token, pin = found.groups()
        signature = f"jws-kubeconfig-{token.partition('.')[0]}"
        wait_until_found(f"{url}/api/v1/namespaces/kube-public/configmaps/cluster-info", administrator, signature)
        anonymous = ssl.create_default_context(cafile=str(data / "pki" / "ca.crt"))
        get(f"{url}/apis/certificates.k8s.io/v1/certificatesigningrequests?limit=1", anonymous, token)

        run(
            mooring, "join", f"127.0.0.1:{port}", "--token", token, "--discovery-token-ca-cert-hash", pin,
            "--node-name", NODE, "--root", root,
        )  # fmt: skip
        machine = ssl.create_default_context(cafile=str(root / "etc/kubernetes/pki/ca.crt"))
        machine.load_cert_chain(root / "var/lib/kubelet/pki/kubelet-client-current.pem")
        node = get(f"{url}/api/v1/nodes/{NODE}", machine)
        if node["metadata"]["name"] != NODE:
            raise FailedError("the machine was given another Node")


def install(interpreter: str, tree: Path, folder: Path) -> Path:
    """Install the tree in a new virtual environment. Return the program. Raises FailedError."""
    prefix = folder / "venv"
    command(interpreter, "-m", "venv", prefix)
    python = prefix / "bin" / "python"
    command(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", tree)
    command(python, "-m", "pip", "check", "--disable-pip-version-check")
    return prefix / "bin" / "mooring"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.install", description=__doc__)
    parser.add_argument("interpreters", nargs="*", default=[sys.executable], metavar="INTERPRETER")
    parser.add_argument("--extras", default="", help="extras to install with it, as in `cel`")
    options = parser.parse_args()
    tree = Path(f"{TREE}[{options.extras}]") if options.extras else TREE
    failed = 0
    for interpreter in options.interpreters:
        version = command(interpreter, "--version").strip()
        with tempfile.TemporaryDirectory(prefix="mooring-install-") as folder:
            try:
                start = time.monotonic()
                mooring = install(interpreter, tree, Path(folder))
                installed = time.monotonic()
                use(mooring, Path(folder))
            except (FailedError, OSError, subprocess.TimeoutExpired) as error:
                failed += 1
                show(f"{version}: failed: {error}")
            else:
                show(f"{version}: installed in {installed - start:.1f} s, used in {time.monotonic() - installed:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
