"""Renewal and replacement of the cluster CA in the files of one server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from mooring.api.mooring.certificateauthorityrollover import DRAIN, ISSUE_NEW, PREPARED, RETIRED, TRUST_BOTH
from mooring.client.files import make_directory, read_limited, sync_directory, write_atomic
from mooring.clock import Clock, wait_until
from mooring.controllers.certificates import carollover
from mooring.controllers.certificates.carollover import ABSENT, CLEANING, RolloverOnDisk, RolloverStep
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.datadirectory import Reloading, ca_files, load, read_ca
from mooring.controlplane.keystore import KeyStore, exclusive, renew
from mooring.controlplane.servingcertificate import ServingPair
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import generate_key, load_private_key, private_key_pem
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import MAX_CROSS_SIGNED, CaState, cross_sign, find_cross_signed, successor
from mooring.pki.x509.names import printable
from mooring.trust.discovery.pins import pin_of
from mooring.trust.sharedkeys.keyset import CROSS_SIGNED, DISTRUSTED
from mooring.trust.sharedkeys.keyset import RETIRED as RETIRED_FILE

# Follows the files of the cluster's CA, and renews what depends on them: the serving pair, the kubeconfigs, published bundles.
#
# Rules kept here: the serving certificate and those of the kubeconfigs are also renewed while a server runs for months, when a
# third of their life is left (`keystore.RENEW_LEFT`), and when the clock was set back to before their begin. A failed look is
# logged and repeated.

log = logging.getLogger("mooring.controlplane")

LOOK = timedelta(hours=12)
"""Between two looks at the ends of the certificates, which are renewed months before."""


class CaRenewal:
    """Brings the CA of the data directory into force in one server."""

    def __init__(
        self,
        config: ServerConfig,
        key_store: KeyStore,
        serving: ServingPair,
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._config = config
        self._key_store = key_store
        self._serving = serving
        self._clock = clock
        self._entropy = entropy

    def follow(self, reloading: Reloading) -> None:
        """Bring each later change of the files into force, unless the CA is in memory only."""
        if self._key_store.pki is not None:
            reloading.follow_files(ca_files(self._key_store.pki), self.prepare)

    def prepare(self) -> Callable[[], None]:
        """Read the CA, write the files that depend on it, and return the function that brings both into force.

        Raises ConfigError for files that do not belong together.
        """
        renewed = renew(self._config, self._clock.now(), self._entropy)

        def use() -> None:
            self._key_store.ca.replace(renewed.state)
            self._serving.follow_ca(renewed.serving)

        return use

    async def run(self) -> None:
        """Renew the certificates that need it twice a day, and after a jump of the wall clock, until cancelled."""
        while True:
            await wait_until(self._clock, self._clock.now() + LOOK)
            try:
                use = await asyncio.to_thread(self.prepare)
                use()
            except (MooringError, OSError) as error:
                log.error("the certificates of this server could not be renewed: %s", error)


# Rollover of the cluster's CA in the data directory: the phase that the files are in, and each step from one phase to the next.
#
# While it lasts, the folder `rollover` of `pki` holds `old.crt`, `old.key`, `new.crt`, `new.key`.
#
#     phase       ca.crt      ca.key   the server
#     Prepared    old         old      has the new CA, and publishes nothing of it
#     TrustBoth   old, new    old      publishes both; its chain holds the old CA certified by the new one, for a week and its names
#     IssueNew    old, new    new      issues from the new CA; its chain holds the new CA certified by the old one
#     Drain       new, old    new      names the new CA first, so that agents renew
#     Retired     new         new      keeps the old certificate in retired-ca.crt; `rollover/` is removed next
#
# Rules kept here:
# * The phase is read from `ca.crt` and `ca.key`, which are each replaced at once. Every step writes its files in an order in
#   which the state after each write is one of this table. So a server may be killed between any two writes, and the next start
#   continues.
# * A step that is repeated changes nothing. Steps run under the lock of the data directory.
# * A CA that is trusted no more is remembered, and its key makes every path unusable. `retired-ca.crt` has those that were
#   replaced, `distrusted-ca.crt` those that were given up or stolen. With a stolen key neither CA of a rollover vouches for the
#   other.
# * The key of the old CA is removed after the retirement, the key of the new one after an abort. A copy in a backup is not
#   reached.
# * A `new.key` and `new.crt` that an administrator placed beforehand are used. Further certificates in `ca.crt` stay.

FOLDER = "rollover"
Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class _Pair:
    old: Authority
    new: Authority


class RolloverFiles:
    """The files of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._root = data_dir
        self._pki = data_dir / "pki"
        self._folder = self._pki / FOLDER

    def certificate(self, name: str) -> Path:
        """Return the file of the old or the new CA."""
        return self._folder / f"{name}.crt"

    def read(self) -> RolloverOnDisk:
        """Return the phase that the files are in. Raises ConfigError."""
        ca, pair = read_ca(self._pki), self._pair()
        issuing = str(pin_of(ca.authority.certificate))
        if self._is_being_removed():
            old = load(self._folder / "old.crt", certificates)[0]
            return RolloverOnDisk(CLEANING if old == ca.authority.certificate else RETIRED, issuing)
        if pair is None:
            return RolloverOnDisk(ABSENT, issuing)
        is_bridged = len(_unbridged(ca, pair)) < len(ca.cross_signed)
        return RolloverOnDisk(_phase(ca, pair), issuing, _named(pair.old), _named(pair.new), is_bridged)

    def apply(self, step: RolloverStep, now: datetime, entropy: Entropy, *, compromised: bool = False) -> None:
        """Take a step from the phase that the files are in. A step that does not lead on from there changes nothing."""
        with exclusive(self._root):
            if step is RolloverStep.PREPARE:
                self._prepare(now, entropy, compromised)
                return
            ca, pair = read_ca(self._pki), self._pair()
            if compromised and pair is not None:
                # Before the step: with a key in other hands, neither CA may vouch for the other in any later state.
                self._drop_bridges(ca, pair)
                ca = read_ca(self._pki)
            if step is RolloverStep.CLEAN:
                self._clean(ca, pair)
            elif pair is not None:
                self._move(step, ca, pair, compromised)

    def _move(self, step: RolloverStep, ca: CaState, pair: _Pair, compromised: bool) -> None:
        phase, old, new = _phase(ca, pair), pair.old.certificate, pair.new.certificate
        others = tuple(one for one in ca.trusted if one not in (old, new))
        if step is RolloverStep.PUBLISH and phase == PREPARED:
            self._write_bundle(old, new, *others)
        elif step is RolloverStep.ISSUE and phase == TRUST_BOTH:
            self._copy_key("new.key")
        elif step is RolloverStep.DRAIN and phase == ISSUE_NEW:
            self._write_bundle(new, old, *others)
        elif step is RolloverStep.RETIRE and phase == DRAIN:
            if compromised:
                # Before the bundle loses it: a CA that is in neither file would be forgotten.
                self._distrust(ca, old)
            else:
                kept = (one for one in ca.distrusted if one not in ca.compromised)
                self._write(RETIRED_FILE, certificates_pem(dict.fromkeys((old, *kept))))
            self._write_bundle(new, *others)
        elif step is RolloverStep.REVERT and phase in (ISSUE_NEW, DRAIN):
            # The bundle first: after a kill in between, the phase is IssueNew, which a repeated step leads on from.
            self._write_bundle(old, new, *others)
            self._copy_key("old.key")
        elif step is RolloverStep.WITHDRAW and phase == TRUST_BOTH:
            # Before the bundle, as above.
            self._distrust(ca, new)
            self._write_bundle(old, *others)

    def _distrust(self, ca: CaState, *gone: Certificate) -> None:
        """Remember CAs whose keys make every path unusable once they are trusted no more."""
        self._write(DISTRUSTED, certificates_pem(dict.fromkeys((*ca.compromised, *gone))))

    def _drop_bridges(self, ca: CaState, pair: _Pair) -> None:
        """Remove the certificates by which one CA of the pair vouches for the other: one of both keys is in other hands."""
        self._write_cross_signed(ca, _unbridged(ca, pair))

    def _write_cross_signed(self, ca: CaState, kept: Sequence[Certificate]) -> None:
        if tuple(kept) != ca.cross_signed:
            self._write_others(CROSS_SIGNED, kept)

    def _write_others(self, name: str, found: Sequence[Certificate]) -> None:
        """Write a file that exists while there is something in it."""
        if found:
            self._write(name, certificates_pem(found))
        else:
            self._remove(self._pki / name)

    def _prepare(self, now: datetime, entropy: Entropy, compromised: bool) -> None:
        """Make what is missing of the new CA, in an order in which each file needs only those before it.

        The files of the old CA come last: with them the preparation is complete.
        """
        ca = read_ca(self._pki)
        make_directory(self._folder)
        if not (self._folder / "new.key").exists():
            # The key before its certificate: a preparation that was interrupted goes on with it.
            self._write(f"{FOLDER}/new.key", private_key_pem(generate_key()))
        key = load(self._folder / "new.key", load_private_key)
        if not (self._folder / "new.crt").exists():
            self._write(f"{FOLDER}/new.crt", successor(key, now, entropy).certificate_pem)
        new = _authority(self._folder / "new.crt", self._folder / "new.key").certificate
        old, pair = ca.authority, self._pair()
        if new in ca.trusted or (pair is not None and pair.old.certificate != old.certificate):
            raise ConfigError(f"{self._folder} belongs to another rollover; move it away, then it is made again")
        if ca.compromised:
            # Without the CA of an aborted rollover that an administrator placed again, and with what the file written next
            # may tell.
            others = [one for one in ca.compromised if one.public_key() != new.public_key()]
            self._write_others(DISTRUSTED, others)
        if not compromised and find_cross_signed(ca.cross_signed, new, old.certificate) is None:
            bridges = (cross_sign(new, old, now, entropy), *ca.cross_signed)
            self._write(CROSS_SIGNED, certificates_pem(bridges[:MAX_CROSS_SIGNED]))
        if pair is None:
            # The key first: `old.crt` alone would mean a removal that began.
            self._write(f"{FOLDER}/old.key", read_limited(self._pki / "ca.key"))
            self._write(f"{FOLDER}/old.crt", certificates_pem([old.certificate]))

    def _clean(self, ca: CaState, pair: _Pair | None) -> None:
        """Remove the key of the CA that does not issue, and end the rollover."""
        if pair is not None:
            left = pair.new if ca.authority.certificate == pair.old.certificate else pair.old
            # The CA that does not issue is still trusted: the rollover has not ended.
            if left.certificate in ca.trusted:
                return
        elif not self._is_being_removed():
            return
        # First: `old.crt` without it marks the removal, so that a killed process goes on with it.
        self._remove(self._folder / "old.key")
        if (self._folder / "new.crt").exists():
            # While `old.crt` and `new.crt` are there, whose names it needs.
            self._prune_cross_signed(ca)
        for name in ("new.key", "new.crt", "old.crt"):
            self._remove(self._folder / name)
        # An administrator keeps something in it.
        with suppress(OSError):
            self._folder.rmdir()

    def _prune_cross_signed(self, ca: CaState) -> None:
        """Keep what leads from the CA that issues to those that machines may still trust."""
        old, new = (load(self._folder / name, certificates)[0].subject for name in ("old.crt", "new.crt"))
        if ca.authority.certificate.subject == old:
            kept = [one for one in ca.cross_signed if new not in (one.subject, one.issuer)]
        else:
            kept = [one for one in ca.cross_signed if (one.subject, one.issuer) != (old, new)]
        self._write_cross_signed(ca, kept)

    def _pair(self) -> _Pair | None:
        """Return both CAs; None when one of the four files is missing."""
        paths = [self._folder / name for name in ("old.crt", "old.key", "new.crt", "new.key")]
        if not all(path.exists() for path in paths):
            return None
        return _Pair(_authority(*paths[:2]), _authority(*paths[2:]))

    def _is_being_removed(self) -> bool:
        return (self._folder / "old.crt").exists() and not (self._folder / "old.key").exists()

    def _write_bundle(self, *bundle: Certificate) -> None:
        self._write("ca.crt", certificates_pem(bundle))

    def _copy_key(self, name: str) -> None:
        self._write("ca.key", read_limited(self._folder / name))

    def _write(self, name: str, data: bytes) -> None:
        write_atomic(self._pki / name, data)

    def _remove(self, path: Path) -> None:
        """Remove a file, durably."""
        path.unlink(missing_ok=True)
        # A key that is removed must not come back after a power failure.
        sync_directory(path.parent)


