"""Two machines with one identity, seen by a whole server: requests, condition, Event, log, metric, and each policy.

Source: docs/names-and-membership.md#one-machine-for-each-name.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import OVERLAP, RENEWAL_OVERLAP
from mooring.clock import rfc3339
from mooring.controlplane.assemble import assemble
from mooring.controlplane.encryption import EncryptionAtRest
from mooring.controlplane.maintenance import record_certificates
from mooring.controlplane.parts.foundation import Foundation, Process, build_registry
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.settings.storage import EncryptionSettings
from tests.server.test_k3scertificates import controllers_of
from tests.support.manualclock import ManualClock, settle
from tests.support.registryroom import counting_entropy
from tests.support.serverroom import Reply, Server, connection, open_server

HERE, THERE = "192.0.2.1", "198.51.100.9"


class World:
    """A server with the machine n1: its first certificate P, and C and D that were requested with it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pairs = {name: server.ca.node("n1") for name in "PCD"}

    async def begin(self) -> None:
        end, parent = (
            rfc3339(self.server.clock.now() + timedelta(days=1)),
            f"sha256:{self.pairs['P'].certificate.fingerprint}",
        )
        keys = [
            {
                "publicKey": self.key(name),
                "serialNumber": f"{pair.certificate.serial_number:x}",
                "notAfter": end,
                **({} if name == "P" else {"parent": parent}),
            }
            for name, pair in self.pairs.items()
        ]
        await self.server.create("nodeidentities", {"metadata": {"name": "n1"}, "spec": {"keys": keys}})

    def key(self, name: str) -> str:
        return f"sha256:{public_key_fingerprint(self.pairs[name].key)}"

    async def use(self, names: str, address: str = HERE, server: Server | None = None) -> list[int]:
        """Use certificates one after the other, and let the server record it. Return the status of each request."""
        server = server or self.server
        found = []
        for name in names:
            reply = await server.get("/api/v1/nodes/n1", via=connection([self.pairs[name].der], address))
            found.append(reply.status)
            uses = server.assembly.trust.authentication.certificate_uses
            await record_certificates(uses, server.registry, server.clock)
            await settle()
        return found

    async def pass_time(self, seconds: float) -> None:
        await self.server.clock.advance(seconds)
        await settle()

    async def condition(self) -> Obj:
        obj = (await self.server.get("/apis/mooring.dev/v1alpha1/nodeidentities/n1")).obj
        conditions = obj.get("status", {}).get("conditions", [])
        return conditions[0] if conditions else {}

    async def events(self) -> list[str]:
        found = (await self.server.get("/api/v1/namespaces/default/events")).obj["items"]
        return [f"{one['type']} {one['reason']} {one['involvedObject']['name']}" for one in found]

    async def request(self, name: str) -> Obj:
        """Ask for another certificate with this one; return the conditions of the request."""
        pem = build_request(generate_key(), "system:node:n1", ("system:nodes",))
        spec = {
            "request": base64.b64encode(pem).decode(),
            "signerName": KUBE_APISERVER_CLIENT_KUBELET,
            "usages": ["digital signature", "client auth"],
        }
        obj = {"metadata": {"generateName": "r-"}, "spec": spec}
        path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
        made: Reply = await self.server.post(path, obj, via=connection([self.pairs[name].der]))
        assert made.status == 201, made.text
        await settle()
        found: Obj = (await self.server.get(f"{path}/{made.obj['metadata']['name']}")).obj
        return {one["type"]: one for one in found["status"].get("conditions", [])}


Case = Callable[[World], Awaitable[None]]


def in_world(**flags: Any) -> Callable[[Case], Callable[[], None]]:
    def decorate(test: Case) -> Callable[[], None]:
        def run() -> None:
            async def body() -> None:
                async with open_server(**flags) as server, controllers_of(server):
                    world = World(server)
                    await world.begin()
                    await test(world)

            asyncio.run(body())

        run.__name__ = test.__name__
        return run

    return decorate


async def two_machines(world: World) -> None:
    """C and D follow P, and both are used."""
    await world.use("PC")
    await world.use("D", THERE)
    await world.use("C")
    await world.pass_time(OVERLAP)
    await world.use("C")
    await world.use("D", THERE)
    await settle()


@in_world()
async def test_a_stolen_identity_is_told_once_with_both_keys_addresses_and_the_remedy(world: World) -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]  # a list of lines
    logging.getLogger("mooring.controllers").addHandler(handler)
    try:
        await two_machines(world)
        await world.use("CDCD")
        await world.pass_time(120)
        await world.use("CD")
    finally:
        logging.getLogger("mooring.controllers").removeHandler(handler)
    condition = await world.condition()
    assert (condition["status"], condition["reason"]) == ("True", "TwoCertificatesInUse")
    for part in (world.key("C"), world.key("D"), HERE, THERE, "mooring node split n1 --keep KEY"):
        assert part in condition["message"]
    assert await world.events() == ["Warning DuplicateIdentity n1"]
    assert [line for line in records if "two machines" in line] == [f"n1: {condition['message']}"]
    assert "mooring_duplicate_identities 1.0" in (await world.server.get("/metrics")).text
    # Under the default policy a copy changes nothing for the machine.
    assert await world.use("CD") == [404, 404]
    assert set(await world.request("C")) == {"Approved"}


