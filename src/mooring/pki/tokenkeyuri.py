"""PKCS#11 URIs of private keys (RFC 7512).

Rules kept here:
* The path names one private key in one token: `token` or `serial`, and `object` or `id`; `manufacturer` and `model` may narrow it.
* `module-path` names the library of the token. `pin-source` says where the PIN is read: `file:/path`, or `env:NAME`. The URI never
  contains the PIN, because everybody on the machine can read a command line.
* Attributes that this program would ignore are refused, because each of them narrows the choice of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from mooring.pki.errors import KeyRefusedError

SCHEME = "pkcs11:"
MAX_URI = 4096
"""Characters: as long as a path may be."""
PATH_ATTRIBUTES = ("token", "serial", "manufacturer", "model", "object", "id", "type")
QUERY_ATTRIBUTES = ("module-path", "pin-source")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKeyUri:
    """One private key in a token. An empty text is not a condition."""

    token: str = ""
    serial: str = ""
    manufacturer: str = ""
    model: str = ""
    object: str = ""
    id: bytes = b""
    module_path: str
    pin_file: str = ""
    pin_variable: str = ""

    def __str__(self) -> str:
        """Return what the key and its token are called, for messages."""
        key = f'the key "{self.object}"' if self.object else f"the key with the id {self.id.hex()}"
        token = f'the token "{self.token}"' if self.token else f"the token with the serial number {self.serial}"
        return f"{key} in {token}"


def parse(text: str) -> TokenKeyUri:
    """Return the key that a URI names. Raises KeyRefusedError, whose message never repeats a value."""
    if not text.startswith(SCHEME) or len(text) > MAX_URI:
        raise KeyRefusedError(f"a PKCS#11 URI begins with {SCHEME} and has at most {MAX_URI} characters")
    path, _, query = text.removeprefix(SCHEME).partition("?")
    found = _attributes(path, ";", PATH_ATTRIBUTES)
    asked = _attributes(query, "&", QUERY_ATTRIBUTES)
    if found.get("type", b"private") != b"private":
        raise KeyRefusedError("the PKCS#11 URI names no private key: leave type out, or give type=private")
    if not (found.get("token") or found.get("serial")):
        raise KeyRefusedError("the PKCS#11 URI names no token: give token=LABEL or serial=NUMBER")
    if not (found.get("object") or found.get("id")):
        raise KeyRefusedError("the PKCS#11 URI names no key: give object=LABEL or id=%01")
    module_path = _text(asked, "module-path")
    if not module_path.startswith("/"):
        raise KeyRefusedError("the PKCS#11 URI names no library: give module-path= with its whole path")
    pin_file, pin_variable = _pin_source(_text(asked, "pin-source"))
    return TokenKeyUri(
        token=_text(found, "token"),
        serial=_text(found, "serial"),
        manufacturer=_text(found, "manufacturer"),
        model=_text(found, "model"),
        object=_text(found, "object"),
        id=found.get("id", b""),
        module_path=module_path,
        pin_file=pin_file,
        pin_variable=pin_variable,
    )


def _attributes(text: str, separator: str, known: tuple[str, ...]) -> Mapping[str, bytes]:
    """Return the decoded values by name. Raises KeyRefusedError for an attribute that is unknown or repeated."""
    found: dict[str, bytes] = {}
    for part in text.split(separator) if text else ():
        name, equals, value = part.partition("=")
        if name == "pin-value":
            raise KeyRefusedError("the PKCS#11 URI contains the PIN: use pin-source=file:PATH or pin-source=env:NAME")
        if name not in known or not equals:
            raise KeyRefusedError(f"the PKCS#11 URI may have, before or after its ?, only {', '.join(known)}")
        if name in found:
            raise KeyRefusedError(f"the PKCS#11 URI has {name} twice")
        found[name] = unquote_to_bytes(value)
    return found


def _text(values: Mapping[str, bytes], name: str) -> str:
    try:
        return values.get(name, b"").decode()
    except UnicodeDecodeError:
        raise KeyRefusedError(f"{name} of the PKCS#11 URI is not UTF-8") from None


def _pin_source(source: str) -> tuple[str, str]:
    """Return the file or the environment variable of the PIN. Raises KeyRefusedError."""
    scheme, _, rest = source.partition(":")
    if scheme == "env" and rest:
        return "", rest
    path = rest.removeprefix("//") if scheme == "file" else source
    if source and not path.startswith("/"):
        raise KeyRefusedError("pin-source of the PKCS#11 URI must be file: with a whole path, or env: with a variable")
    return path, ""
