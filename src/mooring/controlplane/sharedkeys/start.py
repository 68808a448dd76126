"""Start of a server: first the keys that it shares with others, also in a store that has none, then those of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mooring import queuedoutput
from mooring.api.kinds import BY_PLURAL
from mooring.authn import clientcas
from mooring.authn.x509 import ClientCertificateSettings
from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.controllers.certificates import publishing
from mooring.controlplane.configuration import ServerConfig
from mooring.controlplane.encryption import EncryptionAtRest
from mooring.controlplane.keystore import Prepared, exclusive, make_shared_keys, prepare
from mooring.controlplane.sharedkeys.share import SharedKeys, shares_keys
from mooring.controlplane.sharedkeys.tokenfile import JoinTokenFiles, ServerTokenFile
from mooring.errors import ConfigError, MooringError
from mooring.registry.cache.events import normalize
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage.contract import Storage
from mooring.storage.copying import refuse_incomplete
from mooring.storage.drivers import open_storage
from mooring.storage.etcd.keyspace import name_in_engine
from mooring.storage.formatlevel import refuse_unsupported
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY
from mooring.trust.discovery.pins import pins_of
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.kubeconfig import client_cas
from mooring.trust.kubeconfigtext import parse_kubeconfig
from mooring.trust.sharedkeys.keyset import NAMES
from mooring.trust.sharedkeys.reconciliation import StoredCluster
from mooring.trust.sharedkeys.servertoken import MIN_SECRET, SharedKeysSettings, generate_token, is_short

# The cluster in a store that has no row of its keys: kube-apiserver filled it, or an earlier version.
#
# Rules kept here:
# * A store has a cluster when it has the namespace kube-system, which every first boot creates before it serves.
# * Its CAs are those that the ConfigMaps for clients name. One of them in common is enough: flags may have chosen the others.
# * A value that cannot be read is an error. A wrong CA would be adopted otherwise.

KUBE_SYSTEM = "kube-system"
NAMED_IN = (
    (clientcas.NAMESPACE, clientcas.NAME, "client-ca-file"),
    (KUBE_SYSTEM, publishing.NAME, "ca.crt"),
    (clusterinfo.NAMESPACE, clusterinfo.NAME, KUBECONFIG_KEY),
)
"""Namespace, name and key of the ConfigMaps that name CAs of a cluster."""


async def stored_cluster(storage: Storage) -> StoredCluster | None:
    """Return the cluster in a store; None when it has none. Raises StorageError, ConfigError for a CA that cannot be read."""
    if await storage.get(BY_PLURAL["namespaces"].key("", KUBE_SYSTEM)) is None:
        return None
    kind = BY_PLURAL["configmaps"]
    pins: list[str] = []
    for namespace, name, field in NAMED_IN:
        entry = await storage.get(kind.key(namespace, name))
        if entry is None:
            continue
        value, _ = normalize(kind, entry.value)
        text = str((json.loads(value).get("data") or {}).get(field, ""))
        try:
            for bundle in _bundles(field, text):
                pins += map(str, pins_of(bundle))
        except MooringError as error:
            raise ConfigError(
                f"the ConfigMap {namespace}/{name} in the store names no CA that can be read ({error}): the keys of this server "
                "cannot be compared with it"
            ) from None
    return StoredCluster(tuple(dict.fromkeys(pins)))


def _bundles(field: str, text: str) -> Iterator[bytes]:
    """Yield the PEM bundles in the value of a ConfigMap."""
    if not text:
        return
    if field != KUBECONFIG_KEY:
        yield text.encode()
        return
    for cluster in parse_kubeconfig(text.encode()).clusters:
        yield from filter(None, (cluster.ca_pem, client_cas(cluster)))


# Start of a server: first the keys that it shares with others, then those of its own.
#
# Rules kept here: the store is opened for it and closed again, before anything serves. No key is made before the store was read:
# it may have a cluster whose keys are missing here.

log = logging.getLogger("mooring.controlplane")

MAX_MESSAGE = 65536
"""Bytes of the error of a child: what a pipe holds on Linux, so that the child need not wait for a reader."""
Run = Callable[[Coroutine[Any, Any, None]], None]


def prepare_keys(
    config: ServerConfig,
    clock: Clock,
    entropy: Callable[[int], bytes],
    run: Run = asyncio.run,
    *,
    new_keys: bool = False,
) -> Prepared:
    """Take part in the keys of the cluster, then load or create what is this server's own. Raises MooringError.

    `run` runs the coroutine that opens the store. `new_keys`: a person asked for new keys in place of missing ones.
    """
    pki = Path(config.data_dir) / "pki"
    missing = [pki / name for name in NAMES if not (pki / name).exists()]
    if not config[StorageSettings].in_memory:
        run(_settle(config, clock, entropy, new_keys=new_keys))
        if config[K3sSettings].k3s_supervisor and not shares_keys(config):
            _make_token(config, entropy)
    _warn_of_short_tokens(config)
    # Before `prepare`, which names what it creates itself.
    made = tuple(str(path) for path in missing if path.exists())
    prepared = prepare(config, clock.now(), entropy)
    if config[K3sSettings].k3s_supervisor and not config[StorageSettings].in_memory:
        JoinTokenFiles(config).write(prepared.key_store.serving_ca_pem)
    return replace(prepared, created=(*made, *prepared.created))


def _warn_of_short_tokens(config: ServerConfig) -> None:
    """Warn of tokens that only `--allow-short-server-token` accepts. Raises ConfigError."""
    settings, k3s = config[SharedKeysSettings], config[K3sSettings]
    if not settings.allow_short_server_token:
        return
    file = ServerTokenFile(config)
    server = file.given() or (None if config[StorageSettings].in_memory else file.kept())
    agent = JoinTokenFiles(config).agent_token() if k3s.k3s_supervisor else None
    for what, token in (("server token", server), ("agent token", agent)):
        if token is not None and is_short(token):
            log.warning(
                "the %s has fewer than %d characters and can be guessed; replace it (mooring token rotate, or another "
                "--agent-token-file), and leave --allow-short-server-token out",
                what,
                MIN_SECRET,
            )


def _make_token(config: ServerConfig, entropy: Callable[[int], bytes]) -> None:
    """Keep the server token of a server whose keys an operator copies; make one when there is none."""
    token = ServerTokenFile(config)
    with exclusive(Path(config.data_dir)):
        token.keep(token.given() or token.kept() or generate_token(entropy))


def in_child(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a process of its own, for a caller that must neither have threads nor open a store.

    Raises ConfigError with the message of a MooringError in it.
    """
    reader, writer = os.pipe()
    # Until the child has dropped the parent's wakeup descriptor: else it reports its signals to the parent.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        # Else a signal to the group is counted twice, by the caller and for the child.
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        code = _run_in_child(work, writer)
        # `os._exit` runs nothing: lines that wait would be lost.
        queuedoutput.drain()
        os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    # Else the pipe has no end, because this process could write.
    os.close(writer)
    # The child runs it. Here it would be a coroutine that was never awaited.
    work.close()
    with os.fdopen(reader, "rb") as pipe:
        # Read to its end before the child is waited for: a child with a full pipe would never end.
        problem = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise ConfigError(
            problem.decode("utf-8", "replace") or "the process that reads the shared keys failed; see the log above"
        )


