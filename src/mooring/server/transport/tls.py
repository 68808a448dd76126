"""The server's TLS context: what we present, and how clients may present themselves.

Rules kept here:
* A client certificate is asked for, never required, and never judged during the handshake: Kubernetes answers 401 to a
  certificate it cannot verify, and lets a good bearer token rescue the request (docs/protocol/authentication.md#connections). So
  the verify callback accepts everything and `mooring.authn.x509.authenticator` verifies the chain afterwards (docs/adr/0003).
* The names of the client CAs are advertised, so that clients with several certificates pick the right one.
* TLS 1.2 is the floor.
* Sessions are resumed by stateless tickets (TLS 1.3), which carry the client's leaf and not its intermediates. A client that sent
  intermediates therefore gets no ticket that works: each of its connections shakes hands in full and is judged by what it sent.
  In TLS 1.2 the server promises a ticket before it sees the client's certificates, so it promises none.
* HTTP/2 is agreed on by ALPN with who offers it, whatever else they offer; otherwise HTTP/1.1 (docs/adr/0022).
* A context is immutable once in use; new material means a new context for new connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from OpenSSL import SSL, crypto

from mooring.errors import ConfigError
from mooring.pki.keys import PrivateKey
from mooring.pki.x509.verify import MAX_CHAIN

SSL_MODE_RELEASE_BUFFERS = 0x10
"""openssl/ssl.h: give idle connections' 34 kB of record buffers back; a thousand idle watches need it."""
SESSION_ID_CONTEXT = b"mooring"
"""Scopes resumption to this server; OpenSSL refuses to resume sessions that asked for a certificate without one."""


def _drop_ticket_before_tls_1_3(tls: SSL.Connection) -> None:
    if tls.get_protocol_version() < SSL.TLS1_3_VERSION:
        tls.set_options(SSL.OP_NO_TICKET)


def _verify_callback(roots: frozenset[bytes]) -> Callable[..., bool]:
    """Return a verify callback that accepts every chain, and that stops tickets for a chain with intermediates.

    OpenSSL calls it in full handshakes with a client certificate, before the chain can be read: the info callback reads it. `roots`
    of the bundle are no intermediates: OpenSSL's clients send those they know, and the path to them is found without.
    """

    def limit_tickets(tls: SSL.Connection, where: int, _: int) -> None:
        if where & SSL.SSL_CB_LOOP and any(der(one) not in roots for one in tls.get_peer_cert_chain() or ()):
            tls.set_options(SSL.OP_NO_TICKET)

    def accept(tls: SSL.Connection, *_: Any) -> bool:
        tls.set_info_callback(limit_tickets)
        return True

    return accept


def _http_1_1(_: SSL.Connection, offered: list[bytes]) -> bytes | Any:
    return b"http/1.1" if b"http/1.1" in offered else SSL.NO_OVERLAPPING_PROTOCOLS


def _http_2(tls: SSL.Connection, offered: list[bytes]) -> bytes | Any:
    return b"h2" if b"h2" in offered else _http_1_1(tls, offered)


def server_context(
    chain: Sequence[x509.Certificate],
    key: PrivateKey,
    client_cas: Sequence[x509.Certificate],
    *,
    http2: bool = False,
) -> SSL.Context:
    """A context that presents `chain` (leaf first). Raises ConfigError when key and certificate do not belong together."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(SSL.OP_NO_RENEGOTIATION)  # a client could make us handshake for ever on one connection
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)  # tickets are stateless; a server-side cache would only grow
    context.set_mode(SSL_MODE_RELEASE_BUFFERS)
    context.set_session_id(SESSION_ID_CONTEXT)
    try:
        context.use_certificate(chain[0])
        for intermediate in chain[1:]:
            context.add_extra_chain_cert(intermediate)
        context.use_privatekey(key)
        context.check_privatekey()
    except (SSL.Error, crypto.Error) as error:
        raise ConfigError("the serving certificate and its key do not belong together; give a matching pair") from error
    roots = frozenset(one.public_bytes(Encoding.DER) for one in client_cas if one.issuer == one.subject)
    context.set_verify(SSL.VERIFY_PEER, _verify_callback(roots))
    context.set_tlsext_servername_callback(_drop_ticket_before_tls_1_3)  # called without a server name too
    for authority in client_cas:
        context.add_client_ca(authority)
    context.set_alpn_select_callback(_http_2 if http2 else _http_1_1)
    return context


def der(certificate: crypto.X509) -> bytes:
    """As OpenSSL holds it, not parsed anew: what a stricter parser refuses is a 401 of the authenticator, not an exception."""
    return crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)


def presented_chain(tls: SSL.Connection) -> tuple[bytes, ...]:
    """Return the leaf whose key the peer proved to hold, then whatever else it sent on this connection.

    On the server side OpenSSL keeps the leaf apart from the rest of the chain (SSL_get_peer_cert_chain(3)); the rest is only a
    claim. A resumed session carries the leaf alone, and only sessions without intermediates are resumed.
    """
    leaf = tls.get_peer_certificate()
    if leaf is None:
        return ()
    rest = (tls.get_peer_cert_chain() or ())[: MAX_CHAIN - 1]
    return tuple(der(certificate) for certificate in (leaf, *rest))
