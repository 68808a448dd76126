"""Steps of `mooring doctor` about the machine, and the judgement of requests and Nodes: each state with its sentence."""

from __future__ import annotations

import asyncio
import base64
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from mooring.agent import machineid
from mooring.agent.doctor import machine, membership
from mooring.agent.doctor.machine import LocalFiles, judge_disk, judge_files, judge_machine, judge_service, read_files
from mooring.agent.k3s.files import AgentFiles
from mooring.agent.machineid import MachineIdentity
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.pki.keys import generate_key, private_key_pem
from mooring.trust.discovery.refresh import MergeBase, digest
from mooring.trust.doctor import FAILED, OK, SKIPPED, WARNING, Judgement
from mooring.trust.kubeconfig import Cluster
from tests.support.testca import ThrowawayCA

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER = Cluster("", "https://192.0.2.10:6443")


@dataclass(frozen=True)
class Member:
    """A machine that has joined kubeadm's way."""

    root: Path
    state: NodeState
    ca: ThrowawayCA

    @property
    def files(self) -> LocalFiles:
        return read_files(self.root)


@pytest.fixture
def member(tmp_path: Path) -> Member:
    ca, state = ThrowawayCA(now=NOW), NodeState(tmp_path)
    pair = ca.node("worker-1")
    state.client.write_pair(Pair((pair.certificate,), pair.key), NOW)
    state.write_kubeconfig((replace(CLUSTER, ca_pem=ca.certificate_pem),))
    return Member(tmp_path, state, ca)


def check(judgement: Judgement, result: str, *texts: str) -> None:
    assert judgement.result == result, judgement
    for text in texts:
        assert text in f"{judgement.message}; {judgement.remedy}"


def test_a_machine_that_has_not_joined(tmp_path: Path) -> None:
    files = read_files(tmp_path)
    check(judge_files(files, "", NOW), OK, "has not joined")
    check(judge_machine(files, MachineIdentity(tmp_path, {})), SKIPPED, "has not joined")
    check(judge_disk(files, tmp_path), OK, "can be written")
    assert files.cluster_at("192.0.2.10:6443") is None
    assert list(tmp_path.iterdir()) == []


def test_a_member(member: Member) -> None:
    judgement = judge_files(member.files, "", NOW)
    check(judgement, OK, "a certificate of system:node:worker-1, valid until")
    assert judgement.facts["servers"] == [CLUSTER.server]
    assert member.files.cluster_at("192.0.2.10:6443") is not None
    check(judge_files(member.files, "worker-1", NOW), OK)
    check(judge_files(member.files, "worker-2", NOW), FAILED, 'the name "worker-2" was given', "--node-name worker-1")
    check(judge_files(member.files, "", NOW + timedelta(days=4000)), WARNING, "not valid now", "mooring agent")


def test_files_of_a_member_that_are_damaged(member: Member) -> None:
    member.state.kubeconfig.write_text("{")
    check(judge_files(member.files, "", NOW), FAILED, str(member.state.kubeconfig), "join again with a token")
    member.state.kubeconfig.unlink()
    check(judge_files(member.files, "", NOW), FAILED, "no server is named in the files")
    member.state.client.current.unlink()
    member.state.write_kubeconfig((CLUSTER,))
    lost = ("kubectl delete node NAME", "join again with a token")
    check(judge_files(member.files, "", NOW), FAILED, "no certificate of a node", *lost)
    member.state.client.current.write_text("junk")
    check(judge_files(member.files, "", NOW), FAILED, str(member.state.client.current), *lost)
    member.state.write_pending_key(generate_key())
    check(
        judge_files(member.files, "", NOW),
        WARNING,
        "a join with another key has not ended",
        "the same mooring join again",
    )


def test_a_kubelet_conf_without_the_ca_of_the_cluster(member: Member) -> None:
    names_none = (
        WARNING,
        f"{member.state.kubeconfig} names no CA of the cluster",
        "certificate-authority",
        "join again",
    )
    published = MergeBase((CLUSTER.server,), digest(b"CA"), digest(b""))
    for base, expected in ((None, names_none), (published, names_none), (replace(published, ca=digest(b"")), (OK,))):
        member.state.write_kubeconfig((CLUSTER,), base)
        check(judge_files(member.files, "", NOW), *expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"junk", "cannot be used"), (ThrowawayCA().certificate_pem, "does not hold the CA that signed this certificate")],
)
def test_a_ca_crt_that_does_not_vouch_for_the_member(member: Member, content: bytes, problem: str) -> None:
    member.state.ca.parent.mkdir(parents=True, exist_ok=True)
    member.state.ca.write_bytes(content)
    check(judge_files(member.files, "", NOW), WARNING, f"{member.state.ca} {problem}", "move it away")
    member.state.ca.write_bytes(content + member.ca.certificate_pem if problem.startswith("does") else b"")
    check(judge_files(member.files, "", NOW), OK)


