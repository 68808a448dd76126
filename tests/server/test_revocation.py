"""Revoked certificates in a whole server: 401 on open connections, watches that end, and what rescues a request."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from mooring.api.mooring.certificaterevocation import entry_name
from mooring.clock import JUMP_SECONDS
from mooring.controlplane.revocationlist import LEAST_REST, RENEW, RevocationListPublisher
from mooring.identity import MASTERS
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.clusterca import CaState, ClusterCa
from mooring.pki.x509.crl import SignedList, revocation_list, revoked_certificate
from mooring.server.openwatches import PAUSE_SECONDS
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.manualclock import EPOCH, settle
from tests.support.refused import SECRETS
from tests.support.serverroom import Reply, Server, Stream, connection, in_server, open_server
from tests.support.testca import Pair, ThrowawayCA

DENYLIST = "/apis/mooring.dev/v1alpha1/certificaterevocations"
WATCH = f"{SECRETS}?watch=1"


def serial_number(pair: Pair) -> dict[str, Any]:
    return {"serialNumber": f"{pair.certificate.serial_number:x}"}


async def revoke(server: Server, **spec: Any) -> Reply:
    reply = await server.post(DENYLIST, {"metadata": {"name": entry_name(spec)}, "spec": spec})
    assert reply.status == 201, reply.text
    await settle()
    return reply


def jane(server: Server) -> tuple[Pair, TlsConnection]:
    pair = server.ca.client("jane", MASTERS)
    return pair, connection([pair.der])


@in_server
async def test_an_open_connection_gets_200_then_401_then_200_again(server: Server) -> None:
    pair, via = jane(server)
    assert (await server.get(SECRETS, via=via)).status == 200
    await revoke(server, **serial_number(pair))
    refused = await server.get(SECRETS, via=via)
    assert (refused.status, refused.message) == (401, "Unauthorized")
    assert (await server.call("DELETE", f"{DENYLIST}/{entry_name(serial_number(pair))}")).status == 200
    assert (await server.get(SECRETS, via=via)).status == 200


@in_server
async def test_the_watches_of_a_revoked_certificate_end_and_no_others(server: Server) -> None:
    pair, via = jane(server)
    revoked = [await server.follow(WATCH, via=via) for _ in range(3)]
    other = await server.follow(WATCH)
    await revoke(server, publicKey=f"sha256:{public_key_fingerprint(pair.key)}")
    assert [watch.ended for watch in revoked] == [True] * 3
    assert not other.ended
    await other.end()


@in_server
async def test_a_watch_ends_soon_after_its_certificate_and_no_other(server: Server) -> None:
    via = connection([server.ca.client("jane", MASTERS, lifetime=timedelta(hours=1)).der])
    other = connection([server.ca.client("john", MASTERS, lifetime=timedelta(hours=9)).der])
    ending, going = [await server.follow(WATCH, via=one) for one in (via, other)]
    server.clock.set(server.clock.now() + timedelta(minutes=54))
    await server.clock.advance(JUMP_SECONDS + PAUSE_SECONDS)
    assert not ending.ended
    server.clock.set(server.clock.now() + timedelta(minutes=7))
    await server.clock.advance(JUMP_SECONDS + PAUSE_SECONDS)
    assert (ending.ended, going.ended) == (True, False)
    assert (await server.get(SECRETS, via=via)).status == 401
    await going.end()


@in_server
async def test_a_second_revocation_is_in_force_within_a_second(server: Server) -> None:
    pair, via = jane(server)
    watch = await server.follow(WATCH, via=via)
    await revoke(server, serialNumber="1")
    await revoke(server, **serial_number(pair))
    at_once = watch.ended
    await server.clock.advance(PAUSE_SECONDS)
    assert (at_once, watch.ended) == (False, True), "the pass before was less than half a second ago"
    assert PAUSE_SECONDS < 1


@in_server
async def test_a_watch_whose_certificate_is_revoked_before_it_begins_sends_nothing(server: Server) -> None:
    pair, via = jane(server)
    response = await server.response("GET", WATCH, via=via)
    await revoke(server, **serial_number(pair))
    watch = Stream(response)
    await settle()
    assert (watch.ended, watch.raw) == (True, b"")


@in_server
async def test_a_good_bearer_token_beside_a_revoked_certificate_counts(server: Server) -> None:
    pair, via = jane(server)
    good, bad = await server.bootstrap_token(), "abcdef.fedcba9876543210"
    await server.create(
        "clusterrolebindings",
        {
            "metadata": {"name": "token"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:bootstrap:abcdef"}],
        },
        namespace="",
    )
    await revoke(server, **serial_number(pair))
    assert (await server.get(SECRETS, via=via, headers=[("Authorization", f"Bearer {bad}")])).status == 401
    rescued = await server.follow(WATCH, via=via, headers=[("Authorization", f"Bearer {good}")])
    assert rescued.status == 200
    await server.clock.advance(PAUSE_SECONDS)
    await revoke(server, publicKey=f"sha256:{public_key_fingerprint(pair.key)}")
    assert not rescued.ended, "the token authenticated this watch, and not the certificate"
    await rescued.end()


@in_server
async def test_the_operator_sees_the_reason(server: Server) -> None:
    pair, via = jane(server)
    await revoke(server, **serial_number(pair), reason="keyCompromise", message="laptop stolen")
    refused = await server.get(SECRETS, via=via)
    found = await server.get(f"/debug/authentication/refusals/{refused.headers['audit-id']}")
    detail = f"certificaterevocations/{entry_name(serial_number(pair))}, keyCompromise: laptop stolen"
    assert found.obj["why"] == "certificate-revoked"
    assert detail in [step.get("detail") for step in found.obj["authenticators"]]
    explained = await server.post("/debug/authentication/explain", {"certificate": pair.certificate_pem.decode()})
    assert (explained.obj["authenticated"], explained.obj["why"]) == (False, "certificate-revoked")


def test_a_revoked_proxy_speaks_for_no_user(tmp_path: Path) -> None:
    proxies = ThrowawayCA("proxies", EPOCH)
    bundle = tmp_path / "proxies.crt"
    bundle.write_bytes(proxies.certificate_pem)

    async def body() -> None:
        flags = {"requestheader_client_ca_file": str(bundle), "requestheader_username_headers": ("X-Remote-User",)}
        async with open_server(**flags) as server:
            pair = proxies.client("front")
            proxy: dict[str, Any] = {"via": connection([pair.der]), "headers": [("X-Remote-User", "kubernetes-admin")]}
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            assert (await server.post(path, {}, **proxy)).status == 201
            await revoke(server, **serial_number(pair))
            assert (await server.post(path, {}, **proxy)).status == 401

    asyncio.run(body())


def test_watches_end_when_another_bundle_no_longer_verifies_their_certificate(tmp_path: Path) -> None:
    old, new = ThrowawayCA("old", EPOCH), ThrowawayCA("new", EPOCH)
    bundle = tmp_path / "clients.crt"
    bundle.write_bytes(old.certificate_pem)

    async def body() -> None:
        async with open_server(client_ca_file=str(bundle)) as server:
            watch = await server.follow(WATCH, via=connection([old.client("jane", MASTERS).der]))
            assert watch.status == 200
            bundle.write_bytes(new.certificate_pem)
            await server.files_changed()
            await settle()
            assert watch.ended

    asyncio.run(body())


CRL = "/mooring/v1/crl"


async def published(server: Server) -> x509.CertificateRevocationList:
    await server.assembly.upkeep.revocation_list.publish()
    reply = await server.get(CRL, via=server.user("anyone"))
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-pem-file")
    return x509.load_pem_x509_crl(reply.body)


@in_server
async def test_the_crl_lists_what_is_revoked(server: Server) -> None:
    follower = asyncio.ensure_future(server.assembly.upkeep.revocation_list.run())
    await settle()
    pair, _ = jane(server)
    key = {"publicKey": "sha256:" + "ab" * 32, "notAfter": "2999-01-01T00:00:00Z"}
    identity = {"metadata": {"name": "n1"}, "spec": {"keys": [{**key, "serialNumber": "a1"}]}}
    await server.create("nodeidentities", identity, namespace="")
    await revoke(server, **serial_number(pair), reason="keyCompromise")
    await revoke(server, nodeName="n1")
    await revoke(server, serialNumber="b2", issuer="sha256:" + "00" * 32)
    await revoke(server, serialNumber="c3", expiresAt="1990-01-01T00:00:00Z")
    await revoke(server, serialNumber="d4")
    await server.call("DELETE", f"{DENYLIST}/serial-d4")
    await settle()
    listed = await published(server)
    assert {one.serial_number for one in listed} == {pair.certificate.serial_number, 0xA1}
    reply = await server.get(CRL, headers=[("Accept", "application/pkix-crl")])
    assert reply.headers["content-type"] == "application/pkix-crl"
    assert x509.load_der_x509_crl(reply.body) == listed
    assert (await server.get(CRL, via=connection())).status == 403, "RBAC decides who may read it"
    follower.cancel()


@in_server
async def test_the_crl_is_signed_again_after_a_change_and_after_a_day(server: Server) -> None:
    publisher = server.assembly.upkeep.revocation_list
    follower = asyncio.ensure_future(publisher.run())
    while publisher.current is None:
        await asyncio.sleep(0.001)
    numbers = {publisher.current.der}
    for seconds in (LEAST_REST, RENEW.total_seconds()):
        await server.clock.advance(seconds)
        while publisher.current.der in numbers and seconds != LEAST_REST:
            await asyncio.sleep(0.001)
        numbers.add(publisher.current.der)
    assert len(numbers) == 2
    follower.cancel()


def test_a_ca_that_may_not_sign_a_crl_leaves_the_denylist_in_force(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with open_server() as server:
            bits = profiles.key_usage((profiles.CERT_SIGN,))
            assert bits is not None
            pair = server.ca.custom("ca", extensions=[(x509.BasicConstraints(True, None), True), (bits, True)])
            publisher = RevocationListPublisher(
                server.registry, ClusterCa(CaState.of(Authority(pair.certificate, pair.key))), None, server.clock
            )
            for _ in range(2):
                await publisher.publish()
            assert publisher.current is None
            reply = await server.get(CRL)
            assert reply.status == 503, "and before the first list"

    with caplog.at_level("WARNING", "mooring.server"):
        asyncio.run(body())
    assert caplog.text.count("the CRL was not signed") == 1


def test_the_file_is_replaced_and_a_failure_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with open_server() as server:
            publisher = RevocationListPublisher(server.registry, server.ca.cluster_ca, tmp_path, server.clock)
            await publisher.publish()
            assert publisher.current is not None
            assert (tmp_path / "crl.pem").read_bytes() == publisher.current.pem
            lost = RevocationListPublisher(server.registry, server.ca.cluster_ca, tmp_path / "gone", server.clock)
            await lost.publish()
            assert lost.current is not None

    asyncio.run(body())
    assert "the CRL was not written" in caplog.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_the_list_and_refuses_a_certificate_on_it(tmp_path: Path) -> None:
    def openssl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["openssl", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    ca = ThrowawayCA()
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    good, bad = ca.client("good"), ca.client("bad")
    for name, pair in (("good.crt", good), ("bad.crt", bad)):
        (tmp_path / name).write_bytes(pair.certificate_pem)
    entry = revoked_certificate(bad.certificate.serial_number, ca.now, "keyCompromise")
    signed = SignedList.of(revocation_list(ca.authority, [entry], ca.now))
    (tmp_path / "crl.pem").write_bytes(signed.pem)
    assert "verify OK" in openssl("crl", "-in", "crl.pem", "-noout", "-CAfile", "ca.crt").stderr
    verify = ("verify", "-CAfile", "ca.crt", "-CRLfile", "crl.pem", "-crl_check")
    assert openssl(*verify, "good.crt").stdout == "good.crt: OK\n"
    assert "certificate revoked" in openssl(*verify, "bad.crt").stderr
