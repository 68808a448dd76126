"""TLS contexts of clients, each with explicit trust, and the causes of failed connections.

Rules kept here (docs/protocol/discovery-and-join.md; Go's `x509.CertPool`, whose every certificate is an anchor):
* A context with given CAs trusts nothing else: the system's roots are not added. An intermediate or a leaf among them is an anchor.
* A context without verification never holds a client key.
* A client key reaches OpenSSL through memory, never through a file on disk.
* A context for an API server refuses the certificate of a node (docs/adr/0057-a-root-for-kubelets.md).
* Four failures have four remedies and are distinguished by the type of the error: a server without TLS, a certificate that does not
  verify, a certificate outside its validity period, and no response.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mooring.client.files import memory_file
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.distinguishedname import DistinguishedName
from mooring.secret import Secret
from mooring.trust.httpexchange import (
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_HTTP,
    NOT_TLS,
    TIMEOUT,
    TLS_ALERT,
    UNREACHABLE,
    HttpFailure,
)

UNRESOLVED = "the name cannot be resolved"
NODE_CERTIFICATE = "the certificate is that of a node and not of an API server"
_SIGNATURE_FAILURE, _NOT_YET_VALID, _EXPIRED = 7, 9, 10
"""X509_V_ERR_CERT_SIGNATURE_FAILURE, X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
_SPEAKS_TLS = ("ALERT", "UNSUPPORTED_PROTOCOL", "DH_KEY_TOO_SMALL", "NO_PROTOCOLS_AVAILABLE", "UNEXPECTED_EOF")
MAX_CAUSES = 32
"""Errors in one chain of causes that are examined: real chains have five."""


def trusting(ca_pem: bytes) -> ssl.SSLContext:
    """Return a context that verifies the server under `ca_pem` alone. Raises ConfigError when it holds no certificate."""
    context = _client_context()
    try:
        anchors = bundles.certificates_among(ca_pem)
        context.load_verify_locations(cadata=bundles.certificates_pem(anchors).decode("ascii"))
    except (PkiError, ssl.SSLError) as error:
        raise ConfigError(f"the CA to verify the server with cannot be used: {error}") from None
    # Each certificate of the bundle is an anchor, as in Go's `x509.CertPool`: an intermediate needs no root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.sslobject_class = _kind_of(_Connection, _name_of_several(anchors))
    return context


def _name_of_several(anchors: Sequence[Certificate]) -> str:
    """Return a name that CAs with different keys have; "" when there is none."""
    keys: dict[DistinguishedName, set[bytes]] = {}
    for one in anchors:
        keys.setdefault(one.subject, set()).add(one.public_key_info)
    return next((names.printable(name) for name, found in keys.items() if len(found) > 1), "")


def trusting_system_roots() -> ssl.SSLContext:
    """Return a context that verifies the server under the system's roots."""
    context = _client_context()
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


class _Connection(ssl.SSLObject):
    """A connection that says so when OpenSSL may have taken the wrong one of several CAs with one name.

    Without key identifiers it takes the first of the bundle, while Go tries each.
    """

    shared_name = ""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            if self.shared_name and error.verify_code == _SIGNATURE_FAILURE:
                error.add_note(
                    f"several CAs of the bundle are called {self.shared_name}, and the first was tried: put the one in use first"
                )
            raise


def _shared_name(context: ssl.SSLContext) -> str:
    return context.sslobject_class.shared_name if issubclass(context.sslobject_class, _Connection) else ""


def _kind_of(kind: type[_Connection], shared_name: str) -> type[_Connection]:
    """Return the class of connections; one of its own where CAs share a name, because the context makes them."""
    return type(kind.__name__, (kind,), {"shared_name": shared_name}) if shared_name else kind


class _ApiServerConnection(_Connection):
    """A connection that ends, before it sends anything, with a server whose certificate is that of a node."""

    def do_handshake(self) -> None:
        super().do_handshake()
        # The same CA signs it for the same purpose. In certificates of k3s's agents names of loopback are not proof
        # of an API server.
        if _is_of_node(self.getpeercert() or {}):
            raise certificate_error(NODE_CERTIFICATE)


def certificate_error(message: str) -> ssl.SSLCertVerificationError:
    """Return the error of a connection that this program ends, because the certificate of its server could not be right."""
    error = ssl.SSLCertVerificationError(1, message)
    error.verify_code, error.verify_message = 0, message
    return error


