"""Certificates of members with other times, signed by the CA of a running server: nearly at their end, or expired."""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509

from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.clock import SystemClock
from mooring.pki.keys import accepted_public_key, load_private_key, signature_hash
from mooring.pki.x509 import bundles
from mooring.pki.x509.certificate import Certificate
from tests.support.liveserver import LiveServer
from tests.support.testca import by_library, read


def place(server: LiveServer, state: NodeState, begin: timedelta, end: timedelta) -> Pair:
    """Replace the client certificate on disk by one of the same key and name, valid from and until then, counted from now."""
    pair, now = state.client.read_pair(), SystemClock().now()
    assert pair is not None
    reissued = Pair((signed(server, pair.leaf, now + begin, now + end),), pair.key)
    state.client.write_pair(reissued, now)
    return reissued


def signed(server: LiveServer, leaf: Certificate, begin: datetime, end: datetime) -> Certificate:
    """Return a certificate of the same key and name, valid from `begin` until `end`."""
    (ca,) = bundles.certificates(server.ca_pem)
    key = load_private_key((server.data_dir / "pki/ca.key").read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(leaf.subject.for_builder())
        .issuer_name(ca.subject.for_builder())
        .public_key(accepted_public_key(leaf.public_key()))
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
    for extension in by_library(leaf).extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return read(builder.sign(key, signature_hash(key)))
