"""Certificate policies along a path (RFC 5280 6.1, for a verifier that demands no policy; Go's `policiesValid`).

Rules kept here:
* Policies restrict nothing until a CA of the path requires one. From then on the path needs a policy that every certificate of it
  has, under its own name or one that a CA maps to it.
* The set of valid policies stands for the tree of RFC 5280: without a demand of the verifier it matters only whether one is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.pki.x509.certificate import Certificate

ANY_POLICY = bytes.fromhex("551d2000")
"""Content of the object identifier 2.5.29.32.0."""
_Policies = frozenset[bytes]


def has_valid_policies(path: Sequence[Certificate]) -> bool:
    """Return whether the policies of a path, leaf first and trust anchor last, are valid."""
    certificates = tuple(reversed(path[:-1]))  # the policies of the anchor do not count
    never = len(certificates) + 1
    explicit = mapping = inhibit_any = never
    valid: _Policies = frozenset({ANY_POLICY})
    for place, one in enumerate(certificates):
        is_leaf = place == len(certificates) - 1
        is_self_issued = one.subject == one.issuer
        extensions = one.extensions
        valid = _narrowed(valid, extensions.policies, inhibit_any > 0 or (is_self_issued and not is_leaf))
        if explicit <= 0 and not valid:
            return False
        if is_leaf:
            continue
        if valid and mapping > 0 and any(ANY_POLICY in pair for pair in extensions.policy_mappings):
            return False
        valid = _mapped(valid, extensions.policy_mappings, is_allowed=mapping > 0)
        if not is_self_issued:
            explicit, mapping, inhibit_any = explicit - 1, mapping - 1, inhibit_any - 1
        limits = extensions.policy_constraints
        explicit = _smaller(explicit, limits.require_explicit)
        mapping = _smaller(mapping, limits.inhibit_mapping)
        inhibit_any = _smaller(inhibit_any, extensions.inhibit_any_policy)
    is_required = explicit <= 1 or (
        bool(certificates) and certificates[-1].extensions.policy_constraints.require_explicit == 0
    )
    return bool(valid) or not is_required


def _narrowed(valid: _Policies, stated: Sequence[bytes] | None, any_counts: bool) -> _Policies:
    """Return the policies that are valid below a certificate which states these (RFC 5280 6.1.3 d and e)."""
    if stated is None:
        return frozenset()
    named = frozenset(one for one in stated if one != ANY_POLICY and (one in valid or ANY_POLICY in valid))
    return named | valid if any_counts and ANY_POLICY in stated else named


def _mapped(valid: _Policies, mappings: Sequence[tuple[bytes, bytes]], *, is_allowed: bool) -> _Policies:
    """Return the policies by the names that the next certificate has for them (RFC 5280 6.1.4 b)."""
    replaced = frozenset(issuer for issuer, _ in mappings)
    named = frozenset(
        subject for issuer, subject in mappings if is_allowed and (issuer in valid or ANY_POLICY in valid)
    )
    return valid - replaced | named


def _smaller(number: int, limit: int | None) -> int:
    return number if limit is None else min(number, limit)
