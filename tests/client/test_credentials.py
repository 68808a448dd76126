"""Credentials of a kubeconfig user: headers, certificates, exec plugins."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.client.http import credentials
from mooring.client.http.credentials import ClientCredentials, Presented
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.kubeconfig import AuthProvider, Cluster, ExecPlugin, KubeconfigUser
from tests.support.manualclock import ManualClock
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA

CLUSTER = Cluster("c", "https://api.test:6443", b"CA", tls_server_name="api")
PAIR = ThrowawayCA().client("alice")
V1 = "client.authentication.k8s.io/v1"


def shown(user: KubeconfigUser) -> Presented:
    return asyncio.run(ClientCredentials(user, CLUSTER, ManualClock().now).present())


def authorization(user: KubeconfigUser) -> bytes:
    secret = shown(user).authorization
    return secret.reveal() if secret else b""


def test_tokens_passwords_and_nobody(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    assert authorization(KubeconfigUser("u", token=Secret("t"))) == b"Bearer t"
    assert authorization(KubeconfigUser("u", token=Secret("t"), token_file=str(path))) == b"Bearer from-file"
    assert authorization(KubeconfigUser("u", username="a", password=Secret("b"))) == b"Basic YTpi"
    assert shown(KubeconfigUser("u")) == Presented()


def test_a_certificate_comes_inline_or_from_files(tmp_path: Path) -> None:
    certificate, key = PAIR.write(tmp_path, "u")
    inline = shown(KubeconfigUser("u", certificate_pem=PAIR.certificate_pem, key=Secret(PAIR.key_pem)))
    assert inline == shown(KubeconfigUser("u", certificate_file=str(certificate), key_file=str(key)))
    assert inline.certificate_pem == PAIR.certificate_pem
    with pytest.raises(ConfigError, match=r"without a key"):
        shown(KubeconfigUser("u", certificate_file=str(certificate)))


def test_a_token_file_is_read_again_after_a_minute_and_keeps_its_last_good_value(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")

    async def run() -> None:
        clock = ManualClock()
        credentials = ClientCredentials(KubeconfigUser("u", token_file=str(path)), CLUSTER, clock.now)

        async def now() -> bytes:
            secret = (await credentials.present()).authorization
            return secret.reveal() if secret else b""

        assert await now() == b"Bearer one"
        path.write_text("two")
        await clock.advance(59)
        assert await now() == b"Bearer one"
        await clock.advance(1)
        assert await now() == b"Bearer two"
        path.unlink()
        await clock.advance(60)
        assert await now() == b"Bearer two"

    asyncio.run(run())
    with pytest.raises(ConfigError, match=r"cannot be read"):
        shown(KubeconfigUser("u", token_file=str(path)))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"hunter2 hunter2", id="two words"),
        pytest.param(b"hunter2,jane,42\nhunter2,joe,43\n", id="lines"),
        pytest.param(b"hunter2\0", id="a zero byte"),
        pytest.param("hunter2-é".encode(), id="letters that no token has"),
        pytest.param(b"hunter2\xff", id="bytes that are no text"),
        pytest.param(b"${hunter2}", id="a variable of a template"),
        pytest.param(b"{{ hunter2 }}", id="a placeholder of a template"),
        pytest.param(b"<hunter2>", id="a placeholder of a page"),
    ],
)
def test_what_is_no_token_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    users = [KubeconfigUser("u", token_file=str(path))]
    if content:
        users.append(KubeconfigUser("u", token=Secret(content)))
    for user in users:
        with pytest.raises(ConfigError, match=r"does not hold a token") as refused:
            shown(user)
        assert "hunter2" not in str(refused.value)


def test_impersonation_is_said_in_headers() -> None:
    user = KubeconfigUser(
        "u",
        impersonate="bob",
        impersonate_uid="7",
        impersonate_groups=("a", "b"),
        impersonate_extra=(("example.com/scopes", ("x", "y")),),
    )
    assert shown(user).impersonation == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.com%2Fscopes", "x"),
        ("Impersonate-Extra-example.com%2Fscopes", "y"),
    )


def test_auth_provider_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"uses auth-provider, which is no longer supported"):
        shown(KubeconfigUser("u", auth_provider=AuthProvider("gcp")))


def plugin(tmp_path: Path, body: str, api_version: str = V1, provide: bool = False, mode: str = "Never") -> ExecPlugin:
    path = tmp_path / "plugin.py"
    path.write_text(
        f"import json, os, sys\ncount = open({str(tmp_path / 'count')!r}, 'a'); count.write('x'); count.close()\n"
        + body
    )
    env = (("FROM_CONFIG", Secret("yes")),)
    return ExecPlugin(sys.executable, api_version, (str(path),), env, "install it", provide, mode)


def printing(status: dict[str, str], api_version: str = V1) -> str:
    return f"print({json.dumps({'kind': 'ExecCredential', 'apiVersion': api_version, 'status': status})!r})"


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "count").read_text())


def test_a_plugin_runs_once_until_its_credential_expires_or_is_refused(tmp_path: Path) -> None:
    body = printing({"token": "tok", "expirationTimestamp": "2026-01-02T03:05:05Z"})
    user = KubeconfigUser("u", exec=plugin(tmp_path, body))

    async def run() -> None:
        clock = ManualClock()
        credentials = ClientCredentials(user, CLUSTER, clock.now)
        for _ in range(3):
            secret = (await credentials.present()).authorization
            assert secret is not None
            assert secret.reveal() == b"Bearer tok"
        assert runs(tmp_path) == 1
        assert credentials.forget()
        await credentials.present()
        assert runs(tmp_path) == 2
        await clock.advance(timedelta(minutes=1).total_seconds())
        await credentials.present()
        assert runs(tmp_path) == 3

    asyncio.run(run())


def test_a_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    status = {"clientCertificateData": PAIR.certificate_pem.decode(), "clientKeyData": PAIR.key_pem.decode()}
    given = shown(KubeconfigUser("u", exec=plugin(tmp_path, printing(status))))
    assert (given.certificate_pem, given.authorization) == (PAIR.certificate_pem, None)
    assert given.key == Secret(PAIR.key_pem)


def test_a_plugin_is_told_what_the_protocol_says(tmp_path: Path) -> None:
    body = (
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert os.environ['FROM_CONFIG'] == 'yes'\n"
        "assert info['kind'] == 'ExecCredential' and info['spec']['interactive'] is False\n"
        "assert info['spec']['cluster'] == {'server': 'https://api.test:6443', 'certificate-authority-data': 'Q0E=',"
        " 'tls-server-name': 'api'}\n" + printing({"token": "t"})
    )
    assert authorization(KubeconfigUser("u", exec=plugin(tmp_path, body, provide=True))) == b"Bearer t"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param("sys.exit(3)", "failed with exit status 3; run it by hand to see why", id="it fails"),
        pytest.param("print('hello s3cret')", "did not print JSON", id="it prints no JSON"),
        pytest.param("print('[]')", "did not print an ExecCredential", id="it prints something else"),
        pytest.param(
            printing({"token": "s3cret"}, V1 + "beta1"), f"printed another apiVersion than {V1}", id="another version"
        ),
        pytest.param(printing({}), "printed neither a token nor a certificate with its key", id="nothing"),
        pytest.param(
            printing({"token": "s3cret", "clientKeyData": "k"}),
            "printed neither a token nor a certificate with its key",
            id="a key without a certificate",
        ),
        pytest.param(
            printing({"token": "s3cret", "expirationTimestamp": "soon"}),
            "printed an expirationTimestamp that is not an RFC 3339 time",
            id="a time that is none",
        ),
        pytest.param("print('x' * 2000000)", "printed more than 1048576 bytes", id="too much"),
    ],
)
def test_what_a_plugin_may_do_wrong_is_told_without_what_it_printed(tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shown(KubeconfigUser("u", exec=plugin(tmp_path, body)))
    assert str(caught.value) == f'exec plugin "{sys.executable}" {why}'


@pytest.mark.parametrize("kind", ["", None], ids=repr)
def test_an_empty_kind_and_fields_that_are_null_are_absent_ones(tmp_path: Path, kind: str | None) -> None:
    """client-go, run on the same text."""
    status = {"token": "t", "clientCertificateData": None, "clientKeyData": "", "expirationTimestamp": None}
    text = json.dumps({"kind": kind, "apiVersion": V1, "spec": None, "status": status})
    assert authorization(KubeconfigUser("u", exec=plugin(tmp_path, f"print({text!r})"))) == b"Bearer t"


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        pytest.param({"kind": "Other", "apiVersion": V1, "status": {"token": "t"}}, "an ExecCredential", id="a kind"),
        pytest.param({"kind": "ExecCredential", "status": {"token": "t"}}, "another apiVersion", id="no version"),
        pytest.param(
            {"kind": "ExecCredential", "apiVersion": "", "status": {"token": "t"}}, "another apiVersion",
            id="an empty version",
        ),
        pytest.param({"kind": "ExecCredential", "apiVersion": V1, "status": None}, "neither a token", id="no status"),
        pytest.param(
            {"kind": "ExecCredential", "apiVersion": V1, "status": {"token": None}}, "neither a token", id="a null token"
        ),
        pytest.param(
            {"kind": "ExecCredential", "apiVersion": V1, "status": {"Token": "t"}}, "neither a token",
            id="a field in another case",
        ),
    ],
)  # fmt: skip
def test_what_client_go_refuses_is_refused(tmp_path: Path, printed: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        shown(KubeconfigUser("u", exec=plugin(tmp_path, f"print({json.dumps(printed)!r})")))


def test_a_plugin_that_is_missing_is_told_with_its_hint() -> None:
    missing = ExecPlugin("/no/such/plugin", V1, install_hint="install it from there", interactive_mode="Never")
    with pytest.raises(ConfigError) as caught:
        shown(KubeconfigUser("u", exec=missing))
    assert str(caught.value) == (
        'exec plugin "/no/such/plugin" cannot be run: no such file or directory; install it from there'
    )


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"args": ("a\0b",)}, id="a NUL in an argument"),
        pytest.param({"env": (("A=B", Secret("s3cret")),)}, id="a variable whose name has an equals sign"),
        pytest.param({"env": (("A", Secret("s3\0cret")),)}, id="a NUL in a variable"),
    ],
)
def test_what_no_program_can_get_is_an_error_of_the_kubeconfig(tmp_path: Path, more: dict[str, Any]) -> None:
    program = replace(plugin(tmp_path, printing({"token": "t"})), **more)
    with pytest.raises(ConfigError, match="cannot be run: its command, an argument or a variable has a NUL") as caught:
        shown(KubeconfigUser("u", exec=program))
    assert "cret" not in str(caught.value)


def named_program(directory: Path, output: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "plug"
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)
    return program


def credential_of(token: str) -> str:
    return json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": token}})


@pytest.mark.parametrize("path", ["", ".", "{}/none:", ".:{}/there", "here"])
def test_a_program_of_the_current_directory_is_not_run_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Go's `exec.ErrDot`: a bare name is looked up in PATH, and an entry of it that is relative gives no program."""
    for directory in (tmp_path, tmp_path / "here"):
        named_program(directory, credential_of("of-the-current-directory"))
    named_program(tmp_path / "there", credential_of("of-path"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path.format(tmp_path))
    with pytest.raises(ConfigError, match=r"is not run from there|no such program in path"):
        shown(KubeconfigUser("u", exec=ExecPlugin("plug", V1, interactive_mode="Never")))


@pytest.mark.parametrize("own", [(), (("PATH", Secret(".")),)], ids=["alone", "with a PATH for the plugin"])
def test_a_bare_name_is_looked_up_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[tuple[str, Secret], ...]
) -> None:
    named_program(tmp_path, credential_of("of-the-current-directory"))
    named_program(tmp_path / "there", credential_of("of-path"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "there"))
    user = KubeconfigUser("u", exec=ExecPlugin("plug", V1, env=own, interactive_mode="Never"))
    assert authorization(user) == b"Bearer of-path"


