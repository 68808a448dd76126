"""`mooring issuance verify`: verify the records of issued certificates, through a server or in the store itself."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.lineagerecord import PLURAL
from mooring.api.mooring.nodeidentity import PLURAL as NODE_IDENTITIES
from mooring.apimachinery.schema import Obj
from mooring.cli.cluster import ChosenCluster, one_cluster_options
from mooring.cli.issuance import (
    REQUESTS,
    certificates_in,
    claims_in,
    fetch_identities,
    fetch_records,
    fetch_requests,
    trim_notice,
)
from mooring.cli.options.declared import settings_options
from mooring.cli.options.flags import REPORTED, output_option, usage
from mooring.cli.printing import echo, print_document
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.clock import Clock, SystemClock
from mooring.controlplane.encryption import EncryptionAtRest
from mooring.controlplane.storewatermark.watermarkfile import read_watermark
from mooring.errors import ConfigError, StorageError
from mooring.pki.errors import PkiError
from mooring.pki.keys import public_key_fingerprint
from mooring.pki.x509.bundles import load_public_keys
from mooring.registry.cache.events import Stored
from mooring.settings.storage import EncryptionSettings, StorageSettings
from mooring.storage import drivers
from mooring.storage.contract import Entry, Storage, UnreadableEntry
from mooring.storage.etcd.keyspace import name_in_engine
from mooring.trust.issuancelog import START, Checkpoint, Fault, VerifiedIssuanceLog, parse_checkpoint, unrecorded
from mooring.trust.issuancelog import verify as verify_records

# Records of a store that is read itself, and not through its server.
#
# A running server answers from its memory: what somebody changes in the database under it shows only at its next start.

PAGE_ENTRIES = 256
"""Objects read at a time, as many as a walk over a store reads."""


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """Objects that a verification needs; those of a store are all of one revision."""

    requests: Sequence[Obj]
    records: Sequence[Obj]
    identities: Sequence[Obj]


def read_stored(settings: StorageSettings, encryption: EncryptionSettings) -> StoredObjects:
    """Read a store, also beside a running server. Raises ConfigError, StorageError."""
    drivers.check_existence(settings.storage_url)
    return asyncio.run(_read(settings, encryption))


async def _read(settings: StorageSettings, encryption: EncryptionSettings) -> StoredObjects:
    clock = SystemClock()
    inner = drivers.open_storage(settings.storage_url, clock, settings=settings)
    at_rest = EncryptionAtRest(encryption, inner, clock, secrets.token_bytes, name_in_engine(settings))
    storage: Storage = at_rest.storage
    await storage.open()
    try:
        revision = await storage.revision()
        found = [await _listed(storage, plural, revision) for plural in (REQUESTS, PLURAL, NODE_IDENTITIES)]
        return StoredObjects(*found)
    finally:
        await at_rest.close()
        await storage.close()


async def _listed(storage: Storage, plural: str, revision: int) -> Sequence[Obj]:
    prefix, found, after, more = BY_PLURAL[plural].key_prefix(), list[Obj](), "", True
    while more:
        page = await storage.range(prefix, after=after, limit=PAGE_ENTRIES, revision=revision, counted=False)
        for entry in page.entries:
            found.append(_object(plural, entry))
            after = entry.key
        more = page.more
    return found


def _object(plural: str, entry: Entry) -> Obj:
    """Return the object of an entry. Raises ConfigError for one that cannot be read."""
    name = entry.key.rpartition("/")[2]
    problem = entry.problem if isinstance(entry, UnreadableEntry) else ""
    if not problem:
        try:
            return Stored.of(BY_PLURAL[plural], "", name, entry.revision, entry.value, key=entry.key).obj
        except StorageError as error:
            problem = str(error)
    raise ConfigError(
        f"{plural} {name} in the store cannot be read: {problem}; where it is encrypted, give --encryption-provider-config"
    )


# `mooring issuance verify`: verify the records of issued certificates.
#
# Rules kept here:
# * With --data-dir or flags of a store, the store itself is read, beside a running server too. A server answers from its memory,
#   and a change of the database under it shows there only after its next start.
# * Faults are printed on stderr, the first bad record by name, and the exit code is 1.
# * The directory of a server adds what is kept outside the store: `store.mark`, and the key whose signatures are trusted.

ENCRYPTION = "encryption_provider_config"


@click.command("verify")
@settings_options(
    [*StorageSettings.declared(), *(one for one in EncryptionSettings.declared() if one.field == ENCRYPTION)]
)
@click.option(
    "--checkpoint",
    "given",
    multiple=True,
    metavar="HASH@NUMBER",
    help="What `mooring issuance checkpoint` printed before; repeatable.",
)
@click.option(
    "--key", "key_files", multiple=True, metavar="FILE", help="Public key whose signatures are trusted; repeatable."
)
@output_option(*REPORTED)
@one_cluster_options
@click.pass_context
def verify(
    ctx: click.Context,
    /,
    given: Sequence[str],
    key_files: Sequence[str],
    output: str,
    chosen: ChosenCluster,
    **values: Any,
) -> None:
    """Verify that no record of an issued certificate was changed, cut or reordered.

    With --data-dir the database there is read, or the store of --storage, which a server may be using: a server answers from its
    memory. The directory's store.mark is compared, and its pki/lineage.pub is trusted. Without them the records are those that a
    server has.

    The exit code is 1 when a fault is found. A cut of the last records is found by the checkpoints of --data-dir and --checkpoint,
    and by certificates that exist without a record.
    """
    data_dir: str = values["data_dir"]
    with usage():
        checkpoints = [parse_checkpoint(text) for text in given]
    if data_dir:
        checkpoints += read_watermark(Path(data_dir)).issuance_log
    trusted = _trusted_keys([*key_files, *([str(Path(data_dir) / "pki/lineage.pub")] if data_dir else [])])
    settings = StorageSettings.read({**values, "data_dir": str(Path(data_dir).absolute())})
    if settings.in_memory:
        raise ConfigError(
            "storage: memory: is in its server alone; leave the flag out, and records are read through the server"
        )
    if _reads_store(settings, given_data_dir=bool(data_dir)):
        stored = read_stored(settings, EncryptionSettings.read(values))
    else:
        if data_dir:
            echo(
                f"There is no database in {data_dir}: records are read through the server; name its store with --storage.",
                err=True,
            )
        stored = chosen.run(lambda client: _fetch(client, chosen.clock, chosen.timeout))
    verified = verify_records(stored.records, checkpoints, trusted)
    since = str(verified.entries[0]["time"]) if verified.entries else ""
    if not verified.faults:
        verified.faults += unrecorded(verified.entries, certificates_in(stored.requests, since, verified.trimmed_until))
    notices = unrecorded(verified.entries, claims_in(stored.identities, verified.trimmed_until))
    if output != "text":
        print_document(document(verified, notices), output)
    else:
        _print_text(verified, checkpoints, trusted)
        for notice in () if verified.faults else notices:
            echo(f"Warning: {notice.message}, or it was never issued", err=True)
    if verified.faults:
        ctx.exit(1)


def _reads_store(settings: StorageSettings, *, given_data_dir: bool) -> bool:
    """Return whether the store is read itself: one that was named, or the database of the directory."""
    is_named = bool(settings.storage or settings.etcd_servers)
    return is_named or (given_data_dir and Path(settings.storage_url.partition(":")[2]).exists())


async def _fetch(client: ClusterClient, clock: Clock, limit: timedelta) -> StoredObjects:
    """Return the objects that a server has, read in the order in which no certificate is missed."""
    requests = await fetch_requests(client, clock, limit)
    records = await fetch_records(client, clock, limit)
    return StoredObjects(requests, records, await fetch_identities(client, clock, limit))


def document(verified: VerifiedIssuanceLog, notices: Sequence[Fault]) -> Obj:
    """Return the result as a document."""
    return {
        "kind": "LineageVerification",
        "verified": not verified.faults,
        "records": verified.records,
        "certificates": len(verified.entries),
        "head": str(verified.head) if verified.records else "",
        "trimmed": str(verified.start) if verified.start is not START else "",
        "signedBy": {signer or "nobody": count for signer, count in sorted(verified.signers.items())},
        "notices": [notice.message for notice in notices],
        "faults": [{"record": fault.record, "message": fault.message} for fault in verified.faults],
    }


def _print_text(verified: VerifiedIssuanceLog, checkpoints: Sequence[Checkpoint], trusted: Sequence[str]) -> None:
    for fault in verified.faults:
        echo(f"Error: record {fault.record}: {fault.message}" if fault.record else f"Error: {fault.message}", err=True)
    if not verified.records:
        echo("No record is in order." if verified.faults else "There are no records.")
        return
    echo(f"{verified.records} records with {len(verified.entries)} certificates are in order, up to {verified.head}.")
    for signer, count in sorted(verified.signers.items()):
        echo(f"  {count} signed by {signer or 'no key'}")
    if verified.trimmed_until:
        echo(trim_notice(verified.trimmed_until), err=True)
    if not trusted:
        echo("Signatures were not compared with a key that you trust: give --data-dir or --key.", err=True)
    if not checkpoints:
        echo("Nothing outside the store was compared: give --data-dir or --checkpoint.", err=True)


def _trusted_keys(files: Sequence[str]) -> list[str]:
    """Return the fingerprints of the keys in the files. Raises ConfigError."""
    found: list[str] = []
    for file in files:
        try:
            found += [f"sha256:{public_key_fingerprint(key)}" for key in load_public_keys(read_limited(Path(file)))]
        except PkiError as error:
            raise ConfigError(f"{file}: {error}") from None
    return found
