"""Signing policy: rules of the operator for what each signer signs, and the file that has them (`--cluster-signing-policy`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar

from mooring.apimachinery.codec.fieldreader import FieldReader
from mooring.apimachinery.codec.yaml import YamlError, read_yaml
from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.issuance import PendingIssue
from mooring.duration import parse_long_duration
from mooring.errors import ConfigError, quoted
from mooring.pki.keys import ALGORITHMS, MAX_RSA_BITS, MIN_RSA_BITS
from mooring.pki.x509.canonicalnames import IPAddress
from mooring.pki.x509.names import MAX_TRUST_DOMAIN, is_trust_domain
from mooring.pki.x509.profiles import MIN_TTL, USAGES
from mooring.pki.x509.requests import CertificateRequest
from mooring.pki.x509.signers import SIGNERS
from mooring.settings.addresses import Network

# Signing policy: rules of the operator for what each signer signs, and for how long (`--cluster-signing-policy-file`).
#
# Rules kept here (docs/choose-the-signers.md#rules):
# * A signer that the policy names signs only what a rule allows; other signers are not restricted. The first rule whose requesters
#   match the user of a request decides, and a request that no rule is for is refused.
# * A signer with a trust domain signs for Pods as well. Without one it does not, so that a CA certifies no Pod by mistake.
# * An absent list allows everything, an empty list nothing. The maximum lifetime shortens the certificate and refuses nothing.
# * In patterns `*` stands for any characters; in those of DNS names for characters of one label, never for a dot. A wildcard
#   certificate needs a permission of its own, because `*.example.com` is a pattern and a name.
# * Names are compared in time linear in their length. The number of names in a request, and of patterns and networks of a signer,
#   is bounded.

MAX_NAMES = 100
"""Alternative names, and organizations, of a request for a signer with a policy. Public CAs allow as many."""
MAX_QUOTED = 100
"""Characters of a value in a refusal, which becomes a condition."""
RSA = "RSA"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Texts with `*`. Those without are found in constant time."""

    literal: frozenset[str]
    wildcard: tuple[str, ...] = ()
    by_label: bool = False
    """True when `*` stands for characters of one DNS label."""

    @classmethod
    def of(cls, texts: Iterable[str], *, by_label: bool = False) -> Patterns:
        """Return the patterns of a list. Those of DNS names are compared in lower case."""
        listed = [text.lower() if by_label else text for text in texts]
        return cls(
            frozenset(text for text in listed if "*" not in text),
            tuple(dict.fromkeys(text for text in listed if "*" in text)),
            by_label,
        )

    def match(self, text: str) -> bool:
        """Return true when a pattern matches the whole text."""
        if not self.by_label:
            return text in self.literal or any(_matches(pattern, text) for pattern in self.wildcard)
        text = text.lower()
        return text in self.literal or any(_matches_by_label(pattern, text) for pattern in self.wildcard)


