"""Versions and cipher suites that a server offers, in handshakes with Python's `ssl`."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from OpenSSL import SSL

from mooring.server.transport.tls import server_context
from mooring.settings.serving import SUITES, TlsProfile, tls_profile
from tests.support.testca import ThrowawayCA

ALL = tuple(SUITES)


def negotiated(profile: TlsProfile, client: ssl.SSLContext, ca: ThrowawayCA) -> tuple[str, str]:
    """Make a handshake in memory. Return the suite and the version. Raises SSL.Error."""
    pair = ca.server()
    server = SSL.Connection(server_context([pair.certificate], pair.key, [ca.certificate], profile=profile), None)
    server.set_accept_state()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing)
    for _ in range(4):
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        if outgoing.pending:
            server.bio_write(outgoing.read())
        with contextlib.suppress(SSL.WantReadError):
            server.do_handshake()
        with contextlib.suppress(SSL.WantReadError):
            incoming.write(server.bio_read(65536))
    suite = tls.cipher()
    assert suite is not None
    return suite[0], tls.version() or ""


def client_with(suites: str, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = newest
    context.set_ciphers(f"{suites}:@SECLEVEL=0")
    return context


@pytest.fixture(scope="module")
def ca() -> ThrowawayCA:
    return ThrowawayCA()


def test_by_default_no_suite_with_cbc_is_offered(ca: ThrowawayCA) -> None:
    with pytest.raises(SSL.Error):
        negotiated(TlsProfile(), client_with("ECDHE+AES:!AESGCM:!AESCCM"), ca)
    assert negotiated(TlsProfile(), client_with("ECDHE+AES"), ca)[0].count("GCM") == 1


@pytest.mark.parametrize("name", [one for one in ALL if "_ECDSA_" in one])
def test_each_suite_is_offered_when_it_is_asked_for(name: str, ca: ThrowawayCA) -> None:
    profile = tls_profile("VersionTLS12", (name,), http2=False)
    assert negotiated(profile, client_with(SUITES[name]), ca) == (SUITES[name], "TLSv1.2")


def test_the_server_prefers_authenticated_encryption(ca: ThrowawayCA) -> None:
    client = client_with("ECDHE-ECDSA-AES256-SHA:ECDHE-ECDSA-AES128-GCM-SHA256")
    assert negotiated(tls_profile("VersionTLS12", ALL, http2=True), client, ca)[0] == "ECDHE-ECDSA-AES128-GCM-SHA256"


def test_a_server_of_tls_1_3_refuses_an_older_client(ca: ThrowawayCA) -> None:
    profile = tls_profile("VersionTLS13", (), http2=True)
    with pytest.raises(SSL.Error):
        negotiated(profile, client_with("ECDHE"), ca)
    assert negotiated(profile, client_with("ECDHE", ssl.TLSVersion.TLSv1_3), ca)[1] == "TLSv1.3"