def _is_of_node(certificate: Mapping[str, Any]) -> bool:
    """Return true when the common name or the organizational unit of a verified certificate names a node."""
    return any(
        kind in ("commonName", "organizationalUnitName") and value.startswith(NODE_PREFIX)
        for attributes in certificate.get("subject", ())
        for kind, value in attributes
    )


def for_api_server(ca_pem: bytes) -> ssl.SSLContext:
    """Return a context that verifies an API server under `ca_pem`, or under the system's roots when that is empty.

    Raises ConfigError.
    """
    context = trusting(ca_pem) if ca_pem else trusting_system_roots()
    context.sslobject_class = _kind_of(_ApiServerConnection, _shared_name(context))
    return context


def not_verifying() -> ssl.SSLContext:
    """Return a context without verification, for responses that prove themselves or where the user's kubeconfig says so."""
    context = _client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def present(context: ssl.SSLContext, certificate_pem: bytes, key: Secret) -> None:
    """Add a client certificate to a context. Raises ConfigError when certificate and key cannot be used."""
    with memory_file(certificate_pem.rstrip() + b"\n" + key.reveal()) as path:
        try:
            context.load_cert_chain(path, password=_no_passphrase)
        except ssl.SSLError:
            raise ConfigError(
                "the client certificate cannot be used: the certificate or its key is not PEM, or they do not belong together"
            ) from None


def _no_passphrase() -> str:
    raise ConfigError("the client key is encrypted: write it without a passphrase")


_CLOSED_EARLY = "the port may speak plain HTTP, or a load balancer has no API server behind it"


def explain(error: BaseException, now: datetime, timeout: float) -> HttpFailure:
    """Return the reason for a failed request. `timeout` is the one of the request, in seconds."""
    failure = _explain(error, now, timeout)
    return replace(failure, broken=True) if _is_connection_lost(error) else failure


def _explain(error: BaseException, now: datetime, timeout: float) -> HttpFailure:
    if isinstance(error, TimeoutError) or type(error).__name__.endswith("Timeout"):
        return HttpFailure(TIMEOUT, f"no answer within {timeout:g} s")
    causes = tuple(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _explain_certificate(cause, now)
    for cause in causes:
        if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return HttpFailure(UNREACHABLE, "the connection was closed during the TLS handshake", _CLOSED_EARLY)
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            return _explain_tls(cause)
        if isinstance(cause, socket.gaierror):
            return HttpFailure(UNREACHABLE, f"{UNRESOLVED}: {(cause.strerror or str(cause)).lower()}")
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
            return HttpFailure(UNREACHABLE, os.strerror(cause.errno).lower())
    if type(error).__name__ == "DecodingError":
        return HttpFailure(NOT_HTTP, str(error))
    if "disconnected" in str(error) or "closed" in str(error):
        return HttpFailure(UNREACHABLE, "the connection was closed without a whole answer")
    if type(error).__name__ == "RemoteProtocolError":
        return HttpFailure(NOT_HTTP, "the answer is not HTTP")
    if type(error).__name__ == "LocalProtocolError":  # its text repeats the header, which may be a secret
        return HttpFailure(
            NOT_HTTP, "something in the request cannot be sent: a header has a character that none can have"
        )
    return HttpFailure(UNREACHABLE, str(error).lower() or type(error).__name__)


def _is_connection_lost(error: BaseException) -> bool:
    if any(
        isinstance(cause, ConnectionResetError | BrokenPipeError | ConnectionAbortedError) for cause in _causes(error)
    ):
        return True
    return "disconnected" in str(error)  # the library's error for a connection that was kept for too long


def _explain_certificate(error: ssl.SSLCertVerificationError, now: datetime) -> HttpFailure:
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return HttpFailure(CERTIFICATE_TIME, error.verify_message, f"this machine's clock says {rfc3339(now)}")
    notes = getattr(error, "__notes__", ())
    return HttpFailure(CERTIFICATE, "; ".join((error.verify_message.lower().rstrip("."), *notes)))


def _explain_tls(error: ssl.SSLError) -> HttpFailure:
    reason = error.reason or ""
    if any(word in reason for word in _SPEAKS_TLS):
        return HttpFailure(TLS_ALERT, reason.lower().replace("_", " "))
    return HttpFailure(NOT_TLS, "what it answers is not TLS")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, each once, outermost first."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MAX_CAUSES:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        waiting += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
