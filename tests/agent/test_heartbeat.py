"""Heartbeat on a manual clock, and the agent as a process."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mooring.agent.daemon import is_valid
from mooring.agent.heartbeat import Heartbeat
from mooring.agent.member import Member, NodeOptions, heartbeat
from mooring.agent.node import NOT_READY_TAINT, Machine, node_object, node_status
from mooring.agent.recovery import read_member
from mooring.agent.registration import MembershipEndedError
from mooring.agent.state import NodeState
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock, rfc3339_micro
from mooring.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, PeerError, UnauthorizedError
from mooring.trust.kubeconfig import Cluster as ServerWay
from tests.support.joinplans import join_options
from tests.support.liveserver import LiveServer
from tests.support.manualclock import ManualClock, settle

INFO = {"operatingSystem": "linux", "architecture": "amd64", "kubeletVersion": "v0"}
MACHINE = Machine("m1", "192.0.2.7", INFO, {"cpu": "4", "pods": "110"})


class Cluster:
    """API server in memory that can be unreachable."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.objects: dict[tuple[str, str], Obj] = {}
        self.away = False
        self.refusing: ApiError | None = None
        self.gone: ApiError = NotFoundError("not found")
        self.calls: list[str] = []
        self.renewals = 0
        """Leases that were written."""
        self.versions = 0
        self.version = "v1.37.1+mooring-0"

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.refusing is not None:
            raise self.refusing
        if self.away:
            raise PeerError("asking https://api.test: nothing answers there")

    def _written(self, plural: str, obj: Obj) -> Obj:
        self.renewals += plural == "leases"
        return self.put(plural, obj)

    def put(self, plural: str, obj: Obj) -> Obj:
        self.versions += 1
        metadata = {"uid": f"uid-{self.versions}"} | obj["metadata"] | {"resourceVersion": str(self.versions)}
        self.objects[plural, metadata["name"]] = kept = obj | {"metadata": metadata}
        return kept

    async def get(self, plural: str, name: str, namespace: str = "") -> Obj:
        self._called(f"get {plural}")
        if (plural, name) not in self.objects:
            raise NotFoundError("not found")
        return self.objects[plural, name]

    async def get_path(self, path: str) -> Obj:
        self._called(f"get {path}")
        return {"gitVersion": self.version}

    async def create(self, plural: str, obj: Obj) -> Obj:
        self._called(f"create {plural}")
        if (plural, obj["metadata"]["name"]) in self.objects:
            raise AlreadyExistsError("exists")
        return self._written(plural, obj)

    async def update(self, plural: str, obj: Obj) -> Obj:
        self._called(f"update {plural}")
        if (plural, obj["metadata"]["name"]) not in self.objects:
            raise self.gone
        old = await self.get(plural, obj["metadata"]["name"])
        if old["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise ConflictError("stale")
        return self._written(plural, obj)

    async def patch(self, plural: str, name: str, patch: Obj, **options: Any) -> Obj:
        self._called(f"patch {plural}/{options.get('subresource', '')}")
        old = self.objects[plural, name]
        if patch["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise ConflictError("stale")
        metadata = old["metadata"] | patch["metadata"]
        status = (old.get("status") or {}) | (patch.get("status") or {})
        return self.put(plural, old | {"metadata": metadata, "status": status})


def beating(scenario: Any, *stored: tuple[str, Obj], version: str = "v1.37.1+mooring-0") -> None:
    async def run() -> None:
        clock = ManualClock()
        cluster = Cluster(clock)
        cluster.version = version
        for plural, obj in stored:
            cluster.put(plural, obj)
        heartbeat = Heartbeat(cast(ClusterClient, cluster), MACHINE)
        task = asyncio.create_task(heartbeat.run())
        await settle()
        try:
            await scenario(clock, cluster, heartbeat)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_the_lease_is_kubelets_and_owned_by_the_node() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        lease, node = cluster.objects["leases", "m1"], cluster.objects["nodes", "m1"]
        assert lease["spec"] == {
            "holderIdentity": "m1",
            "leaseDurationSeconds": 40,
            "renewTime": rfc3339_micro(clock.now()),
        }
        assert lease["metadata"]["namespace"] == "kube-node-lease"
        (owner,) = lease["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "m1", node["metadata"]["uid"])

    beating(scenario)


def test_it_beats_every_ten_seconds_and_refreshes_the_status_every_five_minutes() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        assert cluster.renewals == 1
        await clock.advance(9.9)
        assert cluster.renewals == 1
        await clock.advance(0.2)
        assert cluster.renewals == 2
        assert cluster.calls.count("patch nodes/status") == 0
        for _ in range(30):
            await clock.advance(10)
        assert cluster.renewals == 32
        assert cluster.calls.count("patch nodes/status") == 1
        assert cluster.calls.count("get leases") == 1 + 31  # 31 of them are this double's own look at the version
        assert cluster.calls.count("get /version") == 2

    beating(scenario)


def test_the_node_has_the_address_that_the_machine_has_now() -> None:
    """Another machine may have the address of before, and its certificate is renewed for no one else."""
    found = [MACHINE.address, "192.0.2.60", "192.0.2.60", "", "192.0.2.61"]
    after = ["192.0.2.7", "192.0.2.60", "192.0.2.60", "192.0.2.60", "192.0.2.61"]
    seen: list[str] = []

    async def locate() -> str:
        return found[min(len(seen), len(found) - 1)]

    async def run() -> None:
        clock = ManualClock()
        cluster = Cluster(clock)
        task = asyncio.create_task(Heartbeat(cast(ClusterClient, cluster), MACHINE, locate=locate).run())
        for _ in found:
            await settle()
            (address,) = (
                one["address"]
                for one in cluster.objects["nodes", "m1"]["status"]["addresses"]
                if one["type"] == "InternalIP"
            )
            seen.append(address)
            await clock.advance(10)
        assert cluster.calls.count("patch nodes/status") == 2, "nothing is written while the address stays"
        task.cancel()

    asyncio.run(run())
    assert seen == after


@pytest.mark.parametrize(("chosen", "follows"), [("", True), ("192.0.2.9", False)])
def test_an_address_that_was_chosen_stays(tmp_path: Path, chosen: str, follows: bool) -> None:
    way = ServerWay("", "https://127.0.0.1:6443")
    member = Member("m1", (way,), NodeState(tmp_path), NodeOptions(address=chosen))

    async def run() -> None:
        assert await member.address() == "127.0.0.1"
        beat = heartbeat(member, cast(ClusterClient, Cluster(ManualClock())))
        assert beat is not None
        assert (beat._locate is not None) is follows

    asyncio.run(run())


def test_a_lease_or_node_that_was_deleted_is_made_again() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        del cluster.objects["leases", "m1"]
        await clock.advance(10)
        assert ("leases", "m1") in cluster.objects
        del cluster.objects["nodes", "m1"]
        await clock.advance(300)
        assert ("nodes", "m1") in cluster.objects

    beating(scenario)


@pytest.mark.parametrize("answer", [NotFoundError("not found"), ConflictError("gone")], ids=["404", "409"])
def test_a_lease_that_went_with_its_node_comes_back_with_a_new_one(answer: ApiError) -> None:
    """A PUT to a Lease may make it: for one that is gone, servers answer 404 or, as its uid was named, 409."""

    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        cluster.gone = answer
        old = cluster.objects["nodes", "m1"]["metadata"]["uid"]
        cluster.objects.clear()
        await clock.advance(10)
        (owner,) = cluster.objects["leases", "m1"]["metadata"]["ownerReferences"]
        assert owner["uid"] == cluster.objects["nodes", "m1"]["metadata"]["uid"] != old

    beating(scenario)


def ending(scenario: Any) -> str:
    """Run a heartbeat that knows the Node it registered. Return the error with which it ends."""

    async def run() -> str:
        clock, uids = ManualClock(), [""]
        cluster = Cluster(clock)
        heartbeat = Heartbeat(
            cast(ClusterClient, cluster), MACHINE, known_uid=lambda: uids[-1], on_registered=uids.append
        )
        task = asyncio.create_task(heartbeat.run())
        await settle()
        await scenario(clock, cluster)
        with pytest.raises(MembershipEndedError) as caught:
            await task
        return str(caught.value)

    return asyncio.run(run())


def test_a_node_that_was_deleted_is_not_put_back() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster) -> None:
        cluster.objects.clear()
        await clock.advance(10)
        assert cluster.objects == {}

    assert ending(scenario) == "the Node m1 was deleted: this machine is no member of the cluster any more"


def test_a_node_that_another_machine_made_after_the_deletion_is_left_alone() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster) -> None:
        cluster.objects.clear()
        theirs = cluster.put("nodes", {"metadata": {"name": "m1"}})
        await clock.advance(10)
        assert cluster.objects == {("nodes", "m1"): theirs}

    assert ending(scenario) == (
        "the Node m1 was deleted, and another Node has its name now: this machine is no member of the cluster any more"
    )


def test_a_certificate_that_the_server_rejects_ends_the_heartbeat_after_20_seconds() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster) -> None:
        cluster.refusing = refused("a-1")
        await clock.advance(12)
        cluster.refusing = None
        await clock.advance(10)
        assert "update leases" in cluster.calls[-2:]
        cluster.refusing = refused("a-2")
        await clock.advance(60)

    assert ending(scenario) == (
        "the server rejects the certificate of system:node:m1: the Node was deleted, the certificate was revoked, or the server "
        "no longer trusts its CA; an administrator of a Mooring server learns the reason with: mooring auth explain a-2"
    )


