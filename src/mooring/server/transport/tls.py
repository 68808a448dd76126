"""Build the server's TLS context, and read the certificate chain that a client presented.

Rules kept here:
* A client certificate is requested, never required, and never verified during the handshake: Kubernetes answers 401 to a
  certificate that does not verify, unless the request carries a valid bearer token (docs/protocol/authentication.md#connections).
  So the verify callback accepts everything and `mooring.authn.x509` verifies the chain afterwards (docs/adr/0003).
* The names of the client CAs are advertised.
* The minimum version is TLS 1.2. Its suites have forward secrecy and authenticated encryption unless others are asked for: clients
  in Go have had them since 1.8.
* Sessions are resumed by stateless tickets (TLS 1.3), which carry the client's leaf and not its intermediates. A client that sent
  intermediates therefore gets no usable ticket: each of its connections makes a full handshake and sends them again.
  In TLS 1.2 the server announces a ticket before it sees the client's certificates, so it announces none. A leaf of thousands of
  names gets no ticket either, because each handshake sends it back twice.
* ALPN selects HTTP/2 for every client that offers it, otherwise HTTP/1.1 (docs/adr/0022).
* A context is immutable once in use. New certificates or CAs mean a new context for new connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from OpenSSL import SSL, crypto

from mooring.client.files import memory_file
from mooring.errors import ConfigError
from mooring.pki.keys import PrivateKey
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.verify import MAX_CHAIN
from mooring.settings.serving import HTTP_2_SUITES, TlsProfile

SSL_MODE_RELEASE_BUFFERS = 0x10
"""Free the 34 kB of record buffers of idle connections (openssl/ssl.h): a thousand idle watches need it."""
SESSION_ID_CONTEXT = b"mooring"
"""Context of session resumption. Without one OpenSSL does not resume sessions that requested a client certificate."""
MAX_TICKETED = 8 << 10
"""Bytes of a leaf that a ticket may carry: a usual one has 800, and each handshake of TLS 1.3 sends two tickets."""

DEFAULT_PROFILE = TlsProfile()


def _drop_ticket_before_tls_1_3(tls: SSL.Connection) -> None:
    if tls.get_protocol_version() < SSL.TLS1_3_VERSION:
        tls.set_options(SSL.OP_NO_TICKET)


def _verify_callback(roots: frozenset[bytes]) -> Callable[..., bool]:
    """Return a verify callback that accepts every chain, and that stops tickets for a chain with intermediates and a long leaf.

    OpenSSL calls it in full handshakes with a client certificate, before the chain can be read; the info callback reads the chain.
    `roots` of the client CA bundle do not count as intermediates: OpenSSL's clients send those they know, and the chain verifies
    without them.
    """

    def limit_tickets(tls: SSL.Connection, where: int, _: int) -> None:
        if where & SSL.SSL_CB_LOOP:
            leaf = tls.get_peer_certificate()
            is_long = leaf is not None and len(der(leaf)) > MAX_TICKETED
            if is_long or any(der(one) not in roots for one in tls.get_peer_cert_chain() or ()):
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
    chain: Sequence[Certificate],
    key: PrivateKey,
    client_cas: Sequence[Certificate],
    *,
    http2: bool = False,
    profile: TlsProfile = DEFAULT_PROFILE,
) -> SSL.Context:
    """Return a context that presents `chain`, leaf first. Raises ConfigError when key and certificate do not match."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION if profile.only_tls_1_3 else SSL.TLS1_2_VERSION)
    if profile.tls_1_2_suites:
        context.set_cipher_list(":".join(profile.tls_1_2_suites).encode())
    if profile != DEFAULT_PROFILE:
        # HTTP/2 forbids CBC, which a client could prefer.
        context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE)
    # A client could otherwise cause handshakes without limit on one connection.
    context.set_options(SSL.OP_NO_RENEGOTIATION)
    # Tickets are stateless. A cache in the server would only grow.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_mode(SSL_MODE_RELEASE_BUFFERS)
    context.set_session_id(SESSION_ID_CONTEXT)
    try:
        # OpenSSL reads more certificates than the library that would pass them on
        with memory_file(certificates_pem(chain)) as path:
            context.use_certificate_chain_file(path.encode())
        context.use_privatekey(key)
        context.check_privatekey()
    except (SSL.Error, crypto.Error) as error:
        if not all(map(_is_read_by_openssl, chain)):
            raise ConfigError(
                "OpenSSL cannot read the serving certificate or one behind it; have it issued anew"
            ) from error
        raise ConfigError("the serving certificate and its key do not belong together; give a matching pair") from error
    roots = frozenset(one.der for one in client_cas if one.issuer == one.subject)
    # Accepts every chain: `mooring.authn.x509` verifies it later. A failure is 401, unless the request has a valid
    # token.
    context.set_verify(SSL.VERIFY_PEER, _verify_callback(roots))
    context.set_tlsext_servername_callback(_drop_ticket_before_tls_1_3)  # called without a server name too
    # Clients with several certificates select the right one by the names of the CAs.
    if announced := tuple(filter(_is_read_by_openssl, client_cas)):
        with memory_file(certificates_pem(announced)) as path:
            context.load_client_ca(path.encode())
    context.set_alpn_select_callback(_http_2 if http2 else _http_1_1)
    return context


def _is_read_by_openssl(certificate: Certificate) -> bool:
    """Return whether a CA can be announced. OpenSSL reads no times without seconds, and Go does: such a CA verifies."""
    try:
        crypto.load_certificate(crypto.FILETYPE_ASN1, certificate.der)
    except crypto.Error:
        return False
    return True


def der(certificate: crypto.X509) -> bytes:
    """Return the DER bytes that OpenSSL holds, without parsing: the authenticator answers 401 to those that a stricter parser
    rejects."""
    return crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)


def allows_http2(tls: SSL.Connection) -> bool:
    """Return whether HTTP/2 may be spoken over the suite of a handshake (RFC 9113 9.2.2)."""
    return tls.get_protocol_version() >= SSL.TLS1_3_VERSION or tls.get_cipher_name() in HTTP_2_SUITES


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
