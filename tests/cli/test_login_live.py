"""`mooring login`, `credential` and `logout` with a real server and kubectl."""

from __future__ import annotations

import base64
import json
import os
import pty
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.clock import rfc3339
from mooring.trust.kubeconfigtext import format_kubeconfig, load, parse_kubeconfig
from tests.compat.kubectl import Program
from tests.support.liveserver import LiveServer, start_server
from tests.support.workstation import NEEDS_KUBECTL, NEWEST, PASSWORD, TOKEN, USED, Workstation, program

__all__ = ["program"]
pytestmark = NEEDS_KUBECTL


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    place = tmp_path_factory.mktemp("login")
    (place / "passwords.csv").write_text(f'{PASSWORD},jane,42,"dev,ops"\n{PASSWORD},sneak,1,system:masters\n')
    (place / "tokens.csv").write_text(f'{TOKEN},robot,43,"ci"\n')
    server = start_server(
        place / "data",
        *("--basic-auth-file", str(place / "passwords.csv")),
        *("--token-auth-file", str(place / "tokens.csv")),
        *("--login-ttl", "1m"),
    )
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture
def jane(server: LiveServer, tmp_path: Path) -> Workstation:
    return Workstation(server, tmp_path)


def logins_served(server: LiveServer) -> int:
    """Return the number of certificates that the server has issued for logins."""
    text = server.run(lambda client: client.read("/metrics")).decode()
    lines = [one for one in text.splitlines() if one.startswith('mooring_logins_total{result="certificate"}')]
    return sum(int(float(line.split(" ")[1])) for line in lines)  # there is no line before the first one


@pytest.mark.parametrize("program", USED, ids=lambda program: f"kubectl {program.version}")
@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_after_a_login_kubectl_is_who_gave_the_password(jane: Workstation, program: Program, kind: str) -> None:
    done = jane.login("--credential", kind)
    assert done.code == 0, done.err
    assert "as jane until " in done.err
    assert done.out == ""
    user = jane.whoami(program)
    assert (user["username"], user["uid"]) == ("jane", "42")
    assert set(user["groups"]) == {"dev", "ops", "system:authenticated"}
    prefix = "X509SHA256=" if kind == "certificate" else "JTI="
    assert user["extra"]["authentication.kubernetes.io/credential-id"][0].startswith(prefix)
    assert jane.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert jane.logins.path(jane.only_login().id).stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in jane.kubeconfig.read_text() + jane.logins.path(jane.only_login().id).read_text()


def test_kubectl_auth_whoami_says_the_same(jane: Workstation, program: Program) -> None:
    assert jane.login().code == 0
    done = jane.kubectl(program, "auth", "whoami", "-o", "json")
    assert json.loads(done.out)["status"]["userInfo"]["username"] == "jane"


@pytest.mark.parametrize("program", USED, ids=lambda program: f"kubectl {program.version}")
@pytest.mark.parametrize("left", [timedelta(seconds=-30), timedelta(seconds=5)], ids=["expired", "about to expire"])
def test_a_credential_is_renewed_from_the_file_with_the_token(
    jane: Workstation, program: Program, left: timedelta
) -> None:
    assert jane.login("--token-file", str(jane.token_file())).code == 0
    jane.age(left)
    before = logins_served(jane.server)
    assert jane.whoami(program)["username"] == "robot"
    assert jane.whoami(program)["username"] == "robot"
    assert logins_served(jane.server) == before + 1
    credential = jane.only_login().credential
    assert credential is not None
    assert credential.usable(datetime.now(UTC))


def test_twenty_commands_at_once_make_one_renewal(jane: Workstation, program: Program) -> None:
    assert jane.login("--token-file", str(jane.token_file())).code == 0
    jane.age(timedelta(seconds=-1))
    before = logins_served(jane.server)
    with ThreadPoolExecutor(20) as pool:
        names = {user["username"] for user in pool.map(lambda _: jane.whoami(program), range(20))}
    assert names == {"robot"}
    assert logins_served(jane.server) == before + 1


def test_a_token_that_the_file_holds_no_more_renews_nothing(jane: Workstation, program: Program) -> None:
    path = jane.token_file()
    assert jane.login("--token-file", str(path)).code == 0
    path.write_text("another")
    assert jane.whoami(program)["username"] == "robot", "what was given is good until its end"
    jane.age(timedelta(0))
    done = jane.kubectl(program, "get", "namespaces")
    assert done.code != 0
    assert "does not accept the credentials" in done.err


