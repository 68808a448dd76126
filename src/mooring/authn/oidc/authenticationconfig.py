"""The AuthenticationConfiguration file: issuers of tokens, mappings from claims to users, and anonymous access."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.authn.anonymous import AnonymousAccess
from mooring.authn.cel import CLAIMS, TRUTH, USER, CelError, Expression, compile_expression
from mooring.authn.cel import TEXT as CEL_TEXT
from mooring.authn.cel import TEXTS as CEL_TEXTS
from mooring.authn.claims import EMAIL, EMAIL_VERIFIED, Claim, Identification, Required, ValidationRule
from mooring.authn.oidc.authenticator import IssuerConfig
from mooring.authn.oidc.settings import OidcSettings
from mooring.errors import (
    MAX_FIELD_ERRORS,
    ConfigError,
    FieldError,
    MooringError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
)
from mooring.errors import required as missing
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates_among
from mooring.trust.httpsurl import https_url_problem, named_cas

# The AuthenticationConfiguration file: issuers of tokens, and anonymous access (apiserver.config.k8s.io).
#
# Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration; KEP-3331, KEP-4633):
# * One document of v1, v1beta1 or v1alpha1, which have the same content. Reading is strict: unknown fields, repeated fields and
#   wrong types are mistakes. All mistakes are reported at once, each with the path of its field.
# * `issuer.url` and `issuer.discoveryURL` are https without user, query and fragment, differ from each other, and are each used
#   once. An issuer of this server's own tokens cannot be one. There is at least one audience, and none twice. `audienceMatchPolicy`
#   is MatchAny, and required with several audiences. `egressSelectorType` is checked and has no effect: this server always connects
#   directly.
# * `mooring.authn.oidc.authenticationconfig` reads the mapping from claims to users.
# * `anonymous` replaces the flag --anonymous-auth, and both together are a mistake. `conditions` need `enabled: true`.

# Strict reading of a part of a configuration file: every mistake is reported with the path of its field, and all at once.
#
# Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration): an unknown field is a mistake, reported with the
# known field that it resembles, and so is a value of a wrong type. Null counts as absent. Reports quote values, because no field
# here holds a secret.


class StrictPart:
    """One object of the file, at `path`, with its `known` fields. What is wrong is added to `mistakes`."""

    def __init__(self, value: Any, path: str, mistakes: list[str], *known: str) -> None:
        self.path = path
        self.mistakes = mistakes
        if not isinstance(value, Mapping):
            if value is not None:
                self.say(invalid(path, value, "it must be an object"))
            value = {}
        self._value: Mapping[str, Any] = value
        for name in value:
            if name not in known:
                near = get_close_matches(name.lower(), {one.lower(): one for one in known}, n=1)
                meant = next((one for one in known if near and one.lower() == near[0]), "")
                self.mistakes.append(
                    f"{self.at(name)}: unknown field" + (f', did you mean "{meant}"?' if meant else "")
                )

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def say(self, mistake: FieldError) -> None:
        self.mistakes.append(str(mistake))

    def said(self, name: str) -> bool:
        """Return whether the field is there; an empty text counts."""
        return self._value.get(name) is not None

    def part(self, name: str, *known: str) -> StrictPart:
        """The object in a field; an empty one when nothing was said."""
        return StrictPart(self._value.get(name), self.at(name), self.mistakes, *known)

    def parts(self, name: str, *known: str, most: int) -> list[StrictPart]:
        """The objects of a list in a field, at most so many."""
        return [StrictPart(one, path, self.mistakes, *known) for path, one in self._items(name, most)]

    def text(self, name: str) -> str:
        """The text in a field, "" when nothing was said."""
        value = self._value.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            self.say(invalid(self.at(name), value, "it must be a text"))
        return ""

    def texts(self, name: str, *, most: int) -> list[tuple[str, str]]:
        """Path and value of each text of a list in a field, at most so many."""
        found = []
        for path, one in self._items(name, most):
            if isinstance(one, str):
                found.append((path, one))
            else:
                self.say(invalid(path, one, "it must be a text"))
        return found

    def truth(self, name: str) -> bool:
        """The truth value in a field, False when nothing was said."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, bool):
            self.say(invalid(self.at(name), value, "it must be true or false"))
        return value is True

    def _items(self, name: str, most: int) -> Iterator[tuple[str, Any]]:
        value = self._value.get(name)
        if not isinstance(value, list):
            if value is not None:
                self.say(invalid(self.at(name), value, "it must be a list"))
            return
        if len(value) > most:
            self.mistakes.append(f"{self.at(name)}: Too many: {len(value)}: must have at most {most} items")
        for index, one in enumerate(value[:most]):
            yield f"{self.at(name)}[{index}]", one


