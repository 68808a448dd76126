"""`mooring node prune`: which Nodes it takes for silent, what it deletes, and what it leaves."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring.api.mooring.membership import MAY_BE_SILENT
from mooring.apimachinery.schema import Obj
from mooring.cli.node.prune import silence_begin
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock, rfc3339
from mooring.errors import ConflictError, ForbiddenError, NotFoundError
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.kubernetespeer import VERSION, KubernetesPeer, kubernetes_peer
from tests.support.liveserver import LiveServer, live_server
from tests.support.standalonecontrollers import write_kubeconfig

__all__ = ["live_server", "mooring"]
DAY = timedelta(days=1)
THEN = "2026-01-01T00:00:00Z"
CREATED = "2025-01-01T00:00:00Z"


def node(status: str = "Unknown", since: str | None = THEN, **metadata: Any) -> Obj:
    ready = {"type": "Ready", "status": status, **({"lastTransitionTime": since} if since else {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "creationTimestamp": CREATED, **metadata},
        "status": {"conditions": [{"type": "MemoryPressure", "status": "Unknown"}, *([ready] if status else [])]},
    }


@pytest.mark.parametrize(
    ("found", "since"),
    [
        pytest.param(node(), THEN, id="since the transition"),
        pytest.param(node(""), CREATED, id="never reported: since its creation"),
        pytest.param({"metadata": {"name": "n", "creationTimestamp": CREATED}}, CREATED, id="without a status"),
        pytest.param(node("True"), None, id="ready"),
        pytest.param(node("False"), None, id="not ready, and reports"),
        pytest.param(node(deletionTimestamp=THEN), None, id="being deleted"),
        pytest.param(node(annotations={MAY_BE_SILENT: "true"}), None, id="exempt"),
        pytest.param(node(annotations={MAY_BE_SILENT: "false"}), THEN, id="not exempt"),
        pytest.param(node(since=None), CREATED, id="unknown since no time"),
        pytest.param(
            node(since="2090-01-01T00:00:00Z", creationTimestamp=THEN), THEN, id="a time that the machine wrote"
        ),
        pytest.param(node(since="yesterday"), CREATED, id="unknown since an unreadable time"),
        pytest.param(node("", creationTimestamp=None), None, id="without a time of creation"),
    ],
)
def test_a_node_is_silent_since(found: Obj, since: str | None) -> None:
    silent = silence_begin(found, datetime(2080, 1, 1, tzinfo=UTC))
    assert (silent and rfc3339(silent)) == since


def ago(span: timedelta) -> str:
    return rfc3339(datetime.now(UTC) - span)


# ── against a simulated kube-apiserver ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def peer() -> Iterator[KubernetesPeer]:
    with kubernetes_peer() as peer:
        yield peer


@pytest.fixture
def command(peer: KubernetesPeer, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the kubeconfig of the server, which has three silent Nodes and one that reports."""
    path = write_kubeconfig(tmp_path / "admin.conf", peer.url, peer.ca_pem, KubeconfigUser("admin"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    for name, days in (("b-31", 31), ("a-40", 40), ("c-33", 33), ("d-29", 29)):
        peer.put("nodes", node(since=ago(days * DAY), name=name))
    peer.put("nodes", node("True", since=ago(90 * DAY), name="ready"))
    return mooring


def names(peer: KubernetesPeer) -> list[str]:
    return sorted(name for plural, _, name in peer.objects if plural == "nodes")


def answer(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    """Let a person answer on a terminal; None: there is no terminal."""
    stdin = io.StringIO(text or "")
    monkeypatch.setattr(stdin, "isatty", lambda: text is not None)
    monkeypatch.setattr("sys.stdin", stdin)


def test_silent_nodes_are_listed_and_deleted_the_longest_first(peer: KubernetesPeer, command: CommandLine) -> None:
    done = command("node", "prune", "--silent", "30d", "--yes")
    assert (done.code, done.out) == (0, "node/a-40 deleted\nnode/c-33 deleted\nnode/b-31 deleted\n")
    header, first, *_ = done.err.splitlines()
    assert header.split("   ")[0] == "NAME"
    assert (first.split()[0], first.split()[2]) == ("a-40", "40d")
    assert f"warning: {peer.url} is Kubernetes {VERSION}, not Mooring, and does not read the denylist" in done.err
    assert done.announced.startswith(f"On {peer.url} as ")
    assert names(peer) == ["d-29", "ready"]
    assert not any("/nodeidentities/" in path for _, path in peer.requests), "no record where there is none"


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        pytest.param("y\n", 0, "Delete these 3 Nodes?", id="yes"),
        pytest.param("n\n", 1, "nothing was deleted", id="no"),
        pytest.param("", 130, "Delete these 3 Nodes?", id="end"),
        pytest.param(None, 1, "give --yes to delete these 3 Nodes without a terminal", id="no terminal"),
    ],
)
def test_a_person_is_asked(
    typed: str | None, code: int, said: str, peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, typed)
    done = command("node", "prune", "--silent", "30d")
    assert (done.code, said in done.err, "a-40" in done.err) == (code, True, True)
    assert len(names(peer)) == (2 if code == 0 else 5)


def test_a_dry_run_asks_and_deletes_nothing(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, None)
    done = command("node", "prune", "--silent", "720h", "--dry-run")
    assert (done.code, done.out.splitlines()[0]) == (0, "node/a-40 would be deleted")
    assert command("node", "prune", "--silent", "30d", "--dry-run", "-o", "name").out.split() == [
        "node/a-40",
        "node/c-33",
        "node/b-31",
    ]
    document = json.loads(command("node", "prune", "--silent", "30d", "--dry-run", "-o", "json").out)
    assert {one["outcome"] for one in document["nodes"]} == {"wouldBeDeleted"}
    assert len(names(peer)) == 5
    assert {method for method, _ in peer.requests} == {"GET"}


@pytest.mark.parametrize(
    ("silence", "said"),
    [
        ("1m59s", "--silent: at least 2m0s"),
        ("0", "--silent: at least 2m0s"),
        ("-30d", '"-30d" is not a duration'),
        ("30", '"30" has no unit; write 30d, 30h or 30m'),
        ("", "it is empty"),
    ],
)
def test_a_short_or_wrong_silence_is_a_usage_error(
    silence: str, said: str, peer: KubernetesPeer, command: CommandLine
) -> None:
    done = command("node", "prune", "--silent", silence, "--yes")
    assert (done.code, said in done.err, peer.requests) == (2, True, [])


def test_without_a_silent_node_nothing_is_done(command: CommandLine) -> None:
    done = command("node", "prune", "--silent", "1w1000d")
    assert (done.code, done.out, done.err) == (0, "", "No machine has been silent for so long.\n")
    document = json.loads(command("node", "prune", "--silent", "1000d", "-o", "json").out)
    assert document == {"kind": "NodePruneResult", "silent": "24000h0m0s", "dryRun": False, "nodes": []}


Deletion = Any


def instead(monkeypatch: pytest.MonkeyPatch, act: Deletion) -> None:
    """Call `act` before each deletion of the Node c-33."""
    delete = ClusterClient.delete

    async def call(self: ClusterClient, target: str, name: str, **more: Any) -> Obj:
        if name == "c-33":
            act(more)
        return await delete(self, target, name, **more)

    monkeypatch.setattr(ClusterClient, "delete", call)


def conflict(more: Obj) -> None:
    raise ConflictError.of("", "nodes", "c-33", "the resourceVersion in the precondition is another one")


@pytest.mark.parametrize(
    ("outcome", "code", "changed"),
    [
        pytest.param("cameBack", 0, {"status": "True"}, id="it reports again"),
        pytest.param("cameBack", 0, {"since": ago(DAY)}, id="it was back for a while"),
        pytest.param("cameBack", 0, {"uid": "another"}, id="it registered again"),
        pytest.param("exempt", 0, {"annotations": {"mooring.dev/may-be-silent": "true"}}, id="it was exempted"),
        pytest.param("gone", 0, None, id="another program deleted it"),
        pytest.param(
            "gone",
            0,
            {"deletionTimestamp": THEN, "finalizers": ["a/b"]},
            id="another program deletes it, and a finalizer holds it",
        ),
        pytest.param("failed", 1, {}, id="other programs change it all the time"),
    ],
)
def test_a_node_that_changed_is_judged_again(
    outcome: str,
    code: int,
    changed: Obj | None,
    peer: KubernetesPeer,
    command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change(more: Obj) -> None:
        if changed is None:
            peer.drop("nodes", "c-33")
        else:
            peer.put("nodes", node(**{"since": ago(33 * DAY), "name": "c-33", **changed}))
        conflict(more)

    instead(monkeypatch, change)
    done = command("node", "prune", "--silent", "30d", "--yes", "-o", "yaml")
    assert done.code == code
    nodes = {one["name"]: one for one in yaml.safe_load(done.out)["nodes"]}
    assert [one["outcome"] for one in nodes.values()] == ["deleted", outcome, "deleted"]
    assert ("c-33" in names(peer)) is (changed is not None)


@pytest.mark.parametrize(
    ("renewed", "stays"),
    [
        pytest.param(timedelta(0), True, id="a moment ago"),
        pytest.param(33 * DAY, False, id="when it fell silent"),
        pytest.param(None, False, id="never"),
    ],
)
def test_a_node_whose_lease_is_renewed_stays(
    renewed: timedelta | None, stays: bool, peer: KubernetesPeer, command: CommandLine
) -> None:
    spec = {"renewTime": ago(renewed)} if renewed is not None else {}
    peer.put("leases", {"metadata": {"name": "c-33"}, "spec": spec}, "kube-node-lease")
    dry = command("node", "prune", "--silent", "30d", "--dry-run", "-o", "name")
    assert ("node/c-33" in dry.out) is not stays
    done = command("node", "prune", "--silent", "30d", "--yes")
    assert (done.code, "c-33" in done.out) == (0, not stays)
    assert ("c-33" in names(peer)) is stays


def test_a_lease_that_is_renewed_after_the_list_keeps_the_node(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("mooring.cli.node.prune")
    listed = module.find

    async def find(*given: Any) -> Any:
        found = await listed(*given)
        peer.put("leases", {"metadata": {"name": "c-33"}, "spec": {"renewTime": ago(timedelta(0))}}, "kube-node-lease")
        return found

    monkeypatch.setattr(module, "find", find)
    done = command("node", "prune", "--silent", "30d", "--yes")
    assert (done.code, "node/c-33 came back, and stays" in done.out) == (0, True)


def test_a_conflict_with_another_program_is_repeated_with_the_new_version(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[str] = []

    def taint(more: Obj) -> None:
        versions.append(more["resource_version"])
        if len(versions) == 1:
            peer.put("nodes", {**node(since=ago(33 * DAY), name="c-33"), "spec": {"unschedulable": True}})
            conflict(more)

    instead(monkeypatch, taint)
    assert "node/c-33 deleted" in command("node", "prune", "--silent", "30d", "--yes").out
    assert len(set(versions)) == 2


@pytest.mark.parametrize("form", ["text", "name"])
def test_one_failure_does_not_stop_the_others(
    form: str, peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(more: Obj) -> None:
        raise ForbiddenError('nodes "c-33" is forbidden')

    instead(monkeypatch, refuse)
    done = command("node", "prune", "--silent", "30d", "--yes", "-o", form)
    assert (done.code, [line.split()[0] for line in done.out.splitlines()]) == (1, ["node/a-40", "node/b-31"])
    assert 'node/c-33 was not deleted: nodes "c-33" is forbidden' in done.err
    assert "1 of 3 Nodes were not deleted: c-33" in done.err.splitlines()[-1]
    assert names(peer) == ["c-33", "d-29", "ready"]


def test_a_node_that_is_gone_already_is_said(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead(monkeypatch, lambda more: peer.drop("nodes", "c-33"))
    done = command("node", "prune", "--silent", "30d", "--yes", "-o", "name")
    assert (done.code, done.out.split()) == (0, ["node/a-40", "node/b-31"])
    assert "node/c-33 was deleted by another program" in done.err


def test_a_server_that_goes_away_ends_the_command_and_what_was_done_is_said(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(more: Obj) -> None:
        peer.is_away = True

    instead(monkeypatch, leave)
    done = command("node", "prune", "--silent", "30d", "--yes", "-o", "json", "--timeout", "1s")
    assert done.code == 1
    assert [one["outcome"] for one in json.loads(done.out)["nodes"]] == ["deleted", "notTried", "notTried"]


def test_a_clock_of_this_machine_that_is_ahead_makes_no_machine_silent(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooring.cli.cluster.SystemClock", lambda: AheadClock())
    done = command("node", "prune", "--silent", "365d", "--yes", "-o", "name")
    assert (done.code, done.out, len(names(peer))) == (0, "", 5)


class AheadClock(SystemClock):
    """A clock that is ten years ahead."""

    def now(self) -> datetime:
        return super().now() + 3650 * DAY


# ── against a Mooring server ─────────────────────────────────────────────────────────────────────────────────────────


def of(server: LiveServer) -> tuple[str, ...]:
    return ("--kubeconfig", str(server.kubeconfig))


def silence(server: LiveServer, name: str, span: timedelta, annotations: dict[str, str] | None = None) -> None:
    """Create a Node that has been silent for so long, with the record of its name."""
    silent = node(since=ago(span), name=name, annotations=annotations)

    async def work(client: ClusterClient) -> None:
        await client.create("nodes", silent)
        await client.patch("nodes", name, {"status": silent["status"]}, subresource="status")
        await client.create(
            "nodeidentities",
            {
                "apiVersion": "mooring.dev/v1alpha1",
                "kind": "NodeIdentity",
                "metadata": {"name": name},
                "spec": {"token": "abcdef", "silenceSeconds": 1800},
            },
        )

    server.run(work)


def test_the_membership_of_a_silent_machine_ends(live_server: LiveServer, mooring: CommandLine) -> None:
    silence(live_server, "lost-1", 50 * DAY)
    silence(live_server, "lost-2", 50 * DAY, {MAY_BE_SILENT: "true"})
    done = mooring("node", "prune", "--silent", "45d", "--yes", "-o", "json", *of(live_server))
    assert done.code == 0, done.err
    document = json.loads(done.out)
    (one,) = document["nodes"]
    assert (one["name"], one["token"], one["outcome"]) == ("lost-1", "abcdef", "deleted")
    assert "warning" not in done.err

    async def check(client: ClusterClient) -> None:
        with pytest.raises(NotFoundError):
            await client.get("nodes", "lost-1")
        spec = (await client.get("nodeidentities", "lost-1"))["spec"]
        assert (spec["nodeUID"], spec["endReason"]) == (one["uid"], "Silent")
        await client.delete("nodes", "lost-2")

    live_server.run(check)
    listed = mooring.done("node", "list", "--all", *of(live_server)).splitlines()
    assert any(line.split()[:3] == ["lost-1", "Ended:", "Silent"] for line in listed)
    assert "State:        Ended: Silent\n" in mooring.done("node", "show", "lost-1", *of(live_server))
    assert "Ephemeral:    the membership ends after 30m0s of silence\n" in mooring.done(
        "node", "show", "lost-1", *of(live_server)
    )
    document = json.loads(mooring.done("node", "show", "lost-1", "-o", "json", *of(live_server)))
    assert (document["state"], document["endReason"], document["silenceSeconds"]) == ("Ended", "Silent", 1800)
    status = json.loads(mooring.done("status", "-o", "json", *of(live_server)))["machines"]
    # Other tests end memberships on the same server.
    assert status["endedBySilence"] >= 1
    assert status["heldBack"] == 0


def test_a_reason_that_a_server_took_back_meanwhile_is_written_again(
    live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(live_server, "member", 50 * DAY)
    delete = ClusterClient.delete

    async def call(self: ClusterClient, target: str, called: str, **more: Any) -> Obj:
        await self.patch("nodeidentities", "member", {"spec": {"endReason": None}})
        return await delete(self, target, called, **more)

    monkeypatch.setattr(ClusterClient, "delete", call)
    mooring.done("node", "prune", "--silent", "45d", "--yes", *of(live_server))
    identity = live_server.run(lambda client: client.get("nodeidentities", "member"))
    assert identity["spec"]["endReason"] == "Silent"


def test_a_node_that_had_no_record_gets_the_reason_too(live_server: LiveServer, mooring: CommandLine) -> None:
    silence(live_server, "by-hand", 50 * DAY)
    live_server.run(lambda client: client.delete("nodeidentities", "by-hand"))
    mooring.done("node", "prune", "--silent", "45d", "--yes", *of(live_server))
    identity = live_server.run(lambda client: client.get("nodeidentities", "by-hand"))
    assert identity["spec"]["endReason"] == "Silent"


@pytest.mark.parametrize("changed", ["status", "forbidden"])
def test_a_node_that_stays_has_no_reason_of_an_end(
    changed: str, live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"stays-{changed}"
    silence(live_server, name, 50 * DAY)
    delete = ClusterClient.delete

    async def call(self: ClusterClient, target: str, called: str, **more: Any) -> Obj:
        identity = await self.get("nodeidentities", name)
        assert identity["spec"]["endReason"] == "Silent"
        if changed == "forbidden":
            raise ForbiddenError("no")
        await self.patch("nodes", name, {"status": node("True")["status"]}, subresource="status")
        return await delete(self, target, called, **more)

    monkeypatch.setattr(ClusterClient, "delete", call)
    done = mooring("node", "prune", "--silent", "45d", "--yes", *of(live_server))
    assert done.code == (1 if changed == "forbidden" else 0)
    monkeypatch.undo()

    async def check(client: ClusterClient) -> None:
        assert (await client.get("nodeidentities", name))["spec"].get("endReason") is None
        await client.delete("nodes", name)

    live_server.run(check)
