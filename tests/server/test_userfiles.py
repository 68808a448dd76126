"""Files of tokens and of passwords behind a whole server: who comes in, what a change does, what anybody learns of a refusal."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooring.authn.passwordhash import PasswordHash
from mooring.authn.tokenfile import TokenFileAuthenticator, TokenTable
from mooring.controlplane.datadirectory import Reloading
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.server.authentication.providers import MAX_WARNINGS, follow
from tests.support.manualclock import settle
from tests.support.serverroom import Reply, Server, connection, open_server

P = ParamSpec("P")
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
TOKENS = 'tok-1,jane,42,"dev,ops"\ntok-2,joe,43\n'
CHALLENGE = 'Basic realm="kubernetes-master"'


def hashed(password: str) -> str:
    """As a field of the file; cheap, for tests."""
    derived = PasswordHash(10, 1, 1, b"saltsalt", bytes(16)).derive(Secret(password))
    return f'"{PasswordHash(10, 1, 1, b"saltsalt", derived).text()}"'


PASSWORDS = f'{hashed("hunter2")},jane,42,"dev,ops"\nplain-pw,joe,43\n'


class Files:
    """The two files of one server."""

    def __init__(self, directory: Path) -> None:
        self.tokens = directory / "tokens.csv"
        self.passwords = directory / "passwords.csv"
        self.write(self.tokens, TOKENS)
        self.write(self.passwords, PASSWORDS)

    def write(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)

    async def change(self, server: Server, path: Path, text: str) -> None:
        """Write, and let the server see it at rest."""
        self.write(path, text)
        await server.files_changed()


def with_files(test: Callable[Concatenate[Server, Files, P], Awaitable[None]]) -> Callable[..., None]:
    """Run an async test with a server that follows both files."""

    @functools.wraps(test)
    def run(tmp_path: Path, *args: P.args, **kwargs: P.kwargs) -> None:
        async def body() -> None:
            files = Files(tmp_path)
            options = {"token_auth_file": str(files.tokens), "basic_auth_file": str(files.passwords)}
            async with open_server(**options) as server:
                await test(server, files, *args, **kwargs)

        asyncio.run(body())

    parameters = list(inspect.signature(test).parameters.values())[2:]
    path = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__dict__.pop("__wrapped__", None)  # pytest would see server and files as fixtures
    run.__signature__ = inspect.Signature([path, *parameters])  # type: ignore[attr-defined] # read by pytest
    return run


def encoded(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def sent(server: Server, authorization: str, source: str = "192.0.2.1", **headers: str) -> Reply:
    """Asking who one is with this Authorization."""
    pairs = [("authorization", authorization), *((name.replace("_", "-"), value) for name, value in headers.items())]
    return await server.post(REVIEWS, REVIEW, headers=pairs, via=connection(source=source))


async def user(server: Server, authorization: str) -> Any:
    """Who this is; 401 for nobody."""
    answer = await sent(server, authorization)
    return answer.obj["status"]["userInfo"] if answer.status == 201 else answer.status


JANE = {"username": "jane", "uid": "42", "groups": ["dev", "ops", "system:authenticated"]}
JOE = {"username": "joe", "uid": "43", "groups": ["system:authenticated"]}


@with_files
async def test_who_comes_in(server: Server, files: Files) -> None:
    assert await user(server, "Bearer tok-1") == JANE
    assert await user(server, "bearer tok-2") == JOE
    assert await user(server, encoded("jane", "hunter2")) == JANE
    assert await user(server, encoded("joe", "plain-pw").replace("Basic", "bAsIc")) == JOE


@with_files
async def test_who_does_not_is_told_the_same_whatever_the_reason(server: Server, files: Files) -> None:
    tries = (
        "Bearer tok-3", encoded("jane", "wrong"), encoded("joe", "wrong"), encoded("nobody", "hunter2"),
        encoded("", "x"), "Basic !!!", "Basic", encoded("jane", ""),
    )  # fmt: skip
    answers = [await sent(server, one) for one in tries]
    assert {answer.status for answer in answers} == {401}
    assert len({answer.body for answer in answers}) == 1
    ids = {answer.headers.pop("audit-id") for answer in answers}
    assert len(ids) == len(tries)
    assert all(answer.headers == answers[0].headers for answer in answers)


@with_files
async def test_a_token_of_the_file_is_reviewed(server: Server, files: Files) -> None:
    review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": "tok-1"}}
    answer = await server.post("/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert answer.obj["status"]["user"] == JANE


@with_files
async def test_a_refusal_challenges_for_basic_but_never_a_browser(server: Server, files: Files) -> None:
    assert (await sent(server, "Bearer tok-3")).headers["www-authenticate"] == CHALLENGE
    assert "www-authenticate" not in (await sent(server, "Bearer tok-3", sec_fetch_site="cross-site")).headers
    assert "www-authenticate" not in (await sent(server, "Bearer tok-1")).headers


# -- the files change --------------------------------------------------------------------------------------------------


@with_files
async def test_a_changed_file_is_in_force_on_connections_that_are_open(server: Server, files: Files) -> None:
    assert await user(server, "Bearer tok-1") == JANE
    assert await user(server, encoded("jane", "hunter2")) == JANE
    await files.change(server, files.tokens, "tok-9,jane,42\n")
    await files.change(server, files.passwords, f"{hashed('other')},jane,44\n")
    assert await user(server, "Bearer tok-1") == 401
    assert (await user(server, "Bearer tok-9"))["groups"] == ["system:authenticated"]
    assert await user(server, encoded("jane", "hunter2")) == 401, "what is remembered is forgotten"
    assert (await user(server, encoded("jane", "other")))["uid"] == "44"


@with_files
async def test_a_file_that_became_wrong_is_not_used_and_the_log_says_so(
    server: Server, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    await files.change(server, files.tokens, 'tok-9,jane,42\n"broken\n')
    await files.change(server, files.passwords, "s3cret,jane\n")
    assert await user(server, "Bearer tok-1") == JANE
    assert await user(server, "Bearer tok-9") == 401
    assert await user(server, encoded("jane", "hunter2")) == JANE
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    stays = "was changed and is not used, the last good content stays in force"
    assert told == [
        f"{files.tokens} {stays}: token-auth-file: {files.tokens}: line 2: a field that begins with a quote must end with one, "
        "before a comma or the line's end",
        f"{files.passwords} {stays}: basic-auth-file: {files.passwords}: line 1: it has 2 of 3 columns; give password,user,uid",
    ]
    assert "s3cret" not in caplog.text
    await files.change(server, files.tokens, "tok-9,jane,42\n")
    assert await user(server, "Bearer tok-1") == 401


@with_files
async def test_a_reload_while_a_password_is_judged_leaves_nothing_of_the_old_file(
    server: Server, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, other = threading.Event(), threading.Event(), hashed("other")
    derive = PasswordHash.derive

    def held(self: PasswordHash, password: Secret) -> bytes:
        begun.set()
        assert go_on.wait(20)
        return derive(self, password)

    with monkeypatch.context() as patch:
        patch.setattr(PasswordHash, "derive", held)
        under_way = asyncio.ensure_future(user(server, encoded("jane", "hunter2")))
        assert await asyncio.to_thread(begun.wait, 20)
        await files.change(server, files.passwords, f"{other},jane,42\n")
        after = asyncio.ensure_future(user(server, encoded("jane", "hunter2")))
        await settle()
        go_on.set()
        assert await under_way == JANE, "it was right when it was asked"
        assert await after == 401, "nobody new shares what was begun before"
    assert await user(server, encoded("jane", "hunter2")) == 401, "nor is it remembered"


@with_files
async def test_requests_during_many_reloads_see_the_old_file_or_the_new_one(server: Server, files: Files) -> None:
    for number in range(30):
        asked = [asyncio.ensure_future(user(server, f"Bearer tok-{one}")) for one in (1, 2)]
        await files.change(server, files.tokens, f'{TOKENS}tok-n{number},jim,{number},"a,b"\n')
        assert (await asked[1])["username"] == "joe"
        found = await user(server, f"Bearer tok-n{number}")
        assert found == {"username": "jim", "uid": str(number), "groups": ["a", "b", "system:authenticated"]}
        await asyncio.gather(*asked)


# -- what the operator is told -----------------------------------------------------------------------------------------


@with_files
async def test_the_operator_reads_which_it_was_and_no_secret(
    server: Server, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    expected = {
        encoded("jane", "wr0ng-pw"): ("password-file", "refused", "wrong-password", "user jane"),
        encoded("nobody", "wr0ng-pw"): ("password-file", "not-mine", "unknown-user", None),
    }
    for authorization, told in expected.items():
        answer = await sent(server, authorization)
        record = await server.get(f"/debug/authentication/refusals/{answer.headers['audit-id']}")
        (step,) = (one for one in record.obj["authenticators"] if one["name"] == "password-file")
        assert (step["name"], step["verdict"], step["reason"], step.get("detail")) == told
        assert "wr0ng-pw" not in record.text
    assert "wr0ng-pw" not in caplog.text
    assert "hunter2" not in caplog.text


@with_files
async def test_lines_that_do_not_count_and_an_open_file_are_warned_of(
    server: Server, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.tokens.write_text(",jane,42\n" * (MAX_WARNINGS + 2))
    files.tokens.chmod(0o644)
    await server.files_changed()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    where = f"token-auth-file: {files.tokens}"
    assert told == [
        *(f"{where}: line {line}: the token is empty, the line is skipped" for line in range(1, MAX_WARNINGS + 1)),
        f"{where}: 2 more warnings",
        f"{files.tokens} can be read by other users of this machine: run chmod 600 {files.tokens}",
    ]


@with_files
async def test_a_file_that_is_replaced_at_the_moment_it_is_looked_at_is_no_fault(server: Server, files: Files) -> None:
    taken = server.assembly.trust.authentication.authenticators
    (tokens,) = (one for one in taken if isinstance(one, TokenFileAuthenticator))
    reloading, path = Reloading(), files.tokens

    def read(data: bytes) -> TokenTable:
        path.unlink()
        return tokens.read(data)

    follow("token-auth-file", str(path), read, tokens.take, reloading)
    assert await user(server, "Bearer tok-1") == JANE


@pytest.mark.parametrize(
    ("flag", "text", "why"),
    [
        pytest.param("token_auth_file", "a,b\n", "line 1: it has 2 of 3 columns; give token,user,uid", id="tokens"),
        pytest.param("basic_auth_file", "a,,1\n", "line 1: the user has no name", id="passwords"),
        pytest.param("token_auth_file", None, "check the path", id="no such file"),
    ],
)
def test_a_wrong_file_stops_the_start(tmp_path: Path, flag: str, text: str | None, why: str) -> None:
    path = tmp_path / "users.csv"
    if text is not None:
        path.write_text(text)

    async def start() -> None:
        given: dict[str, Any] = {flag: str(path)}
        async with open_server(**given):
            pytest.fail("it started")

    with pytest.raises(ConfigError) as refused:
        asyncio.run(start())
    assert why in str(refused.value)
    assert str(path) in str(refused.value)


# -- guessing ----------------------------------------------------------------------------------------------------------


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """How often scrypt runs."""
    runs: list[int] = []
    derive = PasswordHash.derive

    def counted(self: PasswordHash, password: Secret) -> bytes:
        runs.append(1)
        return derive(self, password)

    with monkeypatch.context() as patch:
        patch.setattr(PasswordHash, "derive", counted)
        yield runs


@with_files
async def test_who_guesses_beyond_the_budget_costs_no_scrypt_and_nobody_else_is_slowed(
    server: Server, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await user(server, encoded("jane", "hunter2")) == JANE
    with counting(monkeypatch) as runs:
        for number in range(20):
            assert (await sent(server, encoded("jane", f"guess-{number}"), "198.51.100.7")).status == 401
        assert len(runs) == 20
        late = asyncio.ensure_future(sent(server, encoded("jane", "guess-20"), "198.51.100.7"))
        right = asyncio.ensure_future(sent(server, encoded("joe", "plain-pw"), "198.51.100.7"))
        await settle()
        await server.clock.advance(1.0)
        assert [(await late).status, (await right).status] == [429, 429]
        assert len(runs) == 20, "a right password of such a source is not judged either"
        remembered = await sent(server, encoded("jane", "hunter2"), "198.51.100.7")
        assert remembered.status == 201, "what is remembered costs nothing"
        assert (await sent(server, encoded("joe", "plain-pw"), "198.51.100.8")).status == 201
        assert (await sent(server, "Bearer tok-1", "198.51.100.7")).status == 201


# -- attacks -----------------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=60)
        | st.binary(max_size=40).map(lambda raw: "Basic " + base64.b64encode(raw).decode())
        | st.binary(max_size=40).map(lambda raw: "Basic " + raw.decode("latin-1").replace("\n", "").replace("\r", ""))
        | st.text(max_size=20).map(lambda text: "Basic " + base64.b64encode(text.encode("utf-8", "replace")).decode()),
        min_size=25,
        max_size=25,
    )
)
def test_malformed_authorization_is_never_anything_but_401_or_anonymous(tmp_path: Path, headers: list[str]) -> None:
    async def body() -> None:
        files = Files(tmp_path)
        options = {"token_auth_file": str(files.tokens), "basic_auth_file": str(files.passwords)}
        async with open_server(**options) as server:
            for number, header in enumerate(headers):
                answer = await sent(server, header, f"198.51.{number % 250}.1")
                assert answer.status in (401, 403), header

    asyncio.run(body())
