"""Restrictions of a bootstrap token, in annotations of its Secret: joins, networks, node names, a person, end of silent members.

Rules kept here:
* Annotations keep the Secret readable by kubeadm and kubectl, which ignore them. kube-apiserver ignores them too: only Mooring
  enforces them.
* Reading is strict. A token with an annotation that cannot be read is refused, because a wrong digit must not widen it. The same
  goes for an annotation of this domain that a token does not have: its name may be that of a restriction, with a wrong letter.
* `mooring.dev/max-joins`: a decimal number. `mooring.dev/joined-keys` records the joins, each as a hash of public key and name,
  with commas between them. A key that asks again for its name counts once; a second name for it is another join.
* `mooring.dev/allowed-cidrs`: networks, joined by commas, without host bits. IPv4 is written as IPv4.
* `mooring.dev/node-name`: a node name in which each `*` stands for any characters of one label, and never for a dot.
* `mooring.dev/ephemeral`: a duration such as 30m or 7d. A machine that joins with the token is removed after that much silence.
* `mooring.dev/require-approval`: `true` when a person approves each request that is made with the token, or `false`.
* `mooring.dev/created-by`: the user who requested the token by a JoinToken. It restricts nothing.
* An IPv4-mapped IPv6 address (RFC 4291 2.5.5.2) counts as IPv4. The zone of a link-local address is dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.duration import format_duration, parse_long_duration
from mooring.errors import ConfigError
from mooring.settings.addresses import MAX_NETWORKS, Network, is_in, parse_network
from mooring.trust.bootstraptoken.token import TokenError

TOKEN_USED_UP = "TokenUsedUp"  # noqa: S105 - a reason, no secret
"""Reason of a request that is denied because its token has let in as many machines as it may."""

MAX_JOINS = "mooring.dev/max-joins"
ALLOWED_CIDRS = "mooring.dev/allowed-cidrs"
NODE_NAME = "mooring.dev/node-name"
EPHEMERAL = "mooring.dev/ephemeral"
REQUIRE_APPROVAL = "mooring.dev/require-approval"
JOINED_KEYS = "mooring.dev/joined-keys"
LAST_USED = "mooring.dev/last-used"
CREATED_BY = "mooring.dev/created-by"
"""Annotation with the user for whom the server made the token."""

_DOMAIN = "mooring.dev/"
_KNOWN = frozenset(
    {MAX_JOINS, ALLOWED_CIDRS, NODE_NAME, EPHEMERAL, REQUIRE_APPROVAL, JOINED_KEYS, LAST_USED, CREATED_BY}
)

MOST_JOINS = 1000
"""Largest number of joins of a limited token. Its keys take 65 kB, a quarter of what all annotations of an object may have, and
each join writes them again."""
PARSED = 256
"""Lists of networks that are kept parsed, so that a request with a token does not parse them again."""
MAX_TEXT = 4096
"""Characters of the networks of one token as text."""
SHORTEST_SILENCE = timedelta(minutes=2)
"""Least silence after which a machine is removed: a reboot, or the restart of a switch, takes less."""
LONGEST_SILENCE = timedelta(days=365)
"""Most silence: an expired name is remembered for as long."""

_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Restrictions of one token. Without any, the token lets in any number of machines, from anywhere, under any name."""

    max_joins: int | None = None
    networks: tuple[Network, ...] = ()
    node_name: str = ""
    ephemeral: timedelta | None = None
    """Silence after which a machine that joined with the token is removed; None leaves that to the setting of the server."""
    require_approval: bool = False
    """True when no request that is made with the token is approved without a person."""

    def __bool__(self) -> bool:
        limits = self.max_joins is not None or bool(self.networks) or bool(self.node_name)
        return limits or self.ephemeral is not None or self.require_approval

    def allows_address(self, source: str) -> bool:
        """Return True when the token may be used from the address `source`; an unknown address is in no network."""
        return is_in(source, self.networks)

    def allows_name(self, name: str) -> bool:
        """Return True when a machine may join as node `name`."""
        return not self.node_name or matches(self.node_name, name)

    def fields(self) -> dict[str, Any]:
        """Return what is limited, as the fields of a JoinToken and of a token in a list."""
        found: dict[str, Any] = {
            "maxJoins": self.max_joins,
            "allowedCIDRs": [str(network) for network in self.networks],
            "nodeName": self.node_name,
            "ephemeral": format_duration(self.ephemeral) if self.ephemeral is not None else "",
            "requireApproval": self.require_approval,
        }
        return {name: value for name, value in found.items() if value}

    def annotations(self) -> dict[str, str]:
        """Return the annotations of a new Secret."""
        found: dict[str, str] = {}
        if self.max_joins is not None:
            found[MAX_JOINS] = str(self.max_joins)
        if self.networks:
            found[ALLOWED_CIDRS] = ",".join(map(str, self.networks))
        if self.node_name:
            found[NODE_NAME] = self.node_name
        if self.ephemeral is not None:
            found[EPHEMERAL] = format_duration(self.ephemeral)
        if self.require_approval:
            found[REQUIRE_APPROVAL] = "true"
        return found


NO_RESTRICTIONS = Restrictions()


