"""Verification of lineage records: every edit, cut and reorder, with the first bad record by name.

Rules kept here:
* Records must be numbered from 1 without a gap. Each must have the hash of its content, and name the hash of the one before it.
* Signatures are compared with the trusted keys, if any are given. A record without a signature is then a fault.
* A cut of the last records leaves a chain that is valid in itself. It is found by checkpoints that are kept elsewhere, and by
  certificates that exist and are not recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from mooring.apimachinery.schema import Obj
from mooring.trust.lineage.chain import START, Checkpoint, hash_of, record_name, sequence_of, signer_of


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `record` is the name of the first bad record; "" for a certificate that no record has."""

    record: str
    message: str


@dataclass(slots=True)
class VerifiedLineage:
    """Result of a verification."""

    records: int = 0
    entries: list[Obj] = field(default_factory=list)
    head: Checkpoint = START
    faults: list[Fault] = field(default_factory=list)
    signers: dict[str, int] = field(default_factory=dict)
    """Signed records by the fingerprint of the key; "" counts records without a signature."""


def verify(
    records: Iterable[Obj], checkpoints: Sequence[Checkpoint] = (), trusted_keys: Collection[str] = ()
) -> VerifiedLineage:
    """Verify a chain up to its first fault, and compare it with checkpoints. `trusted_keys`: fingerprints, sha256:<hex>."""
    result = VerifiedLineage()
    reached = {START.sequence: START.hash}
    for record in sorted(records, key=lambda one: str(one["metadata"]["name"])):
        fault = _fault(record, result.head, trusted_keys, result.signers)
        if fault:
            result.faults.append(Fault(record["metadata"]["name"], fault))
            break
        spec = record["spec"]
        result.head = Checkpoint(result.head.sequence + 1, spec["hash"])
        reached[result.head.sequence] = result.head.hash
        result.records += 1
        result.entries += spec.get("entries") or []
    if not result.faults:
        result.faults += _checkpoint_faults(reached, result.head, checkpoints)
    return result


def _fault(record: Obj, head: Checkpoint, trusted_keys: Collection[str], signers: dict[str, int]) -> str:
    """Return what is wrong with the record that should follow `head`; "" when nothing is."""
    spec, name = record.get("spec") or {}, record["metadata"]["name"]
    sequence, entries = sequence_of(name), spec.get("entries") or []
    if sequence is None:
        return "the name is no sequence number"
    if sequence != head.sequence + 1:
        return f"the records before it are missing, from {record_name(head.sequence + 1)} on"
    if spec.get("previous") != head.hash:
        return "it does not follow the record before it: a record was replaced, or their order was changed"
    if spec.get("hash") != hash_of(sequence, head.hash, entries):
        return "its content was changed: it does not have the hash that it claims"
    signer = signer_of(spec)
    if spec.get("signature") and not signer:
        return "its signature does not verify"
    if trusted_keys and not signer:
        return "it has no signature: someone removed it, or the record is of mooring controllers, which signs none"
    if trusted_keys and signer not in trusted_keys:
        return f"it is signed by {signer}, which is not one of the trusted keys"
    signers[signer] = signers.get(signer, 0) + 1
    return ""


def _checkpoint_faults(reached: dict[int, str], head: Checkpoint, checkpoints: Iterable[Checkpoint]) -> Iterable[Fault]:
    for checkpoint in sorted(set(checkpoints), key=lambda one: one.sequence):
        found = reached.get(checkpoint.sequence)
        if found is None:
            yield Fault(
                record_name(head.sequence + 1),
                f"it is missing: the checkpoint {checkpoint} says that there were {checkpoint.sequence} records, and there are "
                f"{head.sequence}",
            )
        elif found != checkpoint.hash:
            yield Fault(
                record_name(checkpoint.sequence),
                f"it is not the record of the checkpoint {checkpoint}: it or one before it was rewritten",
            )


def unrecorded(entries: Iterable[Obj], certificates: Iterable[tuple[str, str]]) -> Sequence[Fault]:
    """Return a fault for each certificate that no entry has. Each is (serial number in hex, description)."""
    recorded = {entry.get("serialNumber") for entry in entries}
    return [
        Fault(
            "",
            f"{description} (serial number {serial}) is not recorded: the record of it was cut, or it was issued elsewhere",
        )
        for serial, description in certificates
        if serial not in recorded
    ]