def _authority(certificate: Path, key: Path) -> Authority:
    """Load a CA. Raises ConfigError."""
    private_key = load(key, load_private_key)
    return load(certificate, lambda data: Authority(certificates(data)[0], private_key))


def _phase(ca: CaState, pair: _Pair) -> str:
    """Return the phase of the table above. Raises ConfigError for a CA that belongs to neither side of the rollover."""
    issuing, trusted = ca.authority.certificate, ca.trusted
    old, new = pair.old.certificate, pair.new.certificate
    if issuing == old:
        return TRUST_BOTH if new in trusted else PREPARED
    if issuing != new:
        raise ConfigError(
            "pki/rollover belongs to another CA than pki/ca.crt; restore ca.crt and ca.key, or move it away"
        )
    if old not in trusted:
        return RETIRED
    return DRAIN if trusted.index(new) < trusted.index(old) else ISSUE_NEW


def _unbridged(ca: CaState, pair: _Pair) -> list[Certificate]:
    """Return the cross-signed certificates without those between the CAs of a pair."""
    names = {pair.old.certificate.subject, pair.new.certificate.subject}
    return [one for one in ca.cross_signed if {one.subject, one.issuer} != names]


def _named(authority: Authority) -> carollover.ReportedCa:
    certificate = authority.certificate
    return carollover.ReportedCa(str(pin_of(certificate)), printable(certificate.subject), authority.not_after)
