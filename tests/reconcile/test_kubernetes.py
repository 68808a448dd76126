"""Approvers beside a kube-apiserver whose kinds of mooring.dev go away, and how its answers are read."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.paths import GROUP
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.controllers import silence, standalonetable
from mooring.controllers.table import build
from mooring.errors import ConflictError, ForbiddenError, MooringError, NotFoundError, UnreadableObjectError
from mooring.pki.keys import generate_key
from mooring.reconcile import standalonecontrollers as process
from mooring.reconcile.loop import Reconciler
from mooring.reconcile.remote import RemoteApi
from mooring.reconcile.standalonecontrollers import StandaloneControllers
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.discovery.errors import NotKubernetesError
from tests.kubeadm.peers import node_request
from tests.support.kubernetespeer import DEFINITIONS, KubernetesPeer, kubernetes_peer

KINDS = ("authorizedmachines", "certificaterevocations", "joinrules", "lineagerecords", "nodeidentities")
APPROVER = "certificatesigningrequest-approving-controller"
REQUESTS = "certificatesigningrequests"
DENYLIST = "certificaterevocations"
SECONDS = 30.0


def against(scenario: Callable[[KubernetesPeer, ClusterClient], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with a simulated kube-apiserver that has the kinds of mooring.dev."""

    async def run(peer: KubernetesPeer) -> None:
        async with asyncio.timeout(SECONDS), peer.client() as client:
            await scenario(peer, client)

    with kubernetes_peer() as peer:
        peer.define(*KINDS)
        asyncio.run(run(peer))


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def approving(peer: KubernetesPeer, client: ClusterClient, *names: str) -> AsyncIterator[StandaloneControllers]:
    """Run controllers beside the server, which approve. Work that ends is started again, as the elector does."""
    built = build(
        standalonetable.settings(standalonetable.no_authority, signing_duration=SIGNING_DURATION),
        standalonetable.selected(names or [APPROVER]),
    )
    scopes = standalonetable.scopes_of([one.name for one in built])
    controllers = StandaloneControllers(
        built, lambda: RemoteApi(client, scopes), scopes, SystemClock(), secrets.token_bytes
    )

    async def run_again() -> None:
        while True:
            with contextlib.suppress(MooringError):
                await controllers.run()
            await asyncio.sleep(0.01)

    task = asyncio.create_task(run_again())
    try:
        request(peer, "m0")
        await until(lambda: conditions(peer, "m0") == ["Approved"])
        yield controllers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def request(peer: KubernetesPeer, node: str, name: str = "") -> None:
    obj = node_request(node, generate_key(), name=name or node)
    spec = {**obj["spec"], "username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers"]}
    token = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token", "data": {}}
    peer.put("secrets", token, "kube-system")
    peer.put(REQUESTS, {**obj, "spec": spec})


def conditions(peer: KubernetesPeer, name: str) -> list[str]:
    status: Obj = peer.objects[REQUESTS, "", name].get("status") or {}
    return [one["type"] for one in status.get("conditions") or ()]


def revocation_of_node(peer: KubernetesPeer, name: str) -> None:
    peer.put(
        DENYLIST,
        {"metadata": {"name": f"node-{name}"}, "spec": {"nodeName": name, "issuedBefore": "2999-01-01T00:00:00Z"}},
    )


def test_requests_are_approved_by_what_the_kinds_say() -> None:
    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        async with approving(peer, client):
            revocation_of_node(peer, "m1")
            request(peer, "m1")
            await until(lambda: conditions(peer, "m1") == ["Denied"])

    against(scenario)


