"""The AuthenticationConfiguration file: issuers of tokens, and anonymous access (apiserver.config.k8s.io).

Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration; KEP-3331, KEP-4633):
* One document of v1, v1beta1 or v1alpha1, which have the same content. Reading is strict: unknown fields, repeated fields and
  wrong types are mistakes. All mistakes are reported at once, each with the path of its field.
* `issuer.url` and `issuer.discoveryURL` are https without user, query and fragment, differ from each other, and are each used
  once. An issuer of this server's own tokens cannot be one. There is at least one audience, and none twice. `audienceMatchPolicy`
  is MatchAny, and required with several audiences. `egressSelectorType` is checked and has no effect: this server always connects
  directly.
* `mooring.authn.oidc.mappingconfig` reads the mapping from claims to users.
* `anonymous` replaces the flag --anonymous-auth, and both together are a mistake. `conditions` need `enabled: true`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mooring.apimachinery.codec.yaml import decode_yaml
from mooring.authn.anonymousaccess import AnonymousAccess
from mooring.authn.claims.mapping import EMAIL, Claim, Identification, Required
from mooring.authn.oidc.issuer import IssuerConfig
from mooring.authn.oidc.mappingconfig import MAX_ENTRIES, read_identification
from mooring.authn.oidc.settings import OidcSettings
from mooring.authn.strictpart import StrictPart
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
from mooring.trust.cafile import named_cas
from mooring.trust.httpsurl import https_url_problem

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
