"""`mooring datastore`: move the store, and take over that of k3s."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from mooring.cli.options import flags
from mooring.cli.options.flags import REPORTED, options_of, output_option, usage
from mooring.cli.options.server import ETCD_ACCESS, etcd_options
from mooring.cli.printing import echo, print_document, print_table, progress_bar
from mooring.client.files import make_directory, read_limited, write_atomic
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.controlplane.keystore import exclusive
from mooring.controlplane.sharedkeys.files import SharedKeyFiles
from mooring.controlplane.sharedkeys.tokenfile import MAX_FILE
from mooring.errors import ConfigError, MooringError
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.authority import self_signed_ca, serial_number
from mooring.pki.x509.bundles import certificates
from mooring.reconcile.leaderelection import LEASE_SECONDS
from mooring.secret import Secret
from mooring.settings.storage import StorageSettings
from mooring.storage import drivers
from mooring.storage.contract import KeyExistsError, Storage
from mooring.storage.copying import Copied
from mooring.storage.copying import migrate as move
from mooring.storage.keyspace import count
from mooring.storage.sqlite import kine
from mooring.trust.discovery.pins import pin_of
from mooring.trust.k3s.token import parse_token
from mooring.trust.sharedkeys import servertoken
from mooring.trust.sharedkeys.k3sbootstrapdata import (
    AUTHORITIES,
    FILES,
    PREFIX,
    BootstrapData,
    BootstrapFile,
    bootstrap_files,
    keys_of,
    open_rows,
    seal_row,
)

# `mooring datastore k3s-bootstrap`: read the keys of a k3s cluster from its datastore, and write those of this one into another.
#
# Rules kept here (docs/protocol/k3s.md#bootstrap-data):
# * No key and no token is printed. Files are 0600 and written atomically, keys before certificates.
# * Nothing is overwritten: a file with other content and a datastore with bootstrap data are refused, before anything is written.
#   A command that was interrupted is run again.
# * The token is that with which the row is encrypted. It is read from a file, or from the environment as k3s names it.

T = TypeVar("T")

KEPT = "k3s"
"""Directory in the data directory for the files that Mooring does not use, under k3s's names."""
IPSEC_BYTES = 48
_SQLITE, _ETCD = "sqlite:", "etcd:"


_token_options = options_of(
    click.option(
        "--token", default="", metavar="TOKEN", envvar="K3S_TOKEN", show_envvar=True,
        help="The token itself. Other users of the machine see a command line: prefer the file or the environment.",
    ),
    click.option(
        "--token-file", default="", metavar="FILE",
        help="File with the server token of k3s. [default: server/token beside the SQLite file]",
    ),
)  # fmt: skip
_data_dir = click.option(
    "--data-dir", default="", metavar="DIR", envvar="MOORING_DATA_DIR", show_envvar=True,
    help="Data directory of the Mooring server. [default: /var/lib/mooring as root, else ~/.local/share/mooring]",
)  # fmt: skip


@click.command("show")
@click.argument("source", metavar="SOURCE")
@_token_options
@etcd_options
@output_option(*REPORTED)
def show(source: str, token: str, token_file: str, output: str, **values: Any) -> None:
    """List the files in the bootstrap data of the k3s datastore SOURCE, without their content.

    SOURCE is sqlite:/var/lib/rancher/k3s/server/db/state.db, or etcd:https://10.0.0.1:2379.
    """
    found = _opened(source, token, token_file, values)
    rows = [
        {
            "name": name,
            "bytes": len(one.content.reveal()),
            "changed": rfc3339(one.changed) if one.changed else None,
            "content": _described(name, one),
        }
        for name, one in sorted(found.files.items())
    ]
    if output != "text":
        print_document(
            {"kind": "K3sBootstrapData", "key": found.key, "weakness": found.weakness, "files": rows}, output
        )
        return
    _warn(found)
    headers = ("NAME", "BYTES", "CHANGED", "CONTENT")
    print_table(
        headers,
        [(str(row["name"]), str(row["bytes"]), str(row["changed"] or "-"), str(row["content"])) for row in rows],
    )


