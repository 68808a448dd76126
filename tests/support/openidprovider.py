"""A real OpenID provider over TLS, in a process of its own: oidc-provider-mock, built on Authlib and Flask.

Rules kept here: its authorization code flow issues the tokens, as for a user. It makes its signing key when it starts, so that a
restart on the same port is a rotation. Readiness is polled.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.testca import ThrowawayCA

START_SECONDS = 60.0
REDIRECT = "https://client.example/back"
PROGRAM = """
import json, sys
from datetime import timedelta
import oidc_provider_mock, werkzeug.serving
port, certificate, key, users, life = sys.argv[1:]
app = oidc_provider_mock.app(
    user_claims=[oidc_provider_mock.User(**user) for user in json.loads(users)],
    access_token_max_age=timedelta(seconds=int(life)),
)
app.debug = False
werkzeug.serving.make_server("localhost", int(port), app, threaded=True, ssl_context=(certificate, key)).serve_forever()
"""


@dataclass
class OpenIdProvider(AbstractContextManager["OpenIdProvider"]):
    """One provider; `with` runs it. `users`: sub → claims. `life`: seconds of its tokens, which may be negative."""

    ca: ThrowawayCA
    directory: Path
    users: Mapping[str, Mapping[str, Any]]
    life: int = 3600
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def issuer(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def ca_file(self) -> Path:
        path = self.directory / "provider-ca.crt"
        path.write_bytes(self.ca.certificate_pem)
        return path

    @property
    def log(self) -> str:
        """The provider's log of requests."""
        return (self.directory / "provider.log").read_text()

    def __enter__(self) -> OpenIdProvider:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> None:
        certificate, key = self.ca.server("localhost", "127.0.0.1").write(self.directory, f"provider-{self.port}")
        with (self.directory / "provider.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(certificate, key), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/jwks")
            except OSError as error:
                problem = f"the provider does not answer: {error!r}\n{self.log}"
                assert self.process.poll() is None, problem
                assert time.monotonic() < deadline, problem
                time.sleep(0.02)
            else:
                return

    def command(self, certificate: Path, key: Path) -> list[str]:
        """Return the command that runs the provider."""
        users = json.dumps([{"sub": sub, "claims": claims} for sub, claims in self.users.items()])
        place = [str(self.port), str(certificate), str(key)]
        return [sys.executable, "-c", PROGRAM, *place, users, str(self.life)]

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def rotate(self) -> None:
        """Start again, with another key."""
        self.stop()
        self.start()

    def get(self, path: str) -> Any:
        """Return a JSON document of the provider."""
        with self._open(urllib.request.Request(self.issuer + path)) as answer:
            return json.load(answer)

    def id_token(self, sub: str, client_id: str = "kubernetes", scope: str = "openid email profile") -> str:
        """Return the ID token of a login of this user at this client."""
        query = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": REDIRECT,
            "scope": scope,
            "state": "s",
        }
        form = urllib.parse.urlencode({"sub": sub}).encode()
        url = f"{self.issuer}/oauth2/authorize?{urllib.parse.urlencode(query)}"
        try:
            self._open(urllib.request.Request(url, form, method="POST")).close()
            raise AssertionError("the provider did not redirect")
        except urllib.error.HTTPError as redirect:
            with redirect:
                where = redirect.headers["location"]
        code = urllib.parse.parse_qs(urllib.parse.urlsplit(where).query)["code"][0]
        form = urllib.parse.urlencode(
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": REDIRECT,
                "client_id": client_id,
                "client_secret": "any",
            }
        ).encode()
        with self._open(urllib.request.Request(f"{self.issuer}/oauth2/token", form, method="POST")) as answer:
            token: str = json.load(answer)["id_token"]
            return token

    def _open(self, request: urllib.request.Request) -> Any:
        context = ssl.create_default_context(cadata=self.ca.certificate_pem.decode())
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({}), NoRedirect()
        )
        return opener.open(request, timeout=30)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Read redirects and follow none: no server listens at the client's address."""

    def redirect_request(self, *arguments: Any) -> None:
        return None
