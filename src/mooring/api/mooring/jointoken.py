"""JoinToken: the request for a bootstrap token with limits, which the server makes. Strategy, and the Secret of the token.

Rules kept here (docs/limit-what-a-token-can-do.md#a-right-that-makes-limited-tokens-only):
* It is answered when it is created, and never stored. The token is in the answer alone; its Secret is in kube-system.
* The server makes id and secret, so that no other token is replaced. Groups and usages are those of machines that join.
* Each token expires within a day and lets in a limited number of machines. The other restrictions are those of every token.
* The Secret says who asked for the token, in the annotation `mooring.dev/created-by`.
* `MOST_LIVE` bounds them, but for requests at the same moment: each has a signature in cluster-info, which every machine reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from mooring.api.objectmeta import spec_of
from mooring.api.paths import GROUP, VERSION
from mooring.api.reviews import review_kind
from mooring.apimachinery.schema import Obj, message
from mooring.errors import FieldError, invalid, not_supported, too_long
from mooring.identity import UserInfo
from mooring.settings.addresses import Network
from mooring.trust.bootstraptoken.restrictions import (
    CREATED_BY,
    Restrictions,
    parse_ephemeral,
    parse_networks,
    parse_node_name,
)
from mooring.trust.bootstraptoken.token import DEFAULT_GROUPS, BootstrapToken, TokenError
from mooring.trust.bootstraptoken.tokensecret import (
    KEY_EXPIRATION,
    SECRET_TYPE,
    data_value,
    expired,
    new_record,
    to_secret,
)
from mooring.trust.k3s.token import DEFAULT_GROUPS as K3S_GROUPS

PLURAL = "jointokens"
KUBEADM, K3S = "kubeadm", "k3s"
GROUPS = {KUBEADM: DEFAULT_GROUPS, K3S: K3S_GROUPS}
"""Groups of a machine with the token, by the way in which it joins."""
DEFAULTS: Mapping[str, Any] = {"expirationSeconds": 3600, "maxJoins": 1, "format": KUBEADM}
MIN_SECONDS = 60
MAX_SECONDS = 86400
MAX_JOINS = 100
"""Machines that one token lets in."""
MOST_LIVE = 1000
"""Tokens that were made so and have not expired, in a cluster."""
MAX_DESCRIPTION = 256
MAX_CREATOR = 256
"""Characters of the name of a user in an annotation."""


def default(obj: Obj) -> None:
    """Fill in defaults, in place."""
    obj["spec"] = {**DEFAULTS, **spec_of(obj)}


def validate(obj: Obj) -> list[FieldError]:
    """Return the mistakes of a request."""
    spec = {**DEFAULTS, **spec_of(obj)}
    errors = [
        *_range_errors(spec, "expirationSeconds", MIN_SECONDS, MAX_SECONDS),
        *_range_errors(spec, "maxJoins", 1, MAX_JOINS),
    ]
    if spec["format"] not in GROUPS:
        errors.append(not_supported("spec.format", spec["format"], tuple(GROUPS)))
    if len(spec.get("description", "").encode("utf-8", "surrogatepass")) > MAX_DESCRIPTION:
        errors.append(too_long("spec.description", MAX_DESCRIPTION))
    for name, parse in _PARSERS.items():
        if value := spec.get(name):
            try:
                parse(value)
            except TokenError as error:
                # Without the name of the annotation, for which the error of a Secret was written.
                errors.append(invalid(f"spec.{name}", value, str(error).partition(": ")[2]))
    return errors


def _range_errors(spec: Obj, name: str, least: int, most: int) -> list[FieldError]:
    value = spec[name]
    return [] if least <= value <= most else [invalid(f"spec.{name}", value, f"must be from {least} to {most}")]


def _networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return parse_networks(",".join(texts))


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    "allowedCIDRs": _networks,
    "nodeName": parse_node_name,
    "ephemeral": parse_ephemeral,
}


def secret_of(obj: Obj, token: BootstrapToken, now: datetime, user: UserInfo) -> Obj:
    """Return the Secret of the token that a valid request makes."""
    spec = spec_of(obj)
    networks, silence = spec.get("allowedCIDRs"), spec.get("ephemeral")
    record = new_record(
        token,
        now,
        ttl=timedelta(seconds=spec["expirationSeconds"]),
        groups=GROUPS[spec["format"]],
        description=spec.get("description", ""),
        restrictions=Restrictions(
            spec["maxJoins"],
            _networks(networks) if networks else (),
            spec.get("nodeName", ""),
            parse_ephemeral(silence) if silence else None,
            spec.get("requireApproval", False),
        ),
    )
    secret = to_secret(record)
    secret["metadata"]["annotations"][CREATED_BY] = user.username[:MAX_CREATOR]
    return secret


def answer_of(obj: Obj, secret: Obj, token: BootstrapToken | None) -> Obj:
    """Return the answer to a request, with the token; without one for a dry run."""
    status: Obj = {"expirationTimestamp": data_value(secret, KEY_EXPIRATION)}
    return {**obj, "status": {"token": token.reveal(), **status} if token is not None else status}


def live(secrets: Iterable[Obj], now: datetime) -> int:
    """Return the number of tokens that were made so and have not expired."""
    tokens = (secret for secret in secrets if secret.get("type") == SECRET_TYPE)
    made = (token for token in tokens if CREATED_BY in (token["metadata"].get("annotations") or ()))
    return sum(not expired(token, now) for token in made)


KIND = replace(
    review_kind(GROUP, VERSION, message("dev.mooring.api.v1alpha1.JoinToken"), validate=validate), default=default
)