@pytest.mark.parametrize("program", USED, ids=lambda program: f"kubectl {program.version}")
def test_who_cannot_be_asked_for_the_password_is_told_what_to_run(jane: Workstation, program: Program) -> None:
    assert jane.login("--name", "work").code == 0
    jane.age(timedelta(0))
    done = jane.kubectl(program, "get", "namespaces")
    assert done.code != 0
    assert f"Error: the login at {jane.server.url} has ended; run: mooring login --name work\n" in done.err
    again = jane.login("--name", "work")
    assert again.code == 0
    assert jane.whoami(program)["username"] == "jane"
    assert len(jane.logins.every()) == 1


def test_logging_in_again_begins_where_the_login_of_the_context_began(jane: Workstation, program: Program) -> None:
    assert jane.login("--credential", "token").code == 0
    jane.age(timedelta(0))
    again = jane.mooring("login", "--password-stdin", stdin=PASSWORD + "\n")
    assert again.code == 0, again.err
    assert jane.only_login().kind == "token"
    assert jane.whoami(program)["username"] == "jane"


def test_a_user_of_a_kubeconfig_is_traded_and_renewed_under_its_own_context(
    jane: Workstation, program: Program
) -> None:
    """Also when the login has become the current context of the same file."""
    ca = jane.server.data_dir / "pki/ca.crt"
    for words in (
        ("set-cluster", "c", "--server", jane.server.url, "--certificate-authority", str(ca)),
        ("set-credentials", "robot", "--token", TOKEN),
        ("set-context", "robot@c", "--cluster", "c", "--user", "robot"),
        ("use-context", "robot@c"),
    ):
        assert jane.kubectl(program, "config", *words).code == 0
    assert jane.mooring("login").code == 0
    config = parse_kubeconfig(jane.kubeconfig.read_bytes())
    assert config.current_context == jane.only_login().name
    assert {context.name for context in config.contexts} == {"robot@c", jane.only_login().name}
    jane.age(timedelta(0))
    assert jane.whoami(program)["username"] == "robot"
    assert "credential-id" in str(jane.whoami(program)["extra"]), "it is the login's certificate, not the token itself"


def test_what_a_login_gave_logs_nobody_in_again(jane: Workstation) -> None:
    for kind in ("certificate", "token"):
        assert jane.login("--credential", kind).code == 0
        status = json.loads(jane.mooring("credential", "--login", jane.only_login().id).out)["status"]
        if kind == "token":
            again = jane.login("--token-file", str(jane.token_file(status["token"])))
        else:
            (jane.home / "crt").write_text(status["clientCertificateData"])
            (jane.home / "key").write_text(status["clientKeyData"])
            files = ("--client-certificate", str(jane.home / "crt"), "--client-key", str(jane.home / "key"))
            assert jane.kubectl(NEWEST, "config", "set-credentials", jane.only_login().name, *files).code == 0
            config = parse_kubeconfig(jane.kubeconfig.read_bytes())
            user = replace(config.users[0], exec=None)
            jane.kubeconfig.write_text(format_kubeconfig(replace(config, users=(user,))))
            refused = jane.mooring("login")
            assert "that does not belong to this login: choose another --name" in refused.err
            again = jane.mooring("login", "--name", "again")
            jane.kubeconfig.unlink()
        assert again.code == 1
        assert "is a credential of a cluster already" in again.err


@pytest.mark.parametrize(
    ("flags", "stdin", "message"),
    [
        pytest.param(("--username", "jane"), "wrong", "with: mooring auth explain ", id="a wrong password"),
        pytest.param(("--username", "nobody"), PASSWORD, "does not accept the credentials", id="an unknown user"),
        pytest.param(("--username", "jane"), "", "standard input is empty", id="no password"),
        pytest.param(("--username", "sneak"), PASSWORD, 'the group "system:masters"', id="a group of the system"),
    ],
)
def test_who_does_not_get_in_leaves_nothing_behind(
    jane: Workstation, flags: tuple[str, ...], stdin: str, message: str
) -> None:
    done = jane.login(*flags, stdin=stdin)
    assert done.code == 1
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert not jane.kubeconfig.exists()
    assert jane.logins.every() == []