def test_files_that_other_users_can_read(member: Member) -> None:
    path = member.state.kubeconfig
    path.chmod(0o604)
    check(judge_files(member.files, "", NOW), WARNING, f"{path} can be read by other users", f"chmod 600 {path}")


def test_files_that_this_user_may_not_read(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_may_read", lambda path: path != member.state.kubeconfig)
    check(judge_files(member.files, "", NOW), WARNING, str(member.state.kubeconfig), "as root")
    monkeypatch.setattr(machine, "_is_closed", lambda path: path == member.state.certificates)
    assert member.state.certificates in member.files.unreadable


def test_a_join_that_was_interrupted(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    state.write_pending_key(generate_key())
    state.bootstrap.parent.mkdir(parents=True)
    state.bootstrap.write_text("")
    files = read_files(tmp_path)
    assert files.pending_key is not None
    check(judge_files(files, "", NOW), WARNING, "a join was interrupted", "goes on with the same request")


def test_a_member_of_k3s_way(tmp_path: Path) -> None:
    ca, files = ThrowawayCA(now=NOW), AgentFiles(tmp_path)
    pair = ca.node("agent-1")
    files.directory.mkdir(parents=True)
    for path, content in (
        (files.client.current, pair.certificate_pem),
        (files.client.key, pair.key_pem),
        (files.server_ca, ca.certificate_pem),
    ):
        path.write_bytes(content)
        path.chmod(0o600)
    files.directory.chmod(0o700)
    check(
        judge_files(read_files(tmp_path), "", NOW), FAILED, "no server is named", "(mooring agent --server URL --token"
    )
    files.write_kubeconfigs(CLUSTER.server)
    files.client.current.write_bytes(b"junk")
    check(judge_files(read_files(tmp_path), "", NOW), FAILED, "cannot be used", "(mooring agent --server URL --token")
    files.client.current.unlink()
    check(
        judge_files(read_files(tmp_path), "", NOW), FAILED, "no certificate of a", "(mooring agent --server URL --token"
    )
    files.client.current.write_bytes(pair.certificate_pem)
    for content, problem in ((b"", "is missing or empty"), (b"junk", "cannot be used")):
        files.server_ca.write_bytes(content)
        check(
            judge_files(read_files(tmp_path), "", NOW),
            WARNING,
            f"{files.server_ca} {problem}",
            "join again with the token",
        )
    files.server_ca.write_bytes(ca.certificate_pem)
    found = read_files(tmp_path)
    check(judge_files(found, "", NOW), OK, "system:node:agent-1")
    assert found.way == "k3s"
    assert [(one.server, one.ca_pem, one.is_k3s) for one in found.clusters] == [
        (CLUSTER.server, ca.certificate_pem, True)
    ]
    check(judge_disk(found, tmp_path), OK)
    # A replacement that a crash interrupted stays as it is.
    files.client.next_certificate.write_bytes(pair.certificate_pem)
    before = sorted(one.name for one in files.directory.iterdir())
    read_files(tmp_path)
    assert sorted(one.name for one in files.directory.iterdir()) == before


def test_the_machine(member: Member, tmp_path: Path) -> None:
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    here = MachineIdentity(tmp_path, {})
    check(judge_machine(member.files, here), SKIPPED, "do not say on which machine")
    machineid.remember(member.state.record, here)
    check(judge_machine(member.files, here), OK, "the same machine")
    check(judge_machine(member.files, MachineIdentity(tmp_path, {"container": "oci"})), SKIPPED, "container")
    (tmp_path / "etc/machine-id").write_text("1123456789abcdef0123456789abcdef\n")
    check(judge_machine(member.files, here), FAILED, "copied from another machine (worker-1)", "--adopt")


ROOMY = {"f_flag": 0, "f_blocks": 100, "f_bavail": 50, "f_frsize": 4096, "f_files": 100, "f_favail": 50}


@pytest.mark.parametrize(
    ("disk", "texts"),
    [
        ({"f_flag": os.ST_RDONLY}, ("is on a read-only file system", "mount it writable")),
        ({"f_bavail": 1}, ("is full", "df -h")),
        ({"f_favail": 0}, ("has no inode left", "df -i")),
    ],
)
def test_the_disk(
    disk: dict[str, int], texts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**ROOMY | disk))
    check(judge_disk(read_files(tmp_path), tmp_path), FAILED, str(tmp_path), *texts)


def test_the_disk_of_a_member(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**ROOMY | {"f_flag": os.ST_RDONLY}))
    check(judge_disk(member.files, member.root), WARNING, "read-only")


