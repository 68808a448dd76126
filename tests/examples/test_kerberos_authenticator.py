"""The Kerberos example against a real KDC: accepted and rejected tickets, and curl at a whole server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Result, Secret, User
from tests.support.kdc import NO_KDC, OTHER_REALM, PROGRAMS, REALM, Kdc
from tests.support.liveserver import start_server

pytestmark = [
    pytest.mark.skipif(None in PROGRAMS.values(), reason=NO_KDC),
    pytest.mark.skipif(find_spec("gssapi") is None, reason="gssapi is not installed: .ci/run installs it"),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
INITIATE = """
import base64, sys
import gssapi
name = gssapi.Name(sys.argv[1], gssapi.NameType.hostbased_service)
mechanism = gssapi.OID.from_int_seq(sys.argv[2])
print(base64.b64encode(gssapi.SecurityContext(name=name, mech=mechanism, usage="initiate").step()).decode())
"""
SPNEGO, KERBEROS = "1.3.6.1.5.5.2", "1.2.840.113554.1.2.2"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with Kdc(tmp_path_factory.mktemp("kerberos") / "kdc") as running, pytest.MonkeyPatch.context() as environment:
        for name, value in running.environment.items():
            environment.setenv(name, value)
        yield running


@pytest.fixture
def options(kdc: Kdc) -> dict[str, Any]:
    return {"keytab": str(kdc.keytab), "service": "HTTP@localhost", "realms": [REALM], "groups": ["sailors"]}


def authenticator(options: dict[str, Any]) -> Any:
    from examples.kerberos_authenticator import KerberosAuthenticator

    return KerberosAuthenticator(options)


def ticket(kdc: Kdc, principal: str = f"jane@{REALM}", service: str = "HTTP@localhost", mechanism: str = SPNEGO) -> str:
    """Return the credential that this user's client sends after `Negotiate`."""
    command = [sys.executable, "-c", INITIATE, service, mechanism]
    environment = os.environ | kdc.login(principal)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def authenticate(options: dict[str, Any], credential: str) -> Result:
    offered = Offered(scheme="negotiate", credential=Secret(credential), now=datetime.now(UTC))
    found: Result = authenticator(options).authenticate(offered)
    return found


@pytest.mark.parametrize("mechanism", [SPNEGO, KERBEROS], ids=["SPNEGO", "Kerberos alone"])
def test_a_ticket_names_its_user_with_the_realm(kdc: Kdc, options: dict[str, Any], mechanism: str) -> None:
    found = authenticate(options, ticket(kdc, mechanism=mechanism))
    assert found == User(f"krb5:jane@{REALM}", groups=["krb5:sailors"])


def test_a_ticket_that_was_seen_before_is_refused(kdc: Kdc, options: dict[str, Any]) -> None:
    sent = ticket(kdc)
    assert isinstance(authenticate(options, sent), User)
    assert authenticate(options, sent) == Rejected("ticket-refused", "Request is a replay")


def test_a_user_of_a_realm_that_is_not_listed_is_refused(kdc: Kdc, options: dict[str, Any]) -> None:
    sent = ticket(kdc, f"jane@{OTHER_REALM}")
    assert authenticate(options, sent) == Rejected("other-realm", f"realm {OTHER_REALM}")
    both = options | {"realms": [REALM, OTHER_REALM]}
    assert authenticate(both, ticket(kdc, f"jane@{OTHER_REALM}")) == User(
        f"krb5:jane@{OTHER_REALM}", groups=["krb5:sailors"]
    )


def test_a_ticket_for_another_service_is_refused(kdc: Kdc, options: dict[str, Any]) -> None:
    found = authenticate(options, ticket(kdc, service="HTTP@elsewhere"))
    assert isinstance(found, Rejected)
    assert "not found in keytab" in found.detail


NTLM = base64.b64encode(b"NTLMSSP\0\1\0\0\0\7\x82\x08\xa2" + bytes(28)).decode()


@pytest.mark.parametrize(
    ("credential", "reason"),
    [
        pytest.param("YII!", "ticket-not-base64", id="no base64"),
        pytest.param("anVuaw==", "ticket-refused", id="no ticket"),
        pytest.param(NTLM, "ticket-refused", id="NTLM"),
    ],
)
def test_what_is_no_ticket_is_refused(options: dict[str, Any], credential: str, reason: str) -> None:
    found = authenticate(options, credential)
    assert isinstance(found, Rejected)
    assert found.reason == reason
    assert credential not in found.detail


def test_tokens_and_passwords_are_for_others(options: dict[str, Any]) -> None:
    offered = Offered(token=Secret("token"), now=datetime.now(UTC))
    assert authenticator(options).authenticate(offered) == NotMine()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"realm": REALM}, '"realm" is not known', id="an unknown option"),
        pytest.param({"realms": []}, "realms: name the realms", id="no realm"),
        pytest.param({"realms": REALM}, "realms: give a list of texts", id="a realm that is no list"),
        pytest.param({"groups": [5]}, "groups: give a list of texts", id="a group that is no text"),
        pytest.param({"keytab": "/nowhere"}, "keytab: there is no such file", id="no keytab"),
        pytest.param({"keytab": 5}, "keytab: give a text", id="a keytab that is no text"),
        pytest.param({"service": "HTTP"}, "service: give the name", id="a service without a host"),
        pytest.param({"service": "HTTP@elsewhere"}, "keytab: it holds no key of HTTP@elsewhere", id="another service"),
    ],
)
def test_wrong_options_stop_the_start(options: dict[str, Any], changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        authenticator(options | changed)


def test_curl_is_let_in_with_a_ticket_and_trades_it_for_a_token(
    kdc: Kdc, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    named = {"name": "kerberos", "class": "kerberos_authenticator:KerberosAuthenticator", "options": options}
    config.write_text(yaml.safe_dump({"authenticators": [named]}))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(EXAMPLES), os.environ.get("PYTHONPATH", ""))))
    server = start_server(tmp_path / "data", "--config", str(config))
    ca = tmp_path / "ca.crt"
    ca.write_bytes(server.ca_pem)
    url = server.url.replace("127.0.0.1", "localhost")

    def curl(path: str, *options: str) -> tuple[int, str]:
        command = ["curl", "--silent", "--max-time", "50", "--cacert", str(ca), *options,
                   "--header", "content-type: application/json", "--write-out", "\n%{http_code}", url + path]  # fmt: skip
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)
        body, status = done.stdout.rsplit("\n", 1)
        return int(status), body

    environment = kdc.login(f"jane@{REALM}")
    negotiate = ("--negotiate", "--user", ":")
    try:
        for version in ("--http1.1", "--http2"):
            status, body = curl(WHO, version, *negotiate, "--data", json.dumps(REVIEW))
            assert (status, json.loads(body)["status"]["userInfo"]["username"]) == (201, f"krb5:jane@{REALM}"), (
                server.log
            )
        status, headers = curl("/api", "--head", "--header", "authorization: Negotiate bm90aGluZw==")
        assert (status, "www-authenticate: negotiate" in headers.lower()) == (401, True)
        status, body = curl("/mooring/v1/login", *negotiate, "--data", "{}")
        assert status == 201, body
        token = json.loads(body)["token"]
        assert curl(WHO, "--header", f"authorization: Bearer {token}", "--data", json.dumps(REVIEW))[0] == 201
    finally:
        assert server.stop() == 0
    assert "Traceback" not in server.log
