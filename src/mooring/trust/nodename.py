"""The name of a machine's node, and the code by which a person recognises the machine."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring import base64url
from mooring.apimachinery.names import SUBDOMAIN_MAX, dns1123_subdomain_errors
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.nodes import REGISTRATIONS

# Name of a machine's Node: chosen as kubelet chooses it, and checked before anything is requested.
#
# Rules kept here:
# * A given name, else the host name, without blanks around it and in lower case, as in kubelet, kubeadm (`GetHostname`) and k3s.
# * It is a DNS subdomain (RFC 1123), because it is the name of an object.
# * A Node that this program registers has the name in its label `kubernetes.io/hostname`, whose value has 63 characters at most
#   (Kubernetes, `validation.LabelValueMaxLength`). A longer name is refused while no certificate was issued and no token used.
# * An error names what gave the name, the flag, and a name that is valid.

HOSTNAME_MAX = 63
"""Characters of a label's value."""
_UNREGISTERED = REGISTRATIONS[0]
_FORBIDDEN = re.compile(r"[^a-z0-9.-]+")
_DOTS = re.compile(r"[-.]*\.[-.]*")


def choose_node_name(
    given: str, host_name: str, register_node: str = "", *, suffix: int = 0, longest: int = SUBDOMAIN_MAX
) -> str:
    """Return the name of the Node. Raises ConfigError.

    `register_node`: the setting of that name. `suffix`: characters that are appended later. `longest`: limit of another place.
    """
    name = (given or host_name).strip().lower()
    if not name:
        raise ConfigError("--node-name is needed: the name of this machine could not be found out")
    is_registered = register_node != _UNREGISTERED
    room = (min(longest, HOSTNAME_MAX) if is_registered else min(longest, SUBDOMAIN_MAX)) - suffix
    if problems := dns1123_subdomain_errors(name):
        raise ConfigError(f"{_source(given, host_name)} is invalid: {problems[0]}{_advice(name, room)}")
    if len(name) > room:
        limit = f"the label kubernetes.io/hostname of a Node takes {room}" if is_registered else f"{room} are possible"
        beside = f" beside the {suffix} of --with-node-id" if suffix else ""
        without = ", or register no Node with --register-node none" if is_registered else ""
        raise ConfigError(
            f"{_source(given, host_name)} is too long: it has {len(name)} characters, and {limit}{beside}{_advice(name, room)}"
            f"{without}"
        )
    return name


def name_note(given: str, host_name: str) -> str:
    """Return the line about a name that was written in lower case, or that is the host name of many machines; "" without one."""
    text = (given or host_name).strip()
    if not given and text.lower().partition(".")[0] == "localhost":
        return (
            f"{_source(given, host_name)} is that of every machine without a name, and one Node alone can be called so: give "
            "--node-name, or set the host name before the join"
        )
    return (
        f"{_source(given, host_name)}: the Node is called {text.lower()}, in lower case" if text != text.lower() else ""
    )


def _source(given: str, host_name: str) -> str:
    return f'--node-name "{given.strip()}"' if given else f'the host name "{host_name.strip()}"'


def _advice(name: str, room: int) -> str:
    """Return a valid name to give: the same with other characters, or its first part when it is too long."""
    valid = _DOTS.sub(".", _FORBIDDEN.sub("-", name)).strip("-.")
    if len(valid) > room:
        valid = valid.partition(".")[0][:room].rstrip("-")
    return f"; give another, such as --node-name {valid}" if valid else "; give another with --node-name"


# One-time codes of machines: a machine proves in its certificate request that it knows the code, without showing it.
#
# Rules kept here:
# * A code is 25 characters of base32 in five groups: 125 random bits. Case, spaces and dashes do not count.
# * HKDF-SHA256 (RFC 5869) of the code, without salt and with the info `mooring.dev machine code v1`, is the seed of an Ed25519
#   key (RFC 8032). The server keeps the public half, the **verifier**: `ed25519:<base64>`. Reading it does not prove the code.
# * The **proof** is the signature over `mooring.dev machine code v1`, the node name and the SubjectPublicKeyInfo of the request,
#   each preceded by its length as four bytes, in base64url without padding. It is of use with this key and this name only.
# * The proof stands in the attribute challengePassword of the PKCS#10 request (RFC 2985 5.4.1), which the signature of the
#   request covers.