def refused(audit_id: str) -> UnauthorizedError:
    error = UnauthorizedError()
    error.audit_id = audit_id
    return error


def test_a_lease_that_somebody_changed_is_renewed_all_the_same() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        cluster.put("leases", cluster.objects["leases", "m1"])
        await clock.advance(10)
        assert cluster.renewals == 2
        assert cluster.objects["leases", "m1"]["spec"]["renewTime"] == rfc3339_micro(clock.now())

    beating(scenario)


def test_a_server_that_is_away_is_asked_with_back_off_told_once_and_found_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")

    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        cluster.away = True
        await clock.advance(10)
        cluster.calls.clear()
        await clock.advance(60)
        assert 8 <= len(cluster.calls) <= 16
        assert [one.levelname for one in caplog.records] == ["WARNING"]
        cluster.away = False
        await clock.advance(7)
        assert cluster.renewals == 2
        assert caplog.messages[-1] == "heartbeat is back"

    beating(scenario)


def test_after_a_silence_the_status_is_refreshed_because_the_control_plane_may_have_set_it_to_unknown() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        cluster.away = True
        await clock.advance(30)
        cluster.away = False
        await clock.advance(10)
        assert cluster.calls.count("patch nodes/status") == 0, "shorter than the Lease"
        cluster.away = True
        await clock.advance(60)
        cluster.away = False
        await clock.advance(10)
        assert cluster.calls.count("patch nodes/status") == 1

    beating(scenario)


