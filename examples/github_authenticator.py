"""An authenticator for Mooring in the asynchronous form: tokens of GitHub, or of a GitHub Enterprise Server.

Copy it and change it; docs/authentication/your-own.md describes how to turn it on. It needs only packages that Mooring needs too.

Rules kept here:
* Only strings in the form of a GitHub user's token are sent to GitHub; the verdict on others is `NotMine`.
* A token of GitHub names no audience. A user makes a personal access token (`ghp_`, `github_pat_`) and gives it to a program on
  purpose. The owner of an app has its users' tokens (`gho_`, `ghu_`) and could send them here: such a token is accepted only when
  GitHub confirms that it is of the app with `client-id`.
* Only members of one of `organizations` are users. A membership that GitHub hides, because the token lacks the scope `read:org` or
  the organization's single sign-on, does not count.
* Requests go over https, without redirects and without proxies of the environment. Answers and pages are bounded.
* Mooring caches acceptances (`cache-ttl`), this class does not.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Result, User

TEXTS = frozenset({"api", "ca-file", "prefix", "client-id", "client-secret-file"})
KNOWN = TEXTS | {"organizations"}
PERSONAL, OF_APPS, OF_MACHINES = ("ghp_", "github_pat_"), ("gho_", "ghu_"), ("ghs_", "ghr_")
FORM = re.compile(r"(gh[pousr]|github_pat)_[A-Za-z0-9_]{16,255}", re.ASCII)
SECONDS = 3.0
"""Timeout of one request in seconds. A token takes at most 2 + 2 * MAX_PAGES; `deadline` in the configuration bounds them all."""
PAGE, MAX_PAGES = 100, 5
"""Entries of a page (GitHub allows at most 100), and pages that are read: entries of a user beyond 500 are ignored."""
MAX_ANSWER = 1 << 20
"""Most bytes of one answer: a page of 100 teams has about 300 kB."""


class RefusedError(Exception):
    """GitHub rejects the token, or its answer is invalid."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.rejected = Rejected(reason, detail)


class GithubAuthenticator:
    """Authenticates at one GitHub. `options`: `organizations`, and optionally those of TEXTS."""

    schemes = ("Bearer",)

    def __init__(self, options: Mapping[str, Any]) -> None:
        if unknown := sorted(options.keys() - KNOWN):
            raise ConfigError(f'"{unknown[0]}" is not known; there are {", ".join(sorted(KNOWN))}')
        settings: dict[str, Any] = {"api": "https://api.github.com", "prefix": "github:", **options}
        for key in sorted(TEXTS & settings.keys()):
            if not isinstance(settings[key], str):
                raise ConfigError(f"{key}: give a text")
        organizations = settings.get("organizations")
        if (
            not isinstance(organizations, list)
            or not organizations
            or not all(isinstance(o, str) for o in organizations)
        ):
            raise ConfigError(
                "organizations: list those whose members are users; anybody can have an account at GitHub"
            )
        if not settings["api"].startswith("https://"):
            raise ConfigError("api: it must begin with https://")
        if bool(settings.get("client-id")) != bool(settings.get("client-secret-file")):
            raise ConfigError("client-id and client-secret-file: give both, or neither")
        self._api: str = settings["api"].rstrip("/")
        self._prefix: str = settings["prefix"]
        self._organizations = frozenset(one.lower() for one in organizations)
        self._app: tuple[str, str] | None = None
        try:
            self._context = ssl.create_default_context(cafile=settings.get("ca-file") or None)
            if settings.get("client-id"):
                self._app = settings["client-id"], Path(settings["client-secret-file"]).read_text().strip()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"ca-file or client-secret-file: {type(error).__name__}") from None
        self._client: httpx2.AsyncClient | None = None

    async def authenticate(self, offered: Offered) -> Result:
        """Judge one token. Runs in the event loop."""
        token = "" if offered.token is None else offered.token.reveal().decode("ascii", "replace")
        if not FORM.fullmatch(token):
            return NotMine()
        if token.startswith(OF_MACHINES):
            return NotMine("no-token-of-a-github-user")
        try:
            if token.startswith(OF_APPS):
                await self._check_app(token)
            return await self._user(token)
        except RefusedError as refused:
            return refused.rejected
        except httpx2.HTTPError as error:
            return Rejected("github-unreachable", type(error).__name__)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _user(self, token: str) -> Result:
        user = await self._get("/user", token)
        login, number = (user.get("login"), user.get("id")) if isinstance(user, dict) else (None, None)
        if not isinstance(login, str) or not login or not isinstance(number, int):
            raise RefusedError("github-failed", "no user in its answer")
        organizations = [one["login"] for one in await self._list("/user/orgs", token)]
        ours = [one for one in organizations if one.lower() in self._organizations]
        if not ours:
            return Rejected(
                "not-in-organization", f"{login}; GitHub tells organizations to tokens with the scope read:org"
            )
        teams = [
            f"{team['organization']['login']}/{team['slug']}"
            for team in await self._list("/user/teams", token)
            if team["organization"]["login"].lower() in self._organizations
        ]
        return User(self._prefix + login, uid=str(number), groups=[self._prefix + one for one in (*ours, *teams)])

    async def _check_app(self, token: str) -> None:
        """Raise RefusedError unless GitHub confirms that the token is of the configured app."""
        if self._app is None:
            raise RefusedError("token-of-an-app", "give client-id and client-secret-file of the app to take its tokens")
        path = f"/applications/{self._app[0]}/token"
        status, _, _ = await self._request("POST", path, auth=self._app, json={"access_token": token})
        if status != 200:
            raise RefusedError("token-of-another-app" if status in (404, 422) else "github-failed", f"status {status}")

    async def _list(self, path: str, token: str) -> list[Any]:
        found: list[Any] = []
        for page in range(1, MAX_PAGES + 1):
            more = await self._get(f"{path}?per_page={PAGE}&page={page}", token)
            if not isinstance(more, list):
                raise RefusedError("github-failed", f"no list at {path}")
            found += more
            if len(more) < PAGE:
                break
        return found

    async def _get(self, path: str, token: str) -> object:
        status, headers, body = await self._request("GET", path, headers={"authorization": f"Bearer {token}"})
        if status == 401:
            raise RefusedError("github-bad-token")
        if status == 429 or (status == 403 and headers.get("x-ratelimit-remaining") == "0"):
            raise RefusedError("github-rate-limit", "GitHub takes no more questions for a while")
        if status == 403 and path != "/user":
            return []  # the token lacks the scope for this
        if status != 200:
            raise RefusedError("github-failed", f"status {status}")
        try:
            found: object = json.loads(body)
        except ValueError:
            raise RefusedError("github-failed", "no JSON in its answer") from None
        return found

    async def _request(self, method: str, path: str, **how: Any) -> tuple[int, Mapping[str, str], bytes]:
        if self._client is None:
            self._client = httpx2.AsyncClient(verify=self._context, timeout=SECONDS, trust_env=False)
        usual = {"accept": "application/vnd.github+json", "accept-encoding": "identity", "user-agent": "mooring"}
        headers = usual | how.pop("headers", {})
        async with self._client.stream(method, self._api + path, headers=headers, **how) as answer:
            body = b""
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > MAX_ANSWER:
                    raise RefusedError("github-failed", f"more than {MAX_ANSWER} bytes at {path.partition('?')[0]}")
        return answer.status_code, answer.headers, body
