"""Signing policy: rules of the operator for what each signer signs, and for how long (`--cluster-signing-policy-file`).

Rules kept here (docs/choose-the-signers.md#rules):
* A signer that the policy names signs only what a rule allows; other signers are not restricted. The first rule whose requesters
  match the user of a request decides, and a request that no rule is for is refused.
* A signer with a trust domain signs for Pods as well. Without one it does not, so that a CA certifies no Pod by mistake.
* An absent list allows everything, an empty list nothing. The maximum lifetime shortens the certificate and refuses nothing.
* In patterns `*` stands for any characters; in those of DNS names for characters of one label, never for a dot. A wildcard
  certificate needs a permission of its own, because `*.example.com` is a pattern and a name.
* Names are compared in time linear in their length. The number of names in a request, and of patterns and networks of a signer, is
  bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType

from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.issuance import Issuance
from mooring.errors import quoted
from mooring.pki.x509.canonicalnames import IPAddress
from mooring.pki.x509.requests import CertificateRequest
from mooring.settings.addresses import Network

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

    def rule_for(self, issuance: Issuance) -> SigningRule | None:
        """Return the rule that decides about a request; None when the signer has no rules, or none is for the requester."""
        spec: Obj = issuance.csr["spec"]
        groups = frozenset(spec.get("groups") or ())
        rules = self.signers.get(issuance.signer_name, ())
        return next((rule for rule in rules if rule.is_for(issuance.username, groups)), None)

    def max_lifetime(self, issuance: Issuance) -> timedelta | None:
        """Return the longest lifetime of a certificate; None when no rule limits it."""
        rule = self.rule_for(issuance)
        return None if rule is None else rule.max_lifetime


NO_POLICY = SigningPolicy()


def _shown(value: str) -> str:
    return quoted(value if len(value) <= MAX_QUOTED else f"{value[:MAX_QUOTED]}…")
