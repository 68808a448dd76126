"""Secret of a bootstrap token: lenient reading as Kubernetes does it, strict reading for administrators, and writing.

Rules kept here (docs/protocol/bootstrap-tokens.md):
* A missing key, missing data and an empty value all read as the empty string. A usage counts only when it is exactly `true`.
* No expiration means never. One that cannot be parsed counts as expired, and so does the expiry instant itself.
  Times are RFC 3339 as Go's `time.Parse` takes them: a one-digit hour and a comma before the fraction pass.
* `auth-extra-groups` is split on commas without trimming; one bad element refuses the whole token.
* `authenticate_secret` checks in the order of Kubernetes' authenticator, and compares the secret in constant time.
* Restrictions are those of `mooring.trust.bootstraptoken.restrictions`.
* The API server does not validate these Secrets. A Secret that cannot be read is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mooring.apimachinery.schema import Obj
from mooring.clock import gap, rfc3339
from mooring.identity import BOOTSTRAPPERS
from mooring.trust.bootstraptoken.restrictions import NO_RESTRICTIONS, Restrictions, read_restrictions
from mooring.trust.bootstraptoken.token import (
    USAGE_AUTHENTICATION,
    USAGES,
    BootstrapToken,
    TokenError,
    default_groups,
    is_token_id,
    parse_token,
    validate_group,
    validate_groups,
    validate_usages,
)

NAMESPACE = "kube-system"
SECRET_TYPE = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type name, no secret
NAME_PREFIX = "bootstrap-token-"
USAGE_PREFIX = "usage-bootstrap-"

NOT_ACCEPTED = "the server accepts no bootstrap token, because enable-bootstrap-token-auth is false"
"""Warning of a server about a Secret of a token that lets no machine in."""
KEY_ID = "token-id"
KEY_SECRET = "token-secret"  # noqa: S105 - a key name, no secret
KEY_EXPIRATION = "expiration"
KEY_DESCRIPTION = "description"
KEY_GROUPS = "auth-extra-groups"

DEFAULT_TTL = timedelta(hours=24)

UNREADABLE = "\ufffd"
"""Stands for a value that is not base64. It is not empty, so that every rule refuses it."""

_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)


def secret_name(token_id: str) -> str:
    """Return the name of the Secret, `bootstrap-token-<id>`."""
    return NAME_PREFIX + token_id


def token_id_of_name(name: str) -> str | None:
    """Return the token id in the name of a Secret; None when the name is not that of a bootstrap token."""
    token_id = name.removeprefix(NAME_PREFIX)
    return token_id if token_id != name and is_token_id(token_id) else None


def data_bytes(secret_obj: Obj, key: str) -> bytes:
    """Return the decoded value of `key`; empty when the key or all data is missing."""
    value = (secret_obj.get("data") or {}).get(key)
    if not value:
        return b""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return UNREADABLE.encode()


def data_value(secret_obj: Obj, key: str) -> str:
    """Return the decoded value of `key` as text that is printed, or compared with a text in ASCII: other bytes become U+FFFD."""
    return data_bytes(secret_obj, key).decode("utf-8", "replace")


def parse_expiration(text: str) -> datetime:
    """Return an RFC 3339 time in UTC, read as Go's `time.Parse` does. Raises TokenError."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise TokenError("the expiration is not an RFC 3339 time such as 2026-01-02T03:04:05Z")
    *numbers, fraction, sign, hours, minutes = match.groups()
    year, month, day, hour, minute, second = map(int, numbers)
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        moment = datetime(year, month, day, hour, minute, second, int((fraction or "0").ljust(6, "0")[:6]), tzinfo=UTC)
        if int(hours or 0) > 24 or int(minutes or 0) > 60:
            raise ValueError
    except ValueError:
        raise TokenError("the expiration is not a time that exists") from None
    try:
        return moment + offset if sign == "-" else moment - offset
    except OverflowError:
        # A time that Go can hold and Python cannot is far in the future, or in the past.
        return _LATEST if sign == "-" else _EARLIEST


def expiration(secret_obj: Obj) -> datetime | None:
    """Return the expiration time; None for a token that never expires. Raises TokenError when it cannot be read."""
    text = data_value(secret_obj, KEY_EXPIRATION)
    return parse_expiration(text) if text else None


def expired(secret_obj: Obj, now: datetime) -> bool:
    """Return True from the expiration time on, and when that time cannot be read."""
    try:
        moment = expiration(secret_obj)
    except TokenError:
        return True
    return moment is not None and moment <= now


