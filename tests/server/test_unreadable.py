"""Objects that cannot be read, in a whole server: what is refused, to whom, and what goes on."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mooring.api.mooring.certificaterevocation import entry_name
from mooring.apimachinery.schema import Obj
from mooring.authn.credentials import Credentials
from mooring.controlplane.configuration import server_config
from mooring.controlplane.parts.foundation import open_registry
from mooring.controlplane.publishing.firstboot import FirstBoot
from mooring.identity import NODES
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.pem import RootCa
from mooring.pki.x509.requests import build_request
from mooring.server.openwatches import PAUSE_SECONDS
from mooring.server.transport.tlsconnection import TlsConnection
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, to_secret
from mooring.trust.encryption.configuration import parse
from tests.support.encryption import entry, file, local
from tests.support.loops import until
from tests.support.manualclock import ManualClock, settle
from tests.support.serverroom import Server, connection, in_server
from tests.support.testca import Pair, ThrowawayCA

DENYLIST = "/apis/mooring.dev/v1alpha1/certificaterevocations"
IDENTITIES = "/apis/mooring.dev/v1alpha1/nodeidentities"
REVOCATION = "/registry/mooring.dev/certificaterevocations/node-n1"
IDENTITY = "/registry/mooring.dev/nodeidentities/n1"
NODE = "/registry/minions/n1"


async def member(server: Server, name: str) -> tuple[Pair, TlsConnection]:
    """Return the certificate of a machine whose identity the cluster has recorded."""
    pair = server.ca.client(f"system:node:{name}", NODES)
    key = {"publicKey": f"sha256:{public_key_fingerprint(pair.key)}", "notAfter": "2030-01-01T00:00:00Z"}
    reply = await server.post(IDENTITIES, {"metadata": {"name": name}, "spec": {"keys": [key]}})
    assert reply.status == 201, reply.text
    assert (await server.post("/api/v1/nodes", {"metadata": {"name": name}})).status == 201
    return pair, connection([pair.der])


async def damage(server: Server, plural: str, name: str) -> bytes:
    """Cut the value of an object in the store; return it as it was."""
    key = f"/registry/mooring.dev/{plural}/{name}" if plural != "nodes" else f"/registry/minions/{name}"
    found = await server.storage.get(key)
    assert found is not None
    await server.storage.update(key, found.value[:-3], expected=found.revision)
    await settle()
    return found.value


async def repair(server: Server, plural: str, name: str, value: bytes) -> None:
    key = f"/registry/mooring.dev/{plural}/{name}" if plural != "nodes" else f"/registry/minions/{name}"
    found = await server.storage.get(key)
    assert found is not None
    await server.storage.update(key, value, expected=found.revision)
    await settle()


@in_server
async def test_a_membership_that_cannot_be_read_is_503_for_that_node_alone(server: Server) -> None:
    (_, first), (_, second) = await member(server, "n1"), await member(server, "n2")
    assert (await server.call("DELETE", "/api/v1/nodes/n1")).status == 200
    assert (await server.get("/apis", via=first)).status == 401
    value = await damage(server, "nodeidentities", "n1")
    refused = await server.get("/apis", via=first)
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert "object-unreadable" not in refused.text
    assert (await server.get("/apis", via=second)).status == 200
    await repair(server, "nodeidentities", "n1", value)
    assert (await server.get("/apis", via=first)).status == 401


@in_server
async def test_a_node_that_cannot_be_read_is_undecided_only_where_its_absence_would_end_the_membership(
    server: Server,
) -> None:
    (_, first), (_, second) = await member(server, "n1"), await member(server, "n2")
    uid = (await server.get("/api/v1/nodes/n1")).obj["metadata"]["uid"]
    identity = (await server.get(f"{IDENTITIES}/n1")).obj
    identity["spec"]["nodeUID"] = uid
    assert (await server.call("PUT", f"{IDENTITIES}/n1", body=identity)).status == 200
    await settle()
    assert (await server.get("/apis", via=first)).status == 200
    for name in ("n1", "n2"):
        await damage(server, "nodes", name)
    assert (await server.get("/apis", via=first)).status == 503
    assert (await server.get("/apis", via=second)).status == 200


@in_server
async def test_a_revocation_that_cannot_be_read_goes_on_revoking(server: Server) -> None:
    pair = server.ca.client("jane", "system:masters")
    via = connection([pair.der])
    spec = {"serialNumber": f"{pair.certificate.serial_number:x}"}
    assert (await server.post(DENYLIST, {"metadata": {"name": entry_name(spec)}, "spec": spec})).status == 201
    await settle()
    assert (await server.get("/api/v1/nodes", via=via)).status == 401
    await damage(server, "certificaterevocations", entry_name(spec))
    assert (await server.get("/api/v1/nodes", via=via)).status == 401


@in_server
async def test_the_revocation_of_a_node_that_cannot_be_read_is_503_for_that_node_alone(server: Server) -> None:
    (_, first), (_, second) = await member(server, "n1"), await member(server, "n2")
    watch = await server.follow("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn1", via=first)
    before = (server.clock.now() - timedelta(days=9)).strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = {"nodeName": "n1", "issuedBefore": before}
    assert (await server.post(DENYLIST, {"metadata": {"name": entry_name(spec)}, "spec": spec})).status == 201
    await settle()
    assert (await server.get("/api/v1/nodes/n1", via=first)).status == 200, "it was issued later"
    await server.clock.advance(PAUSE_SECONDS)
    assert not watch.ended
    await damage(server, "certificaterevocations", "node-n1")
    assert (await server.get("/api/v1/nodes/n1", via=first)).status == 503
    assert (await server.get("/api/v1/nodes/n2", via=second)).status == 200
    await server.clock.advance(PAUSE_SECONDS)
    assert watch.ended


Edit = Callable[[Obj], object]


async def edit(server: Server, key: str, change: Edit) -> None:
    """Change an object in the store, where nothing validates it."""
    found = await server.storage.get(key)
    assert found is not None
    obj = json.loads(found.value)
    change(obj)
    await server.storage.update(key, json.dumps(obj, separators=(",", ":")).encode(), expected=found.revision)
    await settle()


@pytest.mark.parametrize(
    ("key", "change"),
    [
        pytest.param(REVOCATION, lambda obj: obj["spec"].update(issuedBefore="2026-01-0zT00:00:00Z"), id="no time"),
        pytest.param(REVOCATION, lambda obj: obj["spec"].update(issuedBefore=5), id="a number as a time"),
        pytest.param(REVOCATION, lambda obj: obj["spec"].update(issuedBefose=""), id="a field of no revocation"),
        pytest.param(IDENTITY, lambda obj: obj["spec"].update(nodeUIE=obj["spec"].pop("nodeUID")), id="the end"),
        pytest.param(IDENTITY, lambda obj: obj["spec"].update(ke9s=obj["spec"].pop("keys")), id="the keys"),
        pytest.param(IDENTITY, lambda obj: obj.update(spdc=obj.pop("spec")), id="the spec"),
        pytest.param(IDENTITY, lambda obj: obj["spec"].update(changedAt="x"), id="no time of a change"),
        pytest.param(
            NODE,
            lambda obj: obj["metadata"].update(deletionTimestamq="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0),
            id="the deletion of a Node that finalizers hold",
        ),
        pytest.param(NODE, lambda obj: obj["metadata"].update(uie=obj["metadata"].pop("uid")), id="the uid of a Node"),
    ],
)
def test_a_damaged_field_is_503_for_its_node_and_hides_no_end_from_the_others(key: str, change: Edit) -> None:
    """One bit turns `nodeUID` into `nodeUIE`, and a time into a text that is none: the JSON stays whole."""

    @in_server
    async def test(server: Server) -> None:
        (_, first), (_, second) = await member(server, "n1"), await member(server, "n2")
        before = (server.clock.now() - timedelta(days=9)).strftime("%Y-%m-%dT%H:%M:%SZ")
        spec = {"nodeName": "n1", "issuedBefore": before}
        assert (await server.post(DENYLIST, {"metadata": {"name": "node-n1"}, "spec": spec})).status == 201
        uid = (await server.get("/api/v1/nodes/n1")).obj["metadata"]["uid"]
        identity = (await server.get(f"{IDENTITIES}/n1")).obj
        identity["spec"]["nodeUID"] = uid
        assert (await server.call("PUT", f"{IDENTITIES}/n1", body=identity)).status == 200
        own, other = [
            await server.follow(f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{name}", via=via)
            for name, via in (("n1", first), ("n2", second))
        ]
        await edit(server, key, change)
        assert [(await server.get("/apis", via=via)).status for via in (first, second)] == [503, 200]
        await server.clock.advance(PAUSE_SECONDS)
        assert (own.ended, other.ended) == (True, False)
        spec = {"nodeName": "n2"}
        assert (await server.post(DENYLIST, {"metadata": {"name": "node-n2"}, "spec": spec})).status == 201
        await server.clock.advance(PAUSE_SECONDS)
        assert other.ended

    test()


@in_server
async def test_a_watch_that_cannot_be_judged_ends_and_the_others_are_judged(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, first), (_, second) = await member(server, "n1"), await member(server, "n2")
    own, other = [
        await server.follow(f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{name}", via=via)
        for name, via in (("n1", first), ("n2", second))
    ]
    judge = server.authenticator("client-certificate")
    authenticate = judge.authenticate

    def fail(credentials: Credentials, *rest: Any) -> Any:
        if credentials.peer == first.chain:
            raise ValueError("not expected")
        return authenticate(credentials, *rest)

    monkeypatch.setattr(judge, "authenticate", fail)
    assert (await server.post(DENYLIST, {"metadata": {"name": "node-n2"}, "spec": {"nodeName": "n2"}})).status == 201
    await server.clock.advance(PAUSE_SECONDS)
    assert (own.ended, other.ended) == (True, True)


@in_server
async def test_a_list_of_ends_that_cannot_be_read_is_503_for_nodes_and_tokens_alone(server: Server) -> None:
    _, node = await member(server, "n1")
    jane = connection([server.ca.client("jane", "system:masters").der])
    record = TokenRecord(parse_token("abcdef.0123456789abcdef"), expires=None, usages=("authentication",))
    namespace = "/api/v1/namespaces/kube-system"
    assert (await server.post(f"{namespace}/secrets", to_secret(record))).status == 201
    config_map = {"metadata": {"name": "mooring-ends"}, "data": {"waived.node.n2": "{}"}}
    assert (await server.post(f"{namespace}/configmaps", config_map)).status == 201
    await settle()
    bearer = [("authorization", "Bearer abcdef.0123456789abcdef")]
    watch = await server.follow("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn1", via=node)
    assert (await server.get("/apis", via=node)).status == 200
    assert (await server.get("/apis", headers=bearer, via=connection())).status == 200
    key = "/registry/configmaps/kube-system/mooring-ends"
    found = await server.storage.get(key)
    assert found is not None
    await server.storage.update(key, found.value[:-3], expected=found.revision)
    await settle()
    assert (await server.get("/apis", via=node)).status == 503
    assert (await server.get("/apis", headers=bearer, via=connection())).status == 503
    assert (await server.get("/apis", via=jane)).status == 200
    await server.clock.advance(PAUSE_SECONDS)
    assert watch.ended
    remove = f"{namespace}/configmaps/mooring-ends?ignoreStoreReadErrorWithClusterBreakingPotential=true"
    assert (await server.call("DELETE", remove, via=jane)).status == 200
    await settle()
    assert (await server.get("/apis", via=node)).status == 200


@in_server
async def test_readyz_names_the_trouble_without_failing_and_a_metric_counts_it(server: Server) -> None:
    await member(server, "n1")
    assert "[+]unreadable-objects ok" in (await server.get("/readyz?verbose")).text
    await damage(server, "nodeidentities", "n1")
    ready = await server.get("/readyz?verbose")
    assert ready.status == 200
    assert "[!]unreadable-objects warning" in ready.text
    assert "mooring_unreadable_objects 1.0" in (await server.get("/metrics")).text


def _is_issued(server: Server, name: str) -> bool:
    request = server.registry.views["certificatesigningrequests"].get(name) or {}
    return bool((request.get("status") or {}).get("certificate"))


@in_server
async def test_machines_join_while_a_secret_cannot_be_read_when_the_leader_changes(server: Server) -> None:
    token = "abcdef.0123456789abcdef"
    record = TokenRecord(
        parse_token(token),
        expires=server.clock.now() + timedelta(hours=1),
        usages=("signing", "authentication"),
        groups=("system:bootstrappers:kubeadm:default-node-token",),
    )
    await server.create("secrets", to_secret(record), namespace="kube-system")
    await server.create("secrets", {"metadata": {"name": "lost"}}, namespace="kube-system")
    lost = await server.storage.get("/registry/secrets/kube-system/lost")
    assert lost is not None
    await server.storage.update(lost.key, b"junk", expected=lost.revision)
    await settle()
    request = base64.b64encode(build_request(generate_key(), "system:node:n1", (NODES,))).decode()
    spec = {
        "request": request,
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    for leader in ("first", "second"):
        task = asyncio.ensure_future(
            server.assembly.controllers.elector.run(server.assembly.controllers.reconciler.run)
        )
        try:
            created = await server.post(path, {"metadata": {"name": leader}, "spec": spec}, token=token)
            assert created.status == 201, created.text
            await until(partial(_is_issued, server, leader))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("kind", ["ClusterRole", "Node"])
def test_an_object_of_another_kind_under_the_key_of_an_identity_makes_no_end_good_again(kind: str) -> None:
    @in_server
    async def test(server: Server) -> None:
        (_, first), (_, second) = await member(server, "n1"), await member(server, "n2")
        assert (await server.call("DELETE", "/api/v1/nodes/n1")).status == 200
        await edit(server, IDENTITY, lambda obj: (obj.update(kind=kind, apiVersion="v1"), obj["spec"].clear()))
        assert [(await server.get("/apis", via=via)).status for via in (first, second)] == [503, 200]

    test()


@in_server
async def test_the_controllers_wait_for_a_lease_that_cannot_be_read_until_it_is_deleted(server: Server) -> None:
    elector = server.assembly.controllers.elector
    task = asyncio.ensure_future(elector.run(server.assembly.controllers.reconciler.run))
    try:
        await until(lambda: elector.leading)
        lease = await server.storage.get("/registry/leases/kube-system/mooring-controllers")
        assert lease is not None
        await server.storage.update(lease.key, b"junk", expected=lease.revision)
        await settle()
        for _ in range(3):
            await server.clock.advance(10.0)
        assert not elector.leading
        assert "cannot be read" in elector.failure
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mooring-controllers"
        unsafe = f"{path}?ignoreStoreReadErrorWithClusterBreakingPotential=true"
        assert (await server.call("DELETE", unsafe)).status == 200
        await server.clock.advance(10.0)
        await until(lambda: elector.leading)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_server_starts_while_nothing_that_is_stored_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def flags(*keys: str) -> dict[str, Any]:
        place = tmp_path / "encryption.json"
        place.write_bytes(file(entry("*.*", local("secretbox", *keys))))
        place.chmod(0o600)
        return {"data_dir": str(tmp_path), "encryption_provider_config": str(place)}

    async def boot(*keys: str) -> tuple[bool, bool]:
        clock, ca = ManualClock(), ThrowawayCA()
        config = server_config(**flags(*keys))
        async with open_registry(config, clock, os.urandom) as parts:
            first_boot = FirstBoot(parts.registry, clock, config, RootCa(ca.certificate_pem), ca.cluster_ca)
            await first_boot.run()
            again = asyncio.ensure_future(first_boot.complete())
            await settle()
            ended = again.done()
            if keys == ("other",):
                config_file = parse(file(entry("*.*", local("secretbox", "other", "one"))), "f")
                await parts.encryption.providers.replace(config_file)
                async with asyncio.timeout(60):  # everything can be read again
                    while not again.done():
                        await clock.advance(1)
                        await asyncio.sleep(0.01)
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)
            return ended, parts.registry.views["namespaces"].get("kube-system") is not None

    assert asyncio.run(boot("one")) == (True, True)
    caplog.clear()
    assert asyncio.run(boot("other")) == (False, True)
    assert caplog.text.count("the server starts without bringing the objects of the cluster up to date") == 1
