"""kubeadm InitConfiguration for `token create --config`: reads its `bootstrapTokens` (v1beta4 and v1beta3).

Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): other documents in the file are ignored. Missing
fields get kubeadm's defaults. A file without the list means one token with all defaults. `ttl` and `expires` exclude each other.
Messages name the field, never a token.
"""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timedelta
from typing import Any

from mooring.apimachinery.codec.fieldreader import FieldReader
from mooring.apimachinery.codec.yaml import decode_yaml, decoded
from mooring.cli.options.flags import DURATION
from mooring.duration import parse_long_duration
from mooring.errors import ConfigError, MooringError
from mooring.trust.bootstraptoken.token import DEFAULT_GROUPS, USAGES, TokenError, generate_token, parse_token
from mooring.trust.bootstraptoken.tokensecret import DEFAULT_TTL, TokenRecord, new_record, parse_expiration

API_VERSIONS = ("kubeadm.k8s.io/v1beta4", "kubeadm.k8s.io/v1beta3")
MAX_TOKENS = 1000
"""Tokens in one file: each is a request to the server."""
_SEPARATOR = re.compile(r"^---(?=[ \t\r\n#]|$).*$", re.MULTILINE)


def token_records(data: bytes, source: str, now: datetime) -> tuple[TokenRecord, ...]:
    """Return the tokens in the file, at least one. Raises ConfigError that names the file and the field."""
    configuration = _init_configuration(data, source)
    wanted = configuration.get("bootstrapTokens") or [{}]
    if not isinstance(wanted, list) or len(wanted) > MAX_TOKENS:
        raise ConfigError(f"{source}: bootstrapTokens must be a list of at most {MAX_TOKENS} tokens")
    return tuple(_record(entry, f"{source}: bootstrapTokens[{index}]", now) for index, entry in enumerate(wanted))


def _init_configuration(data: bytes, source: str) -> dict[str, Any]:
    found = []
    try:
        for text in _SEPARATOR.split(decoded(data)):
            document = decode_yaml(text)[0] if text.strip() else None
            if isinstance(document, dict) and document.get("kind") == "InitConfiguration":
                found.append(document)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: the file is not UTF-8 text") from None
    except MooringError as error:
        raise ConfigError(f"{source}: {error}") from None
    if len(found) != 1:
        raise ConfigError(f"{source}: one InitConfiguration is expected, the file has {len(found)}")
    if found[0].get("apiVersion") not in API_VERSIONS:
        raise ConfigError(f"{source}: the apiVersion of InitConfiguration must be {' or '.join(API_VERSIONS)}")
    return found[0]


def _record(entry: Any, where: str, now: datetime) -> TokenRecord:
    fields = FieldReader(entry, where, ConfigError)
    token, expires, ttl = (fields.text(key) for key in ("token", "expires", "ttl"))
    try:
        return new_record(
            parse_token(token) if token else generate_token(secrets.token_bytes),
            now,
            ttl=_ttl(ttl, where) if ttl else None if expires else DEFAULT_TTL,
            expires=parse_expiration(expires) if expires else None,
            usages=fields.texts("usages") or USAGES,
            groups=fields.texts("groups") or DEFAULT_GROUPS,
            description=fields.text("description"),
        )
    except TokenError as error:
        raise ConfigError(f"{where}: {error}") from None


def _ttl(text: str, where: str) -> timedelta:
    try:
        return parse_long_duration(text)
    except ValueError:
        raise ConfigError(f"{where}.ttl: {DURATION.problem(text)}") from None
