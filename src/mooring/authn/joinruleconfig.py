"""Join rules as an AuthenticationConfiguration of kube-apiserver, which knows no join rules.

Rules kept here (docs/join-by-identity-token.md):
* Each issuer has one entry. Its user for a token is the one of `mooring.authn.joinrule`, but that the extra `use` is the claim
  itself, because expressions know no hash.
* The first rule that fits, by its name, counts. Conditions, patterns and templates of names become CEL. A text of a rule becomes a
  literal, and the author's expressions stand in parentheses that they cannot leave, because each compiles alone.
* An expression that fails for a token, such as one that reads an absent claim, rejects the token for all rules of its issuer.
* kube-apiserver compiles with lists of one type only: no list here has elements of several.
* Expressions know no time. The end of a rule rejects each token that outlives it, so that none counts after it. The number of joins
  and networks are not here: the gates of `mooring controllers` judge them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from mooring.apimachinery.schema import Obj
from mooring.authn.cel import CelError
from mooring.authn.claims import EMAIL, EMAIL_VERIFIED
from mooring.authn.joinrule import compile_rule
from mooring.identity import BOOTSTRAPPERS, JOIN_RULE_PREFIX
from mooring.trust.bootstraptoken.token import DEFAULT_GROUPS
from mooring.trust.joinrule import (
    CLAIM_USE,
    DEFAULT_UNIQUE,
    EXTRA_DOMAIN,
    Condition,
    JoinRule,
    JoinRuleError,
    claim_steps,
    fits_pattern,
    placeholders,
)

MATCH_ANY = "MatchAny"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
"""JSON of a number that is an int of CEL."""
_NUMBERS = re.compile(r"[-0-9*]+", re.ASCII)
_SPECIAL = re.compile(r"[\\.+?()|\[\]{}^$]")
"""Characters that RE2 takes for themselves behind a backslash alone."""
_ANY = "[^/:]*"
_SUBJECT = "sub"
"""A claim that is a text or null, as every verifier requires (RFC 7519 4.1.2)."""
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PATTERN_LABEL = "[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?"
_NODE_NAME, _NAME_PATTERN = (rf"^{label}(\.{label})*$" for label in (_LABEL, _PATTERN_LABEL))
_NAME_PART = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LONGEST_NAME = 253


def authentication_configuration(rules: Iterable[JoinRule], cluster_id: str) -> Obj:
    """Return the configuration for these rules. `cluster_id` is the audience of a rule that names none.

    Raises JoinRuleError, which names the rule, for one that the configuration cannot express.
    """
    ordered = sorted(map(_checked, rules), key=lambda rule: (rule.issuer, rule.name))
    entries = [_entry(tuple(some), cluster_id) for _, some in groupby(ordered, lambda rule: rule.issuer)]
    return {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": entries}


def _checked(rule: JoinRule) -> JoinRule:
    if rule.keys is not None:
        raise JoinRuleError(
            f"join rule {rule.name}: kube-apiserver takes no keys from a file; publish the discovery document and the keys at an "
            "https URL that it reaches, and name it with --issuer-discovery-url in place of --issuer-jwks-file"
        )
    try:
        compile_rule(rule)
    except CelError as error:
        raise JoinRuleError(f"join rule {rule.name}: {error}") from None
    return rule


def _entry(rules: Sequence[JoinRule], cluster_id: str) -> Obj:
    first = rules[0]
    for rule in rules:
        for what, own, other in (
            ("discovery URL", rule.discovery_url, first.discovery_url),
            ("CA", rule.ca_pem, first.ca_pem),
        ):
            if own != other:
                raise JoinRuleError(
                    f"join rule {rule.name}: its {what} is not that of {first.name}, and kube-apiserver takes one for an issuer; "
                    "make them equal, or name the rules of one of them as arguments"
                )
    wanted = {rule.name: rule.audiences or (cluster_id,) for rule in rules}
    audiences = tuple(dict.fromkeys(one for named in wanted.values() for one in named))
    conditions = {
        rule.name: " && ".join(
            [*(_audience_fits(named) for named in (wanted[rule.name],) if set(named) != set(audiences)), *_fits(rule)]
        )
        for rule in rules
    }

    def first_that_fits(of: Callable[[JoinRule], str]) -> str:
        """Return the expression for the first rule that fits. The last needs no condition: that one fits is a rule of its own."""
        *others, last = rules
        return "".join(f"({conditions[one.name]}) ? {of(one)} : " for one in others) + of(last)

    issuer: Obj = {"url": first.issuer, "audiences": list(audiences)}
    if len(audiences) > 1:
        issuer["audienceMatchPolicy"] = MATCH_ANY
    if first.discovery_url:
        issuer["discoveryURL"] = first.discovery_url
    if first.ca_pem:
        issuer["certificateAuthority"] = first.ca_pem.decode()
    extra: Mapping[str, str] = {
        "rule-digest": first_that_fits(lambda rule: literal(rule.digest)),
        "issuer": literal(first.issuer),
        "subject": f'{_has_text(_SUBJECT)} ? {_text(_SUBJECT)} : ""',
        "use": first_that_fits(_use),
        "node-name": first_that_fits(_node_name),
        "expires": 'string(timestamp(int(claims["exp"])))',
    }
    one_fits = " || ".join(f"({one})" for one in conditions.values())
    groups = ",".join(map(literal, sorted({BOOTSTRAPPERS, *DEFAULT_GROUPS})))
    return {
        "issuer": issuer,
        "claimValidationRules": [{"expression": one_fits, "message": "no join rule fits"}, *_email_rules(one_fits)],
        "claimMappings": {
            "username": {"expression": first_that_fits(lambda rule: literal(JOIN_RULE_PREFIX + rule.name))},
            "groups": {"expression": f"[{groups}]"},
            "extra": [
                {"key": EXTRA_DOMAIN + name, "valueExpression": text} for name, text in extra.items() if text != '""'
            ],
        },
    }


def _email_rules(conditions: str) -> list[Obj]:
    """Return a rule that is always true where an address decides: the configuration must name the claim that goes with it."""
    if EMAIL in conditions:
        return [{"expression": f"has(claims.{EMAIL_VERIFIED}) || true", "message": "a join rule says what must hold"}]
    return []


def _audience_fits(named: Sequence[str]) -> str:
    return f"{_list_of(_at(('aud',)))}.exists(a, a in [{','.join(map(literal, named))}])"


def _fits(rule: JoinRule) -> list[str]:
    """Return the conditions of a rule, which also has a node name and the value of which one key joins."""
    found = [_condition_fits(one) for one in rule.conditions]
    names = tuple(dict.fromkeys(placeholders(rule.node_name)))
    found += [f"{_has_text(name)} && {_text(name)}.matches({literal(_NAME_PART)})" for name in names]
    if rule.node_name_expression:
        found.append(f"type({_author(rule.node_name_expression)}) == string")
    if names or rule.node_name_expression:
        # A text without placeholders is a name, or the rule could not be read. A * is one of the rule, as no claim brings one.
        name = _node_name(rule) if names else f"string({_node_name(rule)})"
        wanted = _NAME_PATTERN if "*" in rule.node_name else _NODE_NAME
        found.append(f"({name}).matches({literal(wanted)}) && size({name}) <= {_LONGEST_NAME}")
    if rule.ends is not None:
        found.append(f"int({_at(('exp',))}) <= {int(rule.ends.timestamp())}")
    usable = [_is_unique(name) for name in _unique_claims(rule)]
    return [*found, f"({' || '.join(usable)})"]


def _author(expression: str) -> str:
    """Return the expression of a rule's author in parentheses. The line ends before the last, as a comment would hide it."""
    return f"({expression}\n)"


