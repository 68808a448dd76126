"""The server's TLS context: what we present, and how clients may present themselves.

Rules kept here:
* A client certificate is asked for, never required, and never judged during the handshake: Kubernetes answers 401 to a
  certificate it cannot verify, and lets a good bearer token rescue the request (reference/kubernetes.md 5.1). So the verify
  callback accepts everything and `mooring.authn.clientcert` verifies the chain afterwards (docs/adr/0003).
* The names of the client CAs are advertised, so that clients with several certificates pick the right one.
* TLS 1.2 is the floor, tickets stay on: a handshake is the price of a join.
* HTTP/2 is agreed on by ALPN with who offers it, whatever else they offer; otherwise HTTP/1.1 (docs/adr/0018).
* A context is immutable once in use; new material means a new context for new connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL, crypto

from mooring.errors import ConfigError
from mooring.pki.keys import PrivateKey

SSL_MODE_RELEASE_BUFFERS = 0x10
"""openssl/ssl.h: give idle connections' 34 kB of record buffers back; a thousand idle watches need it."""
SESSION_ID_CONTEXT = b"mooring"
"""Scopes resumption to this server; OpenSSL refuses to resume sessions that asked for a certificate without one."""


def _accept_for_later(*_: Any) -> bool:
    return True


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
    context.set_verify(SSL.VERIFY_PEER, _accept_for_later)
    for authority in client_cas:
        context.add_client_ca(authority)
    context.set_alpn_select_callback(_http_2 if http2 else _http_1_1)
    return context


def renew_bios(tls: SSL.Connection) -> bool:
    """Give back the buffers of both memory BIOs; False, and nothing happens, while something is in them.

    pyOpenSSL has no name for this: its three attributes are replaced as its constructor sets them.
    """
    lib, memory = Binding.lib, Binding.ffi.new("char **")
    held = (tls._into_ssl, tls._from_ssl)  # noqa: SLF001 - see above
    if any(lib.BIO_get_mem_data(bio, memory) for bio in held):
        return False
    incoming, outgoing = lib.BIO_new(lib.BIO_s_mem()), lib.BIO_new(lib.BIO_s_mem())
    if Binding.ffi.NULL in (incoming, outgoing):
        raise MemoryError
    lib.SSL_set_bio(tls._ssl, incoming, outgoing)  # noqa: SLF001 - it frees the old ones and owns the new ones
    tls._into_ssl, tls._from_ssl = incoming, outgoing  # noqa: SLF001 - see above
    return True


def der(certificate: crypto.X509) -> bytes:
    """As OpenSSL holds it, not parsed anew: what a stricter parser refuses is a 401 of the authenticator, not an exception."""
    return crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
