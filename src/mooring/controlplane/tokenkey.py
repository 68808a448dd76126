"""Private keys in PKCS#11 tokens, such as hardware security modules.

Rules kept here:
* The library is python-pkcs11 (`pip install mooring[pkcs11]`), loaded when a URI names a token. It initialises a module without
  locks of its own, so that one call at a time enters a module.
* The key never leaves the token: data go in, a signature comes out. RSA signs with CKM_SHA256_RSA_PKCS, ECDSA with CKM_ECDSA of a
  digest that is computed here.
* A key is used only after one of its signatures was verified with the public key of the CA certificate.
* A token that was removed and came back is opened again at the next signature. A wrong PIN is never tried a second time, because a
  token locks itself after a few.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mooring.client.files import read_limited
from mooring.controlplane.datadirectory import warn_if_exposed
from mooring.errors import ConfigError
from mooring.pki import tokenkeyuri
from mooring.pki.errors import DeviceError, KeyRefusedError
from mooring.pki.keys import DeviceKey, PrivateKey, accepted_public_key, signature_hash
from mooring.pki.tokenkeyuri import TokenKeyUri
from mooring.pki.x509.certificate import Certificate

INSTALL = "the library for tokens is not installed: run pip install 'mooring[pkcs11]'"
MAX_PIN = 256
"""Bytes: PKCS#11 leaves it to the token; none takes as many."""
PROBE = b"mooring: does this key belong to the certificate of the CA?"

_locks: defaultdict[str, Lock] = defaultdict(Lock)
"""Locks of the loaded modules, by path. A module is loaded once in a process."""


def open_key(uri: str, certificates: Iterable[Certificate]) -> PrivateKey:
    """Return the key of the first certificate that belongs to it. Raises ConfigError or PkiError that names the token."""
    parsed = tokenkeyuri.parse(uri)
    token = _Token(parsed, _read_pin(parsed))
    for certificate in certificates:
        try:
            public = accepted_public_key(certificate.public_key())
        except (KeyRefusedError, ValueError):
            continue
        if isinstance(public, ec.EllipticCurvePublicKey) and token.holds(_TokenEllipticCurveKey(token, public)):
            return _TokenEllipticCurveKey(token, public)
        if isinstance(public, rsa.RSAPublicKey) and token.holds(_TokenRsaKey(token, public)):
            return _TokenRsaKey(token, public)
    raise KeyRefusedError(f"{parsed} does not belong to the CA certificate, or is neither ECDSA nor RSA")


def open_own_key(uri: str) -> PrivateKey:
    """Return a key by its public half in the token, to make the first certificate of a CA. Raises ConfigError or PkiError."""
    parsed = tokenkeyuri.parse(uri)
    token = _Token(parsed, _read_pin(parsed))
    public = token.public_key()
    key = (
        _TokenEllipticCurveKey(token, public)
        if isinstance(public, ec.EllipticCurvePublicKey)
        else _TokenRsaKey(token, public)
    )
    if not token.holds(key):
        raise KeyRefusedError(f"{parsed}: the public key of that name in the token belongs to another private key")
    return key


def _read_pin(uri: TokenKeyUri) -> str | None:
    """Return the PIN, None for a token that needs none. Raises ConfigError."""
    if uri.pin_variable:
        pin = os.environ.get(uri.pin_variable, "")
        if not pin:
            raise ConfigError(f"the environment variable {uri.pin_variable} of pin-source is not set")
        return pin
    if not uri.pin_file:
        return None
    path = Path(uri.pin_file)
    data = read_limited(path).rstrip(b"\r\n")
    warn_if_exposed(path)
    try:
        pin = data.decode()
    except UnicodeDecodeError:
        pin = ""
    if not pin or len(data) > MAX_PIN:
        raise ConfigError(f"{path}: it holds no PIN: write the PIN alone into it, in one line")
    return pin


