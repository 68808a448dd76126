"""CAs of client certificates: the cluster's own, and those that signers of client certificates have.

Rules kept here (docs/choose-the-signers.md):
* The bundle that verifies clients, and that cluster-info names, contains all of them, the cluster's own first.
* A signer may keep a CA that the cluster has retired. One that was given up or stolen is trusted nowhere, whatever names it.
* Holders read it at each use, because files of CAs change while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mooring.observed import Observed
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState, Certificates, ClusterCa
from mooring.pki.x509.publickeys import key_identities


class IssuingCas(Protocol):
    """CAs that issue client certificates now. `ClusterCa` and `ClientIssuers` are such."""

    @property
    def trusted(self) -> Certificates:
        """CAs that verify clients."""

    @property
    def trusted_pem(self) -> bytes:
        """CAs that verify clients, as PEM."""

    @property
    def retired(self) -> Certificates:
        """CAs that verify only the way back of a machine that was off."""

    @property
    def distrusted(self) -> Certificates:
        """CAs whose keys may stand on no path."""

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""

    @property
    def superseded(self) -> Certificates:
        """CAs whose certificates machines are asked to renew."""

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """CA certificates that sign for clients now, by the place where they are configured."""

    def subscribe(self, use: Callable[[], None]) -> None:
        """Call `use` after each change."""


class ClientIssuers(Observed[[]]):
    """The cluster's own CA, and the CAs of single signers of client certificates."""

    def __init__(self, own: ClusterCa, signers: Callable[[], Mapping[str, CaState]]) -> None:
        """`signers` returns the CAs of signers now, by the setting that names them. Call `notify` after a change of one."""
        self._own = own
        self._signers = signers
        super().__init__()
        own.subscribe(self.notify)

    @property
    def trusted(self) -> Certificates:
        """CAs that verify clients."""
        others = (one for state in self._signers().values() for one in state.trusted)
        return tuple(dict.fromkeys((*self._own.trusted, *(one for one in others if not self._is_given_up(one)))))

    def _is_given_up(self, ca: Certificate) -> bool:
        if any(_key(ca) == _key(one) for one in self._own.compromised):
            return True
        # A CA that was given up and is on no list is known by its signature alone.
        return any(one.is_issued_by(ca) for one in self._own.forgotten)

    @property
    def trusted_pem(self) -> bytes:
        """CAs that verify clients, as PEM."""
        return certificates_pem(self.trusted)

    @property
    def retired(self) -> Certificates:
        """CAs that verify only the way back of a machine that was off."""
        trusted = self.trusted
        return tuple(one for one in self._own.retired if one not in trusted)

    @property
    def distrusted(self) -> Certificates:
        """CAs whose keys may stand on no path."""
        keys, stolen = {_key(one) for one in self.trusted}, self._own.compromised
        return tuple(one for one in self._own.distrusted if one in stolen or _key(one) not in keys)

    @property
    def forgotten(self) -> Certificates:
        """Certificates whose issuer may stand on no path, and is known by its signature alone."""
        return self._own.forgotten

    @property
    def superseded(self) -> Certificates:
        """CAs of the cluster whose certificates machines are asked to renew."""
        issuing = self.issuers.values()
        return tuple(one for one in self._own.superseded if one not in issuing)

    @property
    def issuers(self) -> Mapping[str, Certificate]:
        """CA certificates that sign for clients now, by the place where they are configured."""
        others = {place: state.authority.certificate for place, state in self._signers().items()}
        return {**self._own.issuers, **others}


def _key(ca: Certificate) -> str:
    """Return the name of a key, which need not be readable."""
    return key_identities(ca)[0]
