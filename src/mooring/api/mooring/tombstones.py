"""The gate of tombstones: what a restored store would bring back, which an administrator has to settle first.

Rules kept here:
* The ConfigMap kube-system/mooring-ends has one entry for each tombstone that waits to be settled: `<kind>.<name>`. While there is
  one, nothing is issued (`refusal`), and what waits goes on being ended (`ended`): a token that was deleted is refused, and the
  certificate of a deleted Node.
* Revocations do not wait. A server that misses one makes it again at once, so that the denylist depends on nothing but itself.
* An entry goes when what it names has ended in the store again, or when it is accepted: `withdrawn` returns those that a write
  removes otherwise.
* A tombstone that was accepted has an entry `waived.<kind>.<name>`, so that another server that remembers it does not ask again.
  What ends after that is another tombstone: its value counts the acceptances before it (`after_acceptance`), and an older
  acceptance does not cover it.
* A token comes back unless the store's own Secret has expired: the deleted one may have been given an earlier end.
* A ConfigMap that cannot be read is not an empty one: nothing is issued, and no token and no certificate of a node counts until it
  can be (`unknown`). So it is with a kind of which more tombstones wait than the list holds: an entry `more.<kind>-<server>` says
  so.
* `returning` compares tombstones with a store. A tombstone that the store has, or that does not matter any more, does not come
  back. One whose object cannot be read comes back; where no command applies it, its kind is `undecided` until the object can be
  read.
* The name of a token or of a Node may have been used again: every deleted one of the name counts. A deleted Node also comes back
  where the store knows neither it nor its deletion: a name without a record restricts no certificate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mooring.api.mooring import certificaterevocation, lineagerecord
from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE_RECORDS
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.errors import ServiceUnavailableError
from mooring.trust.bootstraptoken import restrictions
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE as TOKEN_NAMESPACE
from mooring.trust.bootstraptoken.tokensecret import expired, secret_name
from mooring.trust.issuancelog import Checkpoint, record_name

NAMESPACE = "kube-system"
NAME = "mooring-ends"
CONFIG_MAPS = "configmaps"
ROLLOVERS = "certificateauthorityrollovers"
ACCEPTED = "waived."  # it is stored, as NAME and the fields of the values are
MAX_PENDING = 1000
"""Tombstones that wait at a time: a ConfigMap holds 1 MiB. More follow when these are settled."""
UNSETTLED_FOR = timedelta(seconds=10)
"""Time after which a controller that issues looks again whether all is settled."""
EARLIER, DELETED_AT, ACCEPTANCES = "earlier", "deletedAt", "waivers"
_OF_NODE = ("uid", DELETED_AT, ACCEPTANCES)
MAX_EARLIER = 16
"""Objects of one name that are remembered as deleted, beside the last one."""
_MAX_KEY = 253
_SEPARATOR = "."


class Tombstone(StrEnum):
    """Kind of a tombstone."""

    REVOCATION = "revocation"
    """A CertificateRevocation; the value is its spec. It never waits: a server makes it again."""
    TOKEN = "token"  # noqa: S105 - a kind, not a password
    """A bootstrap token that was deleted before its end; the value has the uid of its Secret and its `expiry`, and as `earlier` the
    uids of those that had the id before."""
    JOINS = "joins"
    """Joins of a limited token; the value has the uid of its Secret and their number."""
    NODE = "node"
    """A Node that was deleted; the value has its uid, as `earlier` the uids of those that had the name before, and `deletedAt`
    where the deletion ended the membership."""
    ROLLOVER = "rollover"
    """A rollover of the CA; the value has its uid, its phase and the number of phases that it had reached."""
    SERVER_TOKEN = "server-token"  # noqa: S105 - a kind, not a password
    """A change of the keys that servers share, or of the token that seals them; the value has the generation, and when the present
    token was made (`created`, seconds since 1970)."""
    LINEAGE = "lineage"
    """The record of an issued certificate; the value has the checkpoint of the newest one."""
    WATERMARK = "mark"
    """A watermark that cannot be read, so that no server knows what had ended; the value has the problem, and the time of the
    file."""
    MORE = "more"
    """Further tombstones of a kind that one server remembers, or that are `undecided`; the value has the `kind`. The server lists
    them when others are settled, and drops the entry when nothing comes back."""


BY_HAND = frozenset(
    {Tombstone.ROLLOVER, Tombstone.SERVER_TOKEN, Tombstone.LINEAGE, Tombstone.WATERMARK, Tombstone.MORE}
)
"""Tombstones that no command can apply: a person does what the documentation says, and accepts them. MORE goes by itself."""


def after_another(value: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the value of a deleted object that remembers those of its name that were deleted before."""
    if before is None:
        return dict(value)
    former = before.get(EARLIER)
    uids = [
        before.get("uid"),
        *(former if isinstance(former, list) else ()),
    ]  # a file that was edited may have anything
    earlier = [uid for uid in dict.fromkeys(map(str, filter(None, uids))) if uid != value["uid"]]
    return {**value, **({EARLIER: earlier[:MAX_EARLIER]} if earlier else {})}