# Mappings from claims to users and rules about both, read from the AuthenticationConfiguration file.
#
# Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration; KEP-3331):
# * A mapping is a claim or an expression. A claim for `username` or `groups` needs a `prefix`, which may be empty; an expression
#   has none. `groups` and `uid` may be empty: programs in Go write `{}` for a mapping that is not there. An extra key is lower
#   case, a domain and a path, used once, and not one of Kubernetes' own.
# * A rule about claims is a claim with its value, or an expression with a message. No claim is required twice.
# * When the expression of the user name uses `claims.email`, then it, an extra's expression or a rule about claims must use
#   `claims.email_verified`.
# * Expressions are compiled here, and their types checked.

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
    username = _source(mappings, "username", CEL_TEXT, prefixed=True)
    groups = _source(mappings, "groups", CEL_TEXTS, prefixed=True, optional=True)
    uid = _source(mappings, "uid", CEL_TEXT, prefixed=False, optional=True)
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
        expression = _expression(part, "valueExpression", CLAIMS, CEL_TEXTS)
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


GROUP = "apiserver.config.k8s.io"
VERSIONS = tuple(f"{GROUP}/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
KIND = "AuthenticationConfiguration"
MAX_ISSUERS = 64
MAX_BYTES = 1 << 20
MATCH_ANY = "MatchAny"
EGRESS = ("controlplane", "cluster")


@dataclass(frozen=True, slots=True)
class AuthenticationConfiguration:
    """Content of a file. `anonymous` is None when the file leaves it to the flag."""

    issuers: tuple[IssuerConfig, ...]
    anonymous: AnonymousAccess | None


def parse(
    data: bytes, source: str, *, own_issuers: Collection[str] = (), anonymous_given: bool = False
) -> AuthenticationConfiguration:
    """Parse a YAML or JSON file. Raises ConfigError that names `source` and every wrong field.

    `anonymous_given`: the operator gave --anonymous-auth.
    """
    mistakes: list[str] = []
    top = _read_document(data, source, mistakes)
    known = ("issuer", "claimValidationRules", "claimMappings", "userValidationRules")
    issuers = [_read_issuer(part, own_issuers) for part in top.parts("jwt", *known, most=MAX_ISSUERS)]
    for name, urls in (("url", [one.url for one in issuers]), ("discoveryURL", [one.discovery_url for one in issuers])):
        for place, url in enumerate(urls):
            if url and url in urls[:place]:
                mistakes.append(str(duplicate(f"jwt[{place}].issuer.{name}", url)))
    anonymous = _read_anonymous(top.part("anonymous", "enabled", "conditions")) if top.said("anonymous") else None
    if anonymous is not None and anonymous_given:
        mistakes.append(str(forbidden("anonymous", "it cannot be combined with --anonymous-auth; leave the flag out")))
    if mistakes:
        raise ConfigError(f"{source}: {_join_mistakes(mistakes)}")
    return AuthenticationConfiguration(tuple(issuers), anonymous)


def from_flags(settings: OidcSettings, ca_pem: bytes) -> IssuerConfig:
    """Return the issuer that the --oidc- flags describe (docs/protocol/openid-connect.md#flags). `ca_pem`: the content of
    --oidc-ca-file.
    """
    if settings.oidc_ca_file:
        try:
            ca_pem = named_cas(ca_pem, settings.oidc_ca_file)
        except ConfigError as error:
            raise ConfigError(f"oidc-ca-file: {error}") from None
    prefix = settings.oidc_username_prefix
    if not prefix:
        prefix = "" if settings.oidc_username_claim == EMAIL else f"{settings.oidc_issuer_url}#"
    identification = Identification(
        username=Claim(settings.oidc_username_claim, "" if prefix == "-" else prefix),
        groups=Claim(settings.oidc_groups_claim, settings.oidc_groups_prefix) if settings.oidc_groups_claim else None,
        claim_rules=tuple(Required(name, value) for name, value in settings.required_claims.items()),
    )
    return IssuerConfig(
        url=settings.oidc_issuer_url,
        audiences=(settings.oidc_client_id,),
        identification=identification,
        ca_pem=ca_pem,
        algorithms=settings.oidc_signing_algs,
    )


def _read_document(data: bytes, source: str, mistakes: list[str]) -> StrictPart:
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: an authentication configuration is at most {MAX_BYTES} bytes")
    try:
        document, repeated = decode_yaml(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: the file is not UTF-8 text") from None
    except MooringError as error:
        raise ConfigError(f"{source}: {error}") from None
    version_and_kind = (document.get("apiVersion"), document.get("kind")) if isinstance(document, dict) else None
    if version_and_kind is None or version_and_kind[0] not in VERSIONS or version_and_kind[1] != KIND:
        raise ConfigError(
            f"{source}: one {KIND} of {GROUP} is expected; say so in apiVersion ({', '.join(VERSIONS)}) and kind"
        )
    mistakes.extend(repeated)
    return StrictPart(document, "", mistakes, "apiVersion", "kind", "jwt", "anonymous")


def _join_mistakes(mistakes: list[str]) -> str:
    shown = mistakes[:MAX_FIELD_ERRORS]
    if len(mistakes) > MAX_FIELD_ERRORS:
        shown.append(f"and {len(mistakes) - MAX_FIELD_ERRORS} more")
    return "; ".join(shown)


def _read_issuer(part: StrictPart, own_issuers: Collection[str]) -> IssuerConfig:
    issuer = part.part(
        "issuer",
        "url", "discoveryURL", "certificateAuthority", "audiences", "audienceMatchPolicy", "egressSelectorType",
    )  # fmt: skip
    url = _https_url(issuer, "url")
    if not url and not issuer.said("url"):
        issuer.say(missing(issuer.at("url"), "the issuer of the tokens"))
    elif url in own_issuers:
        issuer.say(invalid(issuer.at("url"), url, "it is the issuer of this server's own tokens"))
    discovery = _https_url(issuer, "discoveryURL", optional=True)
    if discovery and discovery == url:
        issuer.say(invalid(issuer.at("discoveryURL"), discovery, "it must differ from url; leave it out"))
    egress = issuer.text("egressSelectorType")
    if egress and egress not in EGRESS:
        issuer.say(not_supported(issuer.at("egressSelectorType"), egress, EGRESS))
    return IssuerConfig(
        url=url,
        audiences=_read_audiences(issuer),
        identification=read_identification(part),
        discovery_url=discovery,
        ca_pem=_certificate_authority(issuer),
    )


def _https_url(part: StrictPart, name: str, *, optional: bool = False) -> str:
    text = part.text(name)
    problem = https_url_problem(text) if part.said(name) and (text or not optional) else ""
    if problem:
        part.say(invalid(part.at(name), text, problem))
    return text


def _read_audiences(issuer: StrictPart) -> tuple[str, ...]:
    found: list[str] = []
    for path, audience in issuer.texts("audiences", most=MAX_ENTRIES):
        if not audience:
            issuer.say(missing(path, "give the name of an audience"))
        elif audience in found:
            issuer.say(duplicate(path, audience))
        else:
            found.append(audience)
    if not found:
        issuer.say(missing(issuer.at("audiences"), "give at least one"))
    policy = issuer.text("audienceMatchPolicy")
    if policy not in ("", MATCH_ANY):
        issuer.say(not_supported(issuer.at("audienceMatchPolicy"), policy, (MATCH_ANY,)))
    elif len(found) > 1 and policy != MATCH_ANY:
        issuer.say(invalid(issuer.at("audienceMatchPolicy"), policy, f"it must be {MATCH_ANY} when there are several"))
    return tuple(found)


def _certificate_authority(issuer: StrictPart) -> bytes:
    text = issuer.text("certificateAuthority").encode("utf-8", "replace")
    if text:
        try:
            certificates_among(text)
        except PkiError as error:
            issuer.say(FieldError("FieldValueInvalid", issuer.at("certificateAuthority"), str(error), "<omitted>"))
    return text


def _read_anonymous(part: StrictPart) -> AnonymousAccess:
    enabled = part.truth("enabled")
    conditions = part.parts("conditions", "path", most=MAX_ENTRIES)
    if conditions and not enabled:
        part.say(forbidden(part.at("conditions"), "they want enabled: true"))
    paths: list[str] = []
    for one in conditions:
        path = one.text("path")
        if not path.startswith("/"):
            one.say(invalid(one.at("path"), path, "it must be the path of a URL, such as /livez"))
        elif path in paths:
            one.say(duplicate(one.at("path"), path))
        paths.append(path)
    return AnonymousAccess(enabled, frozenset(paths))
