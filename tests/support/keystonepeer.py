"""Two Keystones over TLS with the same users: a simulated one, always available, and the real one, where it is installed.

Rules kept here: the simulated one answers POST /v3/auth/tokens with the statuses, headers and bodies observed from Keystone 30.0.0,
and with 400 for a body that its schema rejects. `python -m tests.keystone` installs the real one in an environment of its own
(`.keystone`, or the directory in MOORING_TEST_KEYSTONE); it runs on SQLite, in a process of its own. Readiness is polled.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mooring.server.transport.http import Request, Response
from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import serving

USERS: Mapping[tuple[str, str], str] = {
    ("jane", "Default"): "hunter2",
    ("jane", "people"): "other",
    ("jane@people", "Default"): "third",
    ("žofie", "people"): 'pa:ss"wörd ',
    ("system:admin", "Default"): "fourth",
    ("gone", "Default"): "fifth",
    ("careful", "Default"): "sixth",
}
"""(name, domain) → password."""
DISABLED = ("gone", "Default")
TWO_FACTORS = ("careful", "Default")
HOME = Path(os.environ.get("MOORING_TEST_KEYSTONE") or Path(__file__).parents[2] / ".keystone")
"""Environment of the real Keystone."""
START_SECONDS = 90.0
ADMIN = "keystone-administrator"


class Keystone(Protocol):
    """The part of both Keystones that tests use."""

    url: str
    ca_file: Path

    def user_id(self, name: str, domain: str) -> str:
        """Return the id of one of USERS."""


@dataclass
class SimulatedKeystone:
    """The simulated Keystone. `override`: the response to every request. `requests`: bodies received."""

    ca_file: Path
    url: str = ""
    override: Response | None = None
    requests: list[Any] = field(default_factory=list)

    def user_id(self, name: str, domain: str) -> str:
        return f"{name.encode().hex():0>32}"

    async def __call__(self, request: Request) -> Response:
        await request.load()
        body = await request.body()
        if self.override is not None:
            self.requests.append(json.loads(body))
            return self.override
        if request.path != "/v3/auth/tokens":
            return self.refused(404, "Not Found")
        assert (request.method, request.query_string) == ("POST", b"nocatalog")
        try:
            message = json.loads(body)
            self.requests.append(message)
            assert message["auth"]["identity"]["methods"] == ["password"]
            assert message["auth"]["scope"] == "unscoped"
            user = message["auth"]["identity"]["password"]["user"]
            name, domain, password = user["name"], user["domain"]["name"], user["password"]
        except (ValueError, KeyError, TypeError):
            return self.refused(400, "Bad Request")
        if (name, domain) == DISABLED or USERS.get((name, domain)) != password:
            return self.refused(401, "Unauthorized")
        if (name, domain) == TWO_FACTORS:
            receipt = (b"openstack-auth-receipt", b"gAAAAAB" + secrets.token_urlsafe(100).encode())
            rules = [["password", "totp"]]
            return _answer(401, {"receipt": {"methods": ["password"]}, "required_auth_methods": rules}, receipt)
        return self.token(name, domain)

    def token(self, name: str, domain: str) -> Response:
        place = {"id": "default" if domain == "Default" else secrets.token_hex(16), "name": domain}
        user = {"domain": place, "id": self.user_id(name, domain), "name": name, "password_expires_at": None}
        audit_ids = [secrets.token_urlsafe(16)]
        times = {"expires_at": "2026-11-21T10:22:41.000000Z", "issued_at": "2026-11-21T09:22:41.000000Z"}
        token = {"methods": ["password"], "user": user, "audit_ids": audit_ids, **times}
        subject = (b"x-subject-token", b"gAAAAAB" + secrets.token_urlsafe(120).encode())
        return _answer(201, {"token": token}, subject, (b"vary", b"X-Auth-Token"))

    def refused(self, status: int, title: str) -> Response:
        error = {"code": status, "message": "The request you have made requires authentication.", "title": title}
        challenge = (b"www-authenticate", f'Keystone uri="{self.url}/v3"'.encode())
        return _answer(status, {"error": error}, *([challenge] if status == 401 else []))


def _answer(status: int, body: Any, *headers: tuple[bytes, bytes]) -> Response:
    return Response(status, json.dumps(body).encode(), ((b"content-type", b"application/json"), *headers))


@contextmanager
def simulated(directory: Path) -> Iterator[SimulatedKeystone]:
    ca = ThrowawayCA("keystone")
    path = directory / "keystone-ca.crt"
    path.write_bytes(ca.certificate_pem)
    peer = SimulatedKeystone(path)
    with serving(ca, peer) as served:
        peer.url = f"https://localhost:{served.port}"
        yield peer


CONFIGURATION = """
[database]
connection = sqlite:///{directory}/keystone.db
[fernet_tokens]
key_repository = {directory}/keys
[fernet_receipts]
key_repository = {directory}/keys
[credential]
key_repository = {directory}/keys
[cache]
enabled = false
[auth]
methods = password,token,totp
[identity]
password_hash_rounds = 4
"""
PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
port, certificate, key = sys.argv[1:]
del sys.argv[1:]
import werkzeug.serving
from keystone.server.wsgi import initialize_public_application
application = initialize_public_application()
werkzeug.serving.make_server("localhost", int(port), application, threaded=True, ssl_context=(certificate, key)).serve_forever()
"""


