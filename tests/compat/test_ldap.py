"""kubectl and curl at a server with a real LDAP directory, configured as in docs/authentication/your-own.md."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compat.kubectl import Kubectl, Program
from tests.support.directory import NO_SLAPD, PEOPLE, SLAPD, Directory
from tests.support.liveserver import LiveServer, start_server
from tests.support.testca import ThrowawayCA

pytestmark = pytest.mark.skipif(SLAPD is None, reason=NO_SLAPD)
EXAMPLES = Path(__file__).parents[2] / "examples"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
UNRULY = """
import sys
import threading

class Unruly:
    def __init__(self, options):
        pass
    def authenticate(self, offered):
        if offered.user == "endless":
            threading.Event().wait()
        if offered.user == "leaving":
            sys.exit(offered.password.reveal())
        return offered
"""
"""Custom authenticator that precedes the directory and misbehaves."""
RIGHTS: list[dict[str, Any]] = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "captain", "namespace": "default"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "captains", "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "captain"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ldap:captains"}],
    },
]  # fmt: skip


@dataclass
class Served:
    server: LiveServer
    directory: Directory
    ca_file: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("ldap")
    (place / "unruly.py").write_text(UNRULY)
    with Directory(ThrowawayCA("directory"), place / "slapd") as directory, pytest.MonkeyPatch.context() as environment:
        config = place / "config.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "authenticators": [
                        {"name": "unruly", "class": "unruly:Unruly", "deadline": "300ms"},
                        {
                            "name": "ldap",
                            "class": "ldap_authenticator:LdapAuthenticator",
                            "deadline": "20s",
                            "cache-ttl": "0s",
                            "options": {**directory.options, "timeout": 5},
                        },
                    ]
                }
            )
        )
        environment.setenv("PYTHONPATH", f"{EXAMPLES}:{place}")
        server = start_server(place / "data", "--config", str(config))
        (place / "ca.crt").write_bytes(server.ca_pem)

        async def allow(client: Any) -> None:
            for obj in RIGHTS:
                await client.create(obj["kind"].lower() + "s", obj)

        server.run(allow)
        yield Served(server, directory, place / "ca.crt")
        assert server.stop() == 0, "threads that never end do not keep the process"
        for password in (*PEOPLE.values(), "secret of the leaving"):
            assert password not in server.log
        assert "Traceback" not in server.log


@dataclass
class Answered:
    status: int
    body: Any
    audit_id: str


def curl(served: Served, user: str, password: str) -> Answered:
    """Send a SelfSubjectReview by curl with Basic credentials. Return the response."""
    done = subprocess.run(
        ["curl", "--silent", "--max-time", "50", "--cacert", str(served.ca_file), "--user", f"{user}:{password}",
         "--header", "content-type: application/json", "--data", json.dumps(REVIEW),
         "--write-out", "\n%{http_code}\n%header{audit-id}", served.server.url + WHO],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    body, status, audit_id = done.stdout.rsplit("\n", 2)
    return Answered(int(status), json.loads(body), audit_id)


def test_a_user_of_the_directory_is_known_with_the_groups_of_the_directory(served: Served) -> None:
    answered = curl(served, "jane", PEOPLE["jane"])
    assert answered.status == 201, served.server.log
    user = answered.body["status"]["userInfo"]
    assert (user["username"], user["groups"]) == (
        "ldap:jane",
        ["ldap:captains", "ldap:sailors", "system:authenticated"],
    )


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        pytest.param("jane", PEOPLE["joe"], "ldap: ldap-wrong-password (invalidCredentials)", id="a wrong password"),
        pytest.param("nobody", "any", "unruly: failed (it answered Offered", id="a user who is not there"),
        pytest.param(
            "locked", PEOPLE["locked"], "ldap: ldap-wrong-password (invalidCredentials)", id="a locked account"
        ),
        pytest.param("*)(uid=*", "any", "unruly: failed (it answered Offered", id="a filter"),
        pytest.param("jane", "", "basic: unknown-password", id="an empty password"),
        pytest.param("endless", "any", "unruly: timed-out (no verdict within 0.3 s)", id="one that never ends"),
        pytest.param(
            "leaving", "secret of the leaving", "unruly: failed (it raised SystemExit)", id="one that would exit"
        ),
    ],
)
def test_refusals_are_equal_for_callers_and_have_a_reason_in_the_log(
    served: Served, user: str, password: str, reason: str
) -> None:
    answered = curl(served, user, password)
    assert (answered.status, answered.body["message"]) == (401, "Unauthorized")
    line = next(line for line in served.server.log.splitlines() if answered.audit_id in line)
    assert reason in line
    assert curl(served, "jane", PEOPLE["jane"]).status == 201, "the server lives"


def test_a_directory_that_is_down_refuses_its_users_and_no_others(served: Served) -> None:
    served.directory.stop()
    try:
        answered = curl(served, "jane", PEOPLE["jane"])
        assert answered.status == 401
        assert "ldap: directory-unreachable (LDAPSocketOpenError)" in served.server.log
        assert served.server.run(lambda client: client.list("namespaces")).items
    finally:
        served.directory.start()
    assert curl(served, "jane", PEOPLE["jane"]).status == 201


def kubectl_of(program: Program, served: Served, home: Path, user: str) -> Kubectl:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": served.server.url, "certificate-authority": str(served.ca_file)}}],
        "users": [{"name": "u", "user": {"username": user, "password": PEOPLE[user]}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = home / f"{user}.conf"
    path.write_text(json.dumps(config))
    return Kubectl(program, path, home)


def test_kubectl_may_what_the_group_of_the_directory_may(program: Program, served: Served, tmp_path: Path) -> None:
    jane, joe = (kubectl_of(program, served, tmp_path, user) for user in ("jane", "joe"))
    name = f"course-{program.release[1]}"
    jane.ok("create", "configmap", name, "--from-literal=heading=north")
    assert jane.ok("get", "configmap", name, "-o", "jsonpath={.data.heading}") == "north"
    assert 'User "ldap:joe" cannot get resource "configmaps"' in joe.fails("get", "configmap", name)
    assert 'User "ldap:jane" cannot list resource "secrets"' in jane.fails("get", "secrets")