def without(value: Mapping[str, Any], uid: str) -> dict[str, Any] | None:
    """Return the value of a deleted object without one of the objects that had the name; None when no other is left."""
    others = [one for one in (value["uid"], *value.get(EARLIER, ())) if one != uid]
    if not others:
        return None
    kept = (
        dict(value)
        if others[0] == value["uid"]
        else {field: value[field] for field in (ACCEPTANCES,) if field in value}
    )
    kept.pop(EARLIER, None)
    return {**kept, "uid": others[0], **({EARLIER: others[1:]} if others[1:] else {})}


def after_acceptance(data: Mapping[str, str], kind: str, name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of a tombstone that comes about now. An acceptance in the ConfigMap is of an earlier one."""
    text = data.get(ACCEPTED + key_of(kind, name))
    return {**value, ACCEPTANCES: _acceptances(value_of(text)) + 1} if text is not None else dict(value)


def is_accepted(data: Mapping[str, str], key: str, text: str) -> bool:
    """Return true when the entry `key`, of the value `text`, was accepted, or one of the same value that ended later."""
    accepted = data.get(ACCEPTED + key)
    if accepted is None or accepted == text:
        return accepted is not None
    given, value = dict(value_of(accepted)), dict(value_of(text))
    given.pop(DELETED_AT, None)  # each server has its own moment of a deletion
    value.pop(DELETED_AT, None)
    is_before = _acceptances(value) < _acceptances(given)
    if is_before:
        given.pop(ACCEPTANCES)
        value.pop(ACCEPTANCES, None)
    return given == value


def _acceptances(value: Mapping[str, Any]) -> int:
    count = value.get(ACCEPTANCES)
    return count if type(count) is int else 0


def _of(uid: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"uid": uid, **({ACCEPTANCES: value[ACCEPTANCES]} if ACCEPTANCES in value else {})}


def uids_of(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids that the entry of a token or of a Node names: several while the object of the name cannot be read."""
    earlier = value.get(EARLIER)
    return tuple(str(uid) for uid in (value.get("uid"), *(earlier if isinstance(earlier, list) else ())) if uid)


Found = Mapping[str, Mapping[str, Any]]
"""Tombstones by key."""


def key_of(kind: str, name: str) -> str:
    """Return the key of a tombstone in the ConfigMap. A name that is too long for a key is hashed."""
    key = f"{kind}{_SEPARATOR}{name}"
    if len(ACCEPTED) + len(key) <= _MAX_KEY:
        return key
    return f"{kind}{_SEPARATOR}sha256-{hashlib.sha256(name.encode()).hexdigest()}"


def pending(config_map: Obj | None) -> dict[str, str]:
    """Return the entries of tombstones that wait, by key."""
    data: Mapping[str, str] = (config_map or {}).get("data") or {}
    return {key: value for key, value in data.items() if not key.startswith(ACCEPTED)}


def refusal(views: Views) -> str:
    """Return why nothing is issued now; "" when nothing waits to be settled."""
    view = views.get(CONFIG_MAPS)
    if view is None:
        return ""
    if view.problem(NAME, NAMESPACE):
        return f"the ConfigMap {NAMESPACE}/{NAME}, which says what had ended, cannot be read"
    waiting = len(pending(view.get(NAME, NAMESPACE)))
    if not waiting:
        return ""
    return (
        f"the store is older than what a server remembers, and {waiting} tombstones wait to be settled: "
        "see `mooring restore-check list`"
    )


def refuse_unsettled(views: Views) -> None:
    """Raise ServiceUnavailableError while nothing is issued.

    It has no Retry-After: clients would wait for a person who settles the tombstones, and show nothing meanwhile.
    """
    if reason := refusal(views):
        raise ServiceUnavailableError(f"nothing is issued: {reason}")


def unknown(views: Views, kind: Tombstone) -> str:
    """Return why this server cannot say which tombstones of a kind wait; "" when it can."""
    view = views.get(CONFIG_MAPS)
    if view is None:
        return ""
    if problem := view.problem(NAME, NAMESPACE):
        return f"{CONFIG_MAPS}/{NAME} cannot be read: {problem}"
    if any(key.startswith(f"{Tombstone.MORE}{_SEPARATOR}{kind}-") for key in pending(view.get(NAME, NAMESPACE))):
        return f"more tombstones of the kind {kind} wait than {CONFIG_MAPS}/{NAME} holds"
    return ""


def more_key(kind: str, server: str) -> str:
    """Return the key that stands for further tombstones of a kind, which `server` remembers."""
    return key_of(Tombstone.MORE, f"{kind}-{server}")


def is_more(key: str) -> bool:
    """Return true for the key of an entry that stands for tombstones which are not listed."""
    return key.startswith(f"{Tombstone.MORE}{_SEPARATOR}")


def ended(views: Views, kind: Tombstone, name: str) -> Mapping[str, Any] | None:
    """Return the value of a tombstone that waits to be settled, or None. A value that cannot be read is an empty one."""
    view = views.get(CONFIG_MAPS)
    config_map = view.get(NAME, NAMESPACE) if view is not None else None
    text = ((config_map or {}).get("data") or {}).get(key_of(kind, name))
    return value_of(text) if text is not None else None


def value_of(text: str) -> Mapping[str, Any]:
    """Return the value of an entry; an empty one for a text that is not a JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def entry(name: str, value: Mapping[str, Any]) -> str:
    """Return the text of an entry."""
    return json.dumps({"name": name, **value}, sort_keys=True)


def returning(
    tombstones: Mapping[str, Mapping[str, Mapping[str, Any]]],
    issuance_log: Checkpoint | None,
    views: Views,
    generation: int,
    now: datetime,
    token_created: int = 0,
) -> Iterator[tuple[Tombstone, str, Mapping[str, Any]]]:
    """Yield the remembered tombstones that the store does not have: kind, name and value.

    `generation`: that of the keys in the store. `token_created`: when its server token was made. A server that stores its keys in
    the row of a restored store counts the generation up, and leaves the former token in it. Raises ValueError and KeyError for
    values that no watermark has.
    """
    for name, spec in tombstones.get(Tombstone.REVOCATION, {}).items():
        if revokes_less(views, name, spec):
            yield Tombstone.REVOCATION, name, spec
    for name, value in tombstones.get(Tombstone.TOKEN, {}).items():
        secret = views["secrets"].get(secret_name(name), TOKEN_NAMESPACE)
        if secret is None and views["secrets"].problem(secret_name(name), TOKEN_NAMESPACE):
            yield Tombstone.TOKEN, name, value
        if secret is None or _is_deleted(secret) or expired(secret, now):
            continue
        uid = secret["metadata"].get("uid")
        if uid == value["uid"]:
            yield Tombstone.TOKEN, name, {field: part for field, part in value.items() if field != EARLIER}
        elif uid in value.get(EARLIER, ()):
            yield Tombstone.TOKEN, name, _of(uid, value)
    for name, value in tombstones.get(Tombstone.JOINS, {}).items():
        secret = views["secrets"].get(secret_name(name), TOKEN_NAMESPACE)
        if secret is None:
            counts_less = bool(views["secrets"].problem(secret_name(name), TOKEN_NAMESPACE))
        else:
            counts_less = secret["metadata"].get("uid") == value["uid"] and joins_of(secret) < int(value["joins"])
        if counts_less:
            yield Tombstone.JOINS, name, value
    for name, value in tombstones.get(Tombstone.NODE, {}).items():
        node = views["nodes"].get(name)
        if node is None and (views["nodes"].problem(name) or _is_unread(views, name, value)):
            yield Tombstone.NODE, name, {field: part for field, part in value.items() if field in (*_OF_NODE, EARLIER)}
        elif node is None and _restricts_no_more(views, name, value):
            yield Tombstone.NODE, name, {field: part for field, part in value.items() if field in _OF_NODE}
        elif node is not None and not _is_deleted(node):
            uid = node["metadata"].get("uid")
            if uid == value["uid"]:
                yield Tombstone.NODE, name, {field: part for field, part in value.items() if field in _OF_NODE}
            elif uid in value.get(EARLIER, ()):
                yield Tombstone.NODE, name, _of(uid, value)
    for name, value in tombstones.get(Tombstone.ROLLOVER, {}).items():
        view = views[ROLLOVERS]
        rollover = view.get(name)
        if view.problem(name):
            continue
        if (
            rollover is None
            or rollover["metadata"].get("uid") != value["uid"]
            or reached(rollover) < int(value["reached"])
        ):
            yield Tombstone.ROLLOVER, name, value
    for name, value in tombstones.get(Tombstone.SERVER_TOKEN, {}).items():
        if generation < int(value["generation"]) or token_created < int(value.get("created", 0)):
            yield Tombstone.SERVER_TOKEN, name, value
    if issuance_log is not None:
        records = views[LINEAGE_RECORDS]
        if not records.problem(record_name(issuance_log.sequence)) and lineagerecord.is_lost(records, issuance_log):
            yield Tombstone.LINEAGE, "records", {"checkpoint": str(issuance_log)}


def _is_deleted(obj: Obj) -> bool:
    """Return true for an object that was deleted and that finalizers still hold: it is as good as gone."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def _is_unread(views: Views, name: str, value: Mapping[str, Any]) -> bool:
    """Return true when a deletion ended the membership, and the NodeIdentity that may say so cannot be read."""
    return bool(value.get(DELETED_AT) and views[IDENTITIES].problem(name))


def undecided(
    tombstones: Mapping[str, Mapping[str, Mapping[str, Any]]], issuance_log: Checkpoint | None, views: Views
) -> Iterator[Tombstone]:
    """Yield the kinds of remembered tombstones that no command applies, and whose object cannot be read."""
    if any(views[ROLLOVERS].problem(name) for name in tombstones.get(Tombstone.ROLLOVER, {})):
        yield Tombstone.ROLLOVER
    if issuance_log is not None and views[LINEAGE_RECORDS].problem(record_name(issuance_log.sequence)):
        yield Tombstone.LINEAGE


def _restricts_no_more(views: Views, name: str, value: Mapping[str, Any]) -> bool:
    """Return true when the store does not know that the membership of a deleted Node has ended. No Node has the name.

    The identity may be from before the Node. It is from after the Node when the name changed hands later.
    """
    moment = value.get(DELETED_AT)
    if not moment:
        return False
    identity = views[IDENTITIES].get(name)
    if identity is None:
        return True
    changed = spec_of(identity).get("changedAt")
    is_later = bool(changed) and parse_rfc3339(str(changed)) > parse_rfc3339(str(moment))
    return not spec_of(identity).get("nodeUID") and not is_later


def withdrawn(before: Mapping[str, str], after: Mapping[str, str], views: Views, now: datetime) -> list[str]:
    """Return the entries that a write would remove although they are neither accepted nor ended by what the store has."""
    return [
        key
        for key, text in before.items()
        if not key.startswith(ACCEPTED)
        and after.get(key) != text
        and after.get(ACCEPTED + key) != text
        and not _is_settled(key.partition(_SEPARATOR)[0], value_of(text), views, now)
    ]


def _is_settled(kind: str, value: Mapping[str, Any], views: Views, now: datetime) -> bool:
    if kind in BY_HAND or kind not in set(Tombstone):
        return False
    name = value.get("name")
    found = {kind: {str(name): {field: part for field, part in value.items() if field != "name"}}}
    try:
        return not any(returning(found, None, views, 0, now))
    except (ValueError, KeyError, TypeError):
        return False


def revokes_less(views: Views, name: str, spec: Mapping[str, Any]) -> bool:
    """Return true when the store does not have a revocation, or has it up to an earlier moment."""
    view = views[certificaterevocation.PLURAL]
    found = view.get(name)
    if found is None:
        return not view.problem(name)  # an entry that cannot be read is there
    remembered, stored = spec.get("issuedBefore"), spec_of(found).get("issuedBefore")
    return bool(remembered and stored and parse_rfc3339(stored) < parse_rfc3339(remembered))


def joins_of(secret: Obj) -> int:
    """Return the number of joins that a token has counted."""
    annotations = secret["metadata"].get("annotations") or {}
    return len([key for key in annotations.get(restrictions.JOINED_KEYS, "").split(",") if key])


def reached(rollover: Obj) -> int:
    """Return the number of phases that a rollover has reached."""
    return len((rollover.get("status") or {}).get("transitions") or ())