CONTEXT = b"mooring.dev machine code v1"
ALGORITHM = "ed25519:"
_GROUPS, _GROUP = 5, 5
_CODE = re.compile(rf"[A-Z2-7]{{{_GROUPS * _GROUP}}}", re.ASCII)
_RANDOM_BYTES = 16
_VERIFIER = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=", re.ASCII)


def generate_code(entropy: Callable[[int], bytes]) -> Secret:
    """Return a new code such as `ABCDE-FGHIJ-KLMNO-PQRST-UVWXY`."""
    text = base64.b32encode(entropy(_RANDOM_BYTES)).decode()[: _GROUPS * _GROUP]
    return Secret("-".join(text[start : start + _GROUP] for start in range(0, len(text), _GROUP)))


def parse_code(text: bytes) -> Secret:
    """Return the code in a text that a person may have typed. Raises ConfigError, which does not repeat it."""
    letters = re.sub(r"[\s-]", "", text.decode("ascii", "replace")).upper()
    if _CODE.fullmatch(letters) is None:
        raise ConfigError(
            f"the machine code must be {_GROUPS * _GROUP} letters A-Z and digits 2-7, as `mooring machine authorize` printed it"
        )
    return Secret(letters)


def verifier(code: Secret) -> str:
    """Return what the server keeps to verify proofs."""
    public = _key(code).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return ALGORITHM + base64.b64encode(public).decode()


def is_verifier(text: str) -> bool:
    """Return true for the form of a verifier."""
    return _VERIFIER.fullmatch(text) is not None


def proof(code: Secret, node_name: str, public_key_der: bytes) -> str:
    """Return the proof for a request for `node_name` with this SubjectPublicKeyInfo."""
    return base64url.encode(_key(code).sign(_message(node_name, public_key_der)))


def is_proven(kept: str, shown: str, node_name: str, public_key_der: bytes) -> bool:
    """Return true when `shown` is a proof of the code that `kept` verifies. Bad forms prove nothing."""
    if not is_verifier(kept):
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(kept.removeprefix(ALGORITHM)))
        public.verify(base64url.decode(shown), _message(node_name, public_key_der))
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


# Comparison code of a machine that joins by asking: a person compares it on the machine and beside the request.
#
# Rules kept here (docs/join-by-asking.md):
# * It covers the key of the request and every CA that the machine saw. Whoever stands between the two has another CA, or another
#   key, and so another code.
# * It is 40 bits behind scrypt (RFC 7914; N 2^14, r 8, p 1: 16 MiB and about 50 ms): a second key with the same code takes more
#   than a thousand years of one processor, and the request waits for an hour.

COMPARISON = b"mooring.dev join request v1"


def comparison_code(public_key_der: bytes, pins: Iterable[str]) -> str:
    """Return the code `XXXX-XXXX` for a key and the pins of the CAs of a cluster, in any order."""
    parts = (public_key_der, *(pin.encode() for pin in sorted(set(pins))))
    text = b"".join(len(part).to_bytes(4) + part for part in parts)
    found = hashlib.scrypt(text, salt=COMPARISON, n=1 << 14, r=8, p=1, maxmem=1 << 26, dklen=5)
    letters = base64.b32encode(found).decode()
    return f"{letters[:4]}-{letters[4:]}"


def same_code(one: str, other: str) -> bool:
    """Return true for one code in two spellings: case, spaces and dashes do not count."""
    return bool(one) and re.sub(r"[\s-]", "", one).upper() == re.sub(r"[\s-]", "", other).upper()


def _key(code: Secret) -> Ed25519PrivateKey:
    letters = parse_code(code.reveal()).reveal()
    return Ed25519PrivateKey.from_private_bytes(HKDF(hashes.SHA256(), 32, None, CONTEXT).derive(letters))


def _message(node_name: str, public_key_der: bytes) -> bytes:
    parts = (CONTEXT, node_name.encode(), public_key_der)
    return b"".join(len(part).to_bytes(4) + part for part in parts)
