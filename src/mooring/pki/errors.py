"""What can be wrong with keys, certificates, requests and signed tokens.

Rules kept here: every refusal of this room is a `PkiError`; library exceptions are translated where they enter, so none
escapes; no message carries a private key or a token. Where a caller must tell refusals apart, the error has a `code` from
a closed list.
"""

from __future__ import annotations

from typing import ClassVar

from mooring.errors import MooringError


class PkiError(MooringError):
    """Root of the room's errors. `str(error)` is one sentence fit for the person who supplied the input."""


class PemError(PkiError):
    """The text is not the PEM that was asked for."""


class KeyRefusedError(PkiError):
    """The key cannot be read, or is of a kind or size nobody should rely on."""


class RequestError(PkiError):
    """The certificate signing request cannot be read or does not prove possession of its key."""


class IssueError(PkiError):
    """A certificate was not issued: the authority or the template does not allow it."""


class IssuedWrongError(PkiError):
    """The twin found that a certificate is not what its template or request says. Never hand that certificate out."""


class PeerCertificateError(PkiError):
    """A presented certificate chain was refused. `seconds` says by how much a time was missed, else 0."""

    CODES: ClassVar[frozenset[str]] = frozenset(
        {
            "malformed", "too-large", "weak-key", "weak-signature", "unknown-critical-extension", "unknown-ca",
            "bad-signature", "not-a-ca", "path-too-long", "constrained-names", "expired", "not-yet-valid", "wrong-usage",
            "bad-uid",
        }
    )  # fmt: skip

    def __init__(self, code: str, message: str, seconds: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.seconds = seconds


class TokenRefusedError(PkiError):
    """A signed token (JWT) was refused. The message never contains the token or a claim of it."""

    CODES: ClassVar[frozenset[str]] = frozenset(
        {
            "malformed", "too-large", "unsupported-algorithm", "unknown-key", "bad-signature", "wrong-issuer",
            "missing-expiry", "expired", "not-yet-valid", "issued-in-future",
        }
    )  # fmt: skip

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