def _condition_fits(condition: Condition) -> str:
    if condition.expression:
        return _author(condition.expression)
    steps = claim_steps(condition.claim)
    one = _pattern_fits(condition.pattern) if condition.pattern else _value_fits(condition.value)
    return f"{_is_there(steps)} && {_list_of(_at(steps))}.exists(e, {one})"


def _value_fits(value: str) -> str:
    text = f"e == {literal(value)}"
    if _INTEGER.fullmatch(value):
        return f"{text} || type(e) == int && e == {value}"
    return f"{text} || e == {value}" if value in ("true", "false") else text


def _pattern_fits(pattern: str) -> str:
    parts = (_SPECIAL.sub(r"\\\g<0>", part) for part in pattern.split("*"))
    kinds = "(type(e) == string || type(e) == int)" if _NUMBERS.fullmatch(pattern) else "type(e) == string"
    texts = [f"{kinds} && string(e).matches({literal(f'^{_ANY.join(parts)}$')})"]
    texts += [f"e == {truth}" for truth in ("true", "false") if fits_pattern(pattern, truth)]
    return " || ".join(texts)


def _node_name(rule: JoinRule) -> str:
    if rule.node_name_expression:
        return _author(rule.node_name_expression)
    names = placeholders(rule.node_name)
    texts = re.split(r"\{[^{}]*\}", rule.node_name)
    parts = [literal(texts[0])]
    for name, text in zip(names, texts[1:], strict=True):
        parts += [_text(name), literal(text)]
    return " + ".join(part for part in parts if part != '""') or '""'


def _use(rule: JoinRule) -> str:
    names = _unique_claims(rule)
    texts = [_text(name) for name in names]
    text = texts[0] if len(texts) == 1 else f"({_is_unique(names[0])} ? {texts[0]} : {texts[1]})"
    return f"{literal(CLAIM_USE)} + {text}"


def _unique_claims(rule: JoinRule) -> Sequence[str]:
    return (rule.unique_claim,) if rule.unique_claim else DEFAULT_UNIQUE


def _is_unique(name: str) -> str:
    return f'{_has_text(name)} && {_text(name)} != ""'


def _has_text(name: str) -> str:
    """Return the expression that a claim is one text, as `mooring.trust.joinrule.texts_of` reads it."""
    if name == _SUBJECT:
        return f"{_is_there([name])} && type({_at([name])}) == string"
    steps = claim_steps(name)
    return f"{_is_there(steps)} && size({_texts(steps)}) == 1"


def _text(name: str) -> str:
    return f"string({_at([name]) if name == _SUBJECT else _texts(claim_steps(name)) + '[0]'})"


def _texts(steps: Sequence[str]) -> str:
    return f"{_list_of(_at(steps))}.filter(e, type(e) == string || type(e) == int || type(e) == bool)"


def _list_of(value: str) -> str:
    return f"(type({value}) == list ? {value} : [{value}])"


def _is_there(steps: Sequence[str]) -> str:
    found = [f"{literal(steps[0])} in claims"]
    for count in range(1, len(steps)):
        value = _at(steps[:count])
        found.append(f"type({value}) == map && {literal(steps[count])} in {value}")
    return " && ".join(found)


def _at(steps: Sequence[str]) -> str:
    return "claims" + "".join(f"[{literal(step)}]" for step in steps)


def literal(text: str) -> str:
    """Return a text as a string literal of CEL, in printable ASCII."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    return character if " " <= character <= "~" else f"\\U{ord(character):08x}"
