"""One Mooring server process to measure, with the times of its start."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.ports import free_port


@dataclass
class Server:
    """One running server, with its address, data directory and times of its start in seconds."""

    url: str
    data: Path
    process: subprocess.Popen[bytes]
    ready_seconds: float
    acting_seconds: float

    @property
    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]  # the kernel always has this line

    def request(self, method: str, path: str, body: Any = None) -> Any:
        context = ssl.create_default_context(cafile=str(self.data / "pki" / "ca.crt"))
        context.load_cert_chain(self.data / "admin.crt", self.data / "admin.key")
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=context) as response:
            return json.load(response)


def poll(passes: Callable[[], bool], what: str, seconds: float = 30.0) -> float:
    """Wait until `passes` is true, and return the seconds that it took. Raises SystemExit."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        with contextlib.suppress(OSError):
            if passes():
                return time.monotonic() - start
        time.sleep(0.002)
    raise SystemExit(f"{what} did not happen within {seconds:.0f} s")


@contextlib.contextmanager
def server(data: Path, *flags: str, within: float = 30.0) -> Iterator[Server]:
    """Run `mooring server` on a data directory, timed from launch. It must be ready `within` seconds."""
    port = free_port()
    command = [sys.executable, "-m", "mooring", "server", "--data-dir", str(data), "--bind-address", "127.0.0.1"]
    with (data.parent / "server.log").open("ab") as output:
        process = subprocess.Popen([*command, "--secure-port", str(port), *flags], stdout=output, stderr=output)
    url = f"https://127.0.0.1:{port}"
    insecure = ssl.create_default_context()
    insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE

    def is_ready() -> bool:
        with urllib.request.urlopen(url + "/readyz", context=insecure) as response:
            return bool(response.status == 200)

    try:
        ready = poll(is_ready, "/readyz", within)
        text = (data / "admin.conf").read_text()
        for key, name in (("client-certificate-data", "admin.crt"), ("client-key-data", "admin.key")):
            found = re.search(rf"{key}: (\S+)", text)
            assert found is not None
            (data / name).write_bytes(base64.b64decode(found[1]))
        running = Server(url, data, process, ready, 0.0)

        def acting() -> bool:
            accounts = running.request("GET", "/api/v1/namespaces/default/serviceaccounts")["items"]
            return any(account["metadata"]["name"] == "default" for account in accounts)

        running.acting_seconds = ready + poll(acting, "the default ServiceAccount")
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def bootstrap_token(token_id: str, secret: str) -> dict[str, Any]:
    """Return the Secret of a token with which machines join."""
    return {
        "metadata": {"name": f"bootstrap-token-{token_id}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": token_id,
            "token-secret": secret,
            "usage-bootstrap-signing": "true",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        },
    }
