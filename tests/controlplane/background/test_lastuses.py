"""The label that says when a Secret's token was used last, and the uses of certificates, written behind the requests.

Source: docs/protocol/service-account-tokens.md#legacy-tokens, docs/names-and-membership.md#one-machine-for-each-name.
"""

from __future__ import annotations

import asyncio
import logging
from unittest.mock import AsyncMock

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authn.lastuses import LAST_USED, CertificateUses, LastUses
from mooring.controlplane.maintenance import (
    RECORD_SECONDS,
    record_certificates,
    record_certificates_forever,
    record_forever,
)
from mooring.errors import StorageError
from mooring.pki.x509.clientcertificate import RecordedCertificate
from tests.support.manualclock import settle
from tests.support.registryroom import Room, in_room

SECRET: Obj = {
    "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "sa"}, "labels": {"mine": "1"}},
    "type": "kubernetes.io/service-account-token",
}


@in_room
async def test_the_day_is_written_as_a_label_beside_the_others(room: Room) -> None:
    made = await room.create("secrets", SECRET)
    uses = LastUses()
    recorder = asyncio.create_task(record_forever(uses, room.registry, room.clock))
    uses.note(made.obj, room.clock.now())
    assert (await room.get("secrets", "s")).obj["metadata"]["labels"] == {"mine": "1"}
    await room.clock.advance(RECORD_SECONDS)
    await settle()
    kept = (await room.get("secrets", "s")).obj
    assert kept["metadata"]["labels"] == {"mine": "1", LAST_USED: "2026-01-02"}
    uses.note(kept, room.clock.now())
    assert uses.take() == ()
    recorder.cancel()


@in_room
async def test_another_secret_of_that_name_and_one_that_is_gone_are_left_alone(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    made = await room.create("secrets", SECRET)
    uses = LastUses()
    recorder = asyncio.create_task(record_forever(uses, room.registry, room.clock))
    uses.note({"metadata": {**made.obj["metadata"], "uid": "of before"}}, room.clock.now())
    uses.note({"metadata": {**made.obj["metadata"], "name": "gone"}}, room.clock.now())
    with caplog.at_level(logging.WARNING):
        await room.clock.advance(RECORD_SECONDS)
        await settle()
    assert (await room.get("secrets", "s")).obj["metadata"]["labels"] == {"mine": "1"}
    for told in ("/s was not written down: ", "it is another Secret now", "/gone was not written down: "):
        assert told in caplog.text
    assert not recorder.done()
    recorder.cancel()


IDENTITY: Obj = {
    "metadata": {"name": "n1"},
    "spec": {"keys": [{"publicKey": "sha256:" + "1" * 64, "notAfter": "2027-01-01T00:00:00Z"}]},
}


def noted(uses: CertificateUses, room: Room, name: str = "n1", digit: str = "1") -> None:
    fingerprint = digit * 64
    peer = RecordedCertificate(
        f"system:node:{name}", name, fingerprint, 1, f"sha256:{fingerprint}", "", room.clock.now(), ()
    )
    uses.note(peer, "192.0.2.1", room.registry.views, room.clock.now())


@in_room
async def test_the_use_of_a_certificate_is_written_into_the_status_of_the_identity(room: Room) -> None:
    made = await room.create("nodeidentities", IDENTITY)
    uses = CertificateUses(room.clock.monotonic)
    recorder = asyncio.create_task(record_certificates_forever(uses, room.registry, room.clock))
    noted(uses, room)
    await room.clock.advance(RECORD_SECONDS)
    await settle()
    kept = (await room.get("nodeidentities", "n1")).obj
    assert kept["spec"] == made.obj["spec"]
    (use,) = kept["status"]["certificates"]
    assert (use["publicKey"], use["sourceAddress"]) == ("sha256:" + "1" * 64, "192.0.2.1")
    noted(uses, room)
    assert uses.take() == ()
    recorder.cancel()


@in_room
async def test_many_uses_of_one_machine_are_one_write(room: Room) -> None:
    digits = "0123456789abcdef"
    keys = [{"publicKey": "sha256:" + one * 64, "notAfter": "2027-01-01T00:00:00Z"} for one in digits]
    await room.create("nodeidentities", {**IDENTITY, "spec": {"keys": keys}})
    before = room.registry.cache.revision
    uses = CertificateUses(room.clock.monotonic)
    for one in digits:
        noted(uses, room, digit=one)
    await record_certificates(uses, room.registry, room.clock)
    kept = (await room.get("nodeidentities", "n1")).obj
    assert len(kept["status"]["certificates"]) == len(digits)
    assert room.registry.cache.revision == before + 1


@in_room
async def test_a_use_is_dropped_with_its_identity(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    await room.create("nodeidentities", IDENTITY)
    uses = CertificateUses(room.clock.monotonic)
    noted(uses, room)
    await room.delete("nodeidentities", "n1")
    with caplog.at_level(logging.WARNING):
        await record_certificates(uses, room.registry, room.clock)
    assert caplog.text == ""


@in_room
async def test_a_use_that_cannot_be_written_is_told_and_noted_at_the_next_one(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await room.create("nodeidentities", {**IDENTITY, "status": {}})
    uses = CertificateUses(room.clock.monotonic)
    noted(uses, room)
    with caplog.at_level(logging.WARNING), pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(room.registry.writer), "patch", AsyncMock(side_effect=StorageError("the disk is full")))
        await record_certificates(uses, room.registry, room.clock)
    assert "the use of a certificate of node n1 was not written down: the disk is full" in caplog.text
    noted(uses, room)
    assert len(uses.take()) == 1
