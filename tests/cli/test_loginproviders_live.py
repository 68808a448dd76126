"""`mooring login` for people whom somebody else knows (issue 4, point 13): a webhook, a Keystone, an authenticator of one's own.

Rules kept here: each is a real service over TLS, or a class in the server's process; kubectl comes in with what the login gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compat.kubectl import Program
from tests.support import keystonepeer
from tests.support.liveserver import LiveServer, start_server
from tests.support.testca import ThrowawayCA
from tests.support.tokenwebhook import SimulatedWebhook
from tests.support.workstation import NEEDS_KUBECTL, Workstation, program

__all__ = ["program"]
pytestmark = NEEDS_KUBECTL
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
OPAQUE = "token-that-only-the-webhook-knows"
HOOKED = {"username": "hooked", "uid": "7", "groups": ["ships"], "extra": {"example.com/team": ["blue"]}}
GUESTS = """
from mooring.authn.plugin import NotMine, Rejected, User

class Guests:
    def __init__(self, options):
        self.password = options["password"].encode()

    def authenticate(self, offered):
        if offered.password is None or offered.user != "guest":
            return NotMine()
        if not offered.password.matches(self.password):
            return Rejected("wrong-guest-password")
        return User("own:guest", uid="g-1", groups=["guests"], extra={"example.com/team": ["red"]})
"""
"""As docs/authentication/your-own.md has it."""


@dataclass
class Served:
    server: LiveServer
    webhook: SimulatedWebhook
    keystone: keystonepeer.SimulatedKeystone


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("providers")
    (place / "guests.py").write_text(GUESTS)
    hook = SimulatedWebhook(ThrowawayCA("hook"), place, users={OPAQUE: HOOKED})
    with hook, keystonepeer.simulated(place) as keystone, pytest.MonkeyPatch.context() as environment:
        own = {"name": "guests", "class": "guests:Guests", "options": {"password": "guest-password"}}
        config = {
            "authentication-token-webhook-config-file": str(hook.kubeconfig()),
            "keystone-url": keystone.url,
            "keystone-ca-file": str(keystone.ca_file),
            "authenticators": [own],
        }
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        (place / "config.yaml").chmod(0o600)
        environment.setenv("PYTHONPATH", str(place))
        server = start_server(place / "data", "--config", str(place / "config.yaml"))
        yield Served(server, hook, keystone)
        assert server.stop() == 0, server.log


def password(user: str) -> tuple[str, ...]:
    return ("--username", user, "--password-stdin")


TOKEN = ("--token-file", "-")
USERS: dict[str, tuple[tuple[str, ...], str, dict[str, Any]]] = {
    "a token that a webhook knows": (TOKEN, OPAQUE, HOOKED),
    "a password of a Keystone": (
        password("jane@people"),
        "other",
        {"username": "jane@people", "uid": b"jane".hex().rjust(32, "0")},
    ),
    "a password that an authenticator of one's own knows": (
        password("guest"),
        "guest-password",
        {"username": "own:guest", "uid": "g-1", "groups": ["guests"], "extra": {"example.com/team": ["red"]}},
    ),
}


@pytest.mark.parametrize("kind", ["certificate", "token"])
@pytest.mark.parametrize("way", USERS)
def test_whoever_a_provider_knows_trades_it_for_a_credential_of_the_cluster(
    served: Served, program: Program, tmp_path: Path, way: str, kind: str
) -> None:
    how, secret, user = USERS[way]
    person = Workstation(served.server, tmp_path)
    ca = str(served.server.data_dir / "pki/ca.crt")
    place = ("--server", served.server.url, "--certificate-authority", ca)
    done = person.mooring("login", *place, *how, "--credential", kind, stdin=secret)
    assert done.code == 0, done.err
    asked = len(served.webhook.requests), len(served.keystone.requests)
    found = person.whoami(program)
    extra = found.pop("extra")
    (credential_id,) = extra.pop(CREDENTIAL_ID)
    assert credential_id.startswith("JTI=" if kind == "token" else "X509SHA256=")
    assert found == {
        **{name: value for name, value in user.items() if name != "extra"},
        "groups": [*user.get("groups", ()), "system:authenticated"],
    }
    assert extra == (user.get("extra", {}) if kind == "token" else {}), "a certificate has no place for it"
    assert (len(served.webhook.requests), len(served.keystone.requests)) == asked, (
        "the provider is asked once, at the login"
    )
    assert secret not in person.kubeconfig.read_text() + person.logins.path(person.only_login().id).read_text()
    assert person.mooring("logout").code == 0
    assert person.logins.every() == []


@pytest.mark.parametrize(
    ("how", "secret"),
    [
        pytest.param(TOKEN, "token-that-nobody-knows", id="a token"),
        pytest.param(password("jane@people"), "hunter2", id="a password of somebody else"),
        pytest.param(password("gone"), "fifth", id="a user whom Keystone has disabled"),
        pytest.param(password("system:admin"), "fourth", id="a name of the cluster's own"),
        pytest.param(password("guest"), "another-password", id="an authenticator of one's own says no"),
    ],
)
def test_whom_nobody_knows_is_told_the_same_and_nothing_is_kept(
    served: Served, tmp_path: Path, how: tuple[str, ...], secret: str
) -> None:
    person = Workstation(served.server, tmp_path)
    ca = str(served.server.data_dir / "pki/ca.crt")
    done = person.mooring(
        "login", "--server", served.server.url, "--certificate-authority", ca, *how, stdin=secret + "\n"
    )
    assert (done.code, done.out) == (1, "")
    cause = {
        True: "the token has expired, or is of another issuer, audience or cluster",
        False: "a wrong user name or password",
    }[how == TOKEN]
    told, _, audit_id = done.err.partition("; an administrator of a Mooring server learns the reason with: ")
    assert told == f"Error: {served.server.url} does not accept the credentials: {cause}"
    assert re.fullmatch(r"mooring auth explain [0-9a-f-]{36}\n", audit_id)
    assert not person.kubeconfig.exists()
    assert person.logins.every() == []
