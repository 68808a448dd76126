"""Start of a server: first the keys that it shares with others, then those of its own.

Rules kept here: the store is opened for it and closed again, before anything serves. No key is made before the store was read: it
may have a cluster whose keys are missing here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from mooring import queuedoutput
from mooring.authn.x509 import ClientCertificateSettings
from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.errors import ConfigError, MooringError
from mooring.plane.configuration import ServerConfig
from mooring.plane.encryption import EncryptionAtRest
from mooring.plane.keys.keystore import Prepared, exclusive, make_shared_keys, prepare
from mooring.plane.sharedkeys.jointokens import JoinTokenFiles
from mooring.plane.sharedkeys.share import SharedKeys, shares_keys
from mooring.plane.sharedkeys.storedcluster import stored_cluster
from mooring.plane.sharedkeys.tokenfile import ServerTokenFile
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage.copying import refuse_incomplete
from mooring.storage.etcd.keyspace import name_in_engine
from mooring.storage.formatlevel import refuse_unsupported
from mooring.storage.table import open_storage
from mooring.trust.discovery.pins import pins_of
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.sharedkeys.keyset import NAMES
from mooring.trust.sharedkeys.reconciliation import StoredCluster
from mooring.trust.sharedkeys.servertoken import MIN_SECRET, generate_token, is_short
from mooring.trust.sharedkeys.settings import SharedKeysSettings

log = logging.getLogger("mooring.plane")

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
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)  # else a signal to the group is counted twice, by the caller and for the child
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        code = _run_in_child(work, writer)
        queuedoutput.drain()
        os._exit(code)
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    os.close(writer)
    work.close()
    with os.fdopen(reader, "rb") as pipe:
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
        await refuse_incomplete(storage)
        await refuse_unsupported(storage)
        keys = SharedKeys(config, storage, entropy, clock, stored, client_cas)
        take_part = keys.settle if shares_keys(config) else keys.keep
        await take_part(make_missing, new_keys=new_keys)
    finally:
        await storage.close()
