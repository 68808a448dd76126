"""`mooring login` and `mooring credential` without a server: contradictory flags, and when a renewal is tried."""

from __future__ import annotations

import io
import json
import shlex
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import yaml

from mooring.cli.login import credential, kubeconfigentries, renewal
from mooring.cli.login.kubeconfigentries import plan_entries
from mooring.cli.login.renewal import LoginNeededError
from mooring.client.login.loginfiles import MAX_RECORD, LoginFiles
from mooring.client.login.loginrequest import LoginRefusedError
from mooring.clock import Clock
from mooring.errors import ConfigError, ForbiddenError, MooringError, PeerError
from mooring.secret import Secret
from mooring.trust import loginrecord
from mooring.trust.discovery.errors import AnotherClusterError
from mooring.trust.httpexchange import HttpRequest, HttpResponse
from mooring.trust.kubeconfig import KubeconfigUser
from mooring.trust.kubeconfigtext import LISTS
from mooring.trust.loginrecord import Credential, ExecInfo, IdentitySource, Login, Place
from mooring.trust.oidc.grants import DevicePrompt
from tests.support import peer
from tests.support.commandline import CommandLine, mooring, process
from tests.support.manualclock import EPOCH, ManualClock
from tests.support.testca import LOOPBACK, ThrowawayCA

__all__ = ["mooring"]  # a fixture

SERVER = ("--server", "https://192.0.2.1:6443")
JANE = ("--username", "jane")
OIDC = ("--oidc-issuer-url", "https://i.example", "--oidc-client-id", "kubernetes")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param((*SERVER,), "with --server say how to log in", id="a server and no way"),
        pytest.param(
            (*SERVER, *JANE, "--token-file", "x"), "--username and --token-file exclude each other", id="two ways"
        ),
        pytest.param(
            (*SERVER, *JANE, *OIDC), "--username and --oidc-issuer-url exclude", id="a password and a provider"
        ),
        pytest.param((*SERVER, "--oidc-issuer-url", "https://i"), "needs --oidc-client-id", id="no client id"),
        pytest.param(
            (*SERVER, *JANE, "--oidc-client-id", "x"), "--oidc-client-id needs --oidc-issuer-url", id="no issuer"
        ),
        pytest.param((*SERVER, *JANE, "--oidc-scope", "x"), "--oidc-scope needs --oidc-issuer-url", id="scopes alone"),
        pytest.param(
            (*SERVER, "--oidc-issuer-url", "http://i", "--oidc-client-id", "x"), "is not an https URL", id="http"
        ),
        pytest.param(
            ("--server", "http://a", *JANE), 'server: "http://a" is not an https URL', id="a server without TLS"
        ),
        pytest.param(
            (*SERVER, "--token-file", "x", "--password-stdin"), "--password-stdin needs --username", id="no user"
        ),
        pytest.param((*SERVER, *JANE, "--kubeconfig", "x"), "--server cannot be combined", id="two servers"),
        pytest.param((*SERVER, *JANE, "--context", "x"), "--server cannot be combined", id="a server and a context"),
        pytest.param((*JANE, "--certificate-authority", "x"), "need --server", id="a CA without a server"),
        pytest.param(
            (*SERVER, *JANE, "--certificate-authority", "x", "--discovery-token-ca-cert-hash", "sha256:" + "0" * 64),
            "exclude each other",
            id="a CA and a pin",
        ),
        pytest.param(
            (*SERVER, *JANE, "--discovery-token-ca-cert-hash", "md5:1"), "only sha256 is known", id="a pin that is none"
        ),
        pytest.param(
            (*SERVER, *JANE, "--certificate-authority", "/nowhere"), "cannot be read", id="a CA that is not there"
        ),
        pytest.param((*SERVER, *JANE, "--credential", "password"), "is not one of", id="a credential nobody gives"),
        pytest.param(
            (*JANE, "--kubeconfig", "/nowhere"), "/nowhere cannot be read", id="a kubeconfig that is not there"
        ),
        pytest.param(
            (*SERVER, *JANE, "--kubeconfig-out", "-"),
            "--kubeconfig-out changes a file",
            id="standard output for entries",
        ),
    ],
)
def test_flags_that_cannot_be_meant(mooring: CommandLine, tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    done = mooring("login", *flags)
    assert done.code in (1, 2)
    assert message in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfes\x00", id="UTF-16"),
        pytest.param(b"s3cret\nother\n", id="two lines"),
    ],
)
def test_a_file_without_a_client_secret_is_named_before_anything_is_asked(
    mooring: CommandLine, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    (tmp_path / "ca.crt").write_bytes(ThrowawayCA("login").certificate_pem)
    oidc = ("--oidc-issuer-url", SERVER[1], "--oidc-client-id", "x", "--oidc-client-secret-file", str(file))
    done = mooring("login", *SERVER, "--certificate-authority", str(tmp_path / "ca.crt"), *oidc)
    assert done.code == 1
    assert f"{file} does not hold a client secret" in done.err
    assert "cret\n" not in done.err


def test_a_byte_order_mark_is_no_part_of_a_client_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xef\xbb\xbfs3cret\r\n")
    assert renewal.read_client_secret(str(tmp_path / "secret")) == Secret("s3cret")


@pytest.mark.parametrize(
    "server",
    [
        pytest.param("https://abcdef.0123456789abcdef", id="in a URL"),
        pytest.param("https://abcdef.0123456789abcdef:6443/", id="with a port"),
        pytest.param("https://x.abcdef.0123456789abcdef", id="behind a name"),
        pytest.param("https://ABCDEF.0123456789ABCDEF", id="in capitals"),
        pytest.param("http://abcdef.0123456789abcdef", id="in a URL without TLS"),
        pytest.param("abcdef.0123456789abcdef", id="alone"),
    ],
)
def test_a_bootstrap_token_in_place_of_the_server_is_not_repeated(mooring: CommandLine, server: str) -> None:
    done = mooring("login", "--server", server, *JANE)
    assert (done.code, "0123456789" in done.err) == (2, False)
    assert "--server: a bootstrap token stands where the address of the server is expected" in done.err


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        pytest.param("{server: https://a, insecure-skip-tls-verify: true}", "skips verification", id="no verification"),
        pytest.param("{server: http://a}", "is not an https URL", id="no TLS"),
        pytest.param("{server: https://a, certificate-authority-data: eA==}", "the CA of the kubeconfig: ", id="no CA"),
    ],
)
def test_a_kubeconfig_whose_server_nothing_would_prove(
    mooring: CommandLine, tmp_path: Path, cluster: str, message: str
) -> None:
    path = tmp_path / "config"
    path.write_text(
        f"current-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n"
        f"clusters: [{{name: a, cluster: {cluster}}}]\nusers: [{{name: a, user: {{token: t}}}}]\n"
    )
    done = mooring("login", *JANE, "--kubeconfig", str(path))
    assert done.code == 1
    assert message in done.err


