"""The CA bundle that verifies the serving certificate, as published in kube-root-ca.crt and in Secrets of service accounts."""

from __future__ import annotations


class RootCa:
    """Bundle of CAs. Read `pem` at each use: the bundle may be replaced while the server runs."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem

    @property
    def pem(self) -> bytes:
        """The bundle in force."""
        return self._pem

    def replace(self, pem: bytes) -> None:
        """Put another bundle in force."""
        self._pem = pem
