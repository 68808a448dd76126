"""Errors of keys, certificates, certificate requests and signed tokens.

Rules kept here: every error of this room is a `PkiError`, and exceptions of libraries are translated where they are raised. No
message contains a private key or a token. Where callers distinguish errors, the error has a `code` from a closed list.
"""

from __future__ import annotations

from typing import ClassVar

from mooring.errors import MooringError


class PkiError(MooringError):
    """Base of all errors of this room. `str(error)` is one sentence for the person who supplied the input."""


class CrlError(PkiError):
    """The CRL cannot be used."""


class PemError(PkiError):
    """The text is not PEM of the expected kind."""


class CertificateUnreadableError(PkiError):
    """The certificate cannot be read. The message names the part."""


class CertificateTooLargeError(CertificateUnreadableError):
    """The certificate, alone or with the others of its chain, has more elements than are read."""


class KeyRefusedError(PkiError):
    """The key cannot be read, or is of a refused type or size."""


class RequestError(PkiError):
    """The certificate signing request cannot be read or does not prove possession of its key."""


class RequestSignatureError(RequestError):
    """The signature of the certificate signing request does not verify with the key in it."""


class IssueError(PkiError):
    """A certificate was not issued, because the authority or the template does not allow it."""


class DeviceError(PkiError):
    """The device that holds a key did not sign. It may do so later."""


class CertificateMismatchError(PkiError):
    """An issued certificate differs from its template or request, and must not be used."""


class PeerCertificateError(PkiError):
    """A presented certificate chain was refused. `seconds` is the distance from its validity, or 0 for other reasons."""

    CODES: ClassVar[frozenset[str]] = frozenset(
        {
            "malformed", "too-large", "weak-key", "weak-signature", "unknown-critical-extension", "unknown-ca",
            "bad-signature", "not-a-ca", "path-too-long", "constrained-names", "expired", "not-yet-valid", "wrong-usage",
            "bad-uid", "retired-ca", "bad-serial-number", "no-valid-policy",
        }
    )  # fmt: skip

    def __init__(self, code: str, message: str, seconds: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.seconds = seconds


class TokenRefusedError(PkiError):
    """A signed token (JWT) was refused. The message never contains the token or one of its claims."""

    CODES: ClassVar[frozenset[str]] = frozenset(
        {
            "malformed", "too-large", "unsupported-algorithm", "unknown-key", "bad-signature", "wrong-issuer",
            "missing-expiry", "expired", "not-yet-valid", "issued-in-future",
        }
    )  # fmt: skip

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