def test_a_server_that_takes_no_passwords_is_told(jane: Workstation, live_server: LiveServer) -> None:
    done = replace(jane, server=live_server).login()
    assert done.code == 1
    assert "ignores the credentials" in done.err


def test_a_server_is_trusted_by_its_pin(jane: Workstation, program: Program) -> None:
    where = ("login", "--server", jane.server.url, "--username", "jane", "--password-stdin")
    wrong = jane.mooring(*where, "--discovery-token-ca-cert-hash", "sha256:" + "0" * 64, stdin=PASSWORD)
    assert wrong.code == 1
    assert "pin" in wrong.err
    untrusted = jane.mooring(*where, stdin=PASSWORD)
    assert untrusted.code == 1
    assert "no CA of this machine vouches for" in untrusted.err
    done = jane.mooring(*where, "--discovery-token-ca-cert-hash", jane.server.pin, stdin=PASSWORD)
    assert done.code == 0, done.err
    assert jane.whoami(program)["username"] == "jane"


def test_other_entries_of_the_kubeconfig_are_kept(jane: Workstation) -> None:
    jane.kubeconfig.parent.mkdir()
    jane.kubeconfig.write_text(
        "kind: Config\napiVersion: v1\ncurrent-context: a\nunknown: {x: 1}\n"
        "contexts: [{name: a, context: {cluster: a, user: a, unknown: 1}}]\n"
        "clusters: [{name: a, cluster: {server: https://a.example, certificate-authority: ca.crt}}]\n"
        "users: [{name: a, user: {token: kept}}]\n"
    )
    before = load(jane.kubeconfig.read_bytes())
    assert jane.login("--keep-context", "--name", "new").code == 0
    after = load(jane.kubeconfig.read_bytes())
    assert after["current-context"] == "a"
    assert after["unknown"] == {"x": 1}
    for key in ("contexts", "clusters", "users"):
        assert after[key][0] == before[key][0]
        assert [entry["name"] for entry in after[key]] == ["a", "new"]
    assert jane.mooring("logout").code == 0
    assert load(jane.kubeconfig.read_bytes()) == before


def test_a_login_is_repeated_by_its_name_from_any_context(jane: Workstation) -> None:
    assert jane.login("--name", "work", "--credential", "token").code == 0
    assert jane.kubectl(NEWEST, "config", "rename-context", "work", "prod").code == 0
    assert jane.kubectl(NEWEST, "config", "set-context", "prod", "--namespace", "dev").code == 0
    for arguments in (
        ("set-cluster", "admin", "--server", "https://192.0.2.1:6443"),
        ("set-credentials", "admin", "--token", "kept"),
        ("set-context", "admin", "--cluster", "admin", "--user", "admin"),
        ("use-context", "admin"),
    ):
        assert jane.kubectl(NEWEST, "config", *arguments).code == 0
    before = parse_kubeconfig(jane.kubeconfig.read_bytes())
    again = jane.mooring("login", "--name", "work", "--password-stdin", stdin=PASSWORD)
    assert again.code == 0, again.err
    assert again.err.endswith(f"Wrote context prod to {jane.kubeconfig}.\n")
    assert parse_kubeconfig(jane.kubeconfig.read_bytes()) == replace(before, current_context="prod")
    assert jane.only_login().kind == "token"
    unchanged = jane.mooring("login", "--password-stdin", stdin=PASSWORD)
    assert unchanged.err.endswith("Context prod has it already.\n"), unchanged.err

    moved = jane.server.url.replace("127.0.0.1", "localhost")
    ca = str(jane.server.data_dir / "pki/ca.crt")
    where = ("--server", moved, "--certificate-authority", ca, "--username", "jane", "--password-stdin")
    assert jane.mooring("login", *where, "--name", "work", stdin=PASSWORD).code == 0
    assert jane.only_login().place.server == moved, "the record of the address before is gone"
    after = parse_kubeconfig(jane.kubeconfig.read_bytes())
    assert after.contexts == before.contexts
    assert {one.server for one in after.clusters} == {moved, "https://192.0.2.1:6443"}

    assert jane.only_login().kind == "token", "as before"
    assert jane.kubectl(NEWEST, "config", "use-context", "admin").code == 0
    written = jane.kubeconfig.read_bytes()
    other = jane.mooring("login", "--username", "bob", "--name", "work", "--password-stdin", stdin=PASSWORD)
    assert 'has a cluster "work" that does not belong' in other.err or "has another CA" in other.err, (
        "a password for the current context does not go to another cluster"
    )
    assert jane.kubeconfig.read_bytes() == written
    refused = jane.login("--name", "admin", stdin="no password is read for it")
    assert refused.err == (
        'Error: the kubeconfig has a user "admin" that does not belong to this login: choose another --name\n'
    )
    assert jane.kubeconfig.read_bytes() == written
    jane.kubeconfig.unlink()
    assert jane.mooring("login", "--name", "work", "--password-stdin", stdin=PASSWORD).code == 0, "by its record alone"
    assert parse_kubeconfig(jane.kubeconfig.read_bytes()).current_context == "work"
    assert jane.mooring("logout").code == 0
    assert parse_kubeconfig(jane.kubeconfig.read_bytes()).users == ()