def test_directories_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = read_files(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(machine, "ROOT", os.geteuid() + 1)
    check(judge_disk(files, tmp_path), OK, "root can write", "this user cannot", str(tmp_path))
    monkeypatch.setattr(machine, "ROOT", os.geteuid())
    check(judge_disk(files, tmp_path), FAILED, "cannot be written, even by root")


def test_a_place_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("nowhere")
    check(judge_disk(read_files(tmp_path), tmp_path), FAILED, f"{tmp_path / 'etc'} is no directory", "move it away")


def test_directories_where_another_user_may_write(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc").chmod(0o777)
    check(judge_disk(read_files(tmp_path), tmp_path), FAILED, "other users may replace files", "chmod go-w")


def test_a_disk_that_cannot_be_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "statvfs", fail)
    check(judge_disk(read_files(tmp_path), tmp_path), FAILED, "input/output error")


SYSTEMCTL = """#!/bin/sh
[ "$1" = is-active ] && [ $# = 5 ] || exit 9
{states}
exit 3
"""


@pytest.mark.parametrize(
    ("states", "is_fresh", "result", "text"),
    [
        (("active", "inactive", "inactive", "inactive"), False, OK, "mooring-agent.service is active"),
        (("inactive", "active", "unknown", "unknown"), False, OK, "kubelet.service is active"),
        (("failed", "inactive", "inactive", "inactive"), False, FAILED, "mooring agent install"),
        (("inactive", "inactive", "inactive", "inactive"), True, WARNING, "another program keeps it"),
    ],
)
def test_the_service(
    states: tuple[str, ...],
    is_fresh: bool,
    result: str,
    text: str,
    member: Member,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL.format(states="\n".join(f"echo {one}" for one in states)))
    program.chmod(0o755)
    monkeypatch.setattr(machine, "SYSTEMD", tmp_path)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    check(asyncio.run(judge_service(member.files, Path("/"), 5.0, is_fresh=is_fresh)), result, text)


def test_a_service_that_is_not_examined(member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SYSTEMD", tmp_path / "none")
    for files, root, text in (
        (read_files(tmp_path / "none"), Path("/"), "no membership"),
        (member.files, tmp_path, "another root"),
        (member.files, Path("/"), "systemd does not run"),
    ):
        check(asyncio.run(judge_service(files, root, 5.0, is_fresh=False)), SKIPPED, text)


# ── requests and Nodes ───────────────────────────────────────────────────────────────────────────────────────────────


def request(*conditions: tuple[str, str], certificate: bytes = b"") -> Obj:
    listed = [{"type": kind, "message": message} for kind, message in conditions]
    return {"status": {"conditions": listed, "certificate": base64.b64encode(certificate).decode()}}


@pytest.mark.parametrize(
    ("found", "result", "text"),
    [
        ({}, FAILED, "waits for a person; approve it with `mooring csr approve csr-1`"),
        (request(("NeedsApproval", "NodeNameTaken")), FAILED, "waits for a person (NodeNameTaken); approve it with"),
        (request(("Denied", "not you")), FAILED, "was denied: not you"),
        (request(("Denied", "")), FAILED, "was denied: no reason is given"),
        (request(("Approved", ""), ("Failed", "no key")), FAILED, "failed at the signer: no key"),
        (request(("Approved", "")), FAILED, "approved and not signed"),
        (request(("Approved", ""), certificate=b"PEM"), OK, "approved and signed"),
    ],
)
def test_requests(found: Obj, result: str, text: str) -> None:
    check(membership._judge_request(found, "csr-1"), result, text)


def node(status: str, message: str = "") -> Obj:
    return {
        "metadata": {"name": "worker-1"},
        "status": {"conditions": [{"type": "Ready", "status": status, "message": message}]},
    }


def lease(seconds: float) -> Obj:
    return {"spec": {"renewTime": rfc3339(NOW - timedelta(seconds=seconds))}}


@pytest.mark.parametrize(
    ("found", "kept", "result", "text"),
    [
        (node("True"), lease(5), OK, "is Ready, with a heartbeat"),
        (node("True"), {}, WARNING, "it has no Lease"),
        (node("True"), {"spec": {"renewTime": "yesterday"}}, WARNING, "mooring agent install"),
        (node("True"), lease(100), FAILED, "100 s ago"),
        (node("Unknown"), {}, FAILED, "came long ago"),
        (node("False", "no network plugin"), lease(5), WARNING, "not Ready: no network plugin"),
        ({"metadata": {"name": "worker-1"}}, lease(5), WARNING, "no reason is given"),
    ],
)
def test_nodes(found: Obj, kept: Obj, result: str, text: str) -> None:
    check(membership._judge_node(found, kept, NOW.replace(microsecond=0)), result, text)


def test_a_pending_key_is_found_under_the_name_of_its_file(tmp_path: Path) -> None:
    state, key = NodeState(tmp_path), generate_key()
    state.write_pending_key(key)
    found = read_files(tmp_path).pending_key
    assert found is not None
    assert private_key_pem(found) == private_key_pem(key)
