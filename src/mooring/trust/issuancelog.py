"""Issuance log: records of issued certificates in a chain, its verification, and what one token obtained."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX, RECOVERING_NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, public_key_fingerprint, public_key_pem
from mooring.pki.x509.bundles import load_public_keys

# Hash chain of records of the issuance log: canonical encoding, hashes, signatures, checkpoints.
#
# Rules kept here (docs/trace-a-certificate.md#the-format):
# * A record has a sequence number, the hash of the record before it, and entries. Number 1 follows the hash of 64 zeros.
# * The canonical encoding is the JSON object {"entries", "previous", "sequence"}: keys sorted, no blanks, UTF-8, escapes only
#   where JSON needs them. Entries keep their order, and have texts that are not empty. The hash is SHA-256 over it, as
#   sha256:<hex>.
# * The signature is ECDSA with SHA-256 (RFC 6979 is not needed: each is verified, none compared) over the text of the hash.
# * A checkpoint is `<hash>@<sequence>`.
# * An entry of the event Trimmed has the checkpoint up to which records may be missing, and the last end of their certificates.

TRIMMED = "Trimmed"
NAME_DIGITS = 16
"""Digits of a record's name. Names sort as numbers do, and no server writes 10^16 records."""
BEFORE_FIRST = "sha256:" + "0" * 64