def read_restrictions(secret: Obj) -> Restrictions:
    """Return the restrictions of the token in `secret`. Raises TokenError that names the annotation and its form."""
    annotations = secret["metadata"].get("annotations")
    if not annotations:
        return NO_RESTRICTIONS
    for key in annotations:
        # A misspelled restriction, or one of a later version, must not leave the token without it.
        if key.startswith(_DOMAIN) and key not in _KNOWN:
            raise TokenError(
                f"{key}: a token has no such annotation; its restrictions are {MAX_JOINS}, {ALLOWED_CIDRS}, {NODE_NAME}, "
                f"{EPHEMERAL} and {REQUIRE_APPROVAL}"
            )
    count, networks, name, silence = (annotations.get(key) for key in (MAX_JOINS, ALLOWED_CIDRS, NODE_NAME, EPHEMERAL))
    return Restrictions(
        parse_max_joins(count) if count is not None else None,
        parse_networks(networks) if networks is not None else (),
        parse_node_name(name) if name is not None else "",
        parse_ephemeral(silence) if silence is not None else None,
        parse_require_approval(annotations.get(REQUIRE_APPROVAL, "false")),
    )


def parse_max_joins(text: str) -> int:
    """Return a number of joins. Raises TokenError."""
    if _COUNT.fullmatch(text) is None or int(text) > MOST_JOINS:
        raise TokenError(
            f"{MAX_JOINS}: the number of joins is a number from 1 to {MOST_JOINS}, because the key of each is kept in the "
            "Secret; make several tokens for more machines"
        )
    return int(text)


@lru_cache(PARSED)
def parse_networks(text: str) -> tuple[Network, ...]:
    """Return networks that are joined by commas. Raises TokenError."""
    parts = text.split(",")
    if len(parts) > MAX_NETWORKS or len(text) > MAX_TEXT:
        raise TokenError(
            f"{ALLOWED_CIDRS}: a token has at most {MAX_NETWORKS} networks of {MAX_TEXT} characters together"
        )
    return tuple(_parse_network(part) for part in parts)


def _parse_network(text: str) -> Network:
    try:
        return parse_network(text, ALLOWED_CIDRS)
    except ConfigError as error:
        raise TokenError(str(error)) from None


def parse_node_name(text: str) -> str:
    """Return a node name, or a pattern with `*`. Raises TokenError."""
    if dns1123_subdomain_errors(text.replace("*", "x")):
        raise TokenError(
            f"{NODE_NAME}: not a node name (letters a-z, digits, - and .), in which * may stand for any characters but a dot"
        )
    return text


def parse_ephemeral(text: str) -> timedelta:
    """Return the silence after which a machine is removed. Raises TokenError."""
    try:
        silence: timedelta | None = parse_long_duration(text)
    except ValueError:
        silence = None
    if silence is None or not SHORTEST_SILENCE <= silence <= LONGEST_SILENCE:
        raise TokenError(
            f"{EPHEMERAL}: the silence after which a machine is removed is a duration such as 30m or 7d, at least "
            f"{SHORTEST_SILENCE.seconds // 60}m and at most {LONGEST_SILENCE.days}d"
        )
    return silence


def parse_require_approval(text: str) -> bool:
    """Return True when a person approves the requests of the token. Raises TokenError."""
    if text not in ("true", "false"):
        raise TokenError(f"{REQUIRE_APPROVAL}: neither true, for requests that a person approves, nor false")
    return text == "true"


def joined_keys(secret: Obj) -> tuple[str, ...]:
    """Return the joins that a token with a number of joins let in, the oldest first. Raises TokenError."""
    text = (secret["metadata"].get("annotations") or {}).get(JOINED_KEYS, "")
    joined = text.split(",") if text else []
    if len(joined) > MOST_JOINS or not all(_KEY.fullmatch(key) for key in joined):
        raise TokenError(f"{JOINED_KEYS}: not a list of joins as Mooring writes it; delete the token and make another")
    return tuple(dict.fromkeys(joined))


def matches(pattern: str, name: str) -> bool:
    """Return True when `name` is `pattern`, with each `*` replaced by characters of one label. The time is linear in both."""
    wanted, labels = pattern.split("."), name.split(".")
    return len(wanted) == len(labels) and all(map(label_matches, wanted, labels))


def label_matches(pattern: str, label: str) -> bool:
    """Return True when `label` is `pattern`, with each `*` replaced by any characters. The time is linear in both."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == label
    *middle, last = rest
    if len(label) < len(first) + len(last) or not label.startswith(first) or not label.endswith(last):
        return False
    return _contains_in_order(label[len(first) : len(label) - len(last)], middle)


def _contains_in_order(text: str, parts: Sequence[str]) -> bool:
    """Return True when the parts stand in `text` one after the other. The leftmost place of each leaves most for the next."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def join_record(key_fingerprint: str, common_name: str) -> str:
    """Return the record of one join: SHA-256 over the fingerprint of the public key, a slash and the requested common name."""
    return hashlib.sha256(f"{key_fingerprint}/{common_name}".encode()).hexdigest()


def with_joined_key(secret: Obj, key: str) -> Obj:
    """Return a copy of `secret` with the join `key` recorded. Raises TokenError."""
    metadata = secret["metadata"]
    annotations = {**(metadata.get("annotations") or {}), JOINED_KEYS: ",".join((*joined_keys(secret), key))}
    return {**secret, "metadata": {**metadata, "annotations": annotations}}