# ── when it is renewed ───────────────────────────────────────────────────────────────────────────────────────────

HOUR = timedelta(hours=1)
OLD = Credential("jane", EPOCH, EPOCH + HOUR, token=Secret("old"))
NEW = Credential("jane", EPOCH + HOUR, EPOCH + 2 * HOUR, token=Secret("new"))
LOGIN = Login("work", Place("https://a"), IdentitySource("password", {"username": "jane"}), "token", OLD)
UNREACHED = PeerError("the server cannot be reached")
NEEDED = LoginNeededError(LOGIN)
ANOTHER = AnotherClusterError("comparing", "two", "one")


@pytest.mark.parametrize(
    ("minutes", "failure", "steps", "token"),
    [
        pytest.param(53, None, [], b"old", id="a fresh one is handed out and nobody is asked"),
        pytest.param(55, None, ["renew"], b"new", id="in the last tenth it is renewed"),
        pytest.param(55, UNREACHED, ["renew"], b"old", id="when that fails the old one is good until its end"),
        pytest.param(55, NEEDED, ["renew"], b"old", id="and no person is asked"),
        pytest.param(53, ANOTHER, [], b"old", id="a fresh one is not compared with the cluster"),
        pytest.param(55, ANOTHER, ["renew"], None, id="another cluster gets not even the old one"),
        pytest.param(60, None, ["renew"], b"new", id="after its end it is renewed"),
        pytest.param(60, NEEDED, ["renew", "log in"], b"new", id="or a person is asked"),
        pytest.param(60, UNREACHED, ["renew"], None, id="when it is not renewed there is none"),
    ],
)
def test_when_a_credential_is_renewed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    minutes: int,
    failure: MooringError | None,
    steps: list[str],
    token: bytes | None,
) -> None:
    asked: list[str] = []

    def renew(login: Login, clock: Clock, save: object) -> Login:
        asked.append("renew")
        if failure is not None:
            raise failure
        return login.with_credential(NEW)

    def log_in(needed: LoginNeededError, clock: Clock) -> Login:
        asked.append("log in")
        return needed.login.with_credential(NEW)

    monkeypatch.setattr(renewal, "renew", renew)
    monkeypatch.setattr(renewal, "log_in", log_in)
    logins = LoginFiles(tmp_path / "logins")
    logins.write(LOGIN)
    clock = ManualClock(EPOCH + timedelta(minutes=minutes))
    if token is None:
        with pytest.raises(PeerError):
            credential.current_credential(logins, LOGIN.id, ExecInfo(), clock, True)
    else:
        found = credential.current_credential(logins, LOGIN.id, ExecInfo(), clock, True)
        assert found.token == Secret(token)
    assert asked == steps
    kept = logins.read(LOGIN.id)
    assert kept is not None
    assert kept.credential == (NEW if token == b"new" else OLD)


@pytest.mark.parametrize(
    ("source", "how"),
    [
        pytest.param(IdentitySource("password", {"username": "jane"}), "", id="a password"),
        pytest.param(IdentitySource("token-given"), " --token-file -", id="a token that was given once"),
    ],
)
def test_who_may_not_be_asked_is_told_what_to_run(source: IdentitySource, how: str) -> None:
    with pytest.raises(LoginNeededError, match=f"run: mooring login --name work{how}$"):
        renewal.renew(replace(LOGIN, source=source), ManualClock(), print)


def test_where_there_is_no_terminal_no_password_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*asked: object) -> int:
        raise OSError("no such device")

    monkeypatch.setattr("mooring.cli.login.renewal.os.open", nowhere)
    monkeypatch.setattr("mooring.cli.login.renewal.sys.stdin", io.StringIO("hunter2\n"))
    with pytest.raises(
        ConfigError, match=r"no terminal to ask for the password of jane; give it with --password-stdin$"
    ):
        renewal.log_in(NEEDED, ManualClock())


PROVIDER = "https://provider.example"
SETTINGS = {
    "issuer": PROVIDER,
    "clientID": "x",
    "clientSecretFile": "",
    "caFile": "",
    "scopes": "",
    "grant": "",
    "secretInForm": "",
    "port": "0",
}
FIRST = replace(LOGIN, source=IdentitySource("oidc", SETTINGS, Secret("first")))
Sent = list[str]