@dataclass
class RealKeystone:
    """The real Keystone, with USERS."""

    directory: Path
    ca_file: Path
    url: str
    process: subprocess.Popen[bytes] = field(repr=False)
    token: str = field(default="", repr=False)
    ids: dict[tuple[str, str], str] = field(default_factory=dict)

    def user_id(self, name: str, domain: str) -> str:
        return self.ids[name, domain]

    def call(self, method: str, path: str, body: Any = None) -> tuple[Any, str]:
        """Return the response's body and its subject token; sends the administrator's token once there is one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **({"x-auth-token": self.token} if self.token else {})}
        request = urllib.request.Request(f"{self.url}/v3{path}", data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return json.load(answer), answer.headers.get("x-subject-token", "")

    def begin(self) -> None:
        """Wait until it is ready, then create the users."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.call("GET", "")
                break
            except (OSError, urllib.error.URLError):
                assert self.process.poll() is None, (self.directory / "keystone.log").read_text()[-4000:]
                assert time.monotonic() < deadline
                time.sleep(0.05)
        administrator = {"name": "admin", "domain": {"name": "Default"}, "password": ADMIN}
        identity = {"methods": ["password"], "password": {"user": administrator}}
        _, self.token = self.call(
            "POST", "/auth/tokens", {"auth": {"identity": identity, "scope": {"system": {"all": True}}}}
        )
        domains = {"Default": "default"}
        for name, domain in USERS:
            if domain not in domains:
                domains[domain] = self.call("POST", "/domains", {"domain": {"name": domain}})[0]["domain"]["id"]
            user = {
                "name": name,
                "domain_id": domains[domain],
                "password": USERS[name, domain],
                "enabled": (name, domain) != DISABLED,
                "options": {
                    "multi_factor_auth_enabled": (name, domain) == TWO_FACTORS,
                    "multi_factor_auth_rules": [["password", "totp"]],
                },
            }
            self.ids[name, domain] = self.call("POST", "/users", {"user": user})[0]["user"]["id"]


@contextmanager
def real(directory: Path) -> Iterator[RealKeystone]:
    """Run the real Keystone; `HOME` must exist."""
    ca, port = ThrowawayCA("keystone"), free_port()
    (directory / "keystone-ca.crt").write_bytes(ca.certificate_pem)
    (directory / "etc").mkdir()
    (directory / "etc/keystone.conf").write_text(CONFIGURATION.format(directory=directory))
    (directory / "keys").mkdir(mode=0o700)
    for number in range(2):
        (directory / f"keys/{number}").write_bytes(base64.urlsafe_b64encode(secrets.token_bytes(32)))
    environment = {**os.environ, "OS_KEYSTONE_CONFIG_DIR": str(directory / "etc"), "PYTHONWARNINGS": "ignore"}
    manage = [str(HOME / "bin/keystone-manage"), f"--config-file={directory}/etc/keystone.conf"]
    bootstrap = ("--bootstrap-password", ADMIN, "--bootstrap-region-id", "one")
    with (directory / "keystone.log").open("ab") as log:
        for command in (("db_sync",), ("bootstrap", *bootstrap)):
            subprocess.run([*manage, *command], env=environment, stdout=log, stderr=log, check=True, timeout=120)
        pair = ca.server("localhost").write(directory, "keystone")
        arguments = [str(HOME / "bin/python"), "-c", PROGRAM, str(port), *map(str, pair)]
        process = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        peer = RealKeystone(directory, directory / "keystone-ca.crt", f"https://localhost:{port}", process)
        peer.begin()
        yield peer
    finally:
        process.kill()
        process.wait()