def _run_in_child(work: Coroutine[Any, Any, None], writer: int) -> int:
    """Run a coroutine, write the message of its error, and return the exit status."""
    try:
        asyncio.run(work)
    except MooringError as error:
        os.write(writer, str(error).encode("utf-8", "replace")[:MAX_MESSAGE])
        return 1
    except BaseException:
        log.exception("the shared keys could not be read")
        return 1
    return 0


async def _settle(config: ServerConfig, clock: Clock, entropy: Callable[[int], bytes], *, new_keys: bool) -> None:
    def make_missing(root: Path) -> None:
        make_shared_keys(config, root, clock.now(), entropy)

    async def stored() -> StoredCluster | None:
        settings, context = config[EncryptionSettings], name_in_engine(config[StorageSettings])
        return await stored_cluster(EncryptionAtRest(settings, storage, clock, entropy, context).storage)

    def client_cas() -> tuple[str, ...]:
        file = config[ClientCertificateSettings].client_ca_file
        return tuple(map(str, pins_of(read_limited(Path(file))))) if file else ()

    storage = open_storage(config[StorageSettings].storage_url, clock, settings=config[StorageSettings])
    await storage.open()
    try:
        # Both before any key is read or made: such a store must not be claimed.
        await refuse_incomplete(storage)
        await refuse_unsupported(storage)
        keys = SharedKeys(config, storage, entropy, clock, stored, client_cas)
        take_part = keys.settle if shares_keys(config) else keys.keep
        await take_part(make_missing, new_keys=new_keys)
    finally:
        await storage.close()