@in_world()
async def test_a_renewal_and_a_snapshot_are_no_second_machine(world: World) -> None:
    await world.use("PC")
    await world.use("PPP")
    await world.pass_time(RENEWAL_OVERLAP - 1)
    await world.use("P")
    assert await world.condition() == {}, "programs of the machine may read its files a while later"
    await world.pass_time(1)
    await world.use("P")
    assert await world.condition() == {}, "a second machine would be seen within a minute"
    await world.pass_time(60)
    condition = await world.condition()
    assert (condition["status"], condition["reason"]) == ("False", "OlderState")
    assert await world.events() == ["Normal OlderState n1"]
    assert "mooring_duplicate_identities 0.0" in (await world.server.get("/metrics")).text
    await world.use("D")
    await world.pass_time(120)
    await world.use("D")
    assert (await world.condition())["reason"] == "OlderState", "it renews from there"


@in_world(duplicate_identity="hold")
async def test_under_hold_the_requests_of_both_wait_and_say_which_of_the_two_asked(world: World) -> None:
    assert set(await world.request("P")) == {"Approved"}
    await two_machines(world)
    for name in "CD":
        conditions = await world.request(name)
        assert conditions["NeedsApproval"]["reason"] == "DuplicateIdentity"
        assert f"this one has the key {world.key(name)}" in conditions["NeedsApproval"]["message"]
    assert await world.use("CD") == [404, 404], "their certificates count until they expire"


@in_world(duplicate_identity="end")
async def test_under_end_both_are_revoked_once_and_a_new_certificate_counts(world: World) -> None:
    await two_machines(world)
    assert await world.use("CDP") == [401, 401, 401]
    assert (await world.server.get("/apis/mooring.dev/v1alpha1/certificaterevocations/node-n1")).status == 200
    before = (await world.server.get("/apis/mooring.dev/v1alpha1/certificaterevocations/node-n1")).obj
    await world.pass_time(3600)
    after = (await world.server.get("/apis/mooring.dev/v1alpha1/certificaterevocations/node-n1")).obj
    assert after == before


@in_world()
async def test_a_finding_ends_with_the_keys_of_the_other_side(world: World) -> None:
    await two_machines(world)
    path = "/apis/mooring.dev/v1alpha1/nodeidentities/n1"
    obj = (await world.server.get(path)).obj
    obj["spec"]["keys"] = [key for key in obj["spec"]["keys"] if key["publicKey"] == world.key("C")]
    assert (await world.server.call("PUT", path, body=obj)).status == 200
    await settle()
    condition = await world.condition()
    assert (condition["status"], condition["reason"]) == ("False", "Resolved")
    assert await world.use("CD") == [404, 401]


@pytest.mark.parametrize(
    ("spec", "name", "message"),
    [
        pytest.param("publicKey", "key-{}", "one machine uses the identity", id="the key of one"),
        pytest.param("serialNumber", "serial-{}", "one machine uses the identity", id="the certificate of one"),
        pytest.param(
            "nodeName", "node-n1", "the server accepts no certificate of the identity any more", id="all of the node"
        ),
    ],
)
def test_a_finding_ends_within_a_minute_after_a_revocation(spec: str, name: str, message: str) -> None:
    @in_world()
    async def body(world: World) -> None:
        await two_machines(world)
        assert (await world.condition())["status"] == "True"
        values = {
            "publicKey": world.key("D"),
            "serialNumber": f"{world.pairs['D'].certificate.serial_number:x}",
            "nodeName": "n1",
        }
        metadata = {"name": name.format(values[spec].removeprefix("sha256:"))}
        await world.server.create("certificaterevocations", {"metadata": metadata, "spec": {spec: values[spec]}})
        await world.pass_time(60)
        condition = await world.condition()
        assert (condition["status"], condition["reason"], condition["message"]) == ("False", "Resolved", message)

    body()


@in_world()
async def test_a_finding_ends_with_the_membership(world: World) -> None:
    await world.server.create("nodes", {"metadata": {"name": "n1"}})
    await two_machines(world)
    assert (await world.server.call("DELETE", "/api/v1/nodes/n1")).status == 200
    await world.pass_time(60)
    assert (await world.condition())["message"] == "the server accepts no certificate of the identity any more"
    assert await world.use("CD") == [401, 401]