def test_a_kubeconfig_that_another_program_changes_is_left_alone(jane: Workstation) -> None:
    jane.kubeconfig.parent.mkdir()
    jane.kubeconfig.with_name("config.lock").touch()
    done = jane.login()
    assert done.code == 1
    assert "is being changed by another program" in done.err
    assert not jane.kubeconfig.exists()


def test_a_kubeconfig_that_cannot_be_written_is_known_before_the_login(jane: Workstation) -> None:
    place = jane.home / "directory"
    place.mkdir()
    place.chmod(0o777)
    before = set(jane.home.rglob("*"))
    done = jane.login("--kubeconfig-out", str(place / "own.conf"))
    assert done.code == 1
    assert "everybody may replace files" in done.err
    assert set(jane.home.rglob("*")) == before, "there is no login"


@pytest.fixture
def mounted(jane: Workstation) -> Iterator[Path]:
    """A kubeconfig that is a mount point, as in a container. Its directory and the file are of one file system."""
    (jane.home / "outside").write_text("kind: Config\napiVersion: v1\nunknown: kept\n" + "# comment\n" * 500)
    mounted = jane.home / "mounted"
    mounted.touch()
    if subprocess.run(["mount", "--bind", jane.home / "outside", mounted], capture_output=True).returncode:
        pytest.skip("a bind mount needs root")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


def test_a_kubeconfig_that_is_a_mount_point_is_written_in_place(jane: Workstation, mounted: Path) -> None:
    done = jane.login("--kubeconfig-out", str(mounted))
    assert done.code == 0, done.err
    assert load((jane.home / "outside").read_bytes())["unknown"] == "kept"
    assert parse_kubeconfig((jane.home / "outside").read_bytes()).current_context == jane.only_login().name
    assert jane.mooring("logout", "--kubeconfig", str(mounted)).code == 0
    assert parse_kubeconfig((jane.home / "outside").read_bytes()).users == ()
    assert sorted(path.name for path in jane.home.iterdir() if path.is_file()) == ["mounted", "outside"]


def test_a_mount_point_that_is_read_only_is_known_before_the_login(jane: Workstation, mounted: Path) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", mounted], check=True)
    before = logins_served(jane.server)
    done = jane.login("--kubeconfig-out", str(mounted))
    assert done.code == 1
    assert f"{mounted} cannot be written: read-only file system" in done.err
    assert (logins_served(jane.server), jane.logins.every()) == (before, [])


@pytest.mark.parametrize("full", ["kubeconfig", "cache"])
def test_a_full_disk_is_known_before_the_login(jane: Workstation, full: str) -> None:
    place = jane.kubeconfig.parent if full == "kubeconfig" else jane.home / ".cache"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (place / "ballast").write_bytes(bytes(60 << 10))
        before = logins_served(jane.server)
        done = jane.login()
        assert done.code == 1
        assert done.err.endswith(
            "cannot be written: no space left on device; free some space and run the command again\n"
        )
        assert (logins_served(jane.server), jane.logins.every()) == (before, [])
    finally:
        subprocess.run(["umount", place], check=True)


def test_after_logout_nothing_of_the_login_is_left(jane: Workstation) -> None:
    out = jane.home / "own.conf"
    assert jane.login("--kubeconfig-out", str(out)).code == 0
    assert jane.login("--name", "second").code == 0
    assert jane.mooring("logout").code == 2, "which of the two?"
    first = jane.mooring(
        "logout", "--name", parse_kubeconfig(out.read_bytes()).current_context, "--kubeconfig", str(out)
    )
    assert first.code == 0, first.err
    assert "would have been valid until" in first.err
    assert parse_kubeconfig(out.read_bytes()).users == ()
    refused = jane.kubectl(NEWEST, "--kubeconfig", str(out), "get", "namespaces")
    assert refused.code != 0
    assert jane.mooring("logout", "--name", "second").code == 0
    assert jane.mooring("logout", "--name", "second").code == 1
    assert jane.mooring("logout", "--all").code == 0
    assert list((jane.home / ".cache/mooring/logins").iterdir()) == []


