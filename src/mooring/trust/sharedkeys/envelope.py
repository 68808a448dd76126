"""Sealed keys: the form in which the keys of a cluster stand in the store.

    {"version": 2, "cluster": UUID, "generation": N, "fingerprint": HEX, "authorities": [PIN, …],
     "names": [FILE, …],
     "sealed": {"nonce": …, "data": …},
     "wraps": [{"id": HEX, "n": N, "r": R, "p": P, "salt": …, "nonce": …, "key": …, "created": SECONDS, "until": SECONDS}, …]}

Rules kept here:
* A random data key encrypts the set with AES-256-GCM. The additional data are everything that stands outside of it, and the key in
  the store: a reader notices every change.
* Each accepted server token wraps the data key: scrypt (RFC 7914) of the token, with a salt and parameters of the wrap, is the key
  of AES-256-GCM. Identifiers of wraps are random, so that nothing in the row tests a guess without scrypt.
* Parameters are read from the row, within bounds that are checked before the first is used. Writers use N, R, P.
* Tokens are added and removed by a new data key, so that an older wrap opens nothing later. The first wrap is that of the present
  token; each other one has an end, `until`. The servers, not the cipher, keep to that end: one of them then removes the wrap.
* The tokens stand in the sealed part as well, in the order of their wraps: a server that opens the row with a former token learns
  the present one.
* Version 1 has no times, and no tokens in the sealed part. It is read, and written back as it was until a token changes.
* A row without `sealed` claims the store for one CA, whose keys are in the data directory of one server alone. `names` are the
  files of these keys, so that a start notices when one is missing.
* Every change of the keys counts `generation` up. The nonce is random: one data key serves for fewer than 2³² generations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.sharedkeys.keyset import NAMES, SharedKeySet

KEY = "/mooring/bootstrap/keys"
"""Key of the row. It is outside of /registry, which the API serves."""
VERSION = 2
_WITHOUT_TOKENS = 1
N, R, P = 1 << 16, 8, 1
"""scrypt over 64 MiB: 0.21 s of a core of 2024. A start needs it when the keys have changed, a guess always."""
MAX_N, MAX_P = 1 << 17, 4
"""Bounds of what a row may ask for: 128 MiB at once, 2 s."""
MAX_WRAPS = 4
"""Tokens that open one row: the present one, the next one, and two to spare. A wrong token costs scrypt for each."""
MAX_ROW = 1 << 20
"""Bytes of a row, several times those of the largest set."""
MAX_AUTHORITIES = 256
_KEY_BYTES, _NONCE_BYTES, _SALT_BYTES, _ID_BYTES = 32, 12, 16, 8
_TAG_BYTES = 16
_CONTEXT = b"mooring sealed keys v1"
Entropy = Callable[[int], bytes]


class WrongTokenError(ConfigError):
    """The token opens no wrap of the row."""


class DamagedKeysError(ConfigError):
    """The row is not a sealed set of keys, or was changed without the data key."""


@dataclass(frozen=True, slots=True)
class Wrap:
    """The data key, encrypted for one server token."""

    id: str
    n: int
    r: int
    p: int
    salt: bytes
    nonce: bytes
    key: bytes
    created: int = 0
    """Seconds since 1970; 0 when it is not known."""
    until: int = 0
    """End of the token in seconds since 1970; 0 for the present token."""

    def is_over(self, now: float) -> bool:
        """Return whether the token has an end, and that is past."""
        return 0 < self.until <= now


@dataclass(frozen=True, slots=True)
class TokenTerm:
    """A server token, and the time for which it is accepted, as in its wrap."""

    token: Secret
    created: int = 0
    until: int = 0
    id: str = ""
    """Identifier of its wrap, which stays when the row is sealed again; "" for a new one."""


@dataclass(frozen=True, slots=True)
class SharedKeysRow:
    """The row. `data` is empty when the keys are not sealed in it."""

    cluster: str
    generation: int
    fingerprint: str
    authorities: tuple[str, ...]
    nonce: bytes = b""
    data: bytes = b""
    wraps: tuple[Wrap, ...] = ()
    version: int = VERSION
    names: tuple[str, ...] = ()
    """Files of the keys of a claim; empty for sealed keys, and for a claim from before they were recorded."""

    @property
    def is_sealed(self) -> bool:
        """True when the row holds the keys."""
        return bool(self.data)


def claim(cluster: str, keys: SharedKeySet, generation: int = 1) -> SharedKeysRow:
    """Return a row that names the CA of a cluster and holds no keys."""
    names = tuple(name for name in NAMES if name in keys.files)
    return SharedKeysRow(cluster, generation, keys.fingerprint, keys.authorities[:MAX_AUTHORITIES], names=names)


def seal(
    claimed: SharedKeysRow, keys: SharedKeySet, terms: Sequence[TokenTerm], entropy: Entropy
) -> tuple[SharedKeysRow, Secret]:
    """Return the next generation of a row with a new data key, wrapped for exactly these tokens, and the data key.

    The first token is the present one. Raises ConfigError for more tokens than a row may have.
    """
    if not 1 <= len(terms) <= MAX_WRAPS:
        raise ConfigError(f"sealed keys are opened by one to {MAX_WRAPS} server tokens")
    # A new one each time: a token that was left out opens no later row, not even with the data key that it opened
    # before.
    data_key = Secret(entropy(_KEY_BYTES))
    wraps = tuple(_wrap(claimed.cluster, data_key, one, entropy) for one in terms)
    return _sealed(replace(claimed, wraps=wraps, version=VERSION), keys, terms, data_key, entropy), data_key


def reseal(row: SharedKeysRow, keys: SharedKeySet, data_key: Secret, entropy: Entropy, after: int = 0) -> SharedKeysRow:
    """Return a row with other keys, for the same tokens. Its generation is beyond that of the row, and beyond `after`.

    Raises the errors of `open_terms`.
    """
    # Read from the row itself: the tokens stay as they are.
    terms = open_terms(row, data_key)
    return _sealed(replace(row, generation=max(row.generation, after)), keys, terms, data_key, entropy)


def _sealed(
    row: SharedKeysRow, keys: SharedKeySet, terms: Sequence[TokenTerm], data_key: Secret, entropy: Entropy
) -> SharedKeysRow:
    named = replace(claim(row.cluster, keys, row.generation + 1), wraps=row.wraps, version=row.version, names=())
    # A new one for each generation: the data key is used again, and AES-GCM must not see one nonce twice.
    nonce = entropy(_NONCE_BYTES)
    files = {name: one.reveal() for name, one in keys.files.items()}
    tokens = [_TermMessage(one.token.reveal(), one.created, one.until) for one in terms]
    content = files if row.version == _WITHOUT_TOKENS else _ContentMessage(files, tokens)
    data = AESGCM(data_key.reveal()).encrypt(nonce, msgspec.json.encode(content), _header(named))
    return replace(named, nonce=nonce, data=data)


def unlock(row: SharedKeysRow, token: Secret) -> Secret:
    """Return the data key. Takes scrypt for each wrap that does not fit. Raises WrongTokenError."""
    for one in row.wraps:
        try:
            opened = AESGCM(_wrapping_key(token, one)).decrypt(one.nonce, one.key, _wrap_header(row.cluster, one))
        except InvalidTag:
            continue
        return Secret(opened)
    raise WrongTokenError("the keys of this cluster are sealed in the store, and this server token does not open them")


def open_keys(row: SharedKeysRow, data_key: Secret) -> SharedKeySet:
    """Return the keys. Raises WrongTokenError for the data key of another row, DamagedKeysError for content that is not a set."""
    try:
        keys = SharedKeySet.of({name: Secret(data) for name, data in _content(row, data_key).files.items()})
    except ConfigError as error:
        if isinstance(error, WrongTokenError | DamagedKeysError):
            raise
        raise DamagedKeysError(f"the sealed keys are damaged: {error}") from None
    # The fingerprint is readable without a token, and servers judge by it. It must be that of the keys inside.
    if keys.fingerprint != row.fingerprint:
        raise DamagedKeysError("the sealed keys are damaged: the fingerprint is of others")
    return keys


def open_terms(row: SharedKeysRow, data_key: Secret) -> tuple[TokenTerm, ...]:
    """Return the tokens, the present one first; none for a row of version 1. Raises as `open_keys` does."""
    tokens = _content(row, data_key).tokens
    if row.version == _WITHOUT_TOKENS:
        return ()
    # The times of the wraps are readable, too: a former token must not become a present one.
    if [(one.created, one.until) for one in tokens] != _times(row):
        raise DamagedKeysError("the sealed keys are damaged: the tokens are of other wraps")
    return tuple(
        TokenTerm(Secret(one.token), one.created, one.until, wrap.id)
        for one, wrap in zip(tokens, row.wraps, strict=True)
    )


def _content(row: SharedKeysRow, data_key: Secret) -> _ContentMessage:
    try:
        text = AESGCM(data_key.reveal()).decrypt(row.nonce, row.data, _header(row))
    except InvalidTag:
        raise WrongTokenError("the sealed keys are of another data key, or were changed") from None
    try:
        if row.version == _WITHOUT_TOKENS:
            return _ContentMessage(msgspec.json.decode(text, type=dict[str, bytes]), [])
        return msgspec.json.decode(text, type=_ContentMessage)
    except msgspec.MsgspecError:
        raise DamagedKeysError("the sealed keys are damaged: they cannot be read") from None


class _TermMessage(msgspec.Struct, forbid_unknown_fields=True):
    token: bytes
    created: int
    until: int


class _ContentMessage(msgspec.Struct, forbid_unknown_fields=True):
    files: dict[str, bytes]
    tokens: list[_TermMessage]


class _WrapMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    n: int
    r: int
    p: int
    salt: bytes
    nonce: bytes
    key: bytes
    created: int = 0
    until: int = 0


class _SealedMessage(msgspec.Struct, forbid_unknown_fields=True):
    nonce: bytes
    data: bytes


class _RowMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    cluster: str
    generation: int
    fingerprint: str
    authorities: list[str]
    sealed: _SealedMessage | None = None
    wraps: list[_WrapMessage] = []
    names: list[str] = []


def encode(row: SharedKeysRow) -> bytes:
    """Return the value in the store."""
    wraps = [
        _WrapMessage(one.id, one.n, one.r, one.p, one.salt, one.nonce, one.key, one.created, one.until)
        for one in row.wraps
    ]
    sealed = _SealedMessage(row.nonce, row.data) if row.is_sealed else None
    authorities = list(row.authorities)
    names = list(row.names)
    message = _RowMessage(row.version, row.cluster, row.generation, row.fingerprint, authorities, sealed, wraps, names)
    return msgspec.json.encode(message)


def decode(value: bytes) -> SharedKeysRow:
    """Return the row of a value, with every number within its bounds. Raises DamagedKeysError."""
    problem = f"{KEY} in the store holds no keys of a cluster; restore it from a backup"
    # Before it is decoded.
    if len(value) > MAX_ROW:
        raise DamagedKeysError(problem)
    try:
        # Before the whole row is decoded: a later version may have other fields, and its error must say so.
        version = msgspec.json.decode(value, type=_Versioned).version
        if version not in (VERSION, _WITHOUT_TOKENS):
            raise DamagedKeysError(
                f"{KEY} in the store has version {version}, and this program knows {VERSION}; update it"
            )
        message = msgspec.json.decode(value, type=_RowMessage)
    except (msgspec.MsgspecError, RecursionError):
        raise DamagedKeysError(problem) from None
    wraps = tuple(
        Wrap(one.id, one.n, one.r, one.p, one.salt, one.nonce, one.key, one.created, one.until) for one in message.wraps
    )
    sealed = message.sealed or _SealedMessage(b"", b"")
    row = SharedKeysRow(
        message.cluster,
        message.generation,
        message.fingerprint,
        tuple(message.authorities),
        sealed.nonce,
        sealed.data,
        wraps,
        version,
        tuple(message.names),
    )
    # Before any scrypt: its costs stand in the row, which may be another program's.
    if not _is_within_bounds(row):
        raise DamagedKeysError(problem)
    return row


class _Versioned(msgspec.Struct):
    version: int


def _is_within_bounds(row: SharedKeysRow) -> bool:
    """Return whether reading the row costs no more than rows that are written here."""
    return (
        row.generation > 0
        and 0 < len(row.authorities) <= MAX_AUTHORITIES
        and len(row.wraps) <= MAX_WRAPS
        and row.is_sealed == bool(row.wraps)
        and set(row.names) <= set(NAMES)
        and not (row.is_sealed and row.names)
        and (not row.is_sealed or len(row.nonce) == _NONCE_BYTES)
        and all(_is_affordable(one) for one in row.wraps)
        and (row.version != _WITHOUT_TOKENS or not any(map(any, _times(row))))
    )


def _is_affordable(wrap: Wrap) -> bool:
    return (
        1 < wrap.n <= MAX_N
        and wrap.n & (wrap.n - 1) == 0
        and wrap.r == R
        and 0 < wrap.p <= MAX_P
        and len(wrap.salt) == _SALT_BYTES
        and len(wrap.nonce) == _NONCE_BYTES
        and len(wrap.key) == _KEY_BYTES + _TAG_BYTES
    )


def _wrap(cluster: str, data_key: Secret, term: TokenTerm, entropy: Entropy) -> Wrap:
    wrap_id, salt, nonce = term.id or entropy(_ID_BYTES).hex(), entropy(_SALT_BYTES), entropy(_NONCE_BYTES)
    empty = Wrap(wrap_id, N, R, P, salt, nonce, b"", term.created, term.until)
    key = AESGCM(_wrapping_key(term.token, empty)).encrypt(nonce, data_key.reveal(), _wrap_header(cluster, empty))
    return replace(empty, key=key)


def _wrapping_key(token: Secret, wrap: Wrap) -> bytes:
    return Scrypt(salt=wrap.salt, length=_KEY_BYTES, n=wrap.n, r=wrap.r, p=wrap.p).derive(token.reveal())


def _header(row: SharedKeysRow) -> bytes:
    """Return the additional data of the sealed set: the times of the wraps are authenticated, too."""
    parts = (KEY, row.cluster, row.generation, row.fingerprint, row.authorities)
    if row.version == _WITHOUT_TOKENS:
        return _framed(*parts)
    return _framed(*parts, row.version, [(one.id, one.created, one.until) for one in row.wraps])


def _times(row: SharedKeysRow) -> list[tuple[int, int]]:
    return [(one.created, one.until) for one in row.wraps]


def _wrap_header(cluster: str, wrap: Wrap) -> bytes:
    """Return the additional data of a wrap."""
    return _framed(KEY, cluster, wrap.id, wrap.n, wrap.r, wrap.p)


def _framed(*parts: Any) -> bytes:
    return _CONTEXT + msgspec.json.encode(parts)
