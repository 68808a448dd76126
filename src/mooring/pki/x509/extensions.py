"""The extensions of a certificate that decide something, read as Go's `crypto/x509` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

from cryptography.x509.oid import ExtensionOID, ObjectIdentifier

from mooring.pki.x509 import der
from mooring.pki.x509.canonicalnames import IPAddress
from mooring.pki.x509.der import DerError, TooManyElementsError

# Texts of alternative names and name constraints: which of them Go reads (`url.Parse`, `domainNameValid`, `parseRFC2821Mailbox`).
#
# Rules kept here: nothing is decoded, and no text is judged good. A certificate with another text is none that Go reads.

_PORT = r"(?::[0-9]*)?"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ESCAPED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_USER = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%-]*")
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:<>\"\]-]|%25)*")
_LITERAL = re.compile(rf"\[([0-9A-Fa-f:.]*)\]{_PORT}")
_ANY_PORT = re.compile(_PORT)
_STRICT = ("http", "https")
"""Schemes whose host has one colon at most."""
_VISIBLE = re.compile(r"[!-~]*")
_ATOMS = re.compile(r"((?:\\[\x00-\x7f]|[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-])+)@(.*)", re.DOTALL)
_QUOTED = re.compile(
    r'"(?:[\x01-\x08\x0b\x0c\x0e-\x21\x23-\x5b\x5d-\x7f]|\\[\x01-\x09\x0b\x0c\x0e-\x7f])*"@(.*)', re.DOTALL
)


def is_domain(text: str) -> bool:
    """Return whether a text is a DNS name, for Go: visible characters in labels that are not empty. The empty one is."""
    return not text or (bool(_VISIBLE.fullmatch(text)) and "" not in text.split("."))


def is_domain_constraint(text: str) -> bool:
    """Return whether a text is a DNS name, which may begin with a dot."""
    return is_domain(text[1:] or ".") if text.startswith(".") else is_domain(text)


def is_uri_constraint(text: str) -> bool:
    """Return whether a text limits the hosts of URIs: a DNS name and no IP address."""
    try:
        ip_address(text)
    except ValueError:
        return is_domain_constraint(text)
    return False


def is_email_constraint(text: str) -> bool:
    """Return whether a text limits email addresses: one address, or the domain of them."""
    if "@" not in text:
        return is_domain_constraint(text)
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        return quoted is not None and is_domain(quoted[1])
    found = _ATOMS.fullmatch(text)
    return found is not None and "" not in re.sub(r"(?s)\\(.)", r"\1", found[1]).split(".") and is_domain(found[2])


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, or a relative reference."""
    text, _, fragment = text.partition("#")
    if _CONTROL.search(text) or not _ESCAPED.fullmatch(fragment) or text.startswith(":"):
        return False
    scheme = _SCHEME.match(text)
    rest = (text[scheme.end() :] if scheme else text).partition("?")[0]
    if not rest.startswith("/"):
        return bool(scheme) or (":" not in rest.partition("/")[0] and bool(_ESCAPED.fullmatch(rest)))
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        if not _is_authority(authority, scheme[1].lower() if scheme else ""):
            return False
        rest = slash + path
    return bool(_ESCAPED.fullmatch(rest))


def _is_authority(text: str, scheme: str) -> bool:
    user, _, host = text.rpartition("@")
    if not _USER.fullmatch(user) or not _ESCAPED.fullmatch(user):
        return False
    if "[" in host:
        return _is_literal(host)
    _, colon, port = host.partition(":") if scheme in _STRICT else host.rpartition(":")
    return bool(_ANY_PORT.fullmatch(colon + port if colon else "")) and bool(_HOST.fullmatch(host)) and is_domain(host)


def _is_literal(host: str) -> bool:
    """Return whether a host is an IPv6 address in brackets. One with a zone, which Go reads, names an interface of one machine."""
    found = _LITERAL.fullmatch(host)
    try:
        return found is not None and bool(IPv6Address(found[1]))
    except ValueError:
        return False


# The extensions of a certificate that decide something, read as Go's `crypto/x509` reads them (`processExtensions`).
#
# Rules kept here (docs/adr/0085-certificates-as-go-reads-them.md; RFC 5280 4.2):
# * Each extension that is used is read by itself. The others stay bytes, whatever stands in them. No extension stands there
#   twice.
# * An error names the extension that cannot be read.
# * The critical extensions that Go understands are understood. An alternative name that has names of other types only is not, and
#   neither are name constraints that have one.
# * URIs, and the names in constraints, have the syntax that Go reads.
# * A length of a path is a limit for CAs only: `CA:FALSE, pathlen:0` is not a CA, as in Go.

