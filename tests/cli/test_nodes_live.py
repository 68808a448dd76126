"""`mooring node list`, `show` and `delete`: machines without kubectl."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.cli.node.machines import NEVER_REGISTERED, KnownMachine
from mooring.client.cluster import connect
from mooring.client.kubeconfigfiles import load
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from tests.scenarios.test_renewal import joined
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]


def of(server: LiveServer) -> tuple[str, ...]:
    return ("--kubeconfig", str(server.kubeconfig))


def test_a_machine_is_listed_shown_and_deleted(live_server: LiveServer, mooring: CommandLine, tmp_path: Path) -> None:
    joined(live_server, "listed", tmp_path / "root")
    (row,) = (one for one in mooring.done("node", "list", *of(live_server)).splitlines() if one.startswith("listed "))
    name, state, *_ = row.split()
    assert (name, state) == ("listed", "Ready")
    assert "in " in row
    shown = mooring.done("node", "show", "listed", *of(live_server))
    assert "State:        Ready" in shown
    assert "system:node:listed" in shown
    document = json.loads(mooring.done("node", "show", "listed", "-o", "json", *of(live_server)))
    assert (document["state"], document["certificates"][0]["state"]) == ("Ready", "valid")
    assert "node/listed\n" in mooring.done("node", "list", "-o", "name", *of(live_server))
    assert mooring.done("node", "delete", "listed", *of(live_server)) == "node/listed deleted\n"
    assert "node/listed\n" not in mooring.done("node", "list", "-o", "name", *of(live_server))
    (ended,) = (
        one for one in mooring.done("node", "list", "--all", *of(live_server)).splitlines() if one.startswith("listed ")
    )
    assert ended.split()[1:3] == ["Ended", "<none>"]
    items = json.loads(mooring.done("node", "list", "--state", "Ended", "-o", "json", *of(live_server)))["items"]
    assert {one["state"] for one in items} == {"Ended"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("show", "nowhere"), 'there is no machine "nowhere" in this cluster', id="show"),
        pytest.param(("delete", "nowhere"), "mooring certs revoke --node nowhere", id="delete"),
    ],
)
def test_a_machine_that_is_unknown_is_one_line(
    words: tuple[str, ...], said: str, live_server: LiveServer, mooring: CommandLine
) -> None:
    done = mooring("node", *words, *of(live_server))
    assert (done.code, len(done.err.splitlines()), said in done.err) == (1, 1, True)


def test_a_stolen_machine_is_revoked_in_one_command(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    joined(live_server, "stolen", tmp_path / "root")
    mooring.done("token", "create", "bound1.0123456789abcdef", "--node-name", "stolen", *of(live_server))
    mooring.done("token", "create", "bound2.0123456789abcdef", "--node-name", "stol*", *of(live_server))
    mooring.done("token", "create", "bound3.0123456789abcdef", "--node-name", "other", *of(live_server))
    (known,) = json.loads(mooring.done("certs", "list", "--node", "stolen", "-o", "json", *of(live_server)))["items"]
    dry = json.loads(mooring.done("node", "revoke", "stolen", "--dry-run", "-o", "json", *of(live_server)))
    assert dry["dryRun"] is True
    assert mooring.done("node", "list", "-o", "name", *of(live_server)).count("node/stolen\n") == 1
    done = mooring("node", "revoke", "node/stolen", "--message", "from the van", *of(live_server))
    assert done.code == 0
    revocation, key = "certificaterevocation.mooring.dev", known["publicKey"].removeprefix("sha256:")
    assert done.out.splitlines() == [
        "token bound1 deleted",
        f"{revocation}/node-stolen revoked",
        f"{revocation}/key-{key} revoked",
        "node/stolen deleted",
    ]
    assert [one["name"] for one in dry["done"]] == [line.rpartition(" ")[0] for line in done.out.splitlines()]
    assert done.err.count("mooring token delete bound2") == 1
    assert "spec.nodeName=stolen" in done.err
    assert "bound3" not in done.all
    (after,) = json.loads(mooring.done("certs", "list", "--node", "stolen", "-o", "json", *of(live_server)))["items"]
    assert after["state"] == "revoked"
    tokens = mooring.done("token", "list", "-o", "name", *of(live_server)).split()
    assert [one for one in tokens if one.startswith("bound")] == ["bound2", "bound3"]
    again = mooring("node", "revoke", "stolen", "-o", "json", *of(live_server))
    assert again.code == 0, "it may be repeated"
    assert [one["done"] for one in json.loads(again.out)["done"]] == ["revoked", "unchanged"]
    mooring.done("token", "delete", "bound2", "bound3", *of(live_server))


def test_a_revocation_that_was_interrupted_is_repeated(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    joined(live_server, "halfway", tmp_path / "root")
    mooring.done("certs", "revoke", "--node", "halfway", *of(live_server))
    done = mooring.done("node", "revoke", "halfway", "-o", "name", *of(live_server)).split()
    assert done[-1] == "node/halfway"
    assert len(done) == 3


ENDING = [
    {
        "apiGroups": ["mooring.dev"],
        "resources": ["certificaterevocations"],
        "verbs": ["get", "list", "create", "patch", "update"],
    },
    {"apiGroups": ["mooring.dev"], "resources": ["nodeidentities"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "delete"]},
    {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"],
        "verbs": ["update"],
    },
    {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve", "sign"]},
]
"""Rights with which a machine is revoked, and none to read what else it may have."""
READING = {
    "You may not read certificate requests": {
        "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["list"],
    },
    "You may not read tokens": {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "delete"]},
    "You may not read AuthorizedMachines": {
        "apiGroups": ["mooring.dev"], "resources": ["authorizedmachines"], "verbs": ["list", "delete"],
    },
    "You may not read LineageRecords": {"apiGroups": ["mooring.dev"], "resources": ["lineagerecords"], "verbs": ["list"]},
}  # fmt: skip
"""What a user is told who lacks a right."""


@pytest.mark.parametrize("lacking", [*READING, ""])
def test_what_a_user_may_not_read_is_left_to_do(
    lacking: str, live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    number = [*READING, ""].index(lacking)
    name, user, path = f"taken-{number}", f"guard-{number}", tmp_path / "guard.conf"
    joined(live_server, name, tmp_path / "root")
    mooring.done("kubeconfig", "user", user, "--out", str(path), *of(live_server))
    rules = [*ENDING, *(rule for said, rule in READING.items() if said != lacking)]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    binding = {
        "metadata": {"name": user},
        "roleRef": reference,
        "subjects": [{**reference, "kind": "User"}],
    }
    live_server.run(lambda client: client.create("clusterroles", {"metadata": {"name": user}, "rules": rules}))
    live_server.run(lambda client: client.create("clusterrolebindings", binding))
    done = mooring("node", "revoke", name, "--kubeconfig", str(path))
    assert done.code == 0, done.err
    assert [said for said in READING if said in done.err] == ([lacking] if lacking else [])
    assert f"node/{name} deleted" in done.out
    (known,) = json.loads(mooring.done("certs", "list", "--node", name, "-o", "json", *of(live_server)))["items"]
    assert known["state"] == "revoked"


def test_a_machine_in_the_middle_of_its_first_join_is_revoked_too(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    """Nothing but its request is known of it, and a person could approve that afterwards."""
    config = yaml.safe_load(live_server.kubeconfig.read_text())
    config["users"][0]["user"] |= {
        "as": "system:bootstrap:borrow",
        "as-groups": ["system:bootstrappers:kubeadm:default-node-token"],
    }
    borrowed = tmp_path / "borrowed.conf"
    borrowed.write_text(json.dumps(config))
    borrowed.chmod(0o600)
    key = generate_key()
    spec = {
        "request": base64.b64encode(build_request(key, "system:node:joining", ("system:nodes",))).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["digital signature", "client auth"],
    }

    async def ask() -> None:
        async with connect(load(str(borrowed))) as client:
            for name in ("of-joining", "of-another"):
                await client.create(
                    "certificatesigningrequests",
                    {
                        "kind": "CertificateSigningRequest",
                        "apiVersion": "certificates.k8s.io/v1",
                        "metadata": {"name": name},
                        "spec": spec,
                    },
                )
                spec["request"] = base64.b64encode(
                    build_request(key, "system:node:another", ("system:nodes",))
                ).decode()

    asyncio.run(ask())
    dry = mooring.done("node", "revoke", "joining", "--dry-run", "-o", "name", *of(live_server)).split()
    assert "denied" not in mooring.done("csr", "list", *of(live_server)).casefold()
    done = mooring("node", "revoke", "joining", *of(live_server))
    assert done.code == 0, done.err
    revocation = "certificaterevocation.mooring.dev"
    assert done.out.splitlines() == [
        f"{revocation}/node-joining revoked",
        "certificatesigningrequests/of-joining denied",
        f"{revocation}/key-{public_key_fingerprint(key)} revoked",
    ]
    assert dry == [line.rpartition(" ")[0] for line in done.out.splitlines()]
    assert "run mooring token impact borrow." in done.err
    requests = json.loads(mooring.done("csr", "list", "-o", "json", *of(live_server)))["items"]
    states = {one["metadata"]["name"]: one["status"].get("conditions", []) for one in requests}
    assert [one["type"] for one in states["of-joining"]] == ["Denied"]
    assert states["of-another"] == []


def test_a_revocation_of_an_unknown_machine_does_nothing(live_server: LiveServer, mooring: CommandLine) -> None:
    refused = mooring("node", "revoke", "nowhere", *of(live_server))
    assert (refused.code, refused.out) == (1, "")
    assert 'the cluster knows no machine "nowhere"' in refused.err
    assert "--force" in refused.err
    forced = mooring("node", "revoke", "nowhere", "--force", *of(live_server))
    assert (forced.code, forced.out) == (0, "certificaterevocation.mooring.dev/node-nowhere revoked\n")
    assert 'warning: the cluster knows no machine "nowhere"' in forced.err


def node(**changes: Any) -> Obj:
    return {"metadata": {"name": "one", "uid": "u1", **changes}}


def with_ready(status: str) -> Obj:
    return {**node(), "status": {"conditions": [{"type": "Ready", "status": status}]}}


@pytest.mark.parametrize(
    ("found", "identity", "state"),
    [
        pytest.param(with_ready("True"), None, "Ready", id="ready"),
        pytest.param(with_ready("False"), None, "NotReady", id="not ready"),
        pytest.param(with_ready("Unknown"), None, "Lost", id="silent"),
        pytest.param(node(), None, "Lost", id="without a condition"),
        pytest.param(node(deletionTimestamp="2026-01-01T00:00:00Z"), None, "Deleting", id="held by a finalizer"),
        pytest.param(None, {"metadata": {}, "spec": {}}, "NoNode", id="never registered"),
        pytest.param(None, {"metadata": {}, "spec": {"nodeUID": "u1"}}, "Ended", id="deleted"),
        pytest.param(None, {"metadata": {}, "spec": {"nodeUID": "u1", "reregisters": True}}, "NoNode", id="may return"),
    ],
)
def test_the_state_of_a_machine(found: Obj | None, identity: Obj | None, state: str) -> None:
    known = KnownMachine("one", found, identity)
    assert known.state == state
    assert known.message == (NEVER_REGISTERED if state == "NoNode" else "")
