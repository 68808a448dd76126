"""Join rules against a real server: the commands, and the configuration for another API server."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authn.oidc.authenticationconfig import parse
from mooring.client.cluster import connect
from mooring.client.kubeconfigfiles import load
from mooring.clock import SystemClock
from mooring.errors import UnauthorizedError
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.secret import Secret
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.jwtsigner import key_for, key_set, public, signed
from tests.support.liveserver import LiveServer, live_server
from tests.support.polling import eventually
from tests.support.ports import free_port
from tests.support.rows import each_row
from tests.support.testca import ThrowawayCA

__all__ = ["live_server", "mooring"]
GITHUB = "https://token.actions.githubusercontent.com"
NAME = "joinrule.mooring.dev"


@pytest.fixture
def cluster(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def test_rules_are_created_listed_shown_and_deleted(cluster: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(ThrowawayCA().certificate_pem)
    flags = (
        "joinrule", "create", "ci", "--issuer", GITHUB, "--claim", "repository=org/app=x", "--claim-pattern", "ref=refs/heads/*",
        "--claim-expression", "claims.run_attempt == '1'", "--node-name", "ci-{run_id}",
        "--allow-cidr", "192.0.2.0/24,198.51.100.0/24", "--issuer-ca-file", str(tmp_path / "ca.pem"),
        "--max-joins", "3", "--require-approval", "--ephemeral", "30m", "--audience", "prod",
    )  # fmt: skip
    dry = cluster(*flags, "--dry-run")
    assert (dry.code, dry.out) == (0, f"{NAME}/ci would be created\n")
    created = cluster(*flags)
    assert (created.code, created.out) == (0, f"{NAME}/ci created\n")
    assert created.err == (
        "Join rule ci lets in up to 3 machines named ci-{run_id}, from 192.0.2.0/24, 198.51.100.0/24, with a token of "
        f"{GITHUB} for the audience prod with repository = org/app=x and ref like refs/heads/* and claims.run_attempt == '1', "
        "until it is deleted. Each request waits for a person: mooring csr approve. The membership of a machine that is silent "
        "for 30m0s ends.\n"
    )
    assert cluster.done(*flags, "-o", "name") == f"{NAME}/ci\n", "an equal rule is success"
    assert cluster(*flags, "--unique-claim", "run_id").code == 1, "another rule of the name exists"
    header, *rows = cluster.done("joinrule", "list").splitlines()
    assert header.split() == ["NAME", "ISSUER", "CLAIMS", "JOINS", "ENDS"]
    assert rows[0].split() == ["ci", "token.actions.githubuser...", "repository,ref,<expression>", "0/3", "never"]
    assert "repository = org/app=x and ref like refs/heads/* and" in cluster.done("joinrule", "list", "-o", "wide")
    assert cluster.done("joinrule", "list", "-o", "name") == f"{NAME}/ci\n"
    (listed,) = json.loads(cluster.done("joinrule", "list", "-o", "json"))["items"]
    assert listed["spec"] == json.loads(cluster.done("joinrule", "show", f"{NAME}/ci", "-o", "json"))["spec"]
    shown = cluster.done("joinrule", "show", "ci")
    assert "Claim:        ref like refs/heads/*\n" in shown
    assert "Keys:         of the issuer, under a CA of the rule\n" in shown
    assert "Ends:         never\n" in shown
    assert cluster.done("joinrule", "show", "ci", "-o", "name") == f"{NAME}/ci\n"
    assert cluster.done("joinrule", "delete", "ci") == f"{NAME}/ci deleted\n"
    assert cluster("joinrule", "delete", "ci").code == 1
    assert 'there is no join rule "ci"' in cluster("joinrule", "show", "ci").err
    assert cluster("joinrule", "list").err == "No join rules found.\n"


def test_a_rule_with_its_keys_and_an_end(cluster: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(key_set(public(key_for("ES256"))))
    flags = ("--issuer", "https://kubernetes.default.svc.cluster.local", "--issuer-jwks-file", str(tmp_path / "keys"))
    created = cluster(
        "joinrule", "create", "sa", *flags, "--claim", "sub=system:serviceaccount:a:b", "--ttl", "90d", "-o", "json"
    )
    obj = json.loads(created.out)
    assert obj["spec"]["issuer"]["jwks"].startswith('{"keys"')
    assert "under any name, from any network" in created.err
    assert f"until {obj['spec']['expirationTimestamp']} (in 8" in created.err
    assert "Keys:         of the rule itself\n" in cluster.done("joinrule", "show", "sa")
    refused = cluster("joinrule", "authentication-config", "sa")
    assert refused.code == 1
    assert "join rule sa: kube-apiserver takes no keys from a file" in refused.err
    cluster.done("joinrule", "delete", "sa")


def test_the_configuration_for_another_api_server(cluster: CommandLine) -> None:
    none = cluster("joinrule", "authentication-config")
    assert "there is no join rule: mooring joinrule create makes one" in none.err
    cluster.done(
        "joinrule", "create", "one", "--issuer", GITHUB, "--claim", "repository=org/app", "--allow-cidr", "192.0.2.0/24"
    )
    cluster.done("joinrule", "create", "two", "--issuer", "https://x.example", "--claim", "sub=two", "--audience", "x")
    printed = cluster("joinrule", "authentication-config")
    assert [one.url for one in parse(printed.out.encode(), "printed").issuers] == [GITHUB, "https://x.example"]
    assert "Warning: join rule one has networks" in printed.err
    one = cluster.done("joinrule", "authentication-config", "two", "two")
    assert [issuer.audiences for issuer in parse(one.encode(), "printed").issuers] == [("x",)]
    assert 'there is no join rule "three"' in cluster("joinrule", "authentication-config", "three").err
    cluster.done("joinrule", "delete", "one", "two")


def requested(server: LiveServer, node: str, bearer: str) -> None:
    """Request the certificate of a node with an identity token."""
    request = build_request(generate_key(), f"system:node:{node}", ("system:nodes",))
    obj: Obj = {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"name": f"csr-{node}"},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": KUBE_APISERVER_CLIENT_KUBELET,
            "usages": ["digital signature", "client auth"],
        },
    }

    async def call() -> None:
        chosen = replace(load(str(server.kubeconfig)), user=KubeconfigUser("token", token=Secret(bearer)))
        async with connect(chosen) as client:
            await client.create("certificatesigningrequests", obj)

    asyncio.run(call())


def test_a_machine_that_joined_by_a_rule_is_shown_with_it(
    live_server: LiveServer, cluster: CommandLine, tmp_path: Path
) -> None:
    key = key_for("ES256")
    (tmp_path / "keys").write_bytes(key_set(public(key)))
    cluster.done(
        "joinrule", "create", "ci", "--issuer", "https://ci.example", "--issuer-jwks-file", str(tmp_path / "keys"),
        "--claim", "repository=org/app", "--node-name", "ci-{run}", "--audience", "here",
    )  # fmt: skip
    claims = {
        "iss": "https://ci.example", "aud": "here", "sub": "repo:org/app\x1b[2J", "repository": "org/app", "run": 41,
        "exp": int(SystemClock().now().timestamp()) + 600,
    }  # fmt: skip
    requested(live_server, "ci-41", signed(claims, key, "ES256"))
    eventually(lambda: "Certificate serial" in cluster.done("csr", "show", "csr-ci-41"), live_server)
    (row,) = (one for one in cluster.done("csr", "list").splitlines() if "ci-41" in one)
    assert row.endswith("127.0.0.1 (rule ci)")
    shown = cluster.done("csr", "show", "csr-ci-41")
    assert "Join rule:            ci\n" in shown
    assert "Token issuer:         https://ci.example\n" in shown
    assert "Token subject:        repo:org/app\\x1b[2J\n" in shown
    (row,) = (one for one in cluster.done("issuance", "list", "-o", "wide").splitlines() if "ci-41" in one)
    assert "rule ci" in row
    assert "repo:org/app\ufffd[2J" in row, "records hold no control characters"
    (row,) = (one for one in cluster.done("certs", "list", "-o", "wide").splitlines() if "ci-41" in one)
    assert "rule ci" in row
    assert "Token subject:  repo:org/app\ufffd[2J\n" in cluster.done("certs", "show", "ci-41")
    assert "Join rule:    ci\n" in cluster.done("node", "show", "ci-41")
    assert "rule ci" in cluster.done("node", "list")
    assert "Joined:       ci-41, token ends " in cluster.done("joinrule", "show", "ci")
    cluster.done("joinrule", "delete", "ci")


def test_an_issuer_that_gives_no_keys_is_in_the_status(live_server: LiveServer, cluster: CommandLine) -> None:
    assert "\nJoin rules     none\n" in cluster.done("status")
    url = f"https://127.0.0.1:{free_port()}"
    cluster.done("joinrule", "create", "away", "--issuer", url, "--claim", "sub=x", "--audience", "here")
    claims = {"iss": url, "aud": "here", "sub": "x", "exp": int(SystemClock().now().timestamp()) + 600}
    with pytest.raises(UnauthorizedError):
        requested(live_server, "away-1", signed(claims, key_for("ES256"), "ES256"))
    (found,) = json.loads(cluster.done("status", "-o", "json"))["joinRules"]["unreadyIssuers"]
    assert (found["issuer"], found["keysKnownUntil"]) == (url, "")
    assert f"\nJoin rules     1\n               {url} does not give its keys: " in cluster.done("status")
    cluster.done("joinrule", "delete", "away")


@each_row(
    "flags, code, message",
    [
        (("--claim", "sub"), 2, '--claim: "sub" has no =: give NAME=VALUE'),
        (("--claim-pattern", "sub="), 2, '--claim-pattern: "sub=" has no value: give NAME=PATTERN'),
        (("--claim", ""), 2, "give a value, or leave the flag out"),
        (("--claim", "sub=x", "--audience", ""), 2, "give a value, or leave the flag out"),
        (("--claim", "sub=x", "--ttl", "0"), 2, "--ttl must be longer than 0"),
        (("--claim", "sub=x", "--max-joins", "0"), 2, "0 is not in the range 1<=x<=1000"),
        ((), 1, "without one, every machine that the issuer knows would join"),
        (("--claim-pattern", "sub=*"), 1, "must have characters beside *"),
        (("--claim-expression", "claims.sub +"), 1, "an expression cannot be used: compilation failed"),
        (("--claim", "sub=x", "--node-name", "UPPER"), 1, "must be a node name"),
        (("--claim", "sub=x", "--ephemeral", "1s"), 1, "spec.ephemeral"),
        (("--claim", "sub=x", "--issuer-ca-file", "/dev/null/no"), 1, "/dev/null/no cannot be read"),
    ],
)
def test_what_is_no_rule(cluster: CommandLine, flags: tuple[str, ...], code: int, message: str) -> None:
    outcome = cluster("joinrule", "create", "wrong", "--issuer", "https://x.example", *flags)
    assert outcome.code == code
    assert message in outcome.err