_LARGEST_NUMBER = 2**63 - 1
"""Go's limit of the length of a path."""

_BITS = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
"""Bits of the key usage by position (RFC 5280 4.2.1.3), under the names that the library has for them."""

NAMES: Mapping[ObjectIdentifier, str] = MappingProxyType(
    {
        ExtensionOID.BASIC_CONSTRAINTS: "basic constraints",
        ExtensionOID.KEY_USAGE: "key usage",
        ExtensionOID.EXTENDED_KEY_USAGE: "extended key usage",
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME: "subject alternative name",
        ExtensionOID.NAME_CONSTRAINTS: "name constraints",
        ExtensionOID.SUBJECT_KEY_IDENTIFIER: "subject key identifier",
        ExtensionOID.AUTHORITY_KEY_IDENTIFIER: "authority key identifier",
        ExtensionOID.CERTIFICATE_POLICIES: "certificate policies",
        ExtensionOID.POLICY_MAPPINGS: "policy mappings",
        ExtensionOID.POLICY_CONSTRAINTS: "policy constraints",
        ExtensionOID.INHIBIT_ANY_POLICY: "inhibit any policy",
    }
)
"""Extensions that are read, and their words in a message."""
_UNDERSTOOD = frozenset(NAMES) | {ExtensionOID.CRL_DISTRIBUTION_POINTS}
_NEVER_CRITICAL = frozenset({ExtensionOID.SUBJECT_KEY_IDENTIFIER, ExtensionOID.AUTHORITY_KEY_IDENTIFIER})

MAX_EXTENSIONS = 100
"""Extensions of one certificate, request or CRL; a usual one has ten. OpenSSL reads them before, which takes longer."""
DIRECTORY_NAME = 0xA4
_EMAIL, _DNS, _URI, _IP = 0x81, 0x82, 0x86, 0x87
_MORE_ELEMENTS: Mapping[int, int] = MappingProxyType({_URI: 3, _IP: 1})
"""Elements beside its own for which a name counts: URIs take four times as long as DNS names, and IP addresses twice."""
_CONSTRAINTS: Mapping[int, Callable[[str], bool]] = MappingProxyType(
    {
        _EMAIL: is_email_constraint,
        _DNS: is_domain_constraint,
        _URI: is_uri_constraint,
    }
)


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension, as its bytes stand there."""

    oid: ObjectIdentifier
    critical: bool
    value: bytes


@dataclass(frozen=True, slots=True)
class BasicConstraints:
    """CA bit, and the number of other CAs that may stand between the CA and a leaf (None: any number)."""

    ca: bool
    path_length: int | None = None


@dataclass(frozen=True, slots=True)
class GeneralNames:
    """Alternative names of the types that Kubernetes reads. `addresses` of the form of IPv4 in IPv6 stay as they are."""

    dns: tuple[str, ...] = ()
    addresses: tuple[IPAddress, ...] = ()
    emails: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dns or self.addresses or self.emails or self.uris)


@dataclass(frozen=True, slots=True)
class PolicyConstraints:
    """Numbers of further certificates after which a policy is required, and after which none is mapped."""

    require_explicit: int | None = None
    inhibit_mapping: int | None = None


@dataclass(frozen=True, slots=True)
class Extensions:
    """The extensions of a certificate or a request, by their identifiers, and the values of those that are used (None: absent)."""

    by_oid: Mapping[ObjectIdentifier, Extension] = field(default_factory=dict)
    basic_constraints: BasicConstraints | None = None
    key_usage: frozenset[str] | None = None
    """Names of the bits that are set."""
    extended_key_usage: tuple[ObjectIdentifier, ...] | None = None
    alternative_names: GeneralNames | None = None
    constrained_types: frozenset[int] | None = None
    """Tags of the names that name constraints permit or exclude."""
    subject_key_identifier: bytes | None = None
    authority_key_identifier: bytes | None = None
    """Identifier of the issuer's key; None also where the extension names the issuer in another way."""
    policies: tuple[bytes, ...] | None = None
    """Contents of their object identifiers: of a UUID, one has a number that `ObjectIdentifier` cannot hold."""
    policy_mappings: tuple[tuple[bytes, bytes], ...] = ()
    policy_constraints: PolicyConstraints = PolicyConstraints()
    inhibit_any_policy: int | None = None
    not_understood: tuple[ObjectIdentifier, ...] = ()
    """Critical extensions that this program does not understand."""

    @classmethod
    def read(cls, holder: der.Element, used: Collection[ObjectIdentifier] = frozenset(NAMES)) -> Extensions:
        """Read the SEQUENCE of extensions in `holder`, and the values of those that are `used`.

        Raises DerError, whose text names the part that cannot be read.
        """
        try:
            fields = holder.fields().next(der.SEQUENCE).fields()
            every = tuple(map(extension, islice(fields, MAX_EXTENSIONS)))
            if fields:
                raise TooManyElementsError(f"more than {MAX_EXTENSIONS} extensions are not read")
        except DerError as error:
            raise type(error)(f"the extensions cannot be read: {error}") from error
        by_oid = {one.oid: one for one in every}
        if len(by_oid) != len(every):
            twice = next(one.oid for one in every if one is not by_oid[one.oid])
            raise DerError(f"the extension {_called(twice)} stands there twice")
        read = {oid: (one, holder.budget) for oid, one in by_oid.items() if oid in used}
        names = _read(read, ExtensionOID.SUBJECT_ALTERNATIVE_NAME, general_names)
        constrained = _read(read, ExtensionOID.NAME_CONSTRAINTS, _constrained_types)
        return cls(
            MappingProxyType(by_oid),
            _read(read, ExtensionOID.BASIC_CONSTRAINTS, _basic_constraints),
            _read(read, ExtensionOID.KEY_USAGE, _key_usage),
            _read(read, ExtensionOID.EXTENDED_KEY_USAGE, _identifiers),
            names,
            constrained,
            _read(read, ExtensionOID.SUBJECT_KEY_IDENTIFIER, _key_identifier),
            _read(read, ExtensionOID.AUTHORITY_KEY_IDENTIFIER, _authority_key_identifier),
            _read(read, ExtensionOID.CERTIFICATE_POLICIES, _policies),
            _read(read, ExtensionOID.POLICY_MAPPINGS, _policy_mappings) or (),
            _read(read, ExtensionOID.POLICY_CONSTRAINTS, _policy_constraints) or PolicyConstraints(),
            _read(read, ExtensionOID.INHIBIT_ANY_POLICY, _small_number),
            tuple(_not_understood(by_oid.values(), names, constrained or frozenset())),
        )


