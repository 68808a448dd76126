"""Hash chain of lineage records: canonical encoding, hashes, signatures, checkpoints.

Rules kept here (docs/trace-a-certificate.md#the-format):
* A record has a sequence number, the hash of the record before it, and entries. Number 1 follows the hash of 64 zeros.
* The canonical encoding is the JSON object {"entries", "previous", "sequence"}: keys sorted, no blanks, UTF-8, escapes only where
  JSON needs them. Entries keep their order, and have texts that are not empty. The hash is SHA-256 over it, as sha256:<hex>.
* The signature is ECDSA with SHA-256 (RFC 6979 is not needed: each is verified, none compared) over the text of the hash.
* A checkpoint is `<hash>@<sequence>`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, public_key_fingerprint, public_key_pem
from mooring.pki.x509.publickeys import load_public_keys

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
            "not a checkpoint: give what `mooring audit checkpoint` printed, sha256:<64 hex digits>@<number>"
        )
    return Checkpoint(int(match[2]), match[1])


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
class LineageKey:
    """Private key that signs records; printing it shows nothing of it."""

    key: PrivateKey

    def __repr__(self) -> str:
        return "LineageKey()"

    def signed(self, spec: Obj) -> Obj:
        """Return the spec of a record with its signature and the public key for it. Raises ConfigError."""
        if not isinstance(self.key, ec.EllipticCurvePrivateKey):
            raise ConfigError(
                "the lineage key is not an ECDSA key: move pki/lineage.key away, and the next start makes one"
            )
        signature = self.key.sign(spec["hash"].encode(), ec.ECDSA(hashes.SHA256()))
        return {
            **spec,
            "signature": base64.b64encode(signature).decode(),
            "publicKey": base64.b64encode(public_key_pem(self.key.public_key())).decode(),
        }


def new_record(after: Checkpoint, entries: Sequence[Obj], key: LineageKey | None) -> tuple[Obj, Checkpoint]:
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
