"""`mooring login` at an OpenID provider: by code, by browser, and by refresh token (RFC 8628, RFC 8252)."""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.compat.kubectl import Program
from tests.support import forkserver
from tests.support.deviceprovider import Answered, DeviceProvider, serving
from tests.support.liveserver import LiveServer, start_server
from tests.support.testca import ThrowawayCA
from tests.support.workstation import NEEDS_KUBECTL, Workstation, program

__all__ = ["program"]
pytestmark = NEEDS_KUBECTL
CA = ThrowawayCA("provider", datetime.now(UTC))


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceProvider]:
    with serving(CA, tmp_path_factory.mktemp("provider")) as running:
        yield running


@pytest.fixture(scope="module")
def server(provider: DeviceProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    place = tmp_path_factory.mktemp("login")
    (place / "ca.crt").write_bytes(CA.certificate_pem)
    server = start_server(
        place / "data",
        *(
            "--oidc-issuer-url",
            provider.issuer,
            "--oidc-client-id",
            "kubernetes",
            "--oidc-ca-file",
            str(place / "ca.crt"),
        ),
        *("--oidc-groups-claim", "groups", "--oidc-signing-algs", "ES256", "--login-ttl", "1m"),
        *("--oidc-username-prefix", "-"),
    )
    yield server
    assert server.stop() == 0, server.log


@pytest.fixture
def jane(server: LiveServer, provider: DeviceProvider, tmp_path: Path) -> Workstation:
    (tmp_path / "provider.crt").write_bytes(CA.certificate_pem)
    provider.approve_after, provider.device = 1, {"interval": 1}
    provider.requests.clear()
    return Workstation(server, tmp_path)


def command(jane: Workstation, provider: DeviceProvider, *more: str) -> tuple[str, ...]:
    where = ("--server", jane.server.url, "--certificate-authority", str(jane.server.data_dir / "pki/ca.crt"))
    how = ("--oidc-issuer-url", provider.issuer, "--oidc-client-id", "kubernetes")
    return ("login", *where, *how, "--oidc-ca-file", str(jane.home / "provider.crt"), *more)


def test_who_typed_the_code_somewhere_is_logged_in_and_stays_so(
    jane: Workstation, program: Program, provider: DeviceProvider
) -> None:
    done = jane.mooring(*command(jane, provider))
    assert done.code == 0, done.err
    assert f"Open {provider.issuer}/activate with any browser and enter the code WDJB-MJHT\n" in done.err
    assert done.out == ""
    user = jane.whoami(program)
    assert user["username"] == "jane"
    assert set(user["groups"]) == {"dev", "system:authenticated"}
    jane.age(timedelta(0))
    before = jane.only_login().source.refresh_token
    provider.requests.clear()
    assert jane.whoami(program)["username"] == "jane"
    assert [one for one in provider.requests if one == "refresh_token"] == ["refresh_token"]
    after = jane.only_login().source.refresh_token
    assert after is not None
    assert before != after, "a refresh token that is used once is replaced"


def test_when_the_provider_refreshes_no_more_a_person_is_needed(
    jane: Workstation, program: Program, provider: DeviceProvider
) -> None:
    assert jane.mooring(*command(jane, provider, "--name", "work")).code == 0
    provider.refresh_tokens.clear()
    jane.age(timedelta(0))
    done = jane.mooring("credential", "--login", jane.only_login().id)
    assert (done.code, done.out) == (1, "")
    assert (
        done.err == f"Error: the login at {jane.server.url} has ended (invalid_grant); run: mooring login --name work\n"
    )
    again = jane.mooring("login")
    assert again.code == 0, again.err
    assert "enter the code" in again.err
    assert jane.whoami(program)["username"] == "jane"


def test_while_a_login_waits_for_its_code_other_commands_do_not(jane: Workstation, provider: DeviceProvider) -> None:
    assert jane.mooring(*command(jane, provider, "--name", "work")).code == 0
    provider.refresh_tokens.clear()
    jane.age(timedelta(0))
    provider.approve_after = 1 << 30
    login = forkserver.Process(["-m", "mooring", "login"], env=jane.environment, stderr=subprocess.PIPE)
    assert login.stderr is not None
    try:
        assert next(login.stderr) == "The login has to be repeated: invalid_grant.\n"
        assert "enter the code" in next(login.stderr)
        done = jane.mooring("credential", "--login", jane.only_login().id)
        assert done.err.endswith(" has ended (invalid_grant); run: mooring login --name work\n")
        assert jane.mooring("logout", "--name", "work").code == 0
        assert jane.logins.every() == []
        provider.approve_after = 0
        assert login.wait(30) == 0, login.stderr.read()
    finally:
        login.kill()
        login.wait()
        login.stderr.close()
    assert jane.only_login().name == "work", "the later command wins"


def test_a_client_secret_goes_where_the_provider_reads_it_and_the_login_remembers(
    jane: Workstation, provider: DeviceProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, answer = jane.home / "secret", provider.answer
    secret.write_text("s3cret")
    refused: list[str] = []

    def form_alone(path: str, form: dict[str, str] | None, authorization: str = "") -> Answered:
        if authorization:
            refused.append(path)
            return 401, {"error": "invalid_client"}
        return answer(path, form, authorization)

    monkeypatch.setattr(provider, "answer", form_alone)
    done = jane.mooring(*command(jane, provider, "--oidc-client-secret-file", str(secret)))
    assert done.code == 0, done.err
    assert refused == ["/device"]
    jane.age(timedelta(0))
    assert jane.mooring("credential", "--login", jane.only_login().id).code == 0
    assert refused == ["/device"], "the renewal knows the way"


def test_who_refuses_is_told_and_leaves_nothing_behind(jane: Workstation, provider: DeviceProvider) -> None:
    provider.errors.append("access_denied")
    done = jane.mooring(*command(jane, provider))
    assert done.code == 1
    assert done.err.splitlines()[-1] == "Error: login failed: access_denied"
    assert jane.logins.every() == []


def test_a_browser_on_this_machine_logs_in(jane: Workstation, program: Program, provider: DeviceProvider) -> None:
    login = forkserver.Process(
        ["-m", "mooring", *command(jane, provider, "--oidc-grant", "code", "--credential", "token")],
        env=jane.environment,
        stderr=subprocess.PIPE,
    )
    assert login.stderr is not None
    try:
        url = next(line for line in login.stderr if line.startswith(provider.issuer)).strip()
        back = provider.log_in(url)
        assert re.match(r"http://127\.0\.0\.1:\d+/callback\?code=", back)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError, match="400"):
            opener.open(f"{back.partition('?')[0]}?error=access_denied&error_description=of+any+page", timeout=20)
        assert next(login.stderr) == (
            "the browser came back with the error access_denied and no state, so it may be of another page; still waiting. "
            "End this with Ctrl-C if the login has failed.\n"
        )
        with opener.open(back, timeout=20) as page:
            assert b"it says whether you are logged in." in page.read()
        rest = login.stderr.read()
        assert login.wait(30) == 0, rest
    finally:
        login.kill()
        login.wait()
        login.stderr.close()
    assert jane.whoami(program)["username"] == "jane"