def test_a_condition_that_did_not_change_keeps_its_transition_time() -> None:
    clock = ManualClock()
    first = node_object(MACHINE, clock.now())
    asyncio.run(clock.advance(60))
    second = node_status(MACHINE, clock.now(), first)["conditions"][-1]
    assert (second["type"], second["status"], second["reason"]) == ("Ready", "True", "KubeletReady")
    assert second["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert second["lastHeartbeatTime"] == "2026-01-02T03:05:05Z"


def test_what_flags_give_is_set_when_the_node_is_created() -> None:
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    machine = replace(
        MACHINE,
        more_addresses=(("ExternalIP", "203.0.113.7"), ("ExternalDNS", "m1.example.com")),
        given_labels={"rack": "seven"},
        given_taints=(taint, dict(NOT_READY_TAINT)),
        ready=False,
    )
    made = node_object(machine, ManualClock().now())
    assert made["metadata"]["labels"] == {"rack": "seven"} | MACHINE.labels
    assert made["spec"]["taints"] == [NOT_READY_TAINT, taint]
    assert [tuple(one.values()) for one in made["status"]["addresses"]] == [
        ("InternalIP", "192.0.2.7"),
        ("ExternalIP", "203.0.113.7"),
        ("ExternalDNS", "m1.example.com"),
        ("Hostname", "m1"),
    ]
    assert node_object(replace(machine, given_taints=(), ready=True), ManualClock().now())["spec"] == {}


def test_addresses_that_a_join_chose_beside_the_agent_are_kept_by_its_heartbeat(tmp_path: Path) -> None:
    async def run() -> None:
        clock, state = ManualClock(), NodeState(tmp_path)
        cluster = Cluster(clock)
        client = cast(ClusterClient, cluster)
        beat = heartbeat(Member("m1", (ServerWay("", "https://127.0.0.1:6443"),), state, NodeOptions()), client)
        assert beat is not None
        await beat.refresh()
        for chosen in (["2001:db8::7", "192.0.2.17"], ["192.0.2.27"]):
            state.record.write("nodeIP", chosen)
            await beat.refresh()
            found = cluster.objects["nodes", "m1"]["status"]["addresses"]
            assert [one["address"] for one in found if one.get("type") == "InternalIP"] == chosen

    asyncio.run(run())


ONE, TWO = ("InternalIP", "192.0.2.7"), ("InternalIP", "2001:db8::7")
HOSTNAME, OUTSIDE = ("Hostname", "m1"), ("ExternalIP", "203.0.113.7")
REPLACE = {"$patch": "replace"}
Address = tuple[str, str]


@pytest.mark.parametrize(
    ("before", "more", "after"),
    [
        pytest.param([ONE, HOSTNAME], (TWO,), [ONE, TWO, HOSTNAME, REPLACE], id="a Node of before gets the second one"),
        pytest.param([OUTSIDE, HOSTNAME], (TWO,), [ONE, TWO, HOSTNAME, REPLACE], id="those of flags are all"),
        pytest.param([ONE, TWO, HOSTNAME], (), [ONE, HOSTNAME, REPLACE], id="a second one of before goes"),
        pytest.param([TWO, ONE, OUTSIDE], (), [ONE, HOSTNAME, OUTSIDE, REPLACE], id="those of another program stay"),
        pytest.param([ONE, OUTSIDE, HOSTNAME], (), [ONE, HOSTNAME], id="one of each type is merged"),
        pytest.param([], (), [ONE, HOSTNAME], id="none before"),
    ],
)
def test_the_first_heartbeat_brings_the_addresses_of_the_node_up_to_date(
    before: list[Address], more: tuple[Address, ...], after: list[Address | Obj]
) -> None:
    async def run() -> None:
        clock = ManualClock()
        cluster = Cluster(clock)
        listed = [{"type": kind, "address": address} for kind, address in before]
        cluster.put("nodes", {"metadata": {"name": "m1", "labels": MACHINE.labels}, "status": {"addresses": listed}})
        beat = Heartbeat(cast(ClusterClient, cluster), replace(MACHINE, more_addresses=more))
        await beat.refresh()
        found = cluster.objects["nodes", "m1"]["status"]["addresses"]
        assert [one if "$patch" in one else (one["type"], one["address"]) for one in found] == after

    asyncio.run(run())


def kubelet_node(reported: str) -> Obj:
    """The Node m1 as a kubelet reported it."""
    ready = {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}
    return {
        "metadata": {"name": "m1"},
        "status": {
            "nodeInfo": {"kubeletVersion": "v1.36.2"},
            "conditions": [ready | {"lastHeartbeatTime": reported, "lastTransitionTime": reported}],
        },
    }


def test_a_node_that_a_kubelet_keeps_fresh_is_left_alone_until_the_kubelet_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "mooring.agent")

    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        before = cluster.objects["nodes", "m1"]
        await clock.advance(300)
        assert cluster.objects == {("nodes", "m1"): before}
        assert caplog.messages == [
            "no heartbeat while another program gives it: the Node m1 is kept by kubelet v1.36.2 and is left as it is"
        ]
        alone: list[bool] = []
        heartbeat._on_alone = lambda: alone.append(heartbeat.may_be_kept)
        kept = [heartbeat.may_be_kept]
        await clock.advance(60)
        assert cluster.renewals == 1
        assert [*kept, *alone] == [True, False]
        await clock.advance(60)
        assert alone == [False], "it is told once"
        assert caplog.messages[-1] == "heartbeat is back"

    beating(scenario, ("nodes", kubelet_node("2026-01-02T03:04:00Z")))


