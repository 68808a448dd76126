"""The GitHub example, through the code that runs it, against a simulated GitHub over TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from examples.github_authenticator import MAX_ANSWER, MAX_PAGES, PAGE, GithubAuthenticator
from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Secret, User
from mooring.clock import SystemClock
from mooring.server.authentication.custom import CustomCalls
from tests.support.testca import ThrowawayCA

NOW = SystemClock().now()
PERSONAL = "ghp_" + "a" * 36
FINE_GRAINED = "github_pat_" + "b" * 60
OAUTH = "gho_" + "c" * 36
JANE = {"login": "Jane", "id": 42, "type": "User"}
SHIPS, ISLES = {"login": "Ships"}, {"login": "Isles"}
CAPTAINS = {"slug": "captains", "organization": SHIPS}
HERMITS = {"slug": "hermits", "organization": ISLES}
APP = {"client-id": "Iv1.mooring", "client-secret-file": "secret"}
CHECK = "POST /applications/Iv1.mooring/token"
Answer = tuple[int, Any]


class Github:
    """The part of GitHub that the example uses: answers by method and path, and records each request."""

    def __init__(self, **changed: Answer) -> None:
        names = {"user": "GET /user", "orgs": "GET /user/orgs", "teams": "GET /user/teams", "check": CHECK}
        usual: dict[str, Answer] = {
            "user": (200, JANE), "orgs": (200, [SHIPS, ISLES]), "teams": (200, [CAPTAINS, HERMITS]), "check": (200, {}),
        }  # fmt: skip
        self.answers = {names[name]: answer for name, answer in (usual | changed).items()}
        self.headers = ""
        self.asked: list[tuple[str, str]] = []
        """Requests received, each with its credential."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await self._head(reader):
            lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = lines[0].split(" ")
            path, _, query = target.partition("?")
            credential = next(line.partition(": ")[2] for line in lines if line.lower().startswith("authorization:"))
            self.asked.append((f"{method} {target}", credential))
            status, answer = self.answers.get(f"{method} {path}", (404, {}))
            if isinstance(answer, list) and len(answer) > PAGE:
                page = int(query.rpartition("=")[2])
                answer = answer[(page - 1) * PAGE : page * PAGE]
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            phrase = HTTPStatus(status).phrase
            writer.write(
                f"HTTP/1.1 {status} {phrase}\r\n{self.headers}content-length: {len(body)}\r\n\r\n".encode() + body
            )
        writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., object]:
    """Return a function that authenticates a token by the example, with a given GitHub behind it."""
    ca = ThrowawayCA("github", NOW)
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    (tmp_path / "secret").write_text("of the app\n")
    certificate, key = ca.server().write(tmp_path, "github")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    def asked(github: Github, token: str = PERSONAL, **more: Any) -> object:
        if "client-secret-file" in more:
            more["client-secret-file"] = str(tmp_path / more["client-secret-file"])

        async def run() -> object:
            server = await asyncio.start_server(github.serve, "127.0.0.1", 0, ssl=context)
            api = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            options = {"api": api, "ca-file": str(tmp_path / "ca.crt"), "organizations": ["ships"], **more}
            code = CustomCalls("github", GithubAuthenticator(options))
            try:
                return await code.authenticate(Offered(token=Secret(token), now=NOW))
            finally:
                await code.close(10)
                server.close()

        return asyncio.run(run())

    return asked


MEMBER = User("github:Jane", uid="42", groups=["github:Ships", "github:Ships/captains"])


@pytest.mark.parametrize("token", [PERSONAL, FINE_GRAINED], ids=["classic", "fine-grained"])
def test_a_member_is_known_with_organizations_and_teams_that_are_listed(ask: Callable[..., object], token: str) -> None:
    github = Github()
    assert ask(github, token) == MEMBER
    assert github.asked == [
        ("GET /user", f"Bearer {token}"),
        ("GET /user/orgs?per_page=100&page=1", f"Bearer {token}"),
        ("GET /user/teams?per_page=100&page=1", f"Bearer {token}"),
    ]


