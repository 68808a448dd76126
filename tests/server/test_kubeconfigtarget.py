"""What a kubeconfig means for a server that asks somebody: whom it asks, under which trust, and who it says it is."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.files import read_limited
from mooring.client.kubeconfigfiles import read
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.server.authentication.kubeconfigtarget import KubeconfigTarget, inlined
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse
from mooring.trust.kubeconfig import select_context
from tests.support.testca import ThrowawayCA
from tests.support.tokenwebhook import SimulatedWebhook, answers, kubeconfig, waits

CALL = HttpRequest("webhook", "POST", body=b'{"spec":{"token":"t"}}', timeout=20.0)
PLUGIN = """
import json, pathlib, sys
kind = "ExecCredential"
here = pathlib.Path(sys.argv[1])
count = here.joinpath("runs").read_text() if here.joinpath("runs").exists() else ""
here.joinpath("runs").write_text(count + "x")
status = json.loads(here.joinpath("status").read_text())
print(json.dumps({"kind": kind, "apiVersion": "client.authentication.k8s.io/v1", "status": status}))
"""


@pytest.fixture
def ca() -> ThrowawayCA:
    return ThrowawayCA("service")


@pytest.fixture
def hook(ca: ThrowawayCA, tmp_path: Path) -> Iterator[SimulatedWebhook]:
    with SimulatedWebhook(ca, tmp_path) as running:
        yield running


def made(path: Path) -> KubeconfigTarget:
    selected = inlined(select_context(read(path)), lambda name: read_limited(Path(name)))
    return KubeconfigTarget(selected, SystemClock())


def asking(path: Path, test: Callable[[KubeconfigTarget], Awaitable[None]]) -> None:
    async def run() -> None:
        target = made(path)
        try:
            await test(target)
        finally:
            await target.close()

    asyncio.run(run())


def asked_once(path: Path, call: HttpRequest = CALL) -> HttpResponse | HttpFailure:
    found: list[HttpResponse | HttpFailure] = []

    async def test(target: KubeconfigTarget) -> None:
        found.append(await target.send(call))

    asking(path, test)
    return found[0]


def plugin(directory: Path, **status: str) -> Obj:
    (directory / "plugin.py").write_text(PLUGIN)
    (directory / "status").write_text(json.dumps(status))
    return {
        "exec": {
            "command": sys.executable,
            "args": [str(directory / "plugin.py"), str(directory)],
            "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never",
        }
    }


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text())


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        pytest.param({}, None, id="nobody"),
        pytest.param({"token": "abc"}, "Bearer abc", id="a token"),
        pytest.param({"tokenFile": "token"}, "Bearer of-a-file", id="a token in a file beside the kubeconfig"),
        pytest.param({"username": "a", "password": "b"}, "Basic YTpi", id="a user name and a password"),
    ],
)
def test_what_is_shown_in_headers(hook: SimulatedWebhook, user: Obj, authorization: str | None) -> None:
    (hook.directory / "token").write_text("of-a-file\n")
    assert isinstance(asked_once(hook.kubeconfig(user=user)), HttpResponse)
    [asked] = hook.requests
    assert asked.headers.get("authorization") == authorization
    assert (asked.path, asked.peer) == ("/authenticate", "")


@pytest.mark.parametrize("command", ["./plug", "bin/../plug"])
def test_the_program_beside_the_kubeconfig_is_run_wherever_the_server_runs(
    hook: SimulatedWebhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for directory, token in ((hook.directory, "beside"), (elsewhere, "of-the-current-directory")):
        api_version = "client.authentication.k8s.io/v1"
        credential = json.dumps({"kind": "ExecCredential", "apiVersion": api_version, "status": {"token": token}})
        (directory / "plug").write_text(f"#!/bin/sh\necho '{credential}'\n")
        (directory / "plug").chmod(0o755)
    monkeypatch.chdir(elsewhere)
    given = {"command": command, "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    assert isinstance(asked_once(hook.kubeconfig(user={"exec": given})), HttpResponse)
    assert hook.requests[0].headers["authorization"] == "Bearer beside"


def test_a_client_certificate_is_shown(hook: SimulatedWebhook, ca: ThrowawayCA) -> None:
    ca.client("api-server").write(hook.directory, "client")
    path = hook.kubeconfig(user={"client-certificate": "client.crt", "client-key": "client.key"})
    assert isinstance(asked_once(path), HttpResponse)
    assert hook.requests[0].peer == "api-server"


def test_impersonation_is_shown(hook: SimulatedWebhook) -> None:
    asked_once(hook.kubeconfig(user={"token": "abc", "as": "jane", "as-groups": ["dev"]}))
    headers = hook.requests[0].headers
    assert (headers["impersonate-user"], headers["impersonate-group"]) == ("jane", "dev")


def test_path_and_query_of_the_server_are_kept(hook: SimulatedWebhook) -> None:
    asked_once(hook.kubeconfig({"server": f"https://127.0.0.1:{hook.port}/a/b?c=d"}))
    assert hook.requests[0].path == "/a/b?c=d"
    asked_once(hook.kubeconfig(), replace(CALL, url=f"https://127.0.0.1:{hook.port}/elsewhere"))
    assert hook.requests[1].path == "/elsewhere"


def test_people_are_not_told_the_query(hook: SimulatedWebhook) -> None:
    async def test(target: KubeconfigTarget) -> None:
        assert target.shown_url == f"https://127.0.0.1:{hook.port}/a"

    asking(hook.kubeconfig({"server": f"https://127.0.0.1:{hook.port}/a?key=hunter2"}), test)


def test_the_proxy_of_the_kubeconfig_is_used_and_for_this_machine_none_of_the_environment(
    hook: SimulatedWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    asked: list[bytes] = []

    async def piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.splitlines()[0])
        there, back = await asyncio.open_connection("127.0.0.1", hook.port)
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(piped(reader, back), piped(there, writer))

    async def run() -> None:
        server = await asyncio.start_server(proxied, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = made(hook.kubeconfig({"proxy-url": f"http://127.0.0.1:{port}"}))
        assert isinstance(await target.send(CALL), HttpResponse)
        await target.close()
        plain = made(hook.kubeconfig())
        assert isinstance(await plain.send(CALL), HttpResponse)
        await plain.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
    assert asked == [f"CONNECT 127.0.0.1:{hook.port} HTTP/1.1".encode()]


def test_a_token_in_a_file_is_read_again_after_a_401(hook: SimulatedWebhook) -> None:
    token = hook.directory / "token"
    token.write_text("old")

    def refuses(handler: Any) -> None:
        token.write_text("new")
        answers(401)(handler)

    hook.script = [refuses]
    assert asked_once(hook.kubeconfig(user={"tokenFile": "token"})) == HttpResponse(200, anything(), anything())
    assert [asked.headers["authorization"] for asked in hook.requests] == ["Bearer old", "Bearer new"]


def anything() -> Any:
    """Return a value that equals any other."""

    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

    return Anything()


@pytest.mark.parametrize("times", [1, 2])
def test_a_401_that_stays_is_the_answer(hook: SimulatedWebhook, times: int) -> None:
    (hook.directory / "token").write_text("t")
    hook.always = answers(401)
    user = {"token": "t"} if times == 1 else {"tokenFile": "token"}
    answer = asked_once(hook.kubeconfig(user=user))
    assert isinstance(answer, HttpResponse)
    assert (answer.status, len(hook.requests)) == (401, times)


def test_a_plugin_runs_once_for_all_who_wait_and_again_after_a_401(hook: SimulatedWebhook) -> None:
    async def test(target: KubeconfigTarget) -> None:
        found = await asyncio.gather(*(target.send(CALL) for _ in range(5)))
        assert all(isinstance(one, HttpResponse) for one in found)
        assert runs(hook.directory) == 1
        hook.script = [answers(401)]
        assert isinstance(await target.send(CALL), HttpResponse)
        assert runs(hook.directory) == 2

    asking(hook.kubeconfig(user=plugin(hook.directory, token="of-a-plugin")), test)
    assert {asked.headers["authorization"] for asked in hook.requests} == {"Bearer of-a-plugin"}


def test_a_plugin_that_fails_is_named(hook: SimulatedWebhook) -> None:
    user = plugin(hook.directory)
    answer = asked_once(hook.kubeconfig(user=user))
    assert isinstance(answer, HttpFailure)
    assert "printed neither a token nor a certificate" in answer.text
    assert sys.executable in answer.text
    assert not answer.broken
    assert hook.requests == []


def test_a_new_certificate_of_a_plugin_opens_a_new_connection_and_the_old_one_is_finished_with(
    hook: SimulatedWebhook, ca: ThrowawayCA
) -> None:
    def given(name: str) -> dict[str, str]:
        pair = ca.client(name)
        return {"clientCertificateData": pair.certificate_pem.decode(), "clientKeyData": pair.key_pem.decode()}

    async def test(target: KubeconfigTarget) -> None:
        hook.script = [waits]
        slow = asyncio.create_task(target.send(CALL))
        while not hook.requests:
            await asyncio.wait([slow], timeout=0.005)
        (hook.directory / "status").write_text(json.dumps(given("second")))
        hook.script = [answers(401)]
        assert isinstance(await target.send(CALL), HttpResponse)
        hook.gate.set()
        assert isinstance(await slow, HttpResponse), "who waits on the old connection gets the answer"

    asking(hook.kubeconfig(user=plugin(hook.directory, **given("first"))), test)
    assert [asked.peer for asked in hook.requests] == ["first", "first", "second"]


def test_who_waits_when_another_takes_the_place_gets_the_answer(hook: SimulatedWebhook) -> None:
    async def test(target: KubeconfigTarget) -> None:
        hook.script = [waits]
        slow = asyncio.create_task(target.send(CALL))
        while not hook.requests:
            await asyncio.wait([slow], timeout=0.005)
        target.retire()
        hook.gate.set()
        assert isinstance(await slow, HttpResponse)

    asking(hook.kubeconfig(), test)


def test_a_kept_connection_that_the_other_side_has_closed_is_no_failure_of_the_webhook(hook: SimulatedWebhook) -> None:
    def last(handler: Any) -> None:
        handler.close_connection = True  # without saying so
        handler.judge()

    async def test(target: KubeconfigTarget) -> None:
        hook.always = last
        for _ in range(5):
            found = await target.send(CALL)
            assert isinstance(found, HttpResponse) or found.broken, "asking once more helps, and that is what is done"

    asking(hook.kubeconfig(), test)


STRANGE = {
    "http": ({"server": "http://127.0.0.1/"}, {}, 'cluster "service": server: the scheme must be https'),
    "no URL": ({"server": "127.0.0.1:443"}, {}, 'cluster "service": server: the scheme must be https'),
    "a user in the URL": (
        {"server": "https://jane:hunter2@127.0.0.1/"},
        {},
        'cluster "service": server: it must not contain a user name or a password',
    ),
    "a password with a slash": (
        {"server": "https://jane:12/hunter2@127.0.0.1/"},
        {},
        'cluster "service": server: it must not contain a user name or a password; behind the host, @ is written as %40',
    ),
    "a fragment": ({"server": "https://127.0.0.1/#a"}, {}, 'cluster "service": server: it must not contain a fragment'),
    "no verification": (
        {"insecure-skip-tls-verify": True, "certificate-authority": ""},
        {},
        'cluster "service": insecure-skip-tls-verify: it is not allowed here: whoever answers would be shown the tokens of users; '
        "name the CA in certificate-authority",
    ),
    "a CA that is not there": (
        {"certificate-authority": "gone.crt"},
        {},
        'cluster "service": certificate-authority: {here}/gone.crt cannot be read: no such file or directory; check the path',
    ),
    "a CA that is none": (
        {"certificate-authority": "webhook.yaml"},
        {},
        'cluster "service": certificate-authority: the CA to verify the server with cannot be used: ',
    ),
    "a certificate that is not there": (
        {},
        {"client-certificate": "gone.crt", "client-key": "gone.key"},
        'user "server": client-key: {here}/gone.key cannot be read: no such file or directory; check the path',
    ),
    "a certificate that is none": (
        {},
        {"client-certificate": "webhook.yaml", "client-key": "webhook.yaml"},
        'user "server": client-certificate: the client certificate cannot be used: ',
    ),
    "an empty CA": (
        {"certificate-authority": "empty"},
        {},
        'cluster "service": certificate-authority: "{here}/empty" is empty: without a CA every CA of this machine would be',
    ),
    "an empty certificate and key, after a power loss": (
        {},
        {"client-certificate": "empty", "client-key": "empty"},
        'user "server": client-key: "{here}/empty" is empty, and no certificate would be shown',
    ),
    "a token file that is not there": (
        {},
        {"tokenFile": "gone"},
        'user "server": tokenFile: {here}/gone cannot be read: no such file or directory; check the path',
    ),
    "an auth-provider": ({}, {"auth-provider": {"name": "gcp"}}, 'user "server" uses auth-provider, which is no longer supported'),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "user", "why"), STRANGE.values(), ids=STRANGE.keys())
def test_what_cannot_be_used_is_named(hook: SimulatedWebhook, cluster: Obj, user: Obj, why: str) -> None:
    (hook.directory / "empty").write_text("")
    with pytest.raises(ConfigError) as refused:
        made(hook.kubeconfig(cluster, user))
    assert str(refused.value).startswith(why.format(here=hook.directory))
    assert "hunter2" not in str(refused.value)


def test_without_a_ca_the_roots_of_the_machine_are_trusted_and_not_this_webhook(hook: SimulatedWebhook) -> None:
    answer = asked_once(kubeconfig(hook.directory / "plain.yaml", {"server": hook.url}, {}))
    assert isinstance(answer, HttpFailure)
    assert "certificate" in answer.text
    assert hook.requests == []