class _Token:
    """One token and one private key in it. Thread-safe."""

    def __init__(self, uri: TokenKeyUri, pin: str | None) -> None:
        """Raises DeviceError or KeyRefusedError."""
        try:
            import pkcs11
        except ImportError:
            raise KeyRefusedError(INSTALL) from None
        self._pkcs11: Any = pkcs11
        self._uri = uri
        self._pin = pin
        self._lock = _locks[uri.module_path]
        self._refused = False
        self._session: Any = None
        self._key: Any = None
        with self._lock:
            self._open()

    def __repr__(self) -> str:
        return f"_Token({self._uri})"

    def holds(self, key: _TokenEllipticCurveKey | _TokenRsaKey) -> bool:
        """Return true when the token's key belongs to the public key of `key`."""
        is_elliptic = isinstance(key, _TokenEllipticCurveKey)
        wanted = self._pkcs11.KeyType.EC if is_elliptic else self._pkcs11.KeyType.RSA
        if self._key.key_type is not wanted:
            return False
        public = key.public_key()
        try:
            if isinstance(public, ec.EllipticCurvePublicKey):
                algorithm = signature_hash(public)
                # Only Ed25519 has none.
                assert algorithm is not None
                signature = ec.ECDSA(algorithm)
                assert isinstance(key, _TokenEllipticCurveKey)
                public.verify(key.sign(PROBE, signature), PROBE, signature)
            else:
                assert isinstance(key, _TokenRsaKey)
                scheme, digest = padding.PKCS1v15(), hashes.SHA256()
                public.verify(key.sign(PROBE, scheme, digest), PROBE, scheme, digest)
        except (InvalidSignature, DeviceError):
            return False
        return True

    def public_key(self) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
        """Return the public key that stands beside the private key. Raises KeyRefusedError."""
        pkcs11 = self._pkcs11
        is_elliptic = self._key.key_type is pkcs11.KeyType.EC
        encode = pkcs11.util.ec.encode_ec_public_key if is_elliptic else pkcs11.util.rsa.encode_rsa_public_key
        with self._lock:
            found = self._find_objects(self._session, pkcs11.ObjectClass.PUBLIC_KEY)
            try:
                public = accepted_public_key(load_der_public_key(encode(found[0]))) if len(found) == 1 else None
            except (pkcs11.PKCS11Error, ValueError) as error:
                raise KeyRefusedError(f"{self._uri}: its public key cannot be read: {_kind(error)}") from None
        if not isinstance(public, (ec.EllipticCurvePublicKey, rsa.RSAPublicKey)):
            raise KeyRefusedError(f"{self._uri}: the token holds no public key of that name, or several")
        return public

    def sign(self, data: bytes, mechanism: str) -> bytes:
        """Return the signature of `data` with the PKCS#11 mechanism of that name. Raises DeviceError."""
        with self._lock:
            if self._key is None:
                self._open()
            try:
                return self._signature(data, mechanism)
            except self._pkcs11.PKCS11Error:
                self._close()
            # The token was removed and came back, or the device was restarted.
            self._open()
            try:
                return self._signature(data, mechanism)
            except self._pkcs11.PKCS11Error as error:
                self._close()
                raise DeviceError(f"{self._uri} did not sign: {_kind(error)}") from None

    def _signature(self, data: bytes, mechanism: str) -> bytes:
        return bytes(self._key.sign(data, mechanism=getattr(self._pkcs11.Mechanism, mechanism)))

    def _open(self) -> None:
        """Open a session and find the key. Raises DeviceError or KeyRefusedError."""
        pkcs11, uri = self._pkcs11, self._uri
        if self._refused:
            raise DeviceError(f"{uri} is not opened again: the token refused the PIN; correct it and restart")
        try:
            token = self._find_token(pkcs11.lib(uri.module_path))
            self._session = self._log_in(token)
            self._key = self._find_key(self._session)
        except pkcs11.PKCS11Error as error:
            self._close()
            self._refuse(error)

    def _find_token(self, module: Any) -> Any:
        uri = self._uri
        found = [
            token
            for token in module.get_tokens(
                token_label=uri.token or None, token_serial=uri.serial.encode() if uri.serial else None
            )
            if uri.manufacturer in ("", token.manufacturer_id) and uri.model in ("", token.model)
        ]
        if len(found) != 1:
            number = "no token" if not found else f"{len(found)} tokens"
            raise DeviceError(f"{number} of {uri.module_path} is the one of {uri}: insert it, or correct the URI")
        return found[0]

    def _find_objects(self, session: Any, object_class: Any) -> list[Any]:
        attributes = self._pkcs11.Attribute
        wanted = {attributes.CLASS: object_class}
        if self._uri.object:
            wanted[attributes.LABEL] = self._uri.object
        if self._uri.id:
            wanted[attributes.ID] = self._uri.id
        # To its end: the search occupies the session until then.
        return list(session.get_objects(wanted))

    def _find_key(self, session: Any) -> Any:
        uri = self._uri
        found = self._find_objects(session, self._pkcs11.ObjectClass.PRIVATE_KEY)
        if len(found) == 1:
            return found[0]
        self._close()
        if found:
            raise KeyRefusedError(f"{uri}: several keys are called so; give id= as well")
        hint = "" if self._pin else "; give pin-source, because a token hides private keys before the login"
        raise KeyRefusedError(f"{uri} is not there{hint}")

    def _log_in(self, token: Any) -> Any:
        if self._pin is None:
            return token.open()
        try:
            return token.open(user_pin=self._pin)
        except self._pkcs11.UserAlreadyLoggedIn:
            # By another key of this token: a login is for all sessions of a process.
            return token.open()

    def _close(self) -> None:
        session, self._session, self._key = self._session, None, None
        if session is not None:
            try:
                session.close()
            except self._pkcs11.PKCS11Error:
                # It ended with the token.
                return

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise the error to report. Tokens lock themselves, so that a refused PIN is remembered."""
        pkcs11, uri = self._pkcs11, self._uri
        if isinstance(error, (pkcs11.PinIncorrect, pkcs11.PinInvalid, pkcs11.PinLenRange, pkcs11.PinLocked)):
            self._refused = True
            raise KeyRefusedError(f"{uri}: the token refuses the PIN of pin-source ({_kind(error)})") from None
        raise DeviceError(f"{uri} cannot be opened with {uri.module_path}: {_kind(error)}") from None


class _TokenEllipticCurveKey(DeviceKey, ec.EllipticCurvePrivateKey):
    """ECDSA key in a token."""

    def __init__(self, token: _Token, public: ec.EllipticCurvePublicKey) -> None:
        self._token = token
        self._public = public

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """Return the DER signature. Raises DeviceError."""
        algorithm = signature_algorithm.algorithm
        # Certificates are signed whole.
        assert isinstance(algorithm, hashes.HashAlgorithm)
        digest = hashes.Hash(algorithm)
        digest.update(data)
        raw = self._token.sign(digest.finalize(), "ECDSA")
        half = len(raw) // 2
        return utils.encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._public.curve

    @property
    def key_size(self) -> int:
        return self._public.key_size

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> bytes:
        _refuse_use()

    def private_numbers(self) -> ec.EllipticCurvePrivateNumbers:
        _refuse_use()

    def private_bytes(self, encoding: Any, format: Any, encryption_algorithm: Any) -> bytes:  # noqa: A002 - the library's name
        _refuse_use()

    def __copy__(self) -> _TokenEllipticCurveKey:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> _TokenEllipticCurveKey:
        return self


class _TokenRsaKey(DeviceKey, rsa.RSAPrivateKey):
    """RSA key in a token."""

    def __init__(self, token: _Token, public: rsa.RSAPublicKey) -> None:
        self._token = token
        self._public = public

    def sign(self, data: Any, padding: Any, algorithm: Any) -> bytes:
        """Return the PKCS#1 v1.5 signature with SHA-256, the only one that this program makes. Raises DeviceError."""
        if not (isinstance(padding, _PKCS1v15) and isinstance(algorithm, hashes.SHA256)):
            _refuse_use()
        return self._token.sign(bytes(data), "SHA256_RSA_PKCS")

    def public_key(self) -> rsa.RSAPublicKey:
        return self._public

    @property
    def key_size(self) -> int:
        return self._public.key_size

    def decrypt(self, ciphertext: bytes, padding: Any) -> bytes:
        _refuse_use()

    def private_numbers(self) -> rsa.RSAPrivateNumbers:
        _refuse_use()

    def private_bytes(self, encoding: Any, format: Any, encryption_algorithm: Any) -> bytes:  # noqa: A002 - the library's name
        _refuse_use()

    def __copy__(self) -> _TokenRsaKey:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> _TokenRsaKey:
        return self


_PKCS1v15 = padding.PKCS1v15


def _refuse_use() -> NoReturn:
    raise DeviceError("a key in a token signs certificates, and does nothing else")


def _kind(error: Exception) -> str:
    """Return the name of a PKCS#11 error, such as `TokenNotPresent`. Its text may hold arguments."""
    return type(error).__name__
