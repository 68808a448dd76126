"""Mappings from claims to users and rules about both, read from the AuthenticationConfiguration file.

Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration; KEP-3331):
* A mapping is a claim or an expression. A claim for `username` or `groups` needs a `prefix`, which may be empty; an expression
  has none. `groups` and `uid` may be empty: programs in Go write `{}` for a mapping that is not there. An extra key is lower
  case, a domain and a path, used once, and not one of Kubernetes' own.
* A rule about claims is a claim with its value, or an expression with a message. No claim is required twice.
* When the expression of the user name uses `claims.email`, then it, an extra's expression or a rule about claims must use
  `claims.email_verified`.
* Expressions are compiled here, and their types checked.
"""

from __future__ import annotations

from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.authn.claims.cel import CLAIMS, TEXT, TEXTS, TRUTH, USER, CelError, Expression, compile_expression
from mooring.authn.claims.mapping import EMAIL, EMAIL_VERIFIED, Claim, Identification, Required, ValidationRule
from mooring.authn.strictpart import StrictPart
from mooring.errors import duplicate, invalid
from mooring.errors import required as missing

MAX_ENTRIES = 64
"""Rules, extra keys, audiences, or paths of one list. Each is evaluated for every token or request."""
RESERVED = ("k8s.io", "kubernetes.io")


def read_identification(part: StrictPart) -> Identification:
    """Read one entry of `jwt`. Mistakes are added to those of `part`."""
    rules: list[Required | ValidationRule] = []
    for one in part.parts("claimValidationRules", "claim", "requiredValue", "expression", "message", most=MAX_ENTRIES):
        rule = _claim_rule(one)
        if isinstance(rule, Required) and any(isinstance(r, Required) and r.claim == rule.claim for r in rules):
            one.say(duplicate(one.at("claim"), rule.claim))
        elif rule is not None:
            rules.append(rule)
    mappings = part.part("claimMappings", "username", "groups", "uid", "extra")
    username = _source(mappings, "username", TEXT, prefixed=True)
    groups = _source(mappings, "groups", TEXTS, prefixed=True, optional=True)
    uid = _source(mappings, "uid", TEXT, prefixed=False, optional=True)
    extra = _extra(mappings)
    if not mappings.said("username"):
        mappings.say(missing(mappings.at("username"), "give a claim or an expression"))
    if isinstance(username, Expression) and EMAIL in username.names:
        others = [
            username,
            *(one for _, one in extra),
            *(one.expression for one in rules if isinstance(one, ValidationRule)),
        ]
        if not any(EMAIL_VERIFIED in one.names for one in others):
            detail = (
                "claims.email can be trusted only together with claims.email_verified: "
                "use it here, in claimMappings.extra, or in claimValidationRules"
            )
            mappings.say(invalid(mappings.at("username.expression"), username.text, detail))
    return Identification(
        username=username or Claim(""),
        groups=groups,
        uid=uid,
        extra=tuple(extra),
        claim_rules=tuple(rules),
        user_rules=tuple(
            rule
            for one in part.parts("userValidationRules", "expression", "message", most=MAX_ENTRIES)
            if (rule := _expression_rule(one, USER)) is not None
        ),
    )


def _claim_rule(rule: StrictPart) -> Required | ValidationRule | None:
    claim, expression = rule.text("claim"), rule.text("expression")
    if claim and expression:
        rule.say(invalid(rule.path, claim, "give a claim or an expression, not both"))
    elif claim:
        if message := rule.text("message"):
            rule.say(invalid(rule.at("message"), message, "it goes with an expression"))
        return Required(claim, rule.text("requiredValue"))
    elif expression:
        if value := rule.text("requiredValue"):
            rule.say(invalid(rule.at("requiredValue"), value, "it goes with a claim"))
        return _expression_rule(rule, CLAIMS)
    else:
        rule.say(missing(rule.path, "give a claim or an expression"))
    return None


def _expression_rule(rule: StrictPart, variable: str) -> ValidationRule | None:
    expression = _expression(rule, "expression", variable, TRUTH)
    message = rule.text("message")
    return None if expression is None else ValidationRule(expression, message)


def _source(
    mappings: StrictPart, name: str, wanted: frozenset[str], *, prefixed: bool, optional: bool = False
) -> Claim | Expression | None:
    source = mappings.part(name, "claim", "expression", *(("prefix",) if prefixed else ()))
    claim, expression = source.text("claim"), source.text("expression")
    prefix = source.text("prefix")
    if claim and expression:
        source.say(invalid(source.path, claim, "give a claim or an expression, not both"))
    elif claim:
        if prefixed and not source.said("prefix"):
            source.say(missing(source.at("prefix"), 'it goes with a claim; "" puts nothing before it'))
        return Claim(claim, prefix)
    elif expression:
        if source.said("prefix"):
            source.say(
                invalid(source.at("prefix"), prefix, "it goes with a claim; an expression can put it there itself")
            )
        return _expression(source, "expression", CLAIMS, wanted)
    elif prefix or (mappings.said(name) and not optional):
        source.say(missing(source.path, "give a claim or an expression"))
    return None


def _expression(part: StrictPart, name: str, variable: str, wanted: frozenset[str]) -> Expression | None:
    text = part.text(name)
    if not text:
        part.say(missing(part.at(name), "give an expression"))
        return None
    try:
        return compile_expression(text, variable, wanted)
    except CelError as error:
        part.say(invalid(part.at(name), text, str(error)))
        return None


def _extra(mappings: StrictPart) -> list[tuple[str, Expression]]:
    found: list[tuple[str, Expression]] = []
    keys: list[str] = []
    for part in mappings.parts("extra", "key", "valueExpression", most=MAX_ENTRIES):
        key = part.text("key")
        problem = _key_problem(key)
        if not key:
            part.say(missing(part.at("key"), "a domain and a path, such as example.com/department"))
        elif problem:
            part.say(invalid(part.at("key"), key, problem))
        elif key in keys:
            part.say(duplicate(part.at("key"), key))
        keys.append(key)
        expression = _expression(part, "valueExpression", CLAIMS, TEXTS)
        if expression is not None:
            found.append((key, expression))
    return found


def _key_problem(key: str) -> str:
    domain, slash, path = key.partition("/")
    if key != key.lower():
        return "it must be in lower case"
    if not slash or not path or dns1123_subdomain_errors(domain) or not path.isascii() or not path.isprintable():
        return "it must be a domain and a path, such as example.com/department"
    if any(domain == one or domain.endswith(f".{one}") for one in RESERVED):
        return f"{' and '.join(RESERVED)} and what is below them are Kubernetes's own"
    return ""