def _matches(pattern: str, text: str) -> bool:
    """Return true when `text` is `pattern` with each `*` replaced by any characters. The leftmost place of each part is taken."""
    first, *middle, last = pattern.split("*")
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        place = text.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def _matches_by_label(pattern: str, name: str) -> bool:
    wanted, labels = pattern.split("."), name.split(".")
    return len(wanted) == len(labels) and all(
        _matches(one, label) if "*" in one else one == label for one, label in zip(wanted, labels, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningRule:
    """One rule of a signer. None means that nothing is demanded."""

    name: str
    users: Patterns | None = None
    groups: frozenset[str] | None = None
    """The requester matches one of `users`, or is in one of `groups`; without both, everybody matches."""
    common_names: Patterns | None = None
    organizations: Patterns | None = None
    dns_names: Patterns | None = None
    allow_wildcards: bool = False
    networks: tuple[Network, ...] | None = None
    emails: Patterns | None = None
    uris: Patterns | None = None
    usages: frozenset[str] | None = None
    key_algorithms: frozenset[str] | None = None
    """Names such as `ECDSA-P256`; `RSA` stands for every size."""
    min_rsa_bits: int = 0
    fresh_key: bool = False
    max_lifetime: timedelta | None = None

    def is_for(self, user: str, groups: Collection[str]) -> bool:
        """Return true when the rule decides about requests of this user."""
        if self.users is None and self.groups is None:
            return True
        if self.users is not None and self.users.match(user):
            return True
        return self.groups is not None and not self.groups.isdisjoint(groups)

    def names_in_full(self, name: str | IPAddress) -> bool:
        """Return true when the rule allows this one name or address, and not by a pattern or a larger network."""
        if isinstance(name, str):
            return self.dns_names is not None and name in self.dns_names.literal
        return any(network.num_addresses == 1 and name in network for network in self.networks or ())

    def refusal(self, request: CertificateRequest, usages: Iterable[str]) -> str:
        """Return the first demand that the request does not meet, with the value; empty when it meets all."""
        names = request.alternative_names
        checks: tuple[tuple[str, str, Patterns | None, Sequence[str]], ...] = (
            ("the common name", "commonNames", self.common_names, (request.common_name,)),
            ("the organization", "organizations", self.organizations, request.organizations),
            ("the DNS name", "dnsNames", self.dns_names, names.dns),
            ("the email address", "emailAddresses", self.emails, names.emails),
            ("the URI", "uris", self.uris, names.uris),
        )
        for what, key, patterns, values in checks:
            if len(values) > MAX_NAMES:
                return f"{len(values)} values for {key} are more than {MAX_NAMES}"
            wrong = None if patterns is None else next((one for one in values if not patterns.match(one)), None)
            if wrong is not None:
                return f"{what} {_shown(wrong)} matches none of {key}"
        wildcard = next((one for one in names.dns if "*" in one), None)
        if wildcard is not None and not self.allow_wildcards:
            return f"the DNS name {_shown(wildcard)} is a wildcard, and allowWildcards is not true"
        return self._address_refusal(request) or self._usage_refusal(usages) or self.key_refusal(request.key_algorithm)

    def _address_refusal(self, request: CertificateRequest) -> str:
        addresses = request.alternative_names.ips
        if len(addresses) > MAX_NAMES:
            return f"{len(addresses)} IP addresses are more than {MAX_NAMES}"
        if self.networks is None:
            return ""
        for address in addresses:
            if not any(address in network for network in self.networks):
                return f"the IP address {address} is in none of ipAddresses"
        return ""

    def _usage_refusal(self, usages: Iterable[str]) -> str:
        if self.usages is None:
            return ""
        wrong = next((usage for usage in usages if usage not in self.usages), "")
        return f"the usage {_shown(wrong)} is none of usages" if wrong else ""

    def key_refusal(self, algorithm: str) -> str:
        """Return why keys of an algorithm, such as `RSA-3072`, are not allowed; empty when they are."""
        kind, _, size = algorithm.partition("-")
        allowed = self.key_algorithms
        if allowed is not None and algorithm not in allowed and not (kind == RSA and RSA in allowed):
            return f"the key is {algorithm}, which is none of keyAlgorithms"
        if kind == RSA and int(size) < self.min_rsa_bits:
            return f"the key is {algorithm}, and minRSABits is {self.min_rsa_bits}"
        return ""


@dataclass(frozen=True, slots=True)
class SigningPolicy:
    """Rules by the name of the signer."""

    signers: Mapping[str, tuple[SigningRule, ...]] = field(default_factory=lambda: MappingProxyType({}))
    trust_domains: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """SPIFFE trust domains of the signers that sign for Pods."""

    def rule_for(self, pending: PendingIssue) -> SigningRule | None:
        """Return the rule that decides about a request; None when the signer has no rules, or none is for the requester."""
        spec: Obj = pending.csr["spec"]
        groups = frozenset(spec.get("groups") or ())
        rules = self.signers.get(pending.signer_name, ())
        return next((rule for rule in rules if rule.is_for(pending.username, groups)), None)

    def max_lifetime(self, pending: PendingIssue) -> timedelta | None:
        """Return the longest lifetime of a certificate; None when no rule limits it."""
        rule = self.rule_for(pending)
        return None if rule is None else rule.max_lifetime


NO_POLICY = SigningPolicy()


def _shown(value: str) -> str:
    return quoted(value if len(value) <= MAX_QUOTED else f"{value[:MAX_QUOTED]}…")


# Reads the file of a signing policy (kind SigningPolicy of mooring.dev/v1alpha1).
#
# Rules kept here: parsing is strict, because a wrong rule may allow too much. An unknown or repeated field, a wrong type, and a
# pattern, network, key algorithm or usage that cannot be meant are errors that name the rule and the field. So is a field without
# a value: an absent list allows everything, and an empty one nothing.

API_VERSION, KIND = "mooring.dev/v1alpha1", "SigningPolicy"
MAX_BYTES = 3 << 20
"""Bytes of a policy: room for the names of tens of thousands of machines."""
MAX_SIGNERS = 64
MAX_RULES = 256
"""Rules of one signer. Each request may be compared with the requesters of all."""
MAX_WILDCARDS = 256
"""`*` in the patterns of one signer: a hundred names of a request are compared with them in about 40 ms."""
MAX_NETWORKS = 256
"""Networks of one signer, for the same reason."""
MAX_PATTERN = 1024
"""Characters of one pattern."""
KEY_ALGORITHMS = (RSA, *(name for name in ALGORITHMS if not name.startswith(RSA)), "ECDSA-P521")

T = TypeVar("T")
_EXPECTED = f"one {KIND} of {API_VERSION} is expected"


def parse_policy(data: bytes, source: str) -> SigningPolicy:
    """Return the policy of a YAML or JSON file. Raises ConfigError that begins with `source` and names the field."""

    def source_error(message: str) -> ConfigError:
        return ConfigError(f"{source}: {message}")

    if len(data) > MAX_BYTES:
        raise source_error(f"a signing policy is at most {MAX_BYTES} bytes")
    try:
        document = read_yaml(data)
    except UnicodeDecodeError:
        raise source_error("the file is not UTF-8 text") from None
    except YamlError as error:
        raise source_error(f"yaml: {error}") from None
    if document.duplicates:
        raise source_error(document.duplicates[0])
    if not isinstance(document.value, dict):
        raise source_error(_EXPECTED)
    fields = FieldReader(document.value, "", source_error)
    if (fields.text("apiVersion"), fields.text("kind")) != (API_VERSION, KIND):
        raise source_error(f"{_EXPECTED}; set apiVersion and kind")
    fields.object("metadata")  # names and labels of a file have no effect
    signers: dict[str, tuple[SigningRule, ...]] = {}
    trust_domains: dict[str, str] = {}

    def read_signer(value: object, path: str) -> None:
        signer = fields.nested(value, path)
        name = signer.text("name")
        if "/" not in name:
            raise signer.error("name", "give the name of a signer, such as kubernetes.io/kubelet-serving")
        if name in signers:
            raise signer.error("name", f"{name} has rules already")
        if signer.value("rules") is None:
            raise signer.error("rules", "give a list of rules; an empty one refuses everything")
        budget = _Budget()
        rules = signer.each("rules", lambda rule, at: _read_rule(signer.nested(rule, at), rule, budget))
        if isinstance(value, dict) and "podCertificates" in value:
            trust_domains[name] = _trust_domain(signer, name)
        signer.refuse_unknown()
        if len(rules) > MAX_RULES:
            raise signer.error("rules", f"at most {MAX_RULES} rules are allowed")
        if len({rule.name for rule in rules}) < len(rules):
            raise signer.error("rules", "two rules have the same name; refusals name the rule")
        signers[name] = rules

    fields.each("signers", read_signer)
    fields.refuse_unknown()
    if not signers or len(signers) > MAX_SIGNERS:
        raise source_error(f"signers: from 1 to {MAX_SIGNERS} signers are expected")
    return SigningPolicy(MappingProxyType(signers), MappingProxyType(trust_domains))


class _Budget:
    """Counts the `*` in patterns, and the networks, of one signer."""

    def __init__(self) -> None:
        self._wildcards = self._networks = 0

    def patterns(self, fields: FieldReader, key: str, *, by_label: bool = False) -> Patterns | None:
        """Return the patterns of a field; None when it is absent."""
        if fields.value(key) is None:
            return None
        texts = fields.texts(key)
        if any(not text or len(text) > MAX_PATTERN for text in texts):
            raise fields.error(key, f"a pattern has from 1 to {MAX_PATTERN} characters")
        found = Patterns.of(texts, by_label=by_label)
        self._wildcards += sum(pattern.count("*") for pattern in found.wildcard)
        if self._wildcards > MAX_WILDCARDS:
            raise fields.error(key, f"a signer has at most {MAX_WILDCARDS} * in the patterns of all its rules")
        return found

    def networks(self, fields: FieldReader, key: str) -> tuple[Network, ...] | None:
        """Return the networks of a field; None when it is absent."""
        if fields.value(key) is None:
            return None
        found = []
        for text in fields.texts(key):
            try:
                found.append(ipaddress.ip_network(text))
            except ValueError:
                raise fields.error(
                    key, f'"{text[:100]}" is no network, such as 10.0.0.0/8, without bits of a host'
                ) from None
        self._networks += len(found)
        if self._networks > MAX_NETWORKS:
            raise fields.error(key, f"a signer has at most {MAX_NETWORKS} networks in all its rules")
        return tuple(found)


def _read_rule(fields: FieldReader, value: object, budget: _Budget) -> SigningRule:
    _refuse_null(fields, value)
    name = fields.text("name")
    if not name:
        raise fields.error("name", "give the rule a name; refusals show it")
    requesters = fields.nested(fields.value("requesters"), fields.path("requesters"))
    _refuse_null(requesters, fields.value("requesters"))
    rule = SigningRule(
        name=name,
        users=budget.patterns(requesters, "users"),
        groups=_groups(requesters),
        common_names=budget.patterns(fields, "commonNames"),
        organizations=budget.patterns(fields, "organizations"),
        dns_names=budget.patterns(fields, "dnsNames", by_label=True),
        allow_wildcards=fields.flag("allowWildcards"),
        networks=budget.networks(fields, "ipAddresses"),
        emails=budget.patterns(fields, "emailAddresses"),
        uris=budget.patterns(fields, "uris"),
        usages=_words(fields, "usages", tuple(USAGES)),
        key_algorithms=_words(fields, "keyAlgorithms", KEY_ALGORITHMS),
        min_rsa_bits=_optional(fields, "minRSABits", lambda: _rsa_bits(fields)) or 0,
        fresh_key=fields.flag("freshKey"),
        max_lifetime=_optional(fields, "maxLifetime", lambda: _lifetime(fields)),
    )
    requesters.refuse_unknown()
    fields.refuse_unknown()
    return rule


def _refuse_null(fields: FieldReader, value: object) -> None:
    """Raise the error for a field without a value."""
    for key, one in value.items() if isinstance(value, dict) else ():
        if one is None:
            raise fields.error(
                key, "it has no value; leave the field out to allow everything, or give [] to allow nothing"
            )


def _optional(fields: FieldReader, key: str, read: Callable[[], T]) -> T | None:
    return None if fields.value(key) is None else read()


def _groups(requesters: FieldReader) -> frozenset[str] | None:
    if requesters.value("groups") is None:
        return None
    groups = requesters.texts("groups")
    if any("*" in group for group in groups):
        raise requesters.error("groups", "give whole names; * has no meaning in groups")
    return frozenset(groups)


def _words(fields: FieldReader, key: str, known: tuple[str, ...]) -> frozenset[str] | None:
    if fields.value(key) is None:
        return None
    words = fields.texts(key)
    if any(word not in known for word in words):
        raise fields.error(key, f"give some of {', '.join(known)}")
    return frozenset(words)


def _rsa_bits(fields: FieldReader) -> int:
    bits = fields.value("minRSABits")
    if not isinstance(bits, int) or isinstance(bits, bool) or not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
        raise fields.error("minRSABits", f"give a number from {MIN_RSA_BITS} to {MAX_RSA_BITS}")
    return bits


def _trust_domain(signer: FieldReader, name: str) -> str:
    """Return the trust domain of a signer that signs for Pods."""
    if name in SIGNERS:
        raise signer.error("podCertificates", f"{name} is built in, and signs for no Pods; give a signer of your own")
    fields = signer.nested(signer.value("podCertificates"), signer.path("podCertificates"))
    trust_domain = fields.text("trustDomain")
    fields.refuse_unknown()
    if not is_trust_domain(trust_domain):
        characters = f"a-z, 0-9, dots, dashes and underscores, at most {MAX_TRUST_DOMAIN}"
        raise fields.error("trustDomain", f"give a trust domain of SPIFFE, such as cluster.example: {characters}")
    return trust_domain


def _lifetime(fields: FieldReader) -> timedelta:
    try:
        lifetime = parse_long_duration(fields.text("maxLifetime"))
    except ValueError:
        lifetime = timedelta(0)
    if lifetime < MIN_TTL:
        raise fields.error("maxLifetime", "give a duration of ten minutes or more, such as 24h")
    return lifetime
