"""Join rules: which identity tokens let a machine join the cluster, under which name, and what a request says of the token.

Rules kept here (docs/join-by-identity-token.md):
* Reading is strict: a rule with a mistake lets nobody in.
* All conditions on claims hold. A condition is an exact text, a pattern, or a CEL expression, which `mooring.authn.joinrule`
  judges. A claim that is a number or a truth value compares as JSON writes it, and a list by any of its elements. An object
  equals nothing.
* `*` in a pattern stands for any characters but `/` and `:`, so that no part of a path or of a subject is skipped. A pattern of
  nothing else is refused: it would let every repository of a provider in.
* A claim whose name begins with `/` is a JSON pointer (RFC 6901) into the claims.
* The template of a node's name has claims in braces. What a claim puts there is part of a DNS name in lower case, and never `*`.
* `digest` covers what decides about a token. A request that was made by another digest is of a rule that changed meanwhile.
* One value of a token lets in one key (`use`): that of the unique claim, else `jti`, else the subject.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import FieldError, MooringError, duplicate, invalid, quoted, required, too_long
from mooring.identity import JOIN_RULE_PREFIX
from mooring.pki.errors import KeyRefusedError, PkiError
from mooring.pki.jwt.keyset import KeySet, parse_key_set
from mooring.pki.x509.bundles import certificates_among
from mooring.trust.bootstraptoken.restrictions import (
    MOST_JOINS,
    Restrictions,
    label_matches,
    parse_ephemeral,
    parse_networks,
)
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.httpsurl import https_url_problem

MAX_CONDITIONS = 32
MAX_AUDIENCES = 16
MAX_TEXT = 1024
"""Characters of the name of a claim, of a value, a pattern, an audience, and of a claim that a request repeats."""
MAX_EXPRESSION = 10_000
MAX_DOCUMENT = 64 << 10
"""Bytes of CAs, and of a key set."""
MAX_ELEMENTS = 1000
"""Elements of a claim that is a list."""
MAX_SHOWN = 128
"""Characters of an issuer or an audience in a message."""
DEFAULT_UNIQUE = ("jti", "sub")
AUTHENTICATOR = "join-rule"
"""Name of the authenticator of identity tokens."""
EXTRA_DOMAIN = "join.mooring.dev/"
_DIGEST, _ISSUER, _SUBJECT, _USE, _NODE_NAME, _EXPIRES = (
    EXTRA_DOMAIN + name for name in ("rule-digest", "issuer", "subject", "use", "node-name", "expires")
)
CLAIM_USE = "claim:"
"""Prefix of a use that another API server states: the claim itself, because its expressions know no hash."""
_USE_TEXT = re.compile("sha256:[0-9a-f]{64}", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_SEPARATOR = re.compile("([/:])")
_NAME_PART = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_JWT = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)
_ABSENT = object()


class JoinRuleError(MooringError):
    """A rule cannot be read, or a token does not fit it. The text holds no value of a claim."""


def looks_like_jwt(text: str) -> bool:
    """Return whether a text is an identity token, and not the name of a file or a command."""
    return _JWT.fullmatch(text.strip()) is not None


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the claims: `claim` with `value` or `pattern`, or an `expression`."""

    claim: str = ""
    value: str = ""
    pattern: str = ""
    expression: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRule:
    """One rule. `audiences` are empty for the id of the cluster. `restrictions` name no node: the token decides about the name."""

    name: str
    issuer: str
    discovery_url: str = ""
    ca_pem: bytes = b""
    keys: KeySet | None = field(default=None, repr=False, compare=False)
    """Keys that the rule itself holds; None where the issuer publishes them. `digest` covers their text."""
    audiences: tuple[str, ...] = ()
    conditions: tuple[Condition, ...]
    node_name: str = ""
    node_name_expression: str = ""
    unique_claim: str = ""
    restrictions: Restrictions
    ends: datetime | None = None
    digest: str = ""

    @property
    def names_node(self) -> bool:
        """True when the name of the node comes from the rule."""
        return bool(self.node_name or self.node_name_expression)

    @property
    def expressions(self) -> tuple[str, ...]:
        """The conditions that are CEL expressions."""
        return tuple(one.expression for one in self.conditions if one.expression)

    def has_ended(self, now: datetime) -> bool:
        return self.ends is not None and self.ends <= now