def usage_enabled(secret_obj: Obj, usage: str) -> bool:
    """Return True when the value of `usage-bootstrap-<usage>` is exactly `true`."""
    return data_bytes(secret_obj, USAGE_PREFIX + usage) == b"true"


def groups(secret_obj: Obj) -> tuple[str, ...]:
    """Return the groups that the token grants, sorted, with `system:bootstrappers`. Raises TokenError."""
    text = data_value(secret_obj, KEY_GROUPS)
    extra = text.split(",") if text else []
    for group in extra:
        validate_group(group)
    return tuple(sorted({BOOTSTRAPPERS, *extra}))


OK = "ok"
UNKNOWN_ID = "unknown-id"
DELETING = "deleting"
WRONG_TYPE = "wrong-type"
WRONG_SECRET = "wrong-secret"  # noqa: S105 - a reason code, no secret
ID_MISMATCH = "id-mismatch"
EXPIRED = "expired"
USAGE_MISSING = "usage-missing"
BAD_GROUPS = "bad-groups"
BAD_RESTRICTIONS = "bad-restrictions"
NETWORK_NOT_ALLOWED = "network-not-allowed"
_NO_TOKEN: Obj = {"data": {KEY_SECRET: base64.b64encode(bytes(16)).decode()}}
"""Compared in place of a missing Secret. It has the length of a token's secret and equals none."""
REASONS = (
    OK,
    UNKNOWN_ID,
    DELETING,
    WRONG_TYPE,
    WRONG_SECRET,
    ID_MISMATCH,
    EXPIRED,
    USAGE_MISSING,
    BAD_GROUPS,
    BAD_RESTRICTIONS,
    NETWORK_NOT_ALLOWED,
)


