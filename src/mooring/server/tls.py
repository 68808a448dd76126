"""The server's TLS context: what we present, and how clients may present themselves.

Rules kept here:
* A client certificate is asked for, never required, and never judged during the handshake: Kubernetes answers 401 to a
  certificate it cannot verify, and lets a good bearer token rescue the request (reference/kubernetes.md 5.1). So the verify
  callback accepts everything and `mooring.authn.clientcert` verifies the chain afterwards (docs/adr/0003).
* The names of the client CAs are advertised, so that clients with several certificates pick the right one.
* TLS 1.2 is the floor, tickets stay on: a handshake is the price of a join.
* A context is immutable once in use; new material means a new context for new connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cryptography import x509
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


def server_context(
    chain: Sequence[x509.Certificate], key: PrivateKey, client_cas: Sequence[x509.Certificate]
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
    context.set_alpn_select_callback(_http_1_1)
    return context