def errors_of(obj: Obj) -> list[FieldError]:
    """Return the mistakes in the spec of a rule, but for those in expressions."""
    spec: Obj = obj.get("spec") or {}
    issuer: Obj = spec.get("issuer") or {}
    errors = _issuer_errors(issuer)
    audiences = spec.get("audiences") or []
    if len(audiences) > MAX_AUDIENCES:
        errors.append(invalid("spec.audiences", len(audiences), f"must have at most {MAX_AUDIENCES} items"))
    for index, one in enumerate(audiences[:MAX_AUDIENCES]):
        errors += _text_errors(f"spec.audiences[{index}]", one)
        if one in audiences[:index]:
            errors.append(duplicate(f"spec.audiences[{index}]", one))
    conditions = spec.get("claims") or []
    if not conditions:
        errors.append(required("spec.claims", "without one, every machine that the issuer knows would join"))
    if len(conditions) > MAX_CONDITIONS:
        errors.append(invalid("spec.claims", len(conditions), f"must have at most {MAX_CONDITIONS} items"))
    for index, condition in enumerate(conditions[:MAX_CONDITIONS]):
        errors += _condition_errors(f"spec.claims[{index}]", condition)
    return errors + _name_errors(spec) + _limit_errors(spec)


def _issuer_errors(issuer: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    url, discovery = issuer.get("url", ""), issuer.get("discoveryURL", "")
    if not url:
        errors.append(required("spec.issuer.url"))
    for path, text in (("spec.issuer.url", url), ("spec.issuer.discoveryURL", discovery)):
        # Its keys in the rule, an issuer needs no server: a Kubernetes cluster may have any text as its issuer.
        if text and (problem := https_url_problem(text)) and not (path.endswith(".url") and issuer.get("jwks")):
            errors.append(invalid(path, text, problem))
        elif text:
            errors += _text_errors(path, text)
    if issuer.get("jwks") and (discovery or issuer.get("certificateAuthority")):
        errors.append(invalid("spec.issuer.jwks", "", "stands alone: with its keys here, nothing is fetched"))
    for name, parse in (("jwks", _keys), ("certificateAuthority", certificates_among)):
        text = issuer.get(name, "")
        if len(text) > MAX_DOCUMENT:
            errors.append(too_long(f"spec.issuer.{name}", MAX_DOCUMENT))
        elif text:
            try:
                parse(text.encode("utf-8", "surrogatepass"))
            except PkiError as error:
                errors.append(invalid(f"spec.issuer.{name}", "", str(error)))
    return errors


def _keys(data: bytes) -> KeySet:
    found = parse_key_set(data)
    if any(isinstance(one, dict) and one.keys() & {"d", "k"} for one in json.loads(data)["keys"]):
        raise KeyRefusedError(
            "it has a private key, with which whoever reads the rule could sign: leave the public members alone"
        )
    return found


def _text_errors(path: str, text: str) -> list[FieldError]:
    if not text or len(text) > MAX_TEXT or not text.isprintable():
        return [invalid(path, text[:MAX_TEXT], f"must be 1 to {MAX_TEXT} printable characters")]
    return []


def _condition_errors(path: str, condition: Obj) -> list[FieldError]:
    claim, pattern = condition.get("claim", ""), condition.get("pattern", "")
    given = [name for name in ("value", "pattern", "expression") if condition.get(name)]
    if len(given) != 1 or bool(claim) == (given == ["expression"]):
        return [invalid(path, claim, "must be a claim with a value or a pattern, or an expression")]
    if given == ["expression"]:
        return [too_long(f"{path}.expression", MAX_EXPRESSION)] if len(condition["expression"]) > MAX_EXPRESSION else []
    errors = [*_text_errors(f"{path}.claim", claim), *_text_errors(f"{path}.{given[0]}", condition[given[0]])]
    if pattern and not re.sub("[*/:]", "", pattern):
        errors.append(invalid(f"{path}.pattern", pattern, "must have characters beside *: it would fit every value"))
    return errors


def _name_errors(spec: Obj) -> list[FieldError]:
    template, expression = spec.get("nodeName", ""), spec.get("nodeNameExpression", "")
    errors = []
    if template and expression:
        errors.append(invalid("spec.nodeNameExpression", "", "must be empty where nodeName is given"))
    if len(expression) > MAX_EXPRESSION:
        errors.append(too_long("spec.nodeNameExpression", MAX_EXPRESSION))
    if template and (
        len(template) > MAX_TEXT or dns1123_subdomain_errors(_PLACEHOLDER.sub("x", template).replace("*", "x"))
    ):
        detail = "must be a node name, in which * may stand for any characters but a dot, and {claim} for the text of a claim"
        errors.append(invalid("spec.nodeName", template[:MAX_TEXT], detail))
    if "" in _PLACEHOLDER.findall(template):
        errors.append(invalid("spec.nodeName", template[:MAX_TEXT], "must name a claim in each pair of braces"))
    if unique := spec.get("uniqueClaim", ""):
        errors += _text_errors("spec.uniqueClaim", unique)
    return errors


def _limit_errors(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    joins = spec.get("maxJoins")
    if joins is not None and not 1 <= joins <= MOST_JOINS:
        errors.append(invalid("spec.maxJoins", joins, f"must be from 1 to {MOST_JOINS}"))
    for name, parse in (
        ("allowedCIDRs", lambda texts: parse_networks(",".join(texts))),
        ("ephemeral", parse_ephemeral),
    ):
        if value := spec.get(name):
            try:
                parse(value)
            except TokenError as error:
                # Without the name of the annotation, for which the error of a Secret was written.
                errors.append(invalid(f"spec.{name}", value, str(error).partition(": ")[2]))
    return errors


def read_rule(obj: Obj) -> JoinRule:
    """Return a rule. Raises JoinRuleError for one with a mistake, which another API server may store."""
    if errors := errors_of(obj):
        raise JoinRuleError(str(errors[0]))
    spec = obj["spec"]
    issuer, silence, ends = spec["issuer"], spec.get("ephemeral"), spec.get("expirationTimestamp")
    jwks = issuer.get("jwks", "").encode()
    decides = ("issuer", "audiences", "claims", "nodeName", "nodeNameExpression", "uniqueClaim")
    try:
        end = parse_rfc3339(ends) if ends else None
    except ValueError as error:
        raise JoinRuleError(f"spec.expirationTimestamp: {error}") from None
    text = json.dumps({name: spec.get(name) for name in decides}, sort_keys=True, separators=(",", ":"))
    return JoinRule(
        name=obj["metadata"]["name"],
        issuer=issuer["url"],
        discovery_url=issuer.get("discoveryURL", ""),
        ca_pem=issuer.get("certificateAuthority", "").encode(),
        keys=parse_key_set(jwks) if jwks else None,
        audiences=tuple(spec.get("audiences") or ()),
        conditions=tuple(
            Condition(*(one.get(name, "") for name in ("claim", "value", "pattern", "expression")))
            for one in spec["claims"]
        ),
        node_name=spec.get("nodeName", ""),
        node_name_expression=spec.get("nodeNameExpression", ""),
        unique_claim=spec.get("uniqueClaim", ""),
        restrictions=Restrictions(
            spec.get("maxJoins"),
            parse_networks(",".join(spec["allowedCIDRs"])) if spec.get("allowedCIDRs") else (),
            "",
            parse_ephemeral(silence) if silence else None,
            bool(spec.get("requireApproval")),
        ),
        ends=end,
        digest=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
    )


# Claims.


def claim_steps(name: str) -> Sequence[str]:
    """Return the names that lead to a claim: its own, or those of a JSON pointer."""
    return [step.replace("~1", "/").replace("~0", "~") for step in name[1:].split("/")] if name[0] == "/" else [name]


def claim_in(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim of a name, or at a JSON pointer. Raises JoinRuleError when there is none."""
    found: Any = claims
    for step in claim_steps(name):
        found = found.get(step, _ABSENT) if isinstance(found, Mapping) else _ABSENT
    if found is _ABSENT or found is None:
        raise JoinRuleError(f"the claim {name} is not there")
    return found


def texts_of(value: Any) -> Sequence[str]:
    """Return the texts as which a claim compares: one, those of a list, or none."""
    if isinstance(value, list):
        return [text for one in value[:MAX_ELEMENTS] if not isinstance(one, list) for text in texts_of(one)]
    if isinstance(value, bool | int):
        return [json.dumps(value)]
    return [value] if isinstance(value, str) else []


def fits(condition: Condition, claims: Mapping[str, Any]) -> bool:
    """Return whether the claim of a condition has its value, or fits its pattern. Raises JoinRuleError when it is not there."""
    texts = texts_of(claim_in(claims, condition.claim))
    if condition.pattern:
        return any(fits_pattern(condition.pattern, text) for text in texts)
    return condition.value in texts


def fits_pattern(pattern: str, text: str) -> bool:
    """Return whether `text` is `pattern`, with each `*` replaced by characters but `/` and `:`. The time is linear in both."""
    wanted, found = _SEPARATOR.split(pattern), _SEPARATOR.split(text)
    return len(wanted) == len(found) and all(map(label_matches, wanted, found))


def placeholders(template: str) -> Sequence[str]:
    """Return the names of the claims in a template, in its order."""
    return _PLACEHOLDER.findall(template)


def node_name_from(template: str, claims: Mapping[str, Any]) -> str:
    """Return the node name, or pattern, that a template makes of claims. Raises JoinRuleError."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        texts = texts_of(claim_in(claims, name))
        if len(texts) != 1 or _NAME_PART.fullmatch(texts[0]) is None:
            raise JoinRuleError(f"the claim {name} is no part of a node's name (a-z, 0-9, - and .)")
        return texts[0]

    name = _PLACEHOLDER.sub(replaced, template)
    checked_name(name.replace("*", "x"))  # each * is one of the template
    return name


def checked_name(name: str) -> str:
    """Return a node name that a rule has made. Raises JoinRuleError for one that no node can have."""
    if problems := dns1123_subdomain_errors(name):
        raise JoinRuleError(f"it makes a name that no node can have: {problems[0]}")
    return name


# What the server, or the configuration of another one, states about the holder of a token, in `extra`.


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinIdentity:
    """The token of a joining machine. `use` stands for the value of it that lets in one key; `node_name` may be a pattern."""

    rule: str
    digest: str
    issuer: str
    subject: str
    use: str
    node_name: str
    expires: datetime

    def extra(self) -> dict[str, tuple[str, ...]]:
        """Return it as extra attributes of a user."""
        texts = {
            _DIGEST: self.digest,
            _ISSUER: self.issuer,
            _SUBJECT: self.subject,
            _USE: self.use,
            _NODE_NAME: self.node_name,
            _EXPIRES: rfc3339(self.expires),
        }
        return {key: (text,) for key, text in texts.items() if text}


def use_of(issuer: str, value: str) -> str:
    """Return what stands for the value of a token's unique claim in records."""
    return "sha256:" + hashlib.sha256(f"{issuer}\n{value}".encode("utf-8", "surrogatepass")).hexdigest()


def unique_value(rule_claim: str, claims: Mapping[str, Any]) -> str:
    """Return the value of which one key joins. Raises JoinRuleError when the token has none."""
    for name in (rule_claim,) if rule_claim else DEFAULT_UNIQUE:
        try:
            texts = texts_of(claim_in(claims, name))
        except JoinRuleError:
            continue
        if len(texts) == 1 and texts[0]:
            return texts[0]
    raise JoinRuleError(f"the claim {rule_claim or ' or '.join(DEFAULT_UNIQUE)}, by which one key joins, is not there")


def named_node(user: Obj) -> str:
    """Return the name that a join rule gives to the node of a user in a SelfSubjectReview; "" for a pattern, and for none."""
    extra = user.get("extra")
    texts = extra.get(_NODE_NAME) if isinstance(extra, Mapping) else None
    name = texts[0] if isinstance(texts, list) and texts and isinstance(texts[0], str) else ""
    return "" if "*" in name else name


def stated(claims: Mapping[str, Any]) -> str:
    """Return what a token says of its issuer, audience and end, for the person who asks why it was refused. Nothing proves it."""
    found = [
        f"{word} {', '.join(shown[:3])}"
        for word, claim in (("issuer", "iss"), ("audience", "aud"))
        if (shown := [quoted(text[:MAX_SHOWN]) for text in texts_of(claims.get(claim))])
    ]
    with suppress(ValueError, OverflowError, OSError, TypeError):
        if "exp" in claims:
            found.append(f"until {rfc3339(datetime.fromtimestamp(claims['exp'], UTC))}")
    return ", ".join(found) or "it names no issuer"


def join_identity(username: str, extra: Mapping[str, Sequence[str]]) -> JoinIdentity | None:
    """Return what a user's attributes say of an identity token; None for another user. Raises JoinRuleError for a part."""
    rule = username.removeprefix(JOIN_RULE_PREFIX)
    if rule == username:
        return None
    texts = {key: str(next(iter(extra.get(key) or ()), "")) for key in (_DIGEST, _ISSUER, _SUBJECT, _USE, _NODE_NAME)}
    issuer, use = texts[_ISSUER], texts[_USE]
    if use.startswith(CLAIM_USE):
        use = use_of(issuer, use.removeprefix(CLAIM_USE))
    try:
        expires = parse_rfc3339(str(next(iter(extra.get(_EXPIRES) or ()), "")))
    except ValueError:
        raise JoinRuleError("the end of the identity token is not stated") from None
    if not issuer or not texts[_DIGEST] or _USE_TEXT.fullmatch(use) is None:
        raise JoinRuleError("the issuer, the rule or the use of the identity token is not stated")
    return JoinIdentity(
        rule=rule,
        digest=texts[_DIGEST],
        issuer=issuer,
        subject=texts[_SUBJECT][:MAX_TEXT],
        use=use,
        node_name=texts[_NODE_NAME],
        expires=expires,
    )