@pytest.mark.parametrize(
    ("github", "said"),
    [
        pytest.param(Github(user=(401, {})), Rejected("github-bad-token"), id="a token that GitHub does not know"),
        pytest.param(Github(orgs=(200, [ISLES])), "not-in-organization", id="a member of others"),
        pytest.param(Github(orgs=(200, [])), "not-in-organization", id="a member of nothing"),
        pytest.param(Github(orgs=(403, {})), "not-in-organization", id="a token that may not list organizations"),
        pytest.param(Github(teams=(403, {})), User("github:Jane", uid="42", groups=["github:Ships"]), id="nor teams"),
        pytest.param(Github(user=(403, {})), Rejected("github-failed", "status 403"), id="a token that may do nothing"),
        pytest.param(Github(user=(500, {})), Rejected("github-failed", "status 500"), id="an error"),
        pytest.param(Github(user=(302, {})), Rejected("github-failed", "status 302"), id="a redirect"),
        pytest.param(Github(user=(429, {})), "github-rate-limit", id="too many questions"),
        pytest.param(Github(user=(200, b"<html>")), Rejected("github-failed", "no JSON in its answer"), id="no JSON"),
        pytest.param(Github(user=(200, {"id": 1})), Rejected("github-failed", "no user in its answer"), id="no login"),
        pytest.param(Github(user=(200, [])), Rejected("github-failed", "no user in its answer"), id="no object"),
        pytest.param(Github(orgs=(200, {})), Rejected("github-failed", "no list at /user/orgs"), id="no list"),
        pytest.param(
            Github(orgs=(200, [{}])), Rejected("failed", "it raised KeyError"), id="an organization without name"
        ),
        pytest.param(Github(user=(200, b" " * (MAX_ANSWER + 1))), "github-failed", id="an endless answer"),
    ],
)
def test_each_answer_has_its_verdict(ask: Callable[..., object], github: Github, said: object) -> None:
    found = ask(github)
    assert (found.reason if isinstance(found, Rejected) and isinstance(said, str) else found) == said
    assert PERSONAL not in repr(found)


def test_a_403_for_the_rate_limit_has_its_own_reason(ask: Callable[..., object]) -> None:
    github = Github(orgs=(403, {}))
    github.headers = "x-ratelimit-remaining: 0\r\n"
    found = ask(github)
    assert isinstance(found, Rejected)
    assert found.reason == "github-rate-limit"


def test_pages_are_followed_and_bounded(ask: Callable[..., object]) -> None:
    many = [{"login": f"o{number}"} for number in range(PAGE)]
    assert ask(Github(orgs=(200, [*many, SHIPS]))) == MEMBER
    github = Github(orgs=(200, many * (MAX_PAGES + 1)))
    ask(github)
    assert len([path for path, _ in github.asked if path.startswith("GET /user/orgs")]) == MAX_PAGES


@pytest.mark.parametrize(
    ("token", "said"),
    [
        pytest.param("opaque", NotMine(), id="another form"),
        pytest.param("ghp_short", NotMine(), id="too short"),
        pytest.param("ghp_" + "é" * 36, NotMine(), id="letters that no token has"),
        pytest.param("abcdef.0123456789abcdef", NotMine(), id="a bootstrap token"),
        pytest.param("ghs_" + "a" * 36, NotMine("no-token-of-a-github-user"), id="of an installation"),
        pytest.param("ghr_" + "a" * 36, NotMine("no-token-of-a-github-user"), id="a refresh token"),
    ],
)
def test_tokens_that_are_not_sent_to_github(ask: Callable[..., object], token: str, said: object) -> None:
    github = Github()
    assert ask(github, token) == said
    assert github.asked == []


def test_a_token_of_an_app_counts_only_when_github_says_that_it_is_ours(ask: Callable[..., object]) -> None:
    github = Github()
    found = ask(github, OAUTH)
    assert isinstance(found, Rejected)
    assert (found.reason, github.asked) == ("token-of-an-app", [])
    assert ask(github, OAUTH, **APP) == MEMBER
    assert github.asked[0] == (CHECK, "Basic " + base64.b64encode(b"Iv1.mooring:of the app").decode())
    assert ask(Github(check=(404, {})), OAUTH, **APP) == Rejected("token-of-another-app", "status 404")
    assert ask(Github(check=(500, {})), OAUTH, **APP) == Rejected("github-failed", "status 500")


def test_a_github_that_is_not_there_refuses(ask: Callable[..., object]) -> None:
    assert ask(Github(), api="https://127.0.0.1:1") == Rejected("github-unreachable", "ConnectError")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param({"orgs": ["ships"]}, '"orgs" is not known', id="an unknown option"),
        pytest.param({"organizations": []}, "organizations: list those", id="no organization"),
        pytest.param({"organizations": "ships"}, "organizations: list those", id="a text"),
        pytest.param({"api": "http://github.example"}, "api: it must begin with https://", id="no TLS"),
        pytest.param({"prefix": 5}, "prefix: give a text", id="a prefix that is no text"),
        pytest.param({"client-id": "x"}, "client-id and client-secret-file: give both", id="half an app"),
        pytest.param({"ca-file": "/nowhere"}, "FileNotFoundError", id="no file"),
    ],
)
def test_wrong_options_stop_the_start(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        GithubAuthenticator({"organizations": ["ships"], **changed})