def test_an_agent_beside_which_a_kubelet_starts_stops_renewing_the_lease() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        assert cluster.renewals == 1
        node = cluster.objects["nodes", "m1"]
        cluster.put("nodes", node | {"status": kubelet_node("2026-01-02T03:04:05Z")["status"]})
        cluster.put("leases", cluster.objects["leases", "m1"])
        kept = dict(cluster.objects)
        await clock.advance(30)
        assert cluster.renewals == 1
        assert cluster.objects == kept

    beating(scenario)


def test_a_lease_that_is_renewed_keeps_a_node_whose_status_is_old() -> None:
    lease = {
        "metadata": {"name": "m1", "namespace": "kube-node-lease"},
        "spec": {"renewTime": "2026-01-02T03:04:00.000000Z", "leaseDurationSeconds": 40},
    }

    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        assert cluster.renewals == 0
        await clock.advance(60)  # the Lease has expired by now
        assert cluster.renewals == 1

    beating(scenario, ("nodes", kubelet_node("2026-01-01T00:00:00Z")), ("leases", lease))


def test_the_node_is_not_ready_and_tainted_where_the_server_is_no_mooring() -> None:
    async def scenario(clock: ManualClock, cluster: Cluster, heartbeat: Heartbeat) -> None:
        node = cluster.objects["nodes", "m1"]
        assert node["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
        assert [(one["type"], one["status"], one["reason"]) for one in node["status"]["conditions"]] == [
            ("Ready", "False", "KubeletMissing")
        ]
        assert node["status"]["allocatable"] == node["status"]["capacity"] == {"cpu": "4", "pods": "0"}
        assert cluster.renewals == 1

    beating(scenario, version="v1.36.2")


AGENT = """
import asyncio, sys
from pathlib import Path
from mooring.agent.daemon import run
from mooring.agent.join import JoinOptions
from mooring.trust.joinconfiguration import JoinSettings
root, endpoint, pin, name = sys.argv[1:]
settings = JoinSettings.read({"address": (endpoint,), "token": sys.stdin.read(), "discovery_token_ca_cert_hash": (pin,)})
asyncio.run(run(settings.plan(name), JoinOptions(settings=JoinSettings(root=root))))
"""


def test_the_agent_joins_beats_survives_a_restart_of_the_server_and_ends_on_sigterm(
    live_server: LiveServer, tmp_path: Path
) -> None:
    token = live_server.create_token()
    arguments = [sys.executable, "-c", AGENT, str(tmp_path), live_server.endpoint, live_server.pin, "beating"]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        process.stdin.write(token.reveal().encode())
        process.stdin.close()
        live_server.run(lambda client: lease_of(client, "beating"))
        live_server.kill()
        live_server.restart()
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert token.secret.reveal() not in process.stderr.read()
    process.stderr.close()
    known = read_member(join_options(root=tmp_path))
    assert known is not None
    assert is_valid(known, SystemClock())
    assert known.node_name == "beating"


async def lease_of(client: ClusterClient, name: str) -> Obj:
    """Wait for the node's Lease and return it."""
    found = await client.list("leases", "kube-node-lease", field_selector=f"metadata.name={name}")
    if found.items:
        return found.items[0]
    events = client.watch(
        "leases",
        "kube-node-lease",
        resource_version=found.resource_version,
        field_selector=f"metadata.name={name}",
        seconds=30,
    )
    try:
        return (await anext(events)).object
    finally:
        await events.aclose()
