"""Dry run of a start: read every file that a server would read, and start, change and leave nothing.

Rules kept here:
* The parts of the server itself read the files, so that a configuration which passes here passes at a start.
* Keys that a first start would create are created in a temporary directory.
* No connection is opened: a webhook or an issuer that does not answer is noticed when the server runs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.datadirectory import Reloading, read_ca, refuse_exposed
from mooring.controlplane.keystore import KeyStore, prepare
from mooring.controlplane.notifier import notifier_of
from mooring.controlplane.parts.foundation import check_names
from mooring.controlplane.parts.trust import Authentication
from mooring.controlplane.servingcertificate import ServingPair
from mooring.controlplane.sharedkeys.tokenfile import ServerTokenFile
from mooring.controlplane.signingkeys import FollowedPolicy, SignerAuthorities
from mooring.errors import ConfigError
from mooring.pki.x509.clusterca import ClusterCa, CombinedIssuers
from mooring.server.audit.auditevent import read_policy
from mooring.settings.serving import AuditSettings, ServingSettings
from mooring.settings.signing import SigningSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.notices import NoticeSettings


def dry_run(config: ServerConfig, clock: Clock, entropy: Callable[[int], bytes]) -> tuple[tuple[str, str], ...]:
    """Return the authenticators of a server with this configuration, in order, each with the setting that turns it on.

    Raises MooringError for a setting or a file that cannot be used.
    """
    check_names(config, clock)
    read_policy(config[AuditSettings].audit_policy_file)
    ServerTokenFile(config).given()
    with tempfile.TemporaryDirectory(prefix="mooring-check-") as directory:
        without_ca = config.with_settings(
            replace(config[StorageSettings], data_dir=directory), replace(config[ServingSettings], root_ca_file="")
        )
        # root-ca-file is checked below, where the CA of the data directory is known.
        key_store = prepare(without_ca, clock.now(), entropy).key_store
        key_store = _with_existing_authority(key_store, Path(config.data_dir))
        return asyncio.run(_read_files(config, key_store, clock, entropy))


def _with_existing_authority(key_store: KeyStore, data_dir: Path) -> KeyStore:
    """Return `key_store` with the CA of the data directory, if this user may read it.

    Raises ConfigError for a CA that cannot be used, or that other users may read.
    """
    if (data_dir / "pki").is_dir():
        # The data directory of another user.
        with suppress(OSError):
            refuse_exposed(data_dir / "pki")
    try:
        for name in ("ca.crt", "ca.key"):
            read_limited(data_dir / "pki" / name)
    except ConfigError:
        return key_store
    try:
        return replace(key_store, ca=ClusterCa(read_ca(data_dir / "pki")))
    except ConfigError as error:
        raise ConfigError(f"data-dir: the CA in {data_dir}/pki cannot be used: {error}") from None


async def _read_files(
    config: ServerConfig, key_store: KeyStore, clock: Clock, entropy: Callable[[int], bytes]
) -> tuple[tuple[str, str], ...]:
    """Build the parts that read files, and return the authenticators, each with the setting that turns it on."""
    reloading = Reloading()
    signing = SignerAuthorities(config[SigningSettings], key_store.ca.for_signer, reloading)
    FollowedPolicy(config[SigningSettings].cluster_signing_policy_file, reloading)
    authentication = Authentication(
        config,
        key_store,
        clock,
        entropy,
        reloading=reloading,
        issuers=CombinedIssuers(key_store.ca, signing.client_cas),
        client_cas_changed=lambda: None,
        credentials_changed=lambda: None,
        count_review=lambda result: None,
    )
    try:
        notifier_of(config[NoticeSettings], "", reloading, clock)
        signing.warn_of_client_cas(authentication.client_cas.clients)
        authority = key_store.ca.authority.certificate
        chain = key_store.serving_chain if config[ServingSettings].tls_cert_file else (authority,)
        ServingPair(
            config[ServingSettings],
            (chain, key_store.serving_key),
            key_store.ca,
            authentication.reloading,
            clock.now,
            changed=lambda: None,
            endpoints=config.endpoints,
        )
        return tuple(
            (authenticator.name, running.turned_on_by)
            for running in authentication.running
            for authenticator in running.authenticators
        )
    finally:
        await authentication.close()