def authenticate_secret(
    secret_obj: Obj | None, presented: BootstrapToken, now: datetime, source: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Return (reason, groups) for a token that is presented from the address `source`, and the Secret of its name.

    The checks are steps 2 to 9 of docs/protocol/bootstrap-tokens.md#authentication, in that order, and then the restrictions.
    Groups are empty unless the reason is `ok`. Reasons are for the operator; the caller does not see them. An unknown id costs as
    much time as a known one.
    """
    # First, also without a Secret: an unknown id must cost as much time as a known one.
    secret_matches = presented.secret.matches(data_bytes(secret_obj or _NO_TOKEN, KEY_SECRET))
    if secret_obj is None:
        return UNKNOWN_ID, ()
    if secret_obj["metadata"].get("deletionTimestamp"):
        return DELETING, ()
    if secret_obj.get("type") != SECRET_TYPE or not secret_obj.get("data"):
        return WRONG_TYPE, ()
    # Before the reasons below, which the operator reads: they are those of a caller who has the secret.
    if not secret_matches:
        return WRONG_SECRET, ()
    # The name was found by the id. The id inside is what kubeadm and the signature of cluster-info use.
    if data_value(secret_obj, KEY_ID) != presented.id:
        return ID_MISMATCH, ()
    if expired(secret_obj, now):
        return EXPIRED, ()
    if not usage_enabled(secret_obj, USAGE_AUTHENTICATION):
        return USAGE_MISSING, ()
    try:
        granted = groups(secret_obj)
    except TokenError:
        return BAD_GROUPS, ()
    try:
        allowed = read_restrictions(secret_obj).allows_address(source)
    except TokenError:
        return BAD_RESTRICTIONS, ()
    return (OK, granted) if allowed else (NETWORK_NOT_ALLOWED, ())


def refusal_detail(secret_obj: Obj | None, token_id: str, reason: str, now: datetime, source: str = "") -> str:
    """Return the detail of a refusal for the operator: token id and cause, without any part of a secret."""
    detail = f"token id {token_id}"
    if secret_obj is None:
        return f"{detail}: there is no Secret {NAMESPACE}/{secret_name(token_id)}"
    if more := _cause(secret_obj, reason, now, source):
        detail += f": {more}"
    return detail


def _cause(secret_obj: Obj, reason: str, now: datetime, source: str) -> str:
    if reason == WRONG_TYPE:
        return f"the Secret is of type {secret_obj.get('type') or 'none'}, or holds no data; it wants {SECRET_TYPE}"
    if reason == ID_MISMATCH:
        return f"the Secret's {KEY_ID} is not the id in its name"
    if reason == USAGE_MISSING:
        return f"usage {USAGE_AUTHENTICATION} missing: {USAGE_PREFIX}{USAGE_AUTHENTICATION} is not true"
    try:
        if reason == EXPIRED and (moment := expiration(secret_obj)) is not None:
            return f"expired {gap(now - moment)} ago, at {rfc3339(moment)}" if moment < now else "expires this instant"
        if reason == BAD_GROUPS:
            groups(secret_obj)
        if reason in (BAD_RESTRICTIONS, NETWORK_NOT_ALLOWED):
            allowed = ", ".join(map(str, read_restrictions(secret_obj).networks))
            return f"used from {source or 'an unknown address'}; allowed from {allowed}"
    except TokenError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """Contents of a token's Secret."""

    token: BootstrapToken
    description: str = ""
    expires: datetime | None = None
    usages: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    restrictions: Restrictions = NO_RESTRICTIONS


def new_record(
    token: BootstrapToken,
    now: datetime,
    *,
    ttl: timedelta | None = None,
    expires: datetime | None = None,
    usages: tuple[str, ...] = USAGES,
    groups: tuple[str, ...] | None = None,
    description: str = "",
    restrictions: Restrictions = NO_RESTRICTIONS,
) -> TokenRecord:
    """Return a record to write. It expires after `ttl` or at `expires`: after a day without both, never by a ttl of zero.

    `groups` None: the default ones. Raises TokenError.
    """
    validate_usages(usages)
    groups = default_groups(usages) if groups is None else groups
    validate_groups(usages, groups)
    if ttl is None and expires is None:
        ttl = DEFAULT_TTL
    if ttl and expires is not None:
        raise TokenError("a token has either a ttl or an expiration time, not both")
    if ttl and ttl < timedelta(0):
        raise TokenError("the ttl of a token is not negative: 0 means that it never expires")
    if ttl:
        try:
            expires = now + ttl
        except OverflowError:
            raise TokenError("the ttl of a token is too long: use 0 for a token that never expires") from None
    return TokenRecord(token, description, expires, usages, groups, restrictions)


def from_secret(secret_obj: Obj) -> TokenRecord:
    """Return the record in a Secret, read strictly, for `token list`. Raises TokenError that names the Secret and the fault."""
    name = secret_obj["metadata"]["name"]
    # Kubernetes' authenticator and controllers ignore such a Secret.
    if secret_obj.get("type") != SECRET_TYPE:
        raise TokenError(f'bootstrap token secret "{name}" is not of type {SECRET_TYPE}: no machine can join with it')
    token_id = data_value(secret_obj, KEY_ID)
    if not token_id:
        raise TokenError(f'bootstrap token secret "{name}" has no {KEY_ID}')
    if name != secret_name(token_id):
        raise TokenError(f'bootstrap token secret "{name}" is not named {NAME_PREFIX}<token-id> after its {KEY_ID}')
    token_secret = data_value(secret_obj, KEY_SECRET)
    if not token_secret:
        raise TokenError(f'bootstrap token secret "{name}" has no {KEY_SECRET}')
    try:
        token = parse_token(f"{token_id}.{token_secret}")
        expires = expiration(secret_obj)
        restrictions = read_restrictions(secret_obj)
    except TokenError as error:
        raise TokenError(f'bootstrap token secret "{name}": {error}') from None
    usages = tuple(
        sorted(
            key.removeprefix(USAGE_PREFIX)
            for key in secret_obj["data"]
            if key.startswith(USAGE_PREFIX) and data_bytes(secret_obj, key) == b"true"
        )
    )
    extra = data_value(secret_obj, KEY_GROUPS)
    return TokenRecord(
        token,
        data_value(secret_obj, KEY_DESCRIPTION),
        expires,
        usages,
        tuple(extra.split(",")) if extra else (),
        restrictions,
    )


def to_secret(record: TokenRecord) -> Obj:
    """Return the Secret of `record`, as `kubeadm token create` writes it, with the restrictions as annotations."""
    data = {KEY_ID: record.token.id.encode(), KEY_SECRET: record.token.secret.reveal()}
    if record.description:
        data[KEY_DESCRIPTION] = record.description.encode()
    if record.expires is not None:
        data[KEY_EXPIRATION] = rfc3339(record.expires).encode()
    for usage in record.usages:
        data[USAGE_PREFIX + usage] = b"true"
    if record.groups:
        data[KEY_GROUPS] = ",".join(record.groups).encode()
    metadata: Obj = {"name": secret_name(record.token.id), "namespace": NAMESPACE}
    if annotations := record.restrictions.annotations():
        metadata["annotations"] = annotations
    return {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": metadata,
        "type": SECRET_TYPE,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