@in_world()
async def test_two_machines_that_have_not_renewed_are_found_by_the_boots_of_their_node(world: World) -> None:
    await world.server.create("nodes", {"metadata": {"name": "n1"}})
    for boot in "ABAB":
        status = {"status": {"nodeInfo": {"bootID": f"boot-{boot}"}}}
        patched = await world.server.call(
            "PATCH",
            "/api/v1/nodes/n1/status",
            body=status,
            content_type="application/merge-patch+json",
            via=connection([world.pairs["P"].der]),
        )
        assert patched.status == 200, patched.text
        await world.pass_time(10)
    condition = await world.condition()
    assert (condition["status"], condition["reason"]) == ("True", "TwoMachinesReport")
    assert "boot-A" in condition["message"]
    assert "boot-B" in condition["message"]


@asynccontextmanager
async def beside(first: Server, ahead: timedelta) -> AsyncIterator[Server]:
    """Start another process on the store of a server: another server, or another worker. `ahead`: how far its clock is ahead."""
    clock, config, entropy = ManualClock(first.clock.now() + ahead), first.config, counting_entropy(1 << 20)
    encryption = EncryptionAtRest(config[EncryptionSettings], first.storage, clock, entropy)
    audit = first.assembly.base.audit
    parts = build_registry(config, encryption, clock, entropy, audit.auditor.written)
    process = Process(identity="here_boot_1_2", is_gone=lambda identity: False)
    second = Server(first.storage, parts.registry, clock)
    base = Foundation(
        config=config,
        key_store=first.assembly.base.key_store,
        parts=parts,
        clock=clock,
        entropy=entropy,
        process=process,
        audit=audit,
    )
    second.assembly, second.ca, second.config, second.token_key = assemble(base), first.ca, config, first.token_key
    await parts.registry.start()
    await second.assembly.upkeep.trust_publisher.publish_client_cas()
    try:
        yield second
    finally:
        second.assembly.http.watches.drain()
        await second.assembly.trust.authentication.close()
        await parts.registry.stop()


@pytest.mark.parametrize("ahead", [-4, 0, 20], ids=["behind", "in step", "ahead"])
@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param("P1 P2 C1 C2 900 C1 C2", "", id="one machine that asks both"),
        pytest.param("P1 P2 C1 P2 C2 P1 599 P1 P2 C1 C2", "", id="a renewal that one of its programs reads later"),
        pytest.param("P1 C2 C1 D2 29 C1 D2 C1 900 D1 D2", "", id="two renewals beside each other, of which one stays"),
        pytest.param("P1 C1 D2 C1 30 C1 D2", "TwoCertificatesInUse", id="a copy whose halves ask one each"),
        pytest.param("P1 C1 D2 C2 30 C2 D1", "TwoCertificatesInUse", id="halves that change the server"),
        pytest.param("P1 C1 P2 600 P2 C1", "TwoCertificatesInUse", id="a copy that did not renew"),
    ],
)
def test_two_processes_on_one_store_come_to_the_result_of_one(steps: str, reason: str, ahead: float) -> None:
    """A step is a certificate and the process that it asks, or seconds that pass."""

    async def body() -> None:
        async with open_server() as first, controllers_of(first), beside(first, timedelta(minutes=ahead)) as second:
            world, servers = World(first), {"1": first, "2": second}
            await world.begin()
            for step in steps.split():
                if step.isdigit():
                    await world.pass_time(float(step))
                    await second.clock.advance(float(step))
                else:
                    assert await world.use(step[0], server=servers[step[1]]) == [404]
            assert (await world.condition()).get("reason", "") == reason

    asyncio.run(body())


@in_world()
async def test_a_store_that_was_restored_to_before_a_renewal_makes_no_finding_for_one_machine(world: World) -> None:
    path = "/apis/mooring.dev/v1alpha1/nodeidentities/n1"
    obj = (await world.server.get(path)).obj
    keys: dict[str, Obj] = dict(zip("PCD", obj["spec"]["keys"], strict=True))

    async def store(names: str, status: Obj) -> None:
        present = (await world.server.get(path)).obj
        spec = {**present["spec"], "keys": [keys[name] for name in names]}
        written = await world.server.call("PUT", path, body={**present, "spec": spec})
        body = {**written.obj, "status": status}
        assert (await world.server.call("PUT", f"{path}/status", body=body)).status == 200
        await settle()

    await store("P", {})
    await world.use("P")
    before = (await world.server.get(path)).obj["status"]
    keys["D"]["parent"] = f"sha256:{world.pairs['C'].certificate.fingerprint}"
    await store("PC", before)
    await world.use("CCC")
    await world.pass_time(RENEWAL_OVERLAP)
    await store("P", before)
    # The certificate of the renewal is not in the record, and neither is the parent of the next one.
    await world.use("C")
    await store("PD", before)
    for seconds in (OVERLAP, RENEWAL_OVERLAP, 120):
        await world.use("D")
        await world.pass_time(seconds)
    assert await world.condition() == {}
    await world.use("P", THERE)
    await world.pass_time(OVERLAP)
    await world.use("P", THERE)
    await world.use("D")
    assert (await world.condition())["reason"] == "TwoCertificatesInUse", "a copy of before"