def test_old_plugins_and_plugins_without_a_terminal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"v1alpha1 is not supported"):
        shown(KubeconfigUser("u", exec=plugin(tmp_path, "", "client.authentication.k8s.io/v1alpha1")))
    with pytest.raises(ConfigError, match=r"needs a terminal"):
        shown(KubeconfigUser("u", exec=plugin(tmp_path, "", mode="Always")))


def command(line: str) -> ExecPlugin:
    return ExecPlugin("/bin/sh", args=("-c", line), interactive_mode="Never", prints_token=True)


def test_a_program_that_a_command_leaves_in_the_background_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "GRACE", 0.1)
    line = f"sleep 600 & echo $! > {tmp_path}/pid; echo word"
    found = asyncio.run(credentials.run(command(line), CLUSTER))
    assert found.token is not None
    assert found.token.reveal() == b"word"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("line", "seconds", "why"),
    [
        pytest.param("yes", 30.0, "printed more than 1048576 bytes", id="output without end"),
        pytest.param("sleep 600 & sleep 600", 0.2, "gave no credential within 0.2 s", id="silence"),
    ],
)
def test_a_command_without_end_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, seconds: float, why: str
) -> None:
    monkeypatch.setattr(credentials, "TOKEN_TIMEOUT", seconds)
    with pytest.raises(ConfigError, match=why):
        asyncio.run(credentials.run(command(f"echo $$ > {tmp_path}/pid; {line}"), CLUSTER))
    group = int((tmp_path / "pid").read_text())
    eventually(lambda: not _is_alive(group))


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
