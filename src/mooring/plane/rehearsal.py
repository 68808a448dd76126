"""Whether a configuration would work: everything that a start reads is read, and nothing is started, changed or left behind.

Rules kept here: the composition of the server itself reads the files, so that what passes here passes there. Keys that a first
start would make are made in a directory of their own and forgotten. Nobody is asked over the network: whether a webhook or an
issuer answers is seen when it runs.
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
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import load_private_key
from mooring.pki.pem import certificates
from mooring.pki.x509.authority import Authority
from mooring.plane.authentication import Authentication
from mooring.plane.configuration import ServerConfig
from mooring.plane.exposed import refuse_exposed
from mooring.plane.keystore import KeyStore, prepare
from mooring.plane.registry import check_names
from mooring.plane.serving.pair import ServingPair
from mooring.server.audit.policyfile import read_policy
from mooring.settings.audit import AuditSettings
from mooring.settings.serving import ServingSettings
from mooring.settings.storage import StorageSettings


def rehearse(config: ServerConfig, clock: Clock, entropy: Callable[[int], bytes]) -> tuple[str, ...]:
    """The names of the authenticators that would judge, in order. Raises ConfigError and others that name what is wrong."""
    check_names(config, clock)
    read_policy(config[AuditSettings].audit_policy_file)
    with tempfile.TemporaryDirectory(prefix="mooring-check-") as directory:
        without_ca = config.with_settings(
            replace(config[StorageSettings], data_dir=directory), replace(config[ServingSettings], root_ca_file="")
        )
        # what verifies the serving certificate is looked at below, where the real CA is known
        key_store = prepare(without_ca, clock.now(), entropy).key_store
        key_store = _with_the_real_authority(key_store, Path(config.data_dir))
        return asyncio.run(_composed(config, key_store, clock, entropy))


def _with_the_real_authority(key_store: KeyStore, data_dir: Path) -> KeyStore:
    """Return `key_store` with the CA that is there, if this user may read it. Raises ConfigError for one that others may read."""
    if (data_dir / "pki").is_dir():
        with suppress(OSError):  # another user's data directory
            refuse_exposed(data_dir / "pki")
    try:
        chain, key = (read_limited(data_dir / "pki" / name) for name in ("ca.crt", "ca.key"))
    except ConfigError:
        return key_store
    try:
        return replace(key_store, authority=Authority(certificates(chain)[0], load_private_key(key)))
    except MooringError as error:
        raise ConfigError(f"data-dir: the CA in {data_dir}/pki cannot be used: {error}") from None


async def _composed(
    config: ServerConfig, key_store: KeyStore, clock: Clock, entropy: Callable[[int], bytes]
) -> tuple[str, ...]:
    authentication = Authentication(
        config, key_store, clock, entropy, client_cas_changed=lambda: None, count_review=lambda result: None
    )
    try:
        authority = key_store.authority.certificate
        chain = key_store.serving_chain if config[ServingSettings].tls_cert_file else (authority,)
        ServingPair(
            config[ServingSettings],
            (chain, key_store.serving_key),
            authority,
            authentication.reloading,
            clock.now,
            changed=lambda: None,
        )
        return tuple(one.name for one in authentication.authenticators)
    finally:
        await authentication.close()
