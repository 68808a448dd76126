"""CAs that verify the serving certificate, as Pods and Secrets of ServiceAccounts get them."""

from __future__ import annotations


class RootCa:
    """The bundle as it is now, PEM. Read `pem` at each use: an operator's file may change it."""

    def __init__(self, pem: bytes) -> None:
        self.pem = pem
