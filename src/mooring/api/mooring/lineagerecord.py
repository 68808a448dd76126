"""LineageRecord: one batch of entries of the hash chain that records which certificates were issued, for whom, and why.

Rules kept here:
* The name is the sequence number. A create under the next name is therefore the compare-and-swap: no two
  writers fork the chain.
* Validation computes the hash again. Admission sees to the order, that no record is changed, and which may be deleted
  (`mooring.registry.admission.certificates`).
* Every field is bounded and printable, because records stay for years and their encoding must be the same in every language.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from mooring.api.kind import Kind, is_untracked
from mooring.api.objectmeta import NAME, NONE, spec_of
from mooring.api.paths import GROUP, STORAGE_PREFIX, VERSION
from mooring.api.view import View, ViewFollower
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.clock import parse_rfc3339
from mooring.errors import FieldError, invalid, required, too_long
from mooring.trust.issuancelog import (
    NAME_DIGITS,
    START,
    TRIMMED,
    Checkpoint,
    checkpoint_of,
    hash_of,
    is_hash,
    record_name,
    sequence_of,
    trimmed_to,
)

PLURAL = "lineagerecords"
MAX_ENTRIES = 64
"""Entries of one record: more than the certificates that the controllers sign at a time."""
MAX_TEXT = 1024
"""Characters of one text of an entry. Names of users that OIDC providers give are longer only by mistake."""
EVENT_ISSUED = "Issued"
EVENTS = (EVENT_ISSUED, TRIMMED)
MAX_TRIMMED = 1000
"""Records that one entry trims: what admission reads to judge it."""
MIN_RETENTION = timedelta(days=30)
"""Least time that a record outlives its certificates. `mooring certs` lists certificates for as long after their end."""

_HASH = "sha256:<64 hex digits>"


def entries_of(obj: Obj) -> list[Obj]:
    """Return the entries of a record."""
    entries: list[Obj] = spec_of(obj).get("entries") or []
    return entries


def end_of(record: Obj) -> datetime | None:
    """Return the last end of the certificates of a record; None where an end is not known."""
    try:
        return max((parse_rfc3339(entry.get("notAfter", "")) for entry in entries_of(record)), default=None)
    except ValueError:
        return None


class TrimmedLog:
    """Checkpoint up to which records of one view may be deleted, kept up to date."""

    def __init__(self) -> None:
        self._follower = ViewFollower()
        self._newest = START

    def checkpoint(self, view: View) -> Checkpoint:
        """Return the greatest checkpoint that an entry has; START without one."""
        start_over, records = self._follower.changes(view) or (False, ())
        if start_over:
            self._newest = START
        self._newest = newest_trim((record for _, record in records if record is not None), self._newest)
        return self._newest


def newest_trim(records: Iterable[Obj], known: Checkpoint = START) -> Checkpoint:
    """Return the greatest checkpoint up to which records may be missing, by the entries of `records`, or `known`."""
    trims = (trimmed_to(entry) for record in records for entry in entries_of(record))
    return max((known, *(trim for trim in trims if trim is not None)), key=lambda one: one.sequence)


def is_lost(view: View, checkpoint: Checkpoint) -> bool:
    """Return true when a readable log lacks the record of a checkpoint, and did not trim it, or has another record in its place."""
    record = view.get(record_name(checkpoint.sequence))
    if record is not None:
        return checkpoint_of(record) != checkpoint
    return newest_trim(view.list()).sequence < checkpoint.sequence


def _name_errors(name: str) -> list[str]:
    return [] if sequence_of(name) is not None else [f"must be a sequence number of {NAME_DIGITS} digits"]


def _validate(obj: Obj) -> list[FieldError]:
    spec, entries = spec_of(obj), entries_of(obj)
    if len(entries) > MAX_ENTRIES:
        return [invalid("spec.entries", len(entries), f"must have at most {MAX_ENTRIES} items")]
    errors = [] if entries else [required("spec.entries")]
    for index, entry in enumerate(entries):
        errors += _entry_errors(entry, f"spec.entries[{index}]")
    for name in ("previous", "hash"):
        if not is_hash(spec.get(name, "")):
            errors.append(invalid(f"spec.{name}", spec.get(name, ""), f"must be {_HASH}"))
    for name in ("signature", "publicKey"):
        if len(spec.get(name) or "") > MAX_TEXT:
            errors.append(too_long(f"spec.{name}", MAX_TEXT))
    sequence = sequence_of(obj["metadata"].get("name", ""))
    if not errors and sequence is not None and hash_of(sequence, spec["previous"], entries) != spec["hash"]:
        errors.append(
            invalid("spec.hash", spec["hash"], "must be the hash of the sequence number, previous and entries")
        )
    return errors


def _entry_errors(entry: Obj, path: str) -> list[FieldError]:
    errors = [required(f"{path}.{name}") for name in ("time", "event", "notAfter") if not entry.get(name)]
    if entry.get("event") not in (None, *EVENTS):
        errors.append(invalid(f"{path}.event", entry["event"], f"must be one of {', '.join(EVENTS)}"))
    # A record with an end that cannot be read would never be trimmed, nor any after it.
    bad = [name for name in ("time", "notAfter") if entry.get(name) and not _is_time(entry[name])]
    errors += [invalid(f"{path}.{name}", entry[name], "must be a time in RFC 3339") for name in bad]
    if entry.get("event") == TRIMMED and trimmed_to(entry) is None:
        errors.append(
            invalid(f"{path}.checkpoint", entry.get("checkpoint", ""), "must be sha256:<64 hex digits>@<number>")
        )
    for name, text in entry.items():
        if len(text) > MAX_TEXT:
            errors.append(too_long(f"{path}.{name}", MAX_TEXT))
        elif not text:
            errors.append(invalid(f"{path}.{name}", text, "must be left out where there is no value"))
        elif not text.isprintable():
            errors.append(invalid(f"{path}.{name}", text, "must have printable characters only"))
    return errors


def _is_time(text: str) -> bool:
    try:
        parse_rfc3339(text)
    except ValueError:
        return False
    return True


def _joined(obj: Obj, name: str) -> str:
    found = dict.fromkeys(entry[name] for entry in entries_of(obj) if entry.get(name))
    return ",".join(found) or NONE


def _column(title: str, name: str, description: str, priority: int = 0) -> Column:
    return Column(title, lambda obj, now: _joined(obj, name), description=description, priority=priority)


def _entries(obj: Obj, now: datetime) -> str:
    return str(len(entries_of(obj)))


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version=VERSION,
        kind="LineageRecord",
        plural=PLURAL,
        namespaced=False,
        schema=message("dev.mooring.api.v1alpha1.LineageRecord"),
        short_names=("lineage",),
        columns=(
            NAME,
            Column("Entries", _entries, description="Number of certificates that the record has."),
            _column("Subjects", "subject", "Common names of the certificates."),
            _column("Tokens", "token", "Ids of the bootstrap tokens that obtained them."),
            AGE,
            _column("Serials", "serialNumber", "Serial numbers of the certificates.", 1),
            Column(
                "Hash", lambda obj, now: spec_of(obj).get("hash", NONE), description="Hash of the record.", priority=1
            ),
        ),
    ),
    garbage_collected=False,
    is_exact=True,
    storage=f"{STORAGE_PREFIX}{PLURAL}",
    tracks_creator=is_untracked,
    name_errors=_name_errors,
    validate=_validate,
)