@pytest.mark.parametrize("holds", [False, True], ids=["deleted", "being deleted"])
def test_after_the_kinds_were_deleted_nothing_is_approved(holds: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The watch of the denylist stays open, and has shown every entry as deleted."""

    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        async with approving(peer, client, APPROVER, "tokencleaner") as controllers:
            revocation_of_node(peer, "m1")
            peer.holds_termination = holds
            peer.drop(DEFINITIONS, f"{DENYLIST}.{GROUP}")
            assert (DENYLIST, "", "node-m1") not in peer.objects
            request(peer, "m1")
            await until(lambda: APPROVER in controllers.stopped)
            await until(lambda: controllers.running == ("token-cleaner-controller", "node-identity-controller"))
            assert conditions(peer, "m1") == []
            reason = "the server is deleting" if holds else "the server does not serve"
            assert controllers.stopped[APPROVER].startswith(f"{reason} {DENYLIST}; apply what mooring controllers")
        assert f"{APPROVER} m1 waits: {reason} {DENYLIST}" in caplog.text

    against(scenario)


def test_the_end_of_a_watch_of_a_deleted_kind_stops_the_approver() -> None:
    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        async with approving(peer, client) as controllers:
            peer.drop(DEFINITIONS, f"{DENYLIST}.{GROUP}")
            peer.tear_down_watches()
            await until(lambda: APPROVER in controllers.stopped)

    against(scenario)


def test_an_approver_goes_on_with_kinds_that_were_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FIRST_CHECK", 0.05)

    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        async with approving(peer, client) as controllers:
            peer.drop(DEFINITIONS, f"{DENYLIST}.{GROUP}")
            peer.define(DENYLIST)
            request(peer, "m1")
            await until(lambda: APPROVER not in controllers.running)
            await until(lambda: conditions(peer, "m1") == ["Approved"])

    against(scenario)


def test_the_name_of_a_deleted_node_is_free_for_another_machine() -> None:
    """The approver runs with the controller that records which Node has the name."""

    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        async with approving(peer, client):
            peer.put("nodes", {"metadata": {"name": "m0"}})
            await until(lambda: peer.objects["nodeidentities", "", "m0"]["spec"].get("nodeUID"))
            request(peer, "m0", "stranger")
            await until(lambda: conditions(peer, "stranger") == ["NeedsApproval"])
            peer.drop("nodes", "m0")
            request(peer, "m0", "successor")
            await until(lambda: conditions(peer, "successor") == ["Approved"])
            assert conditions(peer, "stranger") == ["NeedsApproval"]

    against(scenario)


def test_a_machine_that_is_silent_loses_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "PERIOD", timedelta(milliseconds=50))
    monkeypatch.setattr(silence, "UNCHANGED", timedelta(0))
    name = "silent-node-controller"
    limits = standalonetable.settings(
        standalonetable.no_authority, SIGNING_DURATION, end_silent_members_after=timedelta(milliseconds=1)
    )

    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        api = RemoteApi(client, standalonetable.scopes_of([name]))
        ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        peer.put("nodes", {"metadata": {"name": "m0"}, "status": {"conditions": [ready]}})
        peer.put("nodeidentities", {"metadata": {"name": "m0"}, "spec": {}})
        loop = asyncio.create_task(Reconciler(build(limits, [name]), api, SystemClock(), secrets.token_bytes).run())
        try:
            await until(lambda: ("nodes", "", "m0") not in peer.objects)
            await until(lambda: any(key[:2] == ("events", "default") for key in peer.objects))
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
        assert peer.objects["nodeidentities", "", "m0"]["spec"]["endReason"] == "Silent"
        assert "observedSince" in peer.objects["configmaps", "kube-system", "mooring-silence"]["data"]

    against(scenario)


async def followed(client: ClusterClient, *plurals: str) -> RemoteApi:
    api = RemoteApi(client)
    await api.follow(plurals, lambda *event: None)
    return api


def test_a_kind_whose_changes_do_not_arrive_is_unreadable_until_they_do() -> None:
    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        request(peer, "m1")
        api = await followed(client, REQUESTS, DENYLIST)
        obj = peer.objects[REQUESTS, "", "m1"]
        await api.update(REQUESTS, obj, "approval")
        peer.broken.add(DENYLIST)
        peer.tear_down_watches()

        async def approve_until_refused() -> None:
            while True:
                await api.update(REQUESTS, peer.objects[REQUESTS, "", "m1"], "approval")

        with pytest.raises(UnreadableObjectError, match=f"^{DENYLIST} cannot be read: "):
            await approve_until_refused()
        obj = peer.objects[REQUESTS, "", "m1"]
        peer.broken.clear()
        while peer.objects[REQUESTS, "", "m1"] is obj:
            with contextlib.suppress(UnreadableObjectError):
                await api.update(REQUESTS, obj, "approval")
            await asyncio.sleep(0.01)

    against(scenario)


def test_what_changed_while_the_kinds_were_read_is_judged_again() -> None:
    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        request(peer, "m1")
        api = await followed(client, REQUESTS, DENYLIST)
        obj = peer.objects[REQUESTS, "", "m1"]
        with pytest.raises(ConflictError):
            await api.update(REQUESTS, obj, "approval", lambda views, now: False)
        assert peer.objects[REQUESTS, "", "m1"] is obj
        await api.update(REQUESTS, obj, "approval", lambda views, now: views[DENYLIST].get("any") is None)
        assert peer.objects[REQUESTS, "", "m1"] is not obj

    against(scenario)


def test_a_definition_that_may_not_be_read_is_no_definition() -> None:
    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        request(peer, "m1")
        api = await followed(client, REQUESTS, DENYLIST)
        peer.forbidden.add(DEFINITIONS)
        with pytest.raises(UnreadableObjectError, match="forbidden"):
            await api.update(REQUESTS, peer.objects[REQUESTS, "", "m1"], "approval")
        assert isinstance(await api.refused(), ForbiddenError)
        with pytest.raises(ForbiddenError):
            await api.check(DENYLIST)

    against(scenario)


def test_a_server_without_a_version_needs_definitions() -> None:
    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        peer.version = ""
        await RemoteApi(client).check(DENYLIST)
        peer.drop(DEFINITIONS, f"{DENYLIST}.{GROUP}")
        with pytest.raises(NotFoundError, match=f"^the server does not serve {DENYLIST}$"):
            await RemoteApi(client).check(DENYLIST)

    against(scenario)


@pytest.mark.parametrize(
    ("path", "error"),
    [("/apis/mooring.dev/v1alpha1/unknownthings", NotFoundError), ("/api/v1/unknownthings", NotKubernetesError)],
)
def test_a_page_that_is_not_found(path: str, error: type[Exception]) -> None:
    """Below /apis/ it is the answer of kube-apiserver; the core group is served by every one."""

    async def scenario(peer: KubernetesPeer, client: ClusterClient) -> None:
        with pytest.raises(error):
            await client.get_path(path)

    against(scenario)
