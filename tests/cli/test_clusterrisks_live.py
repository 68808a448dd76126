"""`mooring doctor --cluster` as administrators, users with few rights, and users of another API server meet it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.authorizer import cluster_binding, cluster_role, rule
from mooring.cli.doctor.clusterrisks import CHECKS
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.kubernetespeer import kubernetes_peer
from tests.support.liveserver import LiveServer, live_server
from tests.support.standalonecontrollers import write_kubeconfig

__all__ = ["live_server", "mooring"]
EVERYBODY = {"kind": "Group", "name": "system:unauthenticated", "apiGroup": "rbac.authorization.k8s.io"}
OF_SERVERS = {
    "secrets-unencrypted",
    "no-snapshot",
    "certificate-ends",
    "audit-off",
    "clocks-apart",
    "signer-without-policy",
    "rsa-serving-key",
}


def judged(mooring: CommandLine, *arguments: str) -> tuple[int, Any]:
    outcome = mooring("doctor", "--cluster", "-o", "json", *arguments)
    return outcome.code, json.loads(outcome.out)


def results(found: Obj) -> dict[str, str]:
    return {one["id"]: one["result"] for one in found["checks"]}


def test_an_administrator_sees_every_risk_and_accepts_some(live_server: LiveServer, mooring: CommandLine) -> None:
    flags = ("--kubeconfig", str(live_server.kubeconfig))
    token = mooring.done("token", "create", "--ttl", "0", *flags).strip()
    role, binding = cluster_role("open", rule("list", "", "secrets")), cluster_binding("open", "open", EVERYBODY)
    live_server.run(lambda client: client.create("clusterroles", role))
    live_server.run(lambda client: client.create("clusterrolebindings", binding))
    code, found = judged(mooring, *flags)
    assert (code, found["kind"], found["healthy"]) == (20, "ClusterDoctor", False)
    assert results(found).keys() == CHECKS.keys()
    assert set(results(found).values()) == {"ok", "found"}
    subjects = {(one["id"], one["subject"]) for one in found["findings"]}
    assert {("token-without-end", token[:6]), ("rights-of-everyone", "ClusterRoleBinding/open")} <= subjects
    assert [one["severity"] for one in found["findings"]] == sorted(
        (one["severity"] for one in found["findings"]), key=["high", "medium", "low"].index
    )
    assert token[7:] not in json.dumps(found)

    accepted = [f"{one['id']}/{one['subject']}" for one in found["findings"]]
    assert judged(mooring, *flags, "--accept", ",".join(accepted[1:]))[0] == 20
    code, found = judged(mooring, *flags, "--accept", ",".join(accepted))
    assert (code, found["healthy"]) == (0, True)
    assert all(one["accepted"] for one in found["findings"])

    shown = mooring("doctor", "--cluster", *flags)
    assert shown.code == 20
    assert f"{token[:6]}: it never expires" in shown.out
    assert "system:unauthenticated may list secrets" in shown.out
    assert "kubectl delete clusterrolebinding open" in shown.out
    live_server.run(lambda client: client.delete("clusterrolebindings", "open"))
    live_server.run(lambda client: client.delete("clusterroles", "open"))


def test_a_server_that_does_not_respond_is_waited_for_no_longer_than_the_timeout(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "silent.conf"
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        path.write_text(live_server.kubeconfig.read_text().replace(live_server.url, url))
        outcome = mooring("doctor", "--cluster", "--kubeconfig", str(path), "--timeout", "200ms")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"{url} did not respond within 200ms" in outcome.err


def test_what_a_user_may_not_read_is_skipped_and_never_ok(
    live_server: LiveServer, mooring: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "few.conf"
    mooring.done("kubeconfig", "user", "few", "--out", str(path), "--kubeconfig", str(live_server.kubeconfig))
    code, found = judged(mooring, "--kubeconfig", str(path))
    assert (code, found["healthy"], found["findings"]) == (20, False, [])
    assert set(results(found).values()) == {"skipped"}
    assert {one["reason"] for one in found["checks"]} == {"not readable for this user"}
    accepted = mooring("doctor", "--cluster", "--kubeconfig", str(path), "--accept", ",".join(CHECKS))
    assert accepted.code == 0
    assert accepted.out.endswith("0 of 16 checks found nothing.\n")


def test_another_api_server_is_judged_as_far_as_it_tells(mooring: CommandLine, tmp_path: Path) -> None:
    with kubernetes_peer() as peer:
        kubeconfig = write_kubeconfig(tmp_path / "admin.conf", peer.url, peer.ca_pem, KubeconfigUser("admin"))
        code, found = judged(mooring, "--kubeconfig", str(kubeconfig))
    assert (code, found["healthy"]) == (0, True)
    skipped = {name for name, result in results(found).items() if result == "skipped"}
    assert skipped == OF_SERVERS | {"join-rule-too-wide"}
    reasons = {one.get("reason") for one in found["checks"] if one["id"] in OF_SERVERS}
    assert reasons == {"not served by this server"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accept", "audit-off"], "--accept needs --cluster"),
        (["--kubeconfig", "x"], "--kubeconfig needs --cluster"),
        (["--context", "x"], "--context needs --cluster"),
        (["--cluster", "--server", "https://x"], "--server is not for --cluster"),
        (["--cluster", "192.0.2.1:6443"], "ADDRESS is not for --cluster"),
        (["--cluster", "--node-name", "x"], "--node-name is not for --cluster"),
        (["--cluster", "--token", "abcdef.0123456789abcdef"], "--token is not for --cluster"),
        (["--cluster", "--data-dir", ""], "--data-dir: the directory is not named"),
        (["--cluster", "--kubeconfig", "x", "--data-dir", "y"], "give --kubeconfig or --data-dir, not both"),
    ],
    ids=str,
)
def test_flags_of_the_other_use_are_refused(mooring: CommandLine, arguments: list[str], message: str) -> None:
    outcome = mooring("doctor", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
