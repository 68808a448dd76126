"""Mapping from the claims of a verified token to a user: rules about claims, mappings, rules about users.

Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration):
1. A required claim is a text that equals the required value; null is the empty text. An expression rule must be true. They are
   checked in order; the first failure rejects.
2. The user name is a text claim behind a prefix, or the text of an expression, which must not be empty. An empty name without a
   prefix is rejected, too. So is null, which kube-apiserver takes for the empty name behind the prefix: all users without a name
   would be one.
3. When the user name is the claim `email`, `email_verified` must be true or absent.
4. Groups are a claim, a text or a list of texts, each behind the prefix, or the result of an expression. Null and empty texts are
   no groups, also in the list of a claim. An absent claim means no groups.
5. The uid is a text claim, which must be there and may be null, or the text of an expression. Extra values are texts or lists of
   texts of expressions; empty ones are left out.
6. A text claim `jti` becomes the credential id.
7. Rules about users see the mapped user, and reject as rules about claims do.

Rejections have a code of `mooring.authn.claims` and a detail that names the claim or the rule. Values of claims are not
repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mooring.authn.cel import CelFailedError, Expression
from mooring.authn.reasons import Code
from mooring.errors import MooringError
from mooring.identity import CREDENTIAL_ID, UserInfo

MISSING_CLAIM = Code("missing-claim")
MALFORMED_CLAIM = Code("malformed-claim")
WRONG_CLAIM = Code("wrong-claim")
EMAIL_NOT_VERIFIED = Code("email-not-verified")
MAPPING_FAILED = Code("mapping-failed")
CLAIM_RULE = Code("claim-rule")
USER_RULE = Code("user-rule")


EMAIL = "email"
EMAIL_VERIFIED = "email_verified"


Claims = Mapping[str, Any]


class ClaimsRefusedError(MooringError):
    """The claims map to no user. `code` is a reason code; the text holds no value of a claim."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim by its name, and what is put before each of its texts."""

    name: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Required:
    """A claim that must be there with this value."""

    claim: str
    value: str


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """An expression that must be true; `message` tells the operator what it is for."""

    expression: Expression
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identification:
    """Mapping from claims to a user."""

    username: Claim | Expression
    groups: Claim | Expression | None = None
    uid: Claim | Expression | None = None
    extra: tuple[tuple[str, Expression], ...] = ()
    claim_rules: tuple[Required | ValidationRule, ...] = ()
    user_rules: tuple[ValidationRule, ...] = ()


def identify(claims: Claims, by: Identification) -> UserInfo:
    """Return the user for verified claims. Raises ClaimsRefusedError."""
    for rule in by.claim_rules:
        _check_claim(claims, rule)
    username = _map_username(claims, by.username)
    groups = _map_groups(claims, by.groups)
    uid = "" if by.uid is None or _is_null(claims, by.uid) else _map_text(claims, by.uid, "uid")
    user = UserInfo(username, uid, groups, _map_extra(claims, by.extra))
    for user_rule in by.user_rules:
        _evaluate_rule(user_rule, _rule_input(user), USER_RULE)
    return user


def _check_claim(claims: Claims, rule: Required | ValidationRule) -> None:
    if isinstance(rule, ValidationRule):
        _evaluate_rule(rule, claims, CLAIM_RULE)
    elif rule.claim not in claims:
        raise ClaimsRefusedError(MISSING_CLAIM, f"the required claim {rule.claim} is not there")
    elif ("" if claims[rule.claim] is None else claims[rule.claim]) != rule.value:
        raise ClaimsRefusedError(WRONG_CLAIM, f"the claim {rule.claim} has not the required value")


def _evaluate_rule(rule: ValidationRule, value: Mapping[str, Any], code: str) -> None:
    try:
        held = rule.expression.evaluate(value) is True
    except CelFailedError as error:
        raise ClaimsRefusedError(code, f"{rule.expression.text}: {error}") from None
    if not held:
        raise ClaimsRefusedError(code, rule.message or f"{rule.expression.text} is false")