@click.command("import")
@click.argument("source", metavar="SOURCE")
@_data_dir
@_token_options
@etcd_options
def import_(source: str, data_dir: str, token: str, token_file: str, **values: Any) -> None:
    """Write the keys of the k3s cluster in SOURCE into a data directory, for `mooring server` to start with.

    The CA of k3s's servers issues from then on, and that of its clients is trusted beside it. Other files go to k3s/ in the data
    directory. Stop k3s first.
    """
    root = flags.data_directory(data_dir)
    _, passphrase = _token(source, token, token_file)
    found = _opened(source, token, token_file, values)
    keys = keys_of(found.files)
    wanted = {root / "pki" / name: one for name, one in keys.files.items()}
    wanted |= {root / KEPT / FILES[name]: one.content for name, one in found.files.items()}
    is_usable = _is_server_token(passphrase)
    if is_usable:
        wanted[root / "server" / "token"] = Secret(passphrase.reveal() + b"\n")
    with exclusive(root):
        for path, content in wanted.items():
            # All are compared before the first is written: nothing is overwritten.
            if path.exists() and read_limited(path) != content.reveal():
                raise ConfigError(
                    f"{path} is there with another content; nothing is overwritten: name a new --data-dir"
                )
        # Keys first: a certificate without its key stops a start.
        for path, content in sorted(wanted.items(), key=lambda item: item[0].suffix != ".key"):
            if not path.exists():
                make_directory(path.parent)
                write_atomic(path, content.reveal())
    _warn(found)
    echo(
        f"The keys of the k3s cluster were written to {root}: start the server with --data-dir {root} --k3s-supervisor"
    )
    if not is_usable:
        echo(
            f"The token has less than {servertoken.MIN_SECRET} characters and was not taken: the server makes one, unless it "
            "is started with --server-token-file and --allow-short-server-token.",
            err=True,
        )


@click.command("export")
@click.argument("target", metavar="TARGET")
@_data_dir
@_token_options
@etcd_options
def export(target: str, data_dir: str, token: str, token_file: str, **values: Any) -> None:
    """Write the keys of a data directory as bootstrap data into the k3s datastore TARGET, which has none.

    TARGET is named as SOURCE of `import`; a SQLite file that is missing is made. k3s then starts with these keys and this token.
    CAs that only k3s has are made, unless an import kept them.
    """
    root = flags.data_directory(data_dir)
    _, passphrase = _token(target, token, token_file)
    clock = SystemClock()
    with exclusive(root):
        # Under the lock: a server that runs may replace its CA.
        keys = SharedKeyFiles(root).key_set()
        kept = {name: BootstrapFile(Secret(read_limited(path))) for name, path in _kept(root).items()}
    files = _completed(bootstrap_files(keys, kept), clock.now())
    key, value = seal_row(files, passphrase, secrets.token_bytes)
    if target.startswith(_SQLITE):
        kine.create_key(Path(target.removeprefix(_SQLITE)), key, value, refused=PREFIX)
    else:
        _in_etcd(target, values, clock, lambda storage: _create(storage, target, key, value))
    echo(f"The bootstrap data was written to {target} under {key}: start k3s with the same token.")


def _completed(files: Mapping[str, BootstrapFile], now: datetime) -> Mapping[str, BootstrapFile]:
    """Return the files with the CAs that only k3s has, and the time of now."""
    made = dict(files)
    for name in AUTHORITIES:
        if not {name, f"{name}Key"} <= made.keys():
            key = generate_key()
            authority = self_signed_ca(
                key, f"k3s-{name}@{int(now.timestamp())}", now, serial_number(secrets.token_bytes)
            )
            made[name] = BootstrapFile(Secret(authority.certificate_pem))
            made[f"{name}Key"] = BootstrapFile(Secret(private_key_pem(key)))
    made.setdefault("IPSECKey", BootstrapFile(Secret(secrets.token_hex(IPSEC_BYTES) + "\n")))
    return {name: BootstrapFile(one.content, now) for name, one in made.items()}


def _kept(root: Path) -> Mapping[str, Path]:
    found = {name: root / KEPT / path for name, path in FILES.items()}
    return {name: path for name, path in found.items() if path.exists()}


def _opened(source: str, token: str, token_file: str, values: dict[str, Any]) -> BootstrapData:
    """Return the bootstrap data of a datastore. Raises MooringError."""
    whole, passphrase = _token(source, token, token_file)
    if source.startswith(_SQLITE):
        rows = kine.read_prefix(Path(source.removeprefix(_SQLITE)), PREFIX)
    else:
        rows = _in_etcd(source, values, SystemClock(), _rows)
    return open_rows(rows, passphrase, whole)