def extension(element: der.Element) -> Extension:
    """Read one extension, and leave its value. Raises DerError."""
    if element.tag != der.SEQUENCE:
        raise DerError("an extension is of another type")
    fields = element.fields()
    oid = der.object_identifier(fields.next(der.OID))
    flag = fields.optional(der.BOOLEAN)
    return Extension(oid, flag is not None and der.boolean(flag), fields.next(der.OCTET_STRING).content)


def _called(oid: ObjectIdentifier) -> str:
    return NAMES.get(oid, oid.dotted_string)


_Value = TypeVar("_Value")


def _read(
    by_oid: Mapping[ObjectIdentifier, tuple[Extension, der.ElementBudget | None]],
    oid: ObjectIdentifier,
    reader: Callable[[der.Fields], _Value],
) -> _Value | None:
    if oid not in by_oid:
        return None
    extension, budget = by_oid[oid]
    try:
        if extension.critical and oid in _NEVER_CRITICAL:
            raise DerError("it is marked as critical")
        return reader(der.Fields(extension.value, budget))
    except DerError as error:
        raise type(error)(f"the extension {NAMES[oid]} cannot be read: {error}") from error


def _not_understood(
    extensions: Iterable[Extension], names: GeneralNames | None, constrained: frozenset[int]
) -> Iterator[ObjectIdentifier]:
    unread = {
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME: not names,
        ExtensionOID.NAME_CONSTRAINTS: not constrained.issubset({*_CONSTRAINTS, _IP}),
    }
    for one in extensions:
        if one.critical and unread.get(one.oid, one.oid not in _UNDERSTOOD):
            yield one.oid


def _sequence(value: der.Fields) -> der.Fields:
    """Return the fields of the SEQUENCE at the begin of a value. What stands behind it is not read, as in Go."""
    return value.next(der.SEQUENCE).fields()


def _basic_constraints(value: der.Fields) -> BasicConstraints:
    fields = _sequence(value)
    flag = fields.optional(der.BOOLEAN)
    length = fields.optional(der.INTEGER)
    return BasicConstraints(flag is not None and der.boolean(flag), None if length is None else _natural(length))


