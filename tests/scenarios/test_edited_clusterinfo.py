"""Rollovers of a cluster whose cluster-info was edited, as a person does them: by commands, and edits through the API."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import UnauthorizedError
from mooring.pki.x509.bundles import certificates
from mooring.trust.discovery.pins import pin_of
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.support.commandline import Outcome, process
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA

MINE = ThrowawayCA("mine")
PLURAL = "certificateauthorityrollovers"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    started = start_server(tmp_path / "data")
    try:
        yield started
    finally:
        started.stop()


def edit(server: LiveServer, change: Callable[[Obj], object]) -> None:
    """Edit cluster-info as `kubectl edit` does."""

    async def work(client: ClusterClient) -> None:
        found = await client.get("configmaps", "cluster-info", "kube-public")
        change(found)
        await client.update("configmaps", found)

    server.run(work)


def set_text(change: Callable[[str], str]) -> Callable[[Obj], object]:
    return lambda found: found["data"].update(kubeconfig=change(found["data"]["kubeconfig"]))


def published(server: LiveServer) -> str:
    found = server.run(lambda client: client.get("configmaps", "cluster-info", "kube-public"))
    text: str = found["data"]["kubeconfig"]
    return text


def pins(server: LiveServer) -> list[str]:
    (cluster, *_) = parse_kubeconfig(published(server)).clusters
    return [str(pin_of(ca)) for ca in certificates(cluster.ca_pem)]


def rollover(server: LiveServer, *words: str) -> Outcome:
    return process("ca", "rollover", *words, "--kubeconfig", str(server.kubeconfig))


def reached(server: LiveServer) -> Obj:
    status: Obj = server.run(lambda client: client.get(PLURAL, "cluster-ca")).get("status") or {}
    return status


def join(server: LiveServer, root: Path, name: str) -> Outcome:
    """Join by the line that the command prints now."""
    line = process("token", "create", "--print-join-command", "--kubeconfig", str(server.kubeconfig)).out
    return process(*shlex.split(line)[1:], "--node-name", name, "--root", str(root / name))


def status(server: LiveServer) -> Obj:
    found: Obj = json.loads(process("status", "-o", "json", "--kubeconfig", str(server.kubeconfig)).out)["clusterInfo"]
    return found


def with_own_ca(text: str) -> str:
    """Return a kubeconfig with a comment, and a CA of the administrator in front."""
    (cluster, *_) = parse_kubeconfig(text).clusters
    before, after = (base64.b64encode(pem).decode() for pem in (cluster.ca_pem, MINE.certificate_pem + cluster.ca_pem))
    return "# ask the network team before you change this\n" + text.replace(before, after)


@pytest.mark.parametrize("more", [(), ("--compromised",)], ids=["in use", "stolen"])
def test_machines_join_in_each_phase_by_a_new_line(server: LiveServer, tmp_path: Path, more: tuple[str, ...]) -> None:
    edit(server, set_text(with_own_ca))
    old, mine = server.pin, str(pin_of(MINE.certificate))
    for phase, words in (
        ("TrustBoth", ("start", *more)),
        ("IssueNew", ("advance",)),
        ("Drain", ("advance",)),
        ("Done", ("advance", "--force")),
    ):
        done = rollover(server, *words)
        assert done.code == 0, done.all
        assert f"reached {phase}" in done.out
        joined = join(server, tmp_path, phase.lower())
        assert joined.code == 0, joined.all
        assert published(server).startswith("# ask the network team")
        assert pins(server)[0] == mine
    eventually(lambda: pins(server) == [mine, server.pin], server)
    assert old not in pins(server)
    assert server.log.count("cluster-info was edited") == 1
    found = status(server)
    assert found == {"kept": True, "edited": True, "problem": "", "credentials": [], "clusterID": found["clusterID"]}


def test_an_edit_in_the_middle_follows_at_once_and_an_abort_leads_back(server: LiveServer, tmp_path: Path) -> None:
    old, before = server.pin, published(server)
    edit(server, set_text(lambda text: text + "# mine\n"))
    assert rollover(server, "start").code == 0
    edit(server, set_text(lambda text: before + "# from a file of last week\n"))
    eventually(lambda: len(pins(server)) == 2, server)
    assert rollover(server, "advance").code == 0
    new = next(pin for pin in pins(server) if pin != old)
    assert rollover(server, "abort", "--force").code == 0
    eventually(lambda: pins(server) == [old], server)
    assert new not in pins(server)
    assert published(server).endswith("# from a file of last week\n")
    assert join(server, tmp_path, "back").code == 0


UNFIT: dict[str, tuple[Callable[[Obj], object], str]] = {
    "immutable": (lambda found: found.update(immutable=True), "does not hold the new CA"),
    "not readable": (set_text(lambda text: "not: [yaml"), "cannot be used: the kubeconfig is neither YAML nor JSON"),
    "no kubeconfig": (lambda found: found["data"].pop("kubeconfig"), "cannot be used: it has no key kubeconfig"),
}


@pytest.mark.parametrize(("change", "sentence"), UNFIT.values(), ids=UNFIT.keys())
def test_no_way_leads_on_while_cluster_info_cannot_follow(
    server: LiveServer, tmp_path: Path, change: Callable[[Obj], object], sentence: str
) -> None:
    edit(server, change)
    assert rollover(server, "start").code == 0
    refused = rollover(server, "advance", "--force", "--wait", "3s")
    assert refused.code == 1
    assert sentence in refused.out
    assert "kubectl -n kube-public delete configmap cluster-info" in refused.out

    async def by_hand(client: ClusterClient) -> None:
        found = await client.get(PLURAL, "cluster-ca")
        await client.update(PLURAL, {**found, "spec": {"phase": "Retired", "force": "Retired", "compromised": True}})

    server.run(by_hand)
    server.kill()
    server.restart()
    eventually(lambda: sentence in reached(server).get("message", ""), server)
    assert reached(server)["phase"] == "TrustBoth"
    server.run(lambda client: client.delete("configmaps", "cluster-info", "kube-public"))
    eventually(lambda: reached(server)["phase"] == "Done", server)
    assert join(server, tmp_path, "after").code == 0


def test_force_does_not_lock_administrators_out_by_client_ca_file(tmp_path: Path) -> None:
    start_server(tmp_path / "data").stop()
    bundle = tmp_path / "clients.crt"
    bundle.write_bytes((tmp_path / "data/pki/ca.crt").read_bytes())
    server = start_server(tmp_path / "data", "--client-ca-file", str(bundle))
    try:
        assert rollover(server, "start").code == 0
        for words in ((), ("--force",), ("--force", "--compromised")):
            refused = rollover(server, "advance", *words, "--wait", "2s")
            assert refused.code == 1
            assert "client-ca-file does not hold the new CA: append pki/rollover/new.crt" in refused.out
            command = f"cat {server.data_dir}/pki/rollover/new.crt >> {bundle}"
            assert f"on each server; here: {command}" in refused.out
        assert server.run(lambda client: client.list("nodes")).items == ()
        subprocess.run(["sh", "-c", command], check=True)
        eventually(lambda: reached(server)["phase"] == "IssueNew", server)

        def is_let_in() -> bool:
            try:
                return server.run(lambda client: client.list("nodes")).items == ()
            except UnauthorizedError:
                return False

        eventually(is_let_in, server)
    finally:
        server.stop()


def test_credentials_that_anyone_reads_are_warned_of_without_them(server: LiveServer) -> None:
    secret = "hush" * 4
    user = "users:\n- name: helper\n  user:\n    token: " + secret
    edit(server, set_text(lambda text: text.replace("users: null", user)))
    eventually(lambda: 'user "helper" has a token' in server.log, server)
    edit(server, lambda found: found["metadata"].setdefault("labels", {}).update(touched="1"))
    assert status(server)["credentials"] == ['user "helper" has a token']
    shown = process("status", "--kubeconfig", str(server.kubeconfig)).out
    assert 'public credentials: user "helper" has a token' in shown
    edit(server, set_text(lambda text: text + "# later\n"))
    eventually(lambda: server.log.count('user "helper" has a token') == 2, server)
    assert secret not in server.log + shown