def provider(
    monkeypatch: pytest.MonkeyPatch, refreshed: tuple[int, dict[str, str]], cluster: list[MooringError | None]
) -> Sent:
    """Stand in for the provider, which answers a refresh with `refreshed`, and for the cluster, which raises these errors in turn.

    Return the grants that are requested.
    """
    sent: Sent = []

    async def send(connection: object, request: HttpRequest, clock: Clock) -> HttpResponse:
        form = dict(parse_qsl((request.body or b"").decode()))
        if request.url.endswith("openid-configuration"):
            found = {
                "issuer": PROVIDER,
                "token_endpoint": f"{PROVIDER}/token",
                "device_authorization_endpoint": f"{PROVIDER}/device",
            }
            return HttpResponse(200, json.dumps(found).encode())
        if request.url.endswith("/device"):
            code = {"device_code": "d", "user_code": "AB-CD", "verification_uri": PROVIDER, "interval": 1}
            return HttpResponse(200, json.dumps(code).encode())
        sent.append(form["grant_type"].rpartition(":")[2])
        status, body = refreshed if sent[-1] == "refresh_token" else (200, {"id_token": "a.b.c"})
        return HttpResponse(status, json.dumps(body).encode())

    async def request_credential(*asked: object) -> Credential:
        if (error := cluster.pop(0)) is not None:
            raise error
        return NEW

    monkeypatch.setattr(renewal, "send_over", send)
    monkeypatch.setattr(renewal, "request_credential", request_credential)
    return sent


class QuickClock(ManualClock):
    """Passes every wait immediately."""

    async def sleep(self, seconds: float) -> None:
        pass


REFRESHED = (200, {"id_token": "a.b.c", "refresh_token": "second"})
REFUSED = LoginRefusedError("https://a", KubeconfigUser(""), "6e0a3f5a-9a52")


@pytest.mark.parametrize(
    ("refreshed", "cluster", "reason", "kept"),
    [
        pytest.param((400, {"error": "invalid_grant"}), [], "invalid_grant", b"first", id="the word of the standard"),
        pytest.param((400, {"error": "invalid_request"}), [], "invalid_request", b"first", id="the word of Dex"),
        pytest.param((200, {"access_token": "a"}), [], "the provider gave no ID token", b"first", id="no ID token"),
        pytest.param(
            (200, {"refresh_token": "second"}),
            [],
            "the provider gave no ID token",
            b"second",
            id="and a new refresh token",
        ),
        pytest.param(
            REFRESHED,
            [REFUSED],
            "the cluster does not accept the ID token that the provider refreshed; an administrator of a Mooring server learns the "
            "reason with: mooring auth explain 6e0a3f5a-9a52",
            b"second",
            id="an ID token that the cluster refuses",
        ),
        pytest.param(
            REFRESHED,
            [ForbiddenError('no login: the group "system:masters" is one of the system\'s own')],
            'no login: the group "system:masters" is one of the system\'s own',
            b"second",
            id="a user who may not log in",
        ),
    ],
)
def test_a_refresh_that_fails_for_good_leads_to_a_new_login(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refreshed: tuple[int, dict[str, str]],
    cluster: list[MooringError | None],
    reason: str,
    kept: bytes,
) -> None:
    sent = provider(monkeypatch, refreshed, [*cluster, *cluster, None])
    logins = LoginFiles(tmp_path / "logins")
    logins.write(FIRST)
    with pytest.raises(LoginNeededError) as raised:
        credential.current_credential(logins, LOGIN.id, ExecInfo(), QuickClock(EPOCH + HOUR), False)
    assert str(raised.value) == f"the login at https://a has ended ({reason}); run: mooring login --name work"
    assert sent == ["refresh_token"]
    stored = logins.read(LOGIN.id)
    assert stored is not None
    assert stored.source.refresh_token == Secret(kept), "a refresh token that the provider has replaced is dead"

    found = credential.current_credential(logins, LOGIN.id, ExecInfo(), QuickClock(EPOCH + HOUR), True)
    assert found == NEW
    assert sent == ["refresh_token", "refresh_token", "device_code"]
    assert f"The login has to be repeated: {reason}.\nOpen {PROVIDER} with any browser" in capsys.readouterr().err
    stored = logins.read(LOGIN.id)
    assert stored is not None
    assert stored.source == IdentitySource("oidc", SETTINGS), (
        "the new grant has no refresh token, and the old one is gone"
    )


@pytest.mark.parametrize(
    ("refreshed", "cluster", "message"),
    [
        pytest.param((503, {}), [], "status 503; the login is kept, try again later$", id="a provider out of order"),
        pytest.param(REFRESHED, [PeerError("cannot be reached")], "cannot be reached$", id="a cluster that is away"),
    ],
)
def test_a_refresh_that_may_succeed_later_asks_nobody(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refreshed: tuple[int, dict[str, str]],
    cluster: list[MooringError | None],
    message: str,
) -> None:
    sent = provider(monkeypatch, refreshed, cluster)
    logins = LoginFiles(tmp_path / "logins")
    logins.write(FIRST)
    with pytest.raises(PeerError, match=message):
        credential.current_credential(logins, LOGIN.id, ExecInfo(), QuickClock(EPOCH + HOUR), True)
    assert sent == ["refresh_token"]
    kept = logins.read(LOGIN.id)
    assert kept is not None
    assert kept.source.refresh_token == Secret(refreshed[1].get("refresh_token", "first"))
    assert kept.credential == OLD


