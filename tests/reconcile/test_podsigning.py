"""The signer and the cleaner of PodCertificateRequests on a real registry."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.certificates.podcertificaterequest import PLURAL, state_of
from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE_RECORDS
from mooring.api.mooring.lineagerecord import entries_of
from mooring.apimachinery.options import DeleteOptions
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import CommitPrecondition, Controller
from mooring.controllers.certificates.signing.signingpolicy import Patterns, SigningPolicy, SigningRule
from mooring.controllers.table import ControllerSettings, build
from mooring.pki.keys import generate_key, signature_hash
from mooring.pki.pem import RootCa
from mooring.pki.x509.bundles import certificates
from mooring.reconcile.registryapi import RegistryApi
from mooring.settings.signing import SIGNING_DURATION
from tests.support.loops import CA, exists, running, until
from tests.support.registryroom import Room, in_room, masters_only

SIGNER = "example.com/mesh"
NAMES = ("podcertificaterequest-signing-controller", "podcertificaterequest-cleaner-controller")


def controllers() -> Sequence[Controller]:
    rule = SigningRule(name="web", users=Patterns.of(["system:serviceaccount:default:*"]))
    policy = SigningPolicy({SIGNER: (rule,)}, {SIGNER: "cluster.example"})
    settings = ControllerSettings(
        authority_for={SIGNER: CA.authority}.get,
        root_ca=RootCa(CA.certificate_pem),
        signing_policy=lambda: policy,
        signing_duration=SIGNING_DURATION,
    )
    return build(settings, NAMES)


async def request(room: Room) -> Obj:
    """Create a Pod on a node, and return the request of its kubelet."""
    account = (await room.create("serviceaccounts", {"metadata": {"name": "web"}})).obj
    node = (await room.create("nodes", {"metadata": {"name": "n1"}})).obj
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n1", "serviceAccountName": "web"}
    pod = (await room.create("pods", {"metadata": {"name": "web-1"}, "spec": spec})).obj
    key = generate_key()
    stub = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, signature_hash(key))
    return {
        "metadata": {"name": "r"},
        "spec": {
            "signerName": SIGNER,
            "podName": "web-1",
            "podUID": pod["metadata"]["uid"],
            "serviceAccountName": "web",
            "serviceAccountUID": account["metadata"]["uid"],
            "nodeName": "n1",
            "nodeUID": node["metadata"]["uid"],
            "maxExpirationSeconds": 3600,
            "stubPKCS10Request": base64.b64encode(stub.public_bytes(Encoding.DER)).decode(),
        },
    }


def stored(room: Room) -> Obj:
    return room.registry.views[PLURAL].get("r", "default") or {}


@in_room
async def test_a_request_is_signed_recorded_and_deleted_after_15_minutes(room: Room) -> None:
    async with running(room, controllers()):
        await room.create(PLURAL, await request(room))
        await until(lambda: state_of(stored(room)) == "Issued")
        (leaf,) = certificates(stored(room)["status"]["certificateChain"].encode())
        assert leaf.is_issued_by(CA.certificate)
        (record,) = room.registry.views[LINEAGE_RECORDS].list()
        (entry,) = entries_of(record)
        assert (entry["subject"], entry["serialNumber"]) == (
            "spiffe://cluster.example/ns/default/sa/web",
            f"{leaf.serial_number:x}",
        )
        await room.clock.advance(899)
        assert exists(room, PLURAL, "r", "default")
        await room.clock.advance(1)
        await until(lambda: not exists(room, PLURAL, "r", "default"))


@in_room
async def test_a_pod_that_is_deleted_while_its_certificate_is_made_gets_none(room: Room) -> None:
    class Deleting(RegistryApi):
        """Deletes the Pod after the entry is stored, and before the certificate is published."""

        async def update(
            self, plural: str, obj: Obj, subresource: str = "", precondition: CommitPrecondition | None = None
        ) -> Obj:
            if exists(room, "pods", "web-1", "default"):
                await room.delete("pods", "web-1", options=DeleteOptions(grace_period_seconds=0))
            return await super().update(plural, obj, subresource, precondition)

    async with running(room, controllers(), Deleting(room.registry, masters_only, room.clock)):
        await room.create(PLURAL, await request(room))
        await until(lambda: not exists(room, "pods", "web-1", "default"))
        for _ in range(12):
            assert "certificateChain" not in (stored(room).get("status") or {})
            await room.clock.advance(10)
        await until(lambda: state_of(stored(room)) == "Failed")
