"""Authorities by the name of their signer, from files that are followed, and the file of the signing policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mooring.client.files import read_limited
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy, parse_policy
from mooring.controlplane.datadirectory import Reloading, warn_if_exposed
from mooring.controlplane.tokenkey import open_key
from mooring.duration import format_duration
from mooring.errors import ConfigError, MooringError
from mooring.observed import Observed
from mooring.pki.errors import PkiError
from mooring.pki.keys import load_private_key
from mooring.pki.x509.authority import Authority
from mooring.pki.x509.bundles import certificates_among, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CaState
from mooring.pki.x509.signers import CLIENT_SIGNERS, COUNTERPARTS, SIGNERS
from mooring.settings.signing import SHORT, SigningFiles, SigningSettings

# Follows the file of the signing policy.

KEY = "cluster-signing-policy-file"


class FollowedPolicy(Observed[[]]):
    """The signing policy of one program. A file that cannot be used leaves the last good policy in force."""

    def __init__(self, path: str, reloading: Reloading) -> None:
        """Raises ConfigError for a file that cannot be used. Without a path there are no rules."""
        super().__init__()
        self._path = path
        self._policy = NO_POLICY
        if not path:
            return
        try:
            data = reloading.follow_prepared(path, self._prepare)
        except ConfigError as error:
            raise ConfigError(f"{KEY}: {error}") from None
        reloading.warn_if_exposed(path)
        self._policy = parse_policy(data, f"{KEY}: {path}")

    def current(self) -> SigningPolicy:
        """Return the policy in force."""
        return self._policy

    def _prepare(self, data: bytes) -> Callable[[], None]:
        policy = parse_policy(data, f"{KEY}: {self._path}")

        def use() -> None:
            self._policy = policy
            self.notify()

        return use


# Authorities by the name of their signer: from files that are followed, else the default of the program.
#
# Rules kept here (docs/choose-the-signers.md):
# * A certificate signs with its key only. Of the two files one is replaced first: until the other follows, the last good pair
#   signs, and the log says so. The new pair is checked whole, in a thread, before it comes into force.
# * A file may hold several CA certificates. The first one that belongs to the key signs, and all of them are trusted: the next or
#   the last CA stands there during a change.
# * Pairs that several signers share are read once.
# * A key in a token is opened at start. Its certificate file is followed like others.

log = logging.getLogger("mooring.controlplane")


class SignerAuthorities(Observed[[]]):
    """Authorities of the signers of one program. Read them at each use."""

    def __init__(
        self,
        settings: SigningSettings,
        default: Callable[[str], Authority | None],
        reloading: Reloading,
    ) -> None:
        """`default` returns the authority of a signer without files.

        Raises ConfigError for files or tokens that cannot be used.
        """
        self._default = default
        super().__init__()
        if settings.cluster_signing_duration < SHORT:
            log.warning(
                "cluster-signing-duration: certificates of %s make every machine renew without a rest, kubelets each second below "
                "about two minutes; give at least %s, except for a trial",
                format_duration(settings.cluster_signing_duration), format_duration(SHORT),
            )  # fmt: skip
        pairs: dict[SigningFiles, _Pair] = {}
        self._pairs: dict[str, _Pair] = {}
        for name, files in settings.files.items():
            if files not in pairs:
                pairs[files] = _Pair(files, reloading, self.notify)
            self._pairs[name] = pairs[files]

    def authority_for(self, signer_name: str) -> Authority | None:
        """Return the authority that signs for a signer now; None when this program does not sign for it."""
        pair = self._pair_of(signer_name)
        return pair.state.authority if pair is not None else self._default(signer_name)

    def chain_for(self, signer_name: str) -> tuple[Certificate, ...]:
        """Return the CA that signs for a signer now and the other CAs beside it in its file; none for the default CA."""
        pair = self._pair_of(signer_name)
        if pair is None:
            return ()
        first = pair.state.authority.certificate
        return (first, *(one for one in pair.state.trusted if one != first))

    def _pair_of(self, signer_name: str) -> _Pair | None:
        """Return the files of a signer. Those of the supervisor have the CA of their counterpart in Kubernetes."""
        return self._pairs.get(signer_name) or self._pairs.get(COUNTERPARTS.get(signer_name, ""))

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The CAs of files and tokens that sign now."""
        return tuple({pair.files: pair.state.authority.certificate for pair in self._pairs.values()}.values())

    def client_cas(self) -> Mapping[str, CaState]:
        """Return the CAs of signers of client certificates, by the setting that names the file."""
        pairs = (self._pairs[name] for name in CLIENT_SIGNERS if name in self._pairs)
        return {pair.files.certificate_key: pair.state for pair in pairs}

    def warn_of_client_cas(self, clients: Iterable[Certificate]) -> None:
        """Log a warning for each signer of the operator's own whose certificates this server would accept from clients."""
        # Also of a CA whose key cannot be read.
        keys = {key_identities(one)[0] for one in clients}
        for name, pair in self._pairs.items():
            if name not in SIGNERS and key_identities(pair.state.authority.certificate)[0] in keys:
                log.warning(
                    "signer: the CA of %s also verifies clients of this server: who may approve requests for %s can become any "
                    "user, cluster administrators among them; give it a CA of its own",
                    name, name,
                )  # fmt: skip


class _Pair:
    """Follows the certificate and the key of one CA. `state` is in force."""

    def __init__(self, files: SigningFiles, reloading: Reloading, changed: Callable[[], None]) -> None:
        self.files = files
        self._changed = changed
        followed = [Path(files.certificate)] if files.in_token else [Path(files.certificate), Path(files.key)]
        reloading.follow_files(followed, self._prepare)
        self.state = read_state(files)

    def _prepare(self) -> Callable[[], None]:
        """Read the pair, and return the function that puts it into force. Raises ConfigError."""
        state = read_state(self.files)

        def use() -> None:
            self.state = state
            self._changed()

        return use


def read_state(files: SigningFiles) -> CaState:
    """Read a pair, or open the token of its key. Raises ConfigError that begins with the setting."""
    bundle_pem = _read(files.certificate_key, files.certificate)
    key_pem = b"" if files.in_token else _read(files.key_key, files.key)
    try:
        bundle = certificates_among(bundle_pem)
    except PkiError as error:
        raise ConfigError(f"{files.certificate_key}: {files.certificate}: {error}") from None
    try:
        key = open_key(files.key, bundle) if files.in_token else load_private_key(key_pem)
    except MooringError as error:
        place = "" if files.in_token else f"{files.key}: "
        raise ConfigError(f"{files.key_key}: {place}{error}") from None
    try:
        return CaState.of_files(bundle, key)
    except PkiError as error:
        raise ConfigError(f"{files.certificate_key}: {files.certificate}: {error}") from None


def _read(setting: str, path: str) -> bytes:
    try:
        data = read_limited(Path(path))
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None
    if setting.endswith("-key-file"):
        warn_if_exposed(Path(path))
    return data