def test_a_user_who_may_not_log_in_after_a_new_login_either_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbidden = ForbiddenError('forbidden: User "jane" cannot post path "/mooring/v1/login"')
    sent = provider(monkeypatch, REFRESHED, [forbidden, forbidden])
    logins = LoginFiles(tmp_path / "logins")
    logins.write(FIRST)
    with pytest.raises(ForbiddenError, match="cannot post path"):
        credential.current_credential(logins, LOGIN.id, ExecInfo(), QuickClock(EPOCH + HOUR), True)
    assert sent == ["refresh_token", "device_code"]


def while_a_person_types(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Call `step` when the next person is prompted for a code, before the code is entered. `step` may lead to prompts, too."""
    prompt, steps = renewal._print_prompt, [step]

    def prompted(shown: DevicePrompt) -> None:
        prompt(shown)
        if steps:
            with ThreadPoolExecutor(1) as pool:  # another process has an event loop of its own
                pool.submit(steps.pop()).result()

    monkeypatch.setattr(renewal, "_print_prompt", prompted)


def test_while_a_person_types_programs_get_their_line_and_logout_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(monkeypatch, (400, {"error": "invalid_grant"}), [None])
    logins = LoginFiles(tmp_path / "logins")
    logins.write(FIRST)
    current = partial(credential.current_credential, logins, LOGIN.id, ExecInfo(), QuickClock(EPOCH + HOUR))

    def meanwhile() -> None:
        with pytest.raises(LoginNeededError, match=r"\(invalid_grant\); run: mooring login --name work$"):
            current(False)
        assert logins.remove(LOGIN.id)

    while_a_person_types(monkeypatch, meanwhile)
    with pytest.raises(ConfigError, match="no such login on this machine any more"):
        current(True)
    assert logins.every() == [], "a login that was forgotten is not brought back"


def test_of_two_persons_who_log_in_at_once_the_later_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = provider(monkeypatch, (400, {"error": "invalid_grant"}), [None, None])
    logins = LoginFiles(tmp_path / "logins")
    logins.write(FIRST)
    current = partial(credential.current_credential, logins, LOGIN.id, ExecInfo(), QuickClock(EPOCH + HOUR), True)
    first: list[Credential] = []

    def meanwhile() -> None:
        first.append(current())
        stored = logins.read(LOGIN.id)
        assert stored is not None
        logins.write(replace(stored, credential=OLD, without_cluster=True))

    while_a_person_types(monkeypatch, meanwhile)
    assert [current(), *first] == [NEW, NEW]
    assert sent == ["refresh_token", "refresh_token", "device_code", "device_code"]
    stored = logins.read(LOGIN.id)
    assert stored is not None
    assert (stored.credential, stored.without_cluster) == (NEW, True), "what the first has set stays"


@pytest.mark.parametrize(("minutes", "token"), [(55, b"old"), (60, None)])
def test_a_renewal_that_hangs_elsewhere_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int, token: bytes | None
) -> None:
    monkeypatch.setattr("mooring.client.login.loginfiles.LOCK_TRIES", 1)
    logins = LoginFiles(tmp_path / "logins")
    logins.write(LOGIN)
    clock = ManualClock(EPOCH + timedelta(minutes=minutes))
    with logins.locked(LOGIN.id):
        if token is None:
            with pytest.raises(ConfigError, match=r"^another command has been renewing this login for"):
                credential.current_credential(logins, LOGIN.id, ExecInfo(), clock, True)
        else:
            found = credential.current_credential(logins, LOGIN.id, ExecInfo(), clock, True)
            assert found.token == Secret(token)


def test_a_login_that_is_forgotten_while_its_lock_is_waited_for_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins = LoginFiles(tmp_path / "logins")
    logins.write(LOGIN)
    locked = LoginFiles.locked

    def removing(self: LoginFiles, login_id: str) -> AbstractContextManager[None]:
        logins.path(LOGIN.id).unlink()
        return locked(self, login_id)

    monkeypatch.setattr(LoginFiles, "locked", removing)
    with pytest.raises(ConfigError, match="no such login on this machine any more"):
        credential.current_credential(logins, LOGIN.id, ExecInfo(), ManualClock(EPOCH + timedelta(minutes=55)), True)


def test_a_login_that_was_forgotten_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
    logins = LoginFiles(tmp_path / "logins")
    with pytest.raises(ConfigError, match="no such login on this machine any more"):
        credential.current_credential(logins, LOGIN.id, ExecInfo(), ManualClock(), True)


def test_a_record_that_cannot_be_read_can_be_forgotten(
    mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    logins = LoginFiles(tmp_path / "cache/mooring/logins")
    logins.write(LOGIN)
    logins.path("0" * 16).write_text("{")
    done = mooring("logout", "--all")
    assert (done.code, done.out) == (0, "")
    assert "Forgot the login 0000000000000000.\n" in done.err
    assert "Forgot the login work; the credential would have been valid until 2026-01-02T04:04:05Z.\n" in done.err
    assert logins.every() == []
    assert mooring("logout", "--all", "--name", "x").code == 2


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with the kubeconfig entries of `LOGIN`, which is not the current context, and no record."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / ".kube").mkdir()
    apply(tmp_path / ".kube/config", LOGIN)
    change(tmp_path / ".kube/config", use_another)
    return tmp_path


def record(home: Path) -> Path:
    path = LoginFiles(home / "cache/mooring/logins").path(LOGIN.id)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def damage(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


DAMAGES = [
    pytest.param(damage(b""), id="empty"),
    pytest.param(damage(loginrecord.dump(LOGIN)[:-9]), id="torn"),
    pytest.param(damage(b'{"format": "mooring.dev/login-record/v1"}'), id="without fields"),
    pytest.param(damage(b'{"format": "mooring.dev/login-record/v9"}'), id="of another format"),
    pytest.param(damage(b"[]"), id="a list"),
    pytest.param(damage(loginrecord.dump(replace(LOGIN, name="second"))), id="of another login"),
    pytest.param(damage(loginrecord.dump(replace(LOGIN, source=IdentitySource("oidc")))), id="without settings"),
    pytest.param(damage(b"\xff\x00" * 99), id="bytes"),
    pytest.param(damage(b" " * (MAX_RECORD + 1)), id="too long"),
]
GONE = pytest.param(lambda path: None, id="gone")
HOW = "--username NAME (or --token-file FILE, or --oidc-issuer-url URL --oidc-client-id ID)"
AGAIN = f"; run: mooring login --context prod --name work {HOW}"


@pytest.mark.parametrize("spoil", [*DAMAGES, GONE])
@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        pytest.param(("credential", "--login", LOGIN.id), AGAIN, id="credential"),
        pytest.param(("login", "--name", "work"), AGAIN, id="login by name"),
        pytest.param(("login", "--context", "prod"), AGAIN, id="login by context"),
        pytest.param(
            ("login", "--kubeconfig", "{home}/.kube/config", "--context", "prod"),
            f"; run: mooring login --kubeconfig {{home}}/.kube/config --context prod --name work {HOW}",
            id="login by another kubeconfig",
        ),
    ],
)
def test_a_lost_record_leads_to_the_command_that_makes_a_new_login(
    mooring: CommandLine, home: Path, spoil: Callable[[Path], object], arguments: tuple[str, ...], command: str
) -> None:
    spoil(record(home))
    done = mooring(*(one.format(home=home) for one in arguments))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(("Error: there is no such login on this m", "Error: the record of the login is damaged"))
    assert done.err.endswith(f"{command.format(home=home)}\n")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("spoil", [*DAMAGES, GONE])
def test_that_command_makes_the_login_in_the_same_entries(
    mooring: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object]
) -> None:
    async def request_credential(*asked: object) -> Credential:
        return NEW

    monkeypatch.setattr(renewal, "request_credential", request_credential)
    path = record(home)
    spoil(path)
    before = yaml.safe_load((home / ".kube/config").read_text())
    (home / "token").write_text("t")
    done = mooring("login", "--context", "prod", "--name", "work", "--token-file", str(home / "token"))
    assert done.code == 0, done.err
    stored = LoginFiles(path.parent).read(LOGIN.id)
    assert stored is not None
    assert stored.credential == NEW
    assert yaml.safe_load((home / ".kube/config").read_text()) == before | {"current-context": "prod"}


def test_a_kubeconfig_without_an_entry_gives_no_context(mooring: CommandLine, home: Path) -> None:
    (home / ".kube/config").write_text("{")
    done = mooring("credential", "--login", LOGIN.id)
    assert (
        done.err == f"Error: there is no such login on this machine any more; run: mooring login --server URL {HOW}\n"
    )


@pytest.mark.parametrize("spoil", [*DAMAGES, GONE])
@pytest.mark.parametrize("flags", [(), ("--all",), ("--name", "work"), ("--name", LOGIN.id)])
def test_logout_removes_what_is_left_of_a_lost_login(
    mooring: CommandLine, home: Path, spoil: Callable[[Path], object], flags: tuple[str, ...]
) -> None:
    spoil(record(home))
    is_there = record(home).exists()
    done = mooring("logout", *flags)
    assert (done.code, done.err) == (0, f"Forgot the login work{'' if is_there else ', whose record was gone'}.\n")
    assert not record(home).exists()
    top = yaml.safe_load((home / ".kube/config").read_text())
    assert [one["name"] for one in top["users"]] == ["admin"]
    assert [one["name"] for one in top["contexts"]] == ["admin"]
    again = mooring("logout", *flags)
    if flags[:1] == ("--name",):
        assert (again.code, again.err) == (1, f'Error: there is no login "{flags[1]}"\n')
    else:
        assert (again.code, again.err) == (0, "There is no login on this machine.\n")


def test_logout_prefers_the_login_that_has_a_record(mooring: CommandLine, home: Path) -> None:
    record(home)
    LoginFiles(record(home).parent).write(replace(LOGIN, name="second"))
    done = mooring("logout")
    assert done.err.startswith("Forgot the login second; the credential would have been valid until")
    assert "prod" in (home / ".kube/config").read_text()


def test_logout_leaves_the_entries_of_a_login_in_another_cache_directory(mooring: CommandLine, home: Path) -> None:
    def move(top: Any) -> None:
        top["users"][0]["user"]["exec"]["env"] = [{"name": "XDG_CACHE_HOME", "value": "/elsewhere"}]

    change(home / ".kube/config", move)
    assert mooring("logout", "--all").err == "There is no login on this machine.\n"
    assert "prod" in (home / ".kube/config").read_text()


@pytest.mark.parametrize("content", ["{", "- a"])
def test_a_kubeconfig_that_cannot_be_read_keeps_no_record(mooring: CommandLine, home: Path, content: str) -> None:
    LoginFiles(record(home).parent).write(LOGIN)
    (home / ".kube/config").write_text(content)
    done = mooring("logout")
    assert done.code == 1
    assert done.err.startswith("Forgot the login work; ")
    assert "Error: " in done.err
    assert not record(home).exists()


def test_a_record_that_cannot_be_removed_is_told(mooring: CommandLine, home: Path) -> None:
    record(home).mkdir()
    done = mooring("logout", "--name", "work")
    assert done.code == 1
    assert done.err == f"Error: {record(home)} cannot be removed: is a directory\n"


# ── the kubeconfig ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_kubeconfig_that_is_written_is_the_one_that_kubectl_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert kubeconfigentries.kubeconfig_target("") == tmp_path / ".kube/config"
    monkeypatch.setenv("KUBECONFIG", f"{first}::{second}")
    assert kubeconfigentries.kubeconfig_target("") == second, "none is there: the last"
    first.touch()
    assert kubeconfigentries.kubeconfig_target("") == first
    assert kubeconfigentries.kubeconfig_target("named") == Path("named")


CA_PEM, OTHER_CA_PEM = (ThrowawayCA(name).certificate_pem for name in ("one", "two"))
HERE = replace(LOGIN, place=Place("https://a:6443", CA_PEM))
MOVED = replace(LOGIN, place=Place("https://b:6443", CA_PEM + OTHER_CA_PEM))


def apply(path: Path, login: Login, *earlier: str, use: bool = True, preferred: str = "") -> Any:
    """Write the entries of `login` to the kubeconfig `path`, and return it."""
    plan = partial(plan_entries, login=login, earlier=earlier, use=use, preferred=preferred)
    kubeconfigentries.KubeconfigFiles(str(path)).apply(plan)
    return yaml.safe_load(path.read_text())


def change(path: Path, edit: Callable[[Any], object]) -> Any:
    """Change the kubeconfig `path` as a user does, and return it."""
    top = yaml.safe_load(path.read_text())
    edit(top)
    path.write_text(yaml.safe_dump(top))
    return top


def set_everything(top: Any) -> None:
    """Set what users set in the entries of a login."""
    top["clusters"][0]["cluster"] |= {
        "proxy-url": "http://p:3128",
        "tls-server-name": "api",
        "extensions": [{"name": "x", "extension": {}}],
    }
    top["contexts"][0]["context"] |= {"namespace": "dev", "extensions": [{"name": "editor", "extension": {"z": 1}}]}
    top["users"][0]["user"]["exec"] |= {
        "command": "/opt/mooring",
        "env": [{"name": "XDG_CACHE_HOME", "value": "/c"}],
        "interactiveMode": "Never",
        "installHint": "ask Bob",
        "args": ["--verbose", "credential", f"--login={HERE.id}", "--more"],
        "later": 1,
    }


def rename_context(top: Any) -> None:
    top["contexts"][0]["name"] = top["current-context"] = "prod"


def rename_all(top: Any) -> None:
    rename_context(top)
    top["clusters"][0]["name"] = top["contexts"][0]["context"]["cluster"] = "c1"
    top["users"][0]["name"] = top["contexts"][0]["context"]["user"] = "jane"


def use_another(top: Any) -> None:
    rename_context(top)
    top["contexts"].append({"name": "admin", "context": {"cluster": "work", "user": "admin"}})
    top["users"].append({"name": "admin", "user": {"token": "t"}})
    top["current-context"] = "admin"


@pytest.mark.parametrize("edit", [set_everything, rename_context, rename_all])
def test_a_repeated_login_leaves_everything_that_the_user_has_set(
    tmp_path: Path, edit: Callable[[Any], object]
) -> None:
    apply(tmp_path / "config", HERE)
    before = change(tmp_path / "config", edit)
    written = (tmp_path / "config").stat()
    assert apply(tmp_path / "config", HERE) == before
    assert (tmp_path / "config").stat().st_mtime_ns == written.st_mtime_ns, "there was nothing to write"


@pytest.mark.parametrize("edit", [set_everything, rename_context, rename_all])
def test_a_login_at_another_address_changes_address_ca_and_id_alone(
    tmp_path: Path, edit: Callable[[Any], object]
) -> None:
    apply(tmp_path / "config", HERE)
    expected = change(tmp_path / "config", edit)
    after = apply(tmp_path / "config", MOVED, HERE.id)
    expected["clusters"][0]["cluster"] |= {
        "server": "https://b:6443",
        "certificate-authority-data": b64encode(MOVED.place.ca_pem).decode(),
    }
    plugin = expected["users"][0]["user"]["exec"]
    plugin["args"] = [one.replace(HERE.id, MOVED.id) for one in plugin["args"]]
    assert after == expected


def test_a_ca_file_and_skipped_verification_give_way_to_the_ca(tmp_path: Path) -> None:
    apply(tmp_path / "config", HERE)
    plain = yaml.safe_load((tmp_path / "config").read_text())

    def unverified(top: Any) -> None:
        top["clusters"][0]["cluster"] = {"server": "https://a:6443", "certificate-authority": "/nowhere"}
        del top["users"][0]["user"]["exec"]["provideClusterInfo"]

    change(tmp_path / "config", unverified)
    assert apply(tmp_path / "config", HERE) == plain
    change(
        tmp_path / "config",
        lambda top: top["clusters"][0].update(cluster={"server": "https://a:6443", "insecure-skip-tls-verify": True}),
    )
    assert apply(tmp_path / "config", HERE) == plain


@pytest.mark.parametrize(
    ("use", "preferred", "current"),
    [
        pytest.param(True, "", "prod", id="the login's own becomes the current one"),
        pytest.param(True, "elsewhere", "prod", id="whatever else was named"),
        pytest.param(True, "second", "second", id="the one that was named"),
        pytest.param(False, "", "admin", id="but not with --keep-context"),
    ],
)
def test_the_context_in_use_after_a_repeated_login(tmp_path: Path, use: bool, preferred: str, current: str) -> None:
    apply(tmp_path / "config", HERE)

    def edit(top: Any) -> None:
        use_another(top)
        top["contexts"].append({"name": "second", "context": {"cluster": "work", "user": "work"}})

    before = change(tmp_path / "config", edit)
    after = apply(tmp_path / "config", HERE, use=use, preferred=preferred)
    assert after == before | {"current-context": current}


def entry(kind: str, **fields: str) -> Callable[[Any], object]:
    return lambda top: top.update({f"{kind}s": [{"name": "work", kind: fields}]})


ADMIN = {
    "clusters": [{"name": "c", "cluster": {"server": "https://c"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        pytest.param(entry("user", token="t"), 'a user "work"', id="a user"),
        pytest.param(entry("user"), 'a user "work"', id="a user without anything"),
        pytest.param(entry("context", cluster="c", user="u"), 'a context "work"', id="a context"),
        pytest.param(entry("context", cluster="c", user="work"), 'a context "work"', id="a context of another cluster"),
        pytest.param(entry("cluster", server="https://c"), 'a cluster "work"', id="a cluster"),
        pytest.param(
            lambda top: top.update(
                clusters=[{"name": "work", "cluster": {"server": "https://a:6443"}}],
                contexts=[{"name": "x", "context": {"cluster": "work", "user": "u"}}],
            ),
            'a cluster "work"',
            id="the same cluster, of another user",
        ),
        pytest.param(
            lambda top: top.update(
                users=[
                    {
                        "name": "work",
                        "user": {"exec": {"command": "mooring", "args": ["credential", "--login", "0" * 16]}},
                    }
                ]
            ),
            'a user "work"',
            id="another login",
        ),
    ],
)
def test_the_name_of_an_entry_of_something_else_is_refused(
    tmp_path: Path, edit: Callable[[Any], object], named: str
) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(ADMIN))
    change(path, edit)
    before = path.read_text()
    with pytest.raises(ConfigError, match=f"{named} that does not belong to this login: choose another --name$"):
        apply(path, HERE)
    assert path.read_text() == before


def test_the_name_of_a_login_at_another_cluster_is_refused(tmp_path: Path) -> None:
    before = apply(tmp_path / "config", HERE)
    elsewhere = replace(LOGIN, place=Place("https://c", OTHER_CA_PEM))
    with pytest.raises(
        ConfigError, match=r"has another CA: choose another --name, or run mooring logout --name work first$"
    ):
        apply(tmp_path / "config", elsewhere, HERE.id)
    assert yaml.safe_load((tmp_path / "config").read_text()) == before


@pytest.mark.parametrize(
    "deleted",
    [("users",), ("contexts",), ("clusters",), ("users", "contexts"), ("clusters", "contexts"), ("clusters", "users")],
)
def test_entries_that_were_deleted_are_made_again(tmp_path: Path, deleted: tuple[str, ...]) -> None:
    before = apply(tmp_path / "config", HERE)
    change(tmp_path / "config", lambda top: top.update(dict.fromkeys(deleted)))
    assert apply(tmp_path / "config", HERE) == before


def test_entries_are_changed_in_the_files_that_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    apply(second, HERE)
    (first).write_text("current-context: other\n")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path / 'third'}")
    files = kubeconfigentries.KubeconfigFiles("")
    planned, written = files.apply(partial(plan_entries, login=MOVED, earlier=[HERE.id]))
    assert (planned.context, written) == ("work", first)
    assert yaml.safe_load(first.read_text()) == {
        "kind": "Config",
        "apiVersion": "v1",
        "current-context": "work",
    } | dict.fromkeys(LISTS)
    assert yaml.safe_load(second.read_text())["clusters"][0]["cluster"]["server"] == "https://b:6443"
    assert not (tmp_path / "third").exists()

    change(first, lambda top: top.update(users=[{"name": "work", "user": {"token": "another user of that name"}}]))
    files.remove([MOVED.id], ["work"])
    assert yaml.safe_load(first.read_text())["users"] == [
        {"name": "work", "user": {"token": "another user of that name"}}
    ]
    assert yaml.safe_load(first.read_text())["current-context"] == ""
    assert yaml.safe_load(second.read_text()) == {
        "kind": "Config",
        "apiVersion": "v1",
        "current-context": "",
    } | dict.fromkeys(LISTS)


def test_logout_removes_the_entries_whatever_their_names_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "config"
    apply(path, HERE)
    change(path, use_another)
    kubeconfigentries.KubeconfigFiles(str(path)).remove([HERE.id], ["work", "admin"])
    after = yaml.safe_load(path.read_text())
    assert {key: [one["name"] for one in after[key]] for key in LISTS} == {
        "clusters": ["work"],
        "contexts": ["admin"],
        "users": ["admin"],
    }
    kubeconfigentries.KubeconfigFiles(str(path)).remove([HERE.id], ["work", "admin"])
    assert yaml.safe_load(path.read_text()) == after


@pytest.mark.parametrize(
    ("info", "allowed", "server", "refused"),
    [
        pytest.param(ExecInfo(), False, "https://a:6443", "", id="no variable"),
        pytest.param(
            ExecInfo(cluster={}), True, "https://a:6443", "", id="a variable without cluster, allowed by the login"
        ),
        pytest.param(ExecInfo(cluster={}), False, "https://a:6443", "the client passed no cluster", id="not allowed"),
        pytest.param(
            ExecInfo(),
            False,
            "https://evil",
            'the context "work" uses it with another server',
            id="no variable, another server",
        ),
        pytest.param(
            ExecInfo(cluster={}),
            True,
            "https://evil",
            'the context "work" uses it with another server',
            id="allowed, another server",
        ),
    ],
)
def test_clients_that_pass_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: ExecInfo, allowed: bool, server: str, refused: str
) -> None:
    login = replace(HERE, without_cluster=allowed)
    logins = LoginFiles(tmp_path / "logins")
    logins.write(login)
    apply(tmp_path / "config", login)
    change(tmp_path / "config", lambda top: top["clusters"][0]["cluster"].update(server=server))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    if refused:
        with pytest.raises(ConfigError, match=refused):
            credential.current_credential(logins, login.id, info, ManualClock(EPOCH), False)
    else:
        assert credential.current_credential(logins, login.id, info, ManualClock(EPOCH), False) == OLD


def test_a_kubeconfig_that_changes_meanwhile_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    apply(second, HERE)
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    plan = partial(plan_entries, earlier=[HERE.id])
    plans = iter([partial(plan, login=HERE), partial(plan, login=MOVED)])
    with pytest.raises(ConfigError, match="run the command again"):
        kubeconfigentries.KubeconfigFiles("").apply(lambda config: next(plans)(config))


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to("real")
    apply(tmp_path / "link", LOGIN)
    assert (tmp_path / "link").is_symlink()
    assert LOGIN.id in (tmp_path / "real").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"], "the lock is gone"


@pytest.mark.parametrize(
    ("source", "flags", "again"),
    [
        pytest.param(OIDC, (), "mooring login --name work", id="a provider"),
        pytest.param(
            OIDC,
            ("--kubeconfig-out", "{} b"),
            "mooring login --name work --kubeconfig-out '{} b'",
            id="another kubeconfig",
        ),
        pytest.param(("--token-file", "{}"), (), "mooring login --name work", id="a file with a token"),
        pytest.param(("--token-file", "-"), (), "the same command", id="a token that is not stored"),
    ],
)
def test_a_login_whose_entries_cannot_be_written_is_kept_and_says_how_to_go_on(
    mooring: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: tuple[str, ...],
    flags: tuple[str, ...],
    again: str,
) -> None:
    """The disk becomes full between the check and the write."""

    def full(path: Path, data: bytes) -> None:
        raise ConfigError(f"{path} cannot be written: no space left on device")

    file = tmp_path / "a"
    file.write_text("x")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = import_module("mooring.cli.login.login")
    monkeypatch.setattr(command, "renew", lambda login, *_, **__: login.with_credential(NEW))
    monkeypatch.setattr(command, "_read_stdin", lambda *_: None)
    words = [word.format(file) for word in ("login", *SERVER, *source, "--name", "work", *flags)]
    with monkeypatch.context() as patch:
        patch.setattr(kubeconfigentries, "replace_content", full)
        done = mooring(*words)
    out = f"{file} b" if flags else str(tmp_path / "config")
    kept = f"the login is kept: {again.format(file)} writes its entries"
    assert (done.code, done.err) == (1, f"Error: {out} cannot be written: no space left on device; {kept}\n")
    assert len(list((tmp_path / "mooring/logins").glob("*.json"))) == 1
    repeated = mooring(*(words if again == "the same command" else shlex.split(again.format(file))[1:]))
    assert repeated.code == 0, repeated.err
    assert [user.name for user in kubeconfigentries.KubeconfigFiles(out).read().users] == ["work"]


@pytest.mark.parametrize("name", ["loop", "loop/config"])
def test_a_symbolic_link_that_leads_to_itself_is_named(mooring: CommandLine, tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "token").write_text("x")
    done = mooring("login", *SERVER, "--token-file", str(tmp_path / "token"), "--kubeconfig-out", str(tmp_path / name))
    assert (done.code, done.err) == (
        1,
        f"Error: {tmp_path / name} cannot be used: too many levels of symbolic links; check the path: a symbolic link leads to "
        "itself\n",
    )
    assert (tmp_path / "loop").is_symlink()


def test_a_directory_in_which_no_lock_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError):
        apply(tmp_path / "file" / "config", LOGIN)


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_kube_apiserver_is_named(tmp_path: Path, code: int) -> None:
    ca = ThrowawayCA()
    reasons = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}

    def answer(asked: peer.ReceivedRequest) -> peer.Reply:
        if asked.path == "/version":
            assert "Authorization" not in asked.headers
            return peer.Reply(200, b'{"gitVersion": "v1.36.2"}')
        status = {"kind": "Status", "code": code, "reason": reasons[code], "message": "no"}
        return peer.Reply(code, json.dumps(status).encode())

    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    with peer.http_peer(answer, ca.server(*LOOPBACK)) as server:
        done = process(
            "login", "--server", server.endpoint, "--certificate-authority", str(tmp_path / "ca.crt"),
            "--username", "jane", "--password-stdin", stdin="secret\n", HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path),
        )  # fmt: skip
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"Error: {server.url} is Kubernetes v1.36.2, not Mooring: only a Mooring server gives credentials for a "
        "login; kubectl shows yours itself\n"
    )