def _token(place: str, token: str, token_file: str) -> tuple[Secret, Secret]:
    """Return the text of the token, and its password. Raises UsageError, ConfigError."""
    with usage():
        if not place.startswith((_SQLITE, _ETCD)):
            raise ConfigError("name the datastore as sqlite:/path/of/state.db or etcd:https://<address>:2379")
    beside = Path(place.removeprefix(_SQLITE)).parent.parent / "token"
    if token_file:
        if click.get_current_context().get_parameter_source("token") is ParameterSource.COMMANDLINE:
            raise click.UsageError("give --token or --token-file, not both")
        token = read_limited(Path(token_file), MAX_FILE).decode("utf-8", "surrogateescape").strip()
    elif not token and place.startswith(_SQLITE) and beside.exists():
        token = read_limited(beside, MAX_FILE).decode("utf-8", "surrogateescape").strip()
    if not token:
        raise ConfigError("give --token-file with the server token of k3s: it encrypts the bootstrap data")
    parsed = parse_token(token)
    if parsed.password is None:
        raise ConfigError(
            "this is a bootstrap token, with which machines join; the server token encrypts the bootstrap data"
        )
    return Secret(os.fsencode(token)), parsed.password


def _is_server_token(passphrase: Secret) -> bool:
    try:
        return servertoken.parse_token(passphrase.reveal()) == passphrase
    except ConfigError:
        return False


def _in_etcd(url: str, values: dict[str, Any], clock: Clock, work: Callable[[Storage], Awaitable[T]]) -> T:
    settings = StorageSettings.read(
        {name: value for name, value in values.items() if name in ETCD_ACCESS - {"etcd_prefix"}}
    )

    async def session() -> T:
        storage = drivers.open_storage(url, clock, settings=settings)
        await storage.open()
        try:
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(session())


async def _rows(storage: Storage) -> Mapping[str, bytes]:
    page = await storage.range(PREFIX, limit=kine.MAX_ROWS)
    return {one.key: one.value for one in page.entries}


async def _create(storage: Storage, target: str, key: str, value: bytes) -> None:
    if present := await _rows(storage):
        raise ConfigError(f"{target} has {min(present)} already; nothing is overwritten")
    try:
        await storage.create(key, value)
    except KeyExistsError:
        raise ConfigError(f"{target} has {key} already; nothing is overwritten") from None


def _described(name: str, one: BootstrapFile) -> str:
    """Return the content in public words."""
    if name.endswith("CA"):
        try:
            return ", ".join(
                f"{found.subject.rfc4514_string()} {pin_of(found)}" for found in certificates(one.content.reveal())
            )
        except MooringError:
            return "not a certificate"
    return "secret"


def _warn(found: BootstrapData) -> None:
    if found.weakness:
        echo(f"Warning: {found.weakness}.", err=True)


# `mooring datastore migrate`: move a cluster from one store to another.

QUIET_SECONDS = LEASE_SECONDS + 2.0
"""Time in which the servers of a cluster write at least once: the leader renews its Lease, or another one takes it."""


@click.command("migrate")
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@etcd_options
@output_option(*REPORTED)
def migrate(source: str, target: str, output: str, **values: Any) -> None:
    """Copy a cluster from the store SOURCE to the empty store TARGET, and compare both.

    Stores are named as in --storage, for example sqlite:/var/lib/mooring/mooring.db or etcd:https://10.0.0.1:2379. The flags of
    etcd count for both. Stop every server first. SOURCE is not changed. When the command is interrupted, run it again: until it
    ends, no server starts on TARGET. Revisions continue.
    """
    clock = SystemClock()
    with usage():
        settings = StorageSettings.read({name: value for name, value in values.items() if name in ETCD_ACCESS})
        stores = [drivers.open_storage(url, clock, settings=settings) for url in (source, target)]
        if any(url.startswith("memory:") for url in (source, target)):
            raise ConfigError("memory: is lost when its process ends; name a store that stays")
    quiet_seconds = 0.0 if drivers.refuse_used(source) else QUIET_SECONDS
    copied = asyncio.run(_migrate(stores[0], stores[1], clock, quiet_seconds))
    if output != "text":
        document = {
            "kind": "DatastoreMigration",
            "source": source,
            "target": target,
            "entries": copied.entries,
            "digest": copied.digest,
            "revision": copied.revision,
            "resumed": copied.resumed,
        }
        print_document(document, output)
        return
    echo(
        f"{copied.entries} entries were copied, and are the same on both sides ({copied.digest}).",
        f"Start the servers with --storage {target}",
        f"Start none on {source} any more: its changes would be lost.",
    )


async def _migrate(source: Storage, target: Storage, clock: Clock, quiet_seconds: float) -> Copied:
    async with AsyncExitStack() as stack:
        for store in (source, target):
            await store.open()
            stack.push_async_callback(store.close)
        report = stack.enter_context(progress_bar(await count(source)))
        identity = secrets.token_hex(8)
        return await move(source, target, clock, quiet_seconds=quiet_seconds, identity=identity, report=report)
