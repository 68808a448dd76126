"""An authenticator for Mooring in the asynchronous form: tokens introspected at the company's login service (RFC 7662).

Copy it and change it; docs/authentication/your-own.md describes how to turn it on. It needs only packages that Mooring needs too.

Rules kept here:
* Only tokens that begin with `token-prefix` are sent to the service, because others belong to other authenticators.
* Requests go over https under the configured CA, without redirects and without proxies of the environment.
* A token is accepted when the service answers `active`, when it was issued for `audience`, and until `exp`, by the server's clock.
* Objects that need the event loop, such as a client with open connections, are made at the first call; `close` ends them.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Result, User

KEYS = frozenset({"url", "ca-file", "client-id", "client-secret-file", "token-prefix", "audience", "prefix"})
SECONDS = 2.0
MAX_ANSWER = 65_536
"""Most bytes that are read of an answer."""


class CompanyTokens:
    """One login service. `options`: all of KEYS but `prefix`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        for key in sorted(KEYS - {"prefix"}):
            if not isinstance(options.get(key), str) or not options[key]:
                raise ConfigError(f"{key}: give a text")
        if unknown := sorted(options.keys() - KEYS):
            raise ConfigError(f'"{unknown[0]}" is not known; there are {", ".join(sorted(KEYS))}')
        if not options["url"].startswith("https://"):
            raise ConfigError("url: it must begin with https://")
        try:
            self._context = ssl.create_default_context(cafile=options["ca-file"])
            self._secret = Path(options["client-secret-file"]).read_text().strip()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"ca-file or client-secret-file: {type(error).__name__}") from None
        self._options = {"prefix": "company:", **options}
        self._client: httpx2.AsyncClient | None = None

    async def authenticate(self, offered: Offered) -> Result:
        token = "" if offered.token is None else offered.token.reveal().decode("ascii", "replace")
        if not token.startswith(self._options["token-prefix"]):
            return NotMine()
        try:
            answer = await self._introspect(token)
        except httpx2.HTTPError as error:
            return Rejected("service-unreachable", type(error).__name__)
        if not isinstance(answer, dict):
            return Rejected("service-failed", "no answer that could be read")
        if answer.get("active") is not True:
            return Rejected("inactive")
        expires, audience = answer.get("exp"), answer.get("aud")
        if not isinstance(expires, int) or expires <= offered.now.timestamp():
            return Rejected("expired")
        if self._options["audience"] not in (audience if isinstance(audience, list) else [audience]):
            return Rejected("wrong-audience")
        return User(
            self._options["prefix"] + answer["sub"], groups=[self._options["prefix"] + one for one in answer["groups"]]
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _introspect(self, token: str) -> object:
        """Return the service's answer; None when it cannot be read."""
        if self._client is None:
            self._client = httpx2.AsyncClient(verify=self._context, timeout=SECONDS, trust_env=False)
        ourselves = (self._options["client-id"], self._secret)
        plain = {"accept-encoding": "identity"}
        asking = self._client.stream("POST", self._options["url"], data={"token": token}, auth=ourselves, headers=plain)
        async with asking as answer:
            body = b""
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > MAX_ANSWER:
                    return None
        try:
            document: object = json.loads(body) if answer.status_code == 200 else None
        except ValueError:
            return None
        return document
