"""Certificates as other programs make them, at each door: names in Latin-1, extensions that only Go reads, CAs of one name.

What they are and who accepts them is in tests/pki/test_certificate.py and test_foreignauthorities.py.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from mooring.client.http import tls
from mooring.controlplane.servingcertificate import anchor, from_file
from mooring.errors import ConfigError
from mooring.pki import pem
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509 import der, profiles
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.der import encoded
from mooring.secret import Secret
from mooring.server.transport.tls import server_context
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.controlplane.test_keystore import prepared
from tests.support.manualclock import EPOCH
from tests.support.rawcertificate import (
    COMMON_NAME,
    EXAMPLE,
    FALSE,
    JOERG,
    KEY,
    SEQUENCE,
    UTF8,
    VALIDITY,
    Foreign,
    attribute,
    edited,
    extension,
    issued,
    name,
    oid,
    root,
)
from tests.support.serverroom import connection, open_server
from tests.support.testca import Pair, ThrowawayCA

NOW = datetime.now(UTC)
CLIENT = extension("551d25", encoded(SEQUENCE, oid("1.3.6.1.5.5.7.3.2")), FALSE)
NO_CA = extension("551d13", encoded(SEQUENCE, b"\2\1\0"))
CA = root(EXAMPLE, now=NOW)
AUTHORITY = Authority(Certificate(CA.der), CA.key)


def serving() -> Pair:
    key = generate_key()
    template = profiles.apiserver_serving(key.public_key(), NOW, ["localhost"])
    return Pair(AUTHORITY.sign(template, NOW, 7), key)


SERVING = serving()
MINUTES = encoded(SEQUENCE, *[encoded(0x17, f"{year}01010000Z".encode()) for year in (20, 49)])
"""Validity by times without seconds, which Go reads and OpenSSL does not."""
FOR_GO = edited(CA.key, CA, {VALIDITY: MINUTES})


def test_a_ca_that_openssl_cannot_read_is_not_announced_and_verifies_no_server() -> None:
    ca, other = Certificate(FOR_GO.der), Certificate(CA.der)
    context = server_context((SERVING.certificate,), SERVING.key, (ca, other))
    assert context.get_verify_mode()
    assert server_context((SERVING.certificate,), SERVING.key, (ca,)).get_verify_mode()
    assert anchor((SERVING.certificate,), NOW, [ca]) is None
    assert anchor((SERVING.certificate,), NOW, [ca, other]) == other
    assert anchor((ca,), NOW, [other]) is None


def test_a_serving_certificate_that_openssl_cannot_read_is_refused() -> None:
    edited_ = edited(CA.key, Foreign(SERVING.der, SERVING.key), {VALIDITY: MINUTES})
    with pytest.raises(ConfigError, match="OpenSSL cannot read the serving certificate"):
        server_context((Certificate(edited_.der),), SERVING.key, ())


def test_a_server_starts_with_a_ca_whose_key_cannot_be_read(tmp_path: Path) -> None:
    unknown = encoded(SEQUENCE, encoded(SEQUENCE, oid("1.2.3.4")), encoded(der.BIT_STRING, b"\0x"))
    ca = root(EXAMPLE, now=EPOCH)
    (tmp_path / "cas.crt").write_bytes(edited(CA.key, CA, {KEY: unknown}).pem + ca.pem)

    async def body() -> None:
        async with open_server(client_ca_file=str(tmp_path / "cas.crt")) as server:
            joerg = connection([issued(ca, JOERG, [NO_CA, CLIENT], EPOCH).der])
            assert (await server.get("/api/v1/namespaces", via=joerg)).status == 403

    asyncio.run(body())


def test_a_user_of_a_ca_that_openssl_cannot_read(tmp_path: Path) -> None:
    ca = root(EXAMPLE, now=EPOCH)
    ca = edited(ca.key, ca, {VALIDITY: MINUTES})
    (tmp_path / "cas.crt").write_bytes(ca.pem)

    async def body() -> None:
        async with open_server(client_ca_file=str(tmp_path / "cas.crt")) as server:
            joerg = connection([issued(ca, JOERG, [NO_CA, CLIENT], EPOCH).der])
            assert (await server.get("/api/v1/namespaces", via=joerg)).status == 403

    asyncio.run(body())


def test_a_user_of_such_a_ca_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    """`--client-ca-file` has the CA, and a client presents its certificate."""
    ca = root(EXAMPLE, now=EPOCH)
    (tmp_path / "cas.crt").write_bytes(ca.pem)

    async def body() -> None:
        async with open_server(client_ca_file=str(tmp_path / "cas.crt")) as server:
            joerg = connection([issued(ca, JOERG, [NO_CA, CLIENT], EPOCH).der])
            reply = await server.post(
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"},
                via=joerg,
            )
            assert reply.status == 201
            user = json.loads(reply.body)["status"]["userInfo"]
            assert (user["username"], user["groups"]) == ("Jörg", ["Bücher", "system:authenticated"])

    asyncio.run(body())


def test_a_certificate_of_a_bundle_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = root(name(attribute(COMMON_NAME, UTF8, b"\xff")))
    (tmp_path / "cas.crt").write_bytes(b"# ours\n" + CA.pem + broken.pem)
    line = 2 + CA.pem.count(b"\n")

    async def body() -> None:
        async with open_server(client_ca_file=str(tmp_path / "cas.crt")):
            pass

    with pytest.raises(ConfigError) as raised:
        asyncio.run(body())
    assert f"certificate 2 of 2, in line {line}: the issuer of the certificate cannot be read: " in str(raised.value)


def test_a_cluster_whose_own_ca_has_such_a_name(tmp_path: Path) -> None:
    """`mooring init` with `pki/ca.crt` and `ca.key` of another program."""
    (tmp_path / "pki").mkdir(mode=0o700)
    (tmp_path / "pki/ca.crt").write_bytes(CA.pem)
    (tmp_path / "pki/ca.key").write_bytes(private_key_pem(CA.key))
    (tmp_path / "pki/ca.key").chmod(0o600)
    prepared(tmp_path, NOW)
    admin = parse_kubeconfig((tmp_path / "admin.conf").read_bytes()).users[0].certificate_pem
    (tmp_path / "admin.crt").write_bytes(admin)
    for path in ("pki/apiserver.crt", "admin.crt"):
        assert certificates((tmp_path / path).read_bytes())[0].issuer.der == EXAMPLE
        command = ["openssl", "verify", "-CAfile", "pki/ca.crt", path]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_a_client_trusts_such_a_ca_and_a_server_presents_its_certificate() -> None:
    served = server_context((SERVING.certificate,), SERVING.key, (AUTHORITY.certificate,))
    assert served is not None
    assert handshake(tls.trusting(CA.pem), SERVING) == ""


def unnamed(ca: ThrowawayCA) -> Pair:
    """Return the CA without key identifiers."""
    pair = Pair(ca.certificate, ca.key)
    return ca.custom("example-ca", key=ca.key, issuer=pair, extensions=[(x509.BasicConstraints(True, None), True)])


OLD, NEW = (ThrowawayCA("example-ca") for _ in range(2))
OF_NEW = NEW.custom("localhost", extensions=[(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)])
BUNDLES = {
    "the new one first": (unnamed(NEW), unnamed(OLD)),
    "the old one first": (unnamed(OLD), unnamed(NEW)),
}


@pytest.mark.parametrize("order", BUNDLES)
def test_a_root_ca_file_with_two_cas_of_one_name_verifies_in_either_order(order: str) -> None:
    bundle = certificates_pem(one.certificate for one in BUNDLES[order])
    assert from_file(bundle, (OF_NEW.certificate,), NOW) == bundle
    assert anchor((OF_NEW.certificate,), NOW, [one.certificate for one in BUNDLES[order]]) == unnamed_of(order)


def unnamed_of(order: str) -> Certificate:
    return next(one.certificate for one in BUNDLES[order] if one.key == NEW.key)


@pytest.mark.parametrize("api_server", [False, True], ids=["any server", "an API server"])
def test_a_client_with_the_wrong_one_first_is_told_of_both(*, api_server: bool) -> None:
    make = tls.for_api_server if api_server else tls.trusting
    good, bad = (certificates_pem(one.certificate for one in BUNDLES[order]) for order in BUNDLES)
    assert handshake(make(good), OF_NEW) == ""
    assert handshake(make(bad), OF_NEW) == (
        "certificate signature failure; several CAs of the bundle are called CN=example-ca, and the first was tried: put the one "
        "in use first"
    )
    stranger = ThrowawayCA("example-ca").server("localhost")
    assert "CN=example-ca" not in handshake(make(OLD.certificate_pem), stranger), "one CA is no choice"


def handshake(client: ssl.SSLContext, server: Pair) -> str:
    """Return "" for a handshake that succeeds, and the explanation of its failure otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.present(context, pem.encode(pem.CERTIFICATE, server.certificate.der), _secret(server))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return tls.explain(error, NOW, 1.0).message
    return ""


def _secret(pair: Pair | Foreign) -> Secret:
    return Secret(private_key_pem(pair.key))