_HASH = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_NAME = re.compile(rf"[0-9]{{{NAME_DIGITS}}}", re.ASCII)
_CHECKPOINT = re.compile(r"(sha256:[0-9a-f]{64})@([1-9][0-9]{0,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The hash of one record. As long as it is known elsewhere, no record up to this one can be changed unnoticed."""

    sequence: int
    hash: str

    def __str__(self) -> str:
        return f"{self.hash}@{self.sequence}"


START = Checkpoint(0, BEFORE_FIRST)
"""The end of an empty chain."""


def record_name(sequence: int) -> str:
    """Return the name of a record."""
    return f"{sequence:0{NAME_DIGITS}}"


def sequence_of(name: str) -> int | None:
    """Return the sequence number in the name of a record; None for any other name."""
    return (int(name) or None) if _NAME.fullmatch(name) else None


def is_hash(text: str) -> bool:
    """Return True when `text` has the form of a hash here."""
    return _HASH.fullmatch(text) is not None


def parse_checkpoint(text: str) -> Checkpoint:
    """Return the checkpoint in `text`. Raises ConfigError."""
    match = _CHECKPOINT.fullmatch(text)
    if match is None:
        raise ConfigError(
            "not a checkpoint: give what `mooring issuance checkpoint` printed, sha256:<64 hex digits>@<number>"
        )
    return Checkpoint(int(match[2]), match[1])


def trimmed_to(entry: Obj) -> Checkpoint | None:
    """Return the last record that an entry allows to be missing; None for an entry of another event, or without a checkpoint."""
    match = _CHECKPOINT.fullmatch(entry.get("checkpoint", "")) if entry.get("event") == TRIMMED else None
    return Checkpoint(int(match[2]), match[1]) if match else None


def canonical(sequence: int, previous: str, entries: Sequence[Obj]) -> bytes:
    """Return the canonical encoding of a record."""
    content = {"entries": list(entries), "previous": previous, "sequence": sequence}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def hash_of(sequence: int, previous: str, entries: Sequence[Obj]) -> str:
    """Return the hash of a record."""
    return "sha256:" + hashlib.sha256(canonical(sequence, previous, entries)).hexdigest()


@dataclass(frozen=True, slots=True)
class IssuanceLogKey:
    """Private key that signs records; printing it shows nothing of it."""

    key: PrivateKey

    def __repr__(self) -> str:
        return "IssuanceLogKey()"

    def signed(self, spec: Obj) -> Obj:
        """Return the spec of a record with its signature and the public key for it. Raises ConfigError."""
        if not isinstance(self.key, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                "the key of the issuance log is not an ECDSA key: move pki/lineage.key away, and the next start makes one"
            )
        signature = self.key.sign(spec["hash"].encode(), ec.ECDSA(hashes.SHA256()))
        return {
            **spec,
            "signature": base64.b64encode(signature).decode(),
            "publicKey": base64.b64encode(public_key_pem(self.key.public_key())).decode(),
        }


def new_record(after: Checkpoint, entries: Sequence[Obj], key: IssuanceLogKey | None) -> tuple[Obj, Checkpoint]:
    """Return the record that follows `after`, and its checkpoint. Without a key it is not signed."""
    sequence = after.sequence + 1
    kept = [{name: value for name, value in entry.items() if value} for entry in entries]
    digest = hash_of(sequence, after.hash, kept)
    spec: Obj = {"previous": after.hash, "entries": kept, "hash": digest}
    record: Obj = {
        "kind": "LineageRecord",
        "apiVersion": "mooring.dev/v1alpha1",
        "metadata": {"name": record_name(sequence)},
        "spec": key.signed(spec) if key is not None else spec,
    }
    return record, Checkpoint(sequence, digest)


def checkpoint_of(record: Obj) -> Checkpoint | None:
    """Return the checkpoint that a record claims; None when its name or hash has another form."""
    sequence, digest = sequence_of(record["metadata"]["name"]), (record.get("spec") or {}).get("hash", "")
    return Checkpoint(sequence, digest) if sequence is not None and is_hash(digest) else None


def signer_of(spec: Obj) -> str:
    """Return the fingerprint of the key whose signature the record has, as sha256:<hex>; "" without or with a bad signature."""
    try:
        (key,) = load_public_keys(base64.b64decode(spec.get("publicKey", ""), validate=True))
        signature = base64.b64decode(spec.get("signature", ""), validate=True)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return ""
        key.verify(signature, spec["hash"].encode(), ec.ECDSA(hashes.SHA256()))
    except (binascii.Error, ValueError, PkiError, InvalidSignature):
        return ""
    return "sha256:" + public_key_fingerprint(key)


# Verification of records of the issuance log: every edit, cut and reorder, with the first bad record by name.
#
# Rules kept here:
# * Records must be numbered from 1 without a gap. Each must have the hash of its content, and name the hash of the one before it.
# * The first records may be missing up to a checkpoint that an entry of the event Trimmed has. Of the records up to there, those
#   that are still there follow each other, and the checkpoint is one of them.
# * Signatures are compared with the trusted keys, if any are given. A record without a signature is then a fault.
# * A cut of the last records leaves a chain that is valid in itself. It is found by checkpoints that are kept elsewhere, and by
#   certificates that exist and are not recorded.


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `record` is the name of the first bad record; "" for a certificate that no record has."""

    record: str
    message: str


@dataclass(slots=True)
class VerifiedIssuanceLog:
    """Result of a verification."""

    records: int = 0
    entries: list[Obj] = field(default_factory=list)
    """Entries of certificates, in the order of their issue."""
    start: Checkpoint = START
    """The record before the first one that is there."""
    trimmed_until: str = ""
    """Last end of the certificates whose records may be missing; "" for a log that was never trimmed."""
    head: Checkpoint = START
    faults: list[Fault] = field(default_factory=list)
    signers: dict[str, int] = field(default_factory=dict)
    """Signed records by the fingerprint of the key; "" counts records without a signature."""


def verify(
    records: Iterable[Obj], checkpoints: Sequence[Checkpoint] = (), trusted_keys: Collection[str] = ()
) -> VerifiedIssuanceLog:
    """Verify a chain up to its first fault, and compare it with checkpoints. `trusted_keys`: fingerprints, sha256:<hex>."""
    ordered = sorted(records, key=lambda one: str(one["metadata"]["name"]))
    start = _start(ordered)
    result = VerifiedIssuanceLog(start=start, head=start)
    reached = {start.sequence: start.hash}
    trims: list[Checkpoint] = []
    for record in ordered:
        fault = _fault(record, result.head, trusted_keys, result.signers)
        if fault:
            result.faults.append(Fault(record["metadata"]["name"], fault))
            break
        spec = record["spec"]
        result.head = Checkpoint(result.head.sequence + 1, spec["hash"])
        reached[result.head.sequence] = result.head.hash
        result.records += 1
        for entry in spec.get("entries") or ():
            if entry.get("event") != TRIMMED:
                result.entries.append(entry)
            elif (trim := trimmed_to(entry)) is not None:
                trims.append(trim)
                result.trimmed_until = max(result.trimmed_until, entry.get("notAfter", ""))
    if not result.faults:
        trims = [trim for trim in trims if trim.sequence >= start.sequence]
        result.faults += _checkpoint_faults(reached, start, result.head, (*trims, *checkpoints))
    return result


def _start(ordered: Sequence[Obj]) -> Checkpoint:
    """Return the record before the first one that is there; START unless a later entry allows it to be missing."""
    first = sequence_of(ordered[0]["metadata"]["name"]) if ordered else None
    if first is None or first == START.sequence + 1:
        return START
    trims = (trimmed_to(entry) for one in ordered for entry in (one.get("spec") or {}).get("entries") or ())
    if max((trim.sequence for trim in trims if trim is not None), default=START.sequence) < first - 1:
        return START
    return Checkpoint(first - 1, (ordered[0].get("spec") or {}).get("previous", ""))


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


def _checkpoint_faults(
    reached: dict[int, str], start: Checkpoint, head: Checkpoint, checkpoints: Iterable[Checkpoint]
) -> Iterable[Fault]:
    for checkpoint in sorted(set(checkpoints), key=lambda one: one.sequence):
        found = reached.get(checkpoint.sequence)
        if checkpoint.sequence < start.sequence:
            yield Fault(
                record_name(checkpoint.sequence),
                f"it was trimmed, so that the checkpoint {checkpoint} cannot be compared: keep a newer one, which mooring issuance "
                "checkpoint prints",
            )
        elif found is None:
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


# Descent of certificates from a bootstrap token, through renewals.
#
# Rules kept here:
# * A certificate descends from the token that requested it, or from the certificate with which its request was authenticated. The
#   request names that certificate by its hash (`authentication.kubernetes.io/credential-id`).
# * A request whose credential is not recorded descends by name: a node that a token bought may have renewed with a certificate of
#   which there is no record. This may list more than the token bought, and never less.
# * Entries are in the order of their issue, so that one pass finds all.

CREDENTIAL = "X509SHA256="
"""Prefix of the credential id of a client certificate; the hash in hex follows."""


def node_of_user(username: str) -> str:
    """Return the node whose identity, or way back, the user has; "" for any other user."""
    for prefix in (NODE_PREFIX, RECOVERING_NODE_PREFIX):
        if username.startswith(prefix):
            return username.removeprefix(prefix)
    return ""


def descendants(entries: Iterable[Obj], token_id: str, members: Collection[str] = ()) -> list[Obj]:
    """Return the entries of the certificates that a token bought, and of their renewals, in order of issue.

    `members`: names of nodes that the token obtained, of which a trimmed log may lack the first record.
    """
    found: list[Obj] = []
    certificates: set[str] = set()
    nodes: set[str] = set(members)
    recorded: set[str] = set()
    for entry in entries:
        credential = entry.get("credential", "").removeprefix(CREDENTIAL)
        if entry.get("token"):
            descends = entry["token"] == token_id
        elif credential in recorded:
            descends = credential in certificates
        else:
            descends = node_of_user(entry.get("requester", "")) in nodes - {""}
        certificate = entry.get("certificate", "").removeprefix("sha256:")
        recorded.add(certificate)
        if descends:
            found.append(entry)
            certificates.add(certificate)
            nodes.add(entry.get("node", ""))
    return found