def _natural(element: der.Element) -> int:
    number = der.integer(element)
    if not 0 <= number <= _LARGEST_NUMBER:
        raise DerError("a number is negative or too large")
    return number


def _key_usage(value: der.Fields) -> frozenset[str]:
    octets, _ = der.bits(value.next(der.BIT_STRING))
    return frozenset(
        name
        for place, name in enumerate(_BITS)
        if place // 8 < len(octets) and octets[place // 8] & (0x80 >> place % 8)
    )


def _identifiers(value: der.Fields) -> tuple[ObjectIdentifier, ...]:
    fields = _sequence(value)
    return tuple(der.object_identifier(fields.next(der.OID)) for _ in iter(fields.__bool__, False))


def general_names(value: der.Fields) -> GeneralNames:
    """Read a subject alternative name. Raises DerError."""
    found: dict[int, list[str]] = {_DNS: [], _EMAIL: [], _URI: []}
    addresses: list[IPAddress] = []
    for one in _sequence(value):
        if one.tag in _MORE_ELEMENTS and one.budget is not None:
            one.budget.spend(_MORE_ELEMENTS[one.tag])
        if one.tag in found:
            if not one.content.isascii():
                raise DerError("it has a name outside ASCII")
            text = one.content.decode("ascii")
            if one.tag == _URI and not is_uri(text):
                raise DerError("it has a URI that is none")
            found[one.tag].append(text)
        elif one.tag == _IP:
            if len(one.content) not in (4, 16):
                raise DerError(f"it has an IP address of {len(one.content)} octets")
            addresses.append(ip_address(one.content))
    return GeneralNames(tuple(found[_DNS]), tuple(addresses), tuple(found[_EMAIL]), tuple(found[_URI]))


def _constrained_types(value: der.Fields) -> frozenset[int]:
    fields = value.next(der.SEQUENCE).fields()
    subtrees = (fields.optional(der.CONSTRUCTED), fields.optional(der.CONSTRUCTED | 1))
    if fields or value:
        raise DerError("bytes follow the end")
    found = [one.fields().any() for trees in subtrees if trees is not None for one in _all_of(trees, der.SEQUENCE)]
    if not found:
        raise DerError("it constrains nothing")
    for one in found:
        is_good = _is_network(one.content) if one.tag == _IP else _is_constraint(one)
        if not is_good:
            raise DerError("it has a name or an address of another form")
    return frozenset(one.tag for one in found)


def _is_network(content: bytes) -> bool:
    """Return whether octets are an address and its mask: bits that are set, and then bits that are not."""
    half = len(content) // 2
    mask = int.from_bytes(content[half:], "big") ^ ((1 << half * 8) - 1)
    return len(content) in (8, 32) and not mask & (mask + 1)


def _is_constraint(name: der.Element) -> bool:
    check = _CONSTRAINTS.get(name.tag)
    return check is None or (name.content.isascii() and check(name.content.decode("ascii")))


def _all_of(element: der.Element, tag: int) -> Iterator[der.Element]:
    fields = element.fields()
    while fields:
        yield fields.next(tag)


def _key_identifier(value: der.Fields) -> bytes:
    return value.next(der.OCTET_STRING).content


def _authority_key_identifier(value: der.Fields) -> bytes | None:
    found = _sequence(value).optional(der.PLAIN)
    return None if found is None else found.content


def _policies(value: der.Fields) -> tuple[bytes, ...]:
    """Return the identifiers of the policies. Their qualifiers are not read."""
    entries = _all_of(value.next(der.SEQUENCE), der.SEQUENCE)
    found = tuple(der.object_identifier_content(one.fields().next(der.OID)) for one in entries)
    if len(set(found)) != len(found):
        raise DerError("a policy stands there twice")
    return found


def _policy_mappings(value: der.Fields) -> tuple[tuple[bytes, bytes], ...]:
    pairs = (one.fields() for one in _all_of(value.next(der.SEQUENCE), der.SEQUENCE))
    return tuple((pair.next(der.OID).content, pair.next(der.OID).content) for pair in pairs)


def _policy_constraints(value: der.Fields) -> PolicyConstraints:
    fields = _sequence(value)
    explicit, mapping = fields.optional(der.PLAIN), fields.optional(der.PLAIN | 1)
    return PolicyConstraints(
        None if explicit is None else _natural(explicit), None if mapping is None else _natural(mapping)
    )


def _small_number(value: der.Fields) -> int:
    return _natural(value.next(der.INTEGER))