# ── the plugin ───────────────────────────────────────────────────────────────────────────────────────────────────


def exec_info(live: LiveServer, api_version: str = "v1", **changed: Any) -> str:
    ca = base64.b64encode(live.ca_pem).decode()
    cluster = {"server": live.url, "certificate-authority-data": ca, **changed}
    given = {key: value for key, value in cluster.items() if value is not None}
    spec = {"interactive": False, "cluster": given}
    return json.dumps(
        {"apiVersion": f"client.authentication.k8s.io/{api_version}", "kind": "ExecCredential", "spec": spec}
    )


@pytest.mark.parametrize("api_version", ["v1", "v1beta1"])
def test_the_plugin_answers_in_the_version_that_is_asked(jane: Workstation, api_version: str) -> None:
    assert jane.login("--credential", "token").code == 0
    done = jane.mooring(
        "credential", "--login", jane.only_login().id, KUBERNETES_EXEC_INFO=exec_info(jane.server, api_version)
    )
    credential = jane.only_login().credential
    assert credential is not None
    assert credential.token is not None
    assert json.loads(done.out) == {
        "kind": "ExecCredential",
        "apiVersion": f"client.authentication.k8s.io/{api_version}",
        "status": {
            "token": credential.token.reveal().decode(),
            "expirationTimestamp": rfc3339(credential.expires),
        },
    }


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"server": "https://evil.example:6443"}, id="another server"),
        pytest.param({"certificate-authority-data": base64.b64encode(b"evil").decode()}, id="another CA"),
        pytest.param({"certificate-authority-data": None}, id="the machine's roots"),
        pytest.param({"insecure-skip-tls-verify": True}, id="no verification"),
        pytest.param({"server": None, "certificate-authority-data": None}, id="no cluster at all"),
    ],
)
def test_the_plugin_hands_nothing_out_for_another_cluster(jane: Workstation, changed: dict[str, Any]) -> None:
    assert jane.login().code == 0
    done = jane.mooring(
        "credential", "--login", jane.only_login().id, KUBERNETES_EXEC_INFO=exec_info(jane.server, **changed)
    )
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1


def test_a_login_that_is_not_there_is_told_in_one_line(jane: Workstation) -> None:
    done = jane.mooring("credential", "--login", "0" * 16)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "Error: there is no such login on this machine any more; run: mooring login --server URL "
    )
    assert jane.mooring("credential", "--login", "../../etc/passwd").code == 1


def test_who_sits_at_a_terminal_is_asked_for_the_password(jane: Workstation) -> None:
    assert jane.login().code == 0
    jane.age(timedelta(0))
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - another process
        os.execvpe("mooring", ["mooring", "credential", "--login", jane.only_login().id], jane.environment)
    shown = b""
    while b"Password of jane" not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, PASSWORD.encode() + b"\n")
    with suppress(OSError):  # the end of a terminal
        while piece := os.read(terminal, 65536):
            shown += piece
    assert os.waitpid(child, 0)[1] == 0
    assert PASSWORD.encode() not in shown
    assert b"clientCertificateData" in shown


def test_nothing_heavy_is_imported_while_the_credential_is_fresh(jane: Workstation) -> None:
    assert jane.login().code == 0
    login = jane.only_login()
    cluster = {
        "server": login.place.server,
        "certificate-authority-data": b64encode(login.place.ca_pem).decode(),
    }
    info = {"apiVersion": "client.authentication.k8s.io/v1", "spec": {"cluster": cluster}}
    program = (
        "import sys\nfrom mooring.cli.main import run\n"
        f"code = run(['credential', '--login', '{login.id}'])\n"
        "heavy = {'asyncio', 'ssl', 'cryptography', 'httpx2', 'yaml', 'msgspec', 'rich'} & set(sys.modules)\n"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    assert jane.run(sys.executable, "-c", program, KUBERNETES_EXEC_INFO=json.dumps(info)).err == "0 []\n"