def _map_username(claims: Claims, source: Claim | Expression) -> str:
    found = _map_text(claims, source, "username")
    if isinstance(source, Claim) and source.name == EMAIL and claims.get(EMAIL_VERIFIED, True) is not True:
        raise ClaimsRefusedError(EMAIL_NOT_VERIFIED, _email_refusal(claims[EMAIL_VERIFIED]))
    if not found:
        raise ClaimsRefusedError(MAPPING_FAILED, "username: it is empty")
    return found


def _email_refusal(verified: Any) -> str:
    """Return why an address does not count. Amazon Cognito and JumpCloud send a text, which kube-apiserver refuses, too."""
    if verified is False or verified is None:
        return "the issuer does not say that the e-mail address was verified"
    kind = (
        "a text"
        if isinstance(verified, str)
        else "a number"
        if isinstance(verified, int | float)
        else "a list or an object"
    )
    return (
        f"the claim email_verified is {kind}, and must be true or false: map the user name with an expression, or let the issuer "
        "send a boolean"
    )


def _map_text(claims: Claims, source: Claim | Expression, of: str) -> str:
    found = _source_value(claims, source, of)
    if not isinstance(found, str):
        raise _malformed_error(source, of, "a text")
    return source.prefix + found if isinstance(source, Claim) else found


def _is_null(claims: Claims, source: Claim | Expression) -> bool:
    return isinstance(source, Claim) and claims.get(source.name, "") is None


def _map_groups(claims: Claims, source: Claim | Expression | None) -> tuple[str, ...]:
    if source is None or (isinstance(source, Claim) and source.name not in claims):
        return ()
    found = _source_value(claims, source, "groups")
    if isinstance(source, Claim) and isinstance(found, list):
        found = [one for one in found if one is not None]
    texts = _as_texts(found)
    if texts is None:
        raise _malformed_error(source, "groups", "a text or a list of texts")
    prefix = source.prefix if isinstance(source, Claim) else ""
    return tuple(prefix + text for text in texts if text)


def _map_extra(claims: Claims, mappings: tuple[tuple[str, Expression], ...]) -> Mapping[str, tuple[str, ...]]:
    extra: dict[str, tuple[str, ...]] = {}
    jti = claims.get("jti")
    if isinstance(jti, str) and jti:
        extra[CREDENTIAL_ID] = (f"JTI={jti}",)
    for key, expression in mappings:
        texts = _as_texts(_source_value(claims, expression, f"extra {key}"))
        if texts is None:
            raise _malformed_error(expression, f"extra {key}", "a text or a list of texts")
        values = tuple(text for text in texts if text)
        if values:
            extra[key] = values
    return MappingProxyType(extra)


def _source_value(claims: Claims, source: Claim | Expression, of: str) -> Any:
    if isinstance(source, Claim):
        if source.name not in claims:
            raise ClaimsRefusedError(MISSING_CLAIM, f"{of}: the claim {source.name} is not there")
        return claims[source.name]
    try:
        return source.evaluate(claims)
    except CelFailedError as error:
        raise ClaimsRefusedError(MAPPING_FAILED, f"{of}: {source.text}: {error}") from None


def _as_texts(value: Any) -> list[str] | None:
    """null, a text or a list of texts as a list of texts; None for anything else."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return None


def _malformed_error(source: Claim | Expression, of: str, wanted: str) -> ClaimsRefusedError:
    if isinstance(source, Claim):
        return ClaimsRefusedError(MALFORMED_CLAIM, f"{of}: the claim {source.name} is not {wanted}")
    return ClaimsRefusedError(MAPPING_FAILED, f"{of}: {source.text} gave something that is not {wanted}")


def _rule_input(user: UserInfo) -> dict[str, Any]:
    """The user as expressions see it."""
    return {
        "username": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra.items()},
    }
