"""A second real OpenID provider, independent of the first: oidc-provider on Node, which is certified.

Rules kept here: it signs with any algorithm, names its keys (`kid`, `use`, `alg`), and its login has several steps with
cookies. WHY is the reason to skip where Node or its packages are missing; `.ci/run` installs them beside
`tests/support/node/provider.mjs`.
"""

from __future__ import annotations

import base64
import http.cookiejar
import json
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.support.openidprovider import REDIRECT, NoRedirect, OpenIdProvider

FOLDER = Path(__file__).parent / "node"
WHY = (
    "there is no node"
    if shutil.which("node") is None
    else ""
    if (FOLDER / "node_modules").is_dir()
    else "its packages are not installed: npm ci in tests/support/node"
)


@dataclass
class NodeProvider(OpenIdProvider):
    """One provider; it signs with `algorithm`."""

    algorithm: str = "ES256"

    def command(self, certificate: Path, key: Path) -> list[str]:
        program = str(FOLDER / "provider.mjs")
        return ["node", program, str(self.port), str(certificate), str(key), self.algorithm, json.dumps(self.users)]

    def id_token(self, sub: str, client_id: str = "kubernetes", scope: str = "openid") -> str:
        query = {
            "client_id": client_id,
            "response_type": "code",
            "redirect_uri": REDIRECT,
            "scope": scope,
            "state": "s",
        }
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=self.ca.certificate_pem.decode())),
            urllib.request.ProxyHandler({}),
            NoRedirect(),
            cookies,
        )

        def led_to(url: str, form: dict[str, str] | None = None) -> str:
            data = None if form is None else urllib.parse.urlencode(form).encode()
            try:
                opener.open(urllib.request.Request(urllib.parse.urljoin(self.issuer, url), data), timeout=30).close()
            except urllib.error.HTTPError as redirect:
                with redirect:
                    return str(redirect.headers["location"])
            raise AssertionError("the provider did not redirect")

        where = led_to(f"/auth?{urllib.parse.urlencode(query)}")
        for form in ({"prompt": "login", "login": sub, "password": "any"}, {"prompt": "consent"}):
            where = led_to(led_to(where, form))
        code = urllib.parse.parse_qs(urllib.parse.urlsplit(where).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT}
        basic = base64.b64encode(f"{client_id}:any".encode()).decode()
        request = urllib.request.Request(
            f"{self.issuer}/token", urllib.parse.urlencode(form).encode(), {"authorization": f"Basic {basic}"}
        )
        with opener.open(request, timeout=30) as answer:
            token: str = json.load(answer)["id_token"]
            return token
