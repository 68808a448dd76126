"""Request options of the query, and of the body of DELETE.

Rules kept here:
* Malformed parameters (numbers, selectors, revisions, continue tokens, `timeout`) are 400. Valid parameters that
  exclude each other are 422 with kind ListOptions, CreateOptions, UpdateOptions, PatchOptions or DeleteOptions. Unknown
  parameters are ignored.
* The first value of a repeated parameter counts, except dryRun, where each value must be `All`.
* A boolean parameter is false when absent, `false` or `0`; anything else is true (the Python client sends `True`).
* A resourceVersion is "" or decimal without leading zero. With `continue` only "" and "0" are allowed.
* resourceVersionMatch needs a resourceVersion and no continue, and Exact excludes "0"; on watch it goes only with
  sendInitialEvents, which needs NotOlderThan; sendInitialEvents never goes with list.
* Options of DELETE come from the body, or from the query without a body. dryRun counts in both.
* `ignoreStoreReadErrorWithClusterBreakingPotential` excludes every option of DELETE but dryRun.
* A continue token is base64url JSON {v, rv, start}; rv -1 marks an inconsistent continuation. Clients may send any token: it is
  checked and never trusted.

Source: docs/protocol/lists.md, docs/protocol/watch.md, docs/protocol/patches.md, docs/protocol/requests.md#options;
k8s.io/apimachinery metav1 validation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from mooring import base64url
from mooring.apimachinery.requestinfo import truth
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import (
    EVERY_FIELD,
    EVERY_LABEL,
    FieldSelector,
    LabelSelector,
    parse_field_selector,
    parse_label_selector,
)
from mooring.duration import parse_duration
from mooring.errors import (
    BadRequestError,
    FieldError,
    InvalidError,
    forbidden,
    invalid,
    not_supported,
    quoted,
    required,
    too_long,
)

Query = Mapping[str, list[str]]

GROUP = "meta.k8s.io"
EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"
DRY_RUN_ALL = "All"
BACKGROUND, FOREGROUND, ORPHAN = "Background", "Foreground", "Orphan"
IGNORE, WARN, STRICT = "Ignore", "Warn", "Strict"

MAX_FIELD_MANAGER = 128
"""Bytes of a field manager's name."""
MAX_DRY_RUN = 16
"""Values of dryRun that an error quotes."""
MAX_TIMEOUT = timedelta(seconds=60)
"""Longest duration of a request that is not a watch; also the default."""
MAX_CONTINUE = 4096
"""Characters of a continue token. A key has at most two names of 253 bytes, so tokens of this server are much shorter."""
CONTINUE_VERSION = "meta.k8s.io/v1"
INCONSISTENT = -1
"""Revision of a token that continues after its start key at the newest revision."""

_LARGEST = 2**63 - 1
_revision = re.compile(r"0|[1-9][0-9]{0,18}").fullmatch
_integer = re.compile(r"[+-]?[0-9]{1,64}", re.ASCII).fullmatch


def _first(query: Query, key: str) -> str:
    values = query.get(key)
    return values[0] if values else ""


def _number(query: Query, key: str) -> int:
    """Return an int64 parameter, 0 when absent or empty."""
    text = _first(query, key)
    if not text:
        return 0
    if not _integer(text):
        raise BadRequestError(f"strconv.ParseInt: parsing {quoted(text[:64])}: invalid syntax")
    number = int(text)
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise BadRequestError(f"strconv.ParseInt: parsing {quoted(text[:64])}: value out of range")
    return number


def _optional_truth(query: Query, key: str) -> bool | None:
    values = query.get(key)
    return truth(values) if values else None


def parse_resource_version(text: str, path: str = "resourceVersion") -> str:
    """Return `text` when it is "" or a decimal revision without leading zero. Raises BadRequestError."""
    if text and (not _revision(text) or int(text) > _LARGEST):
        reason = "value out of range" if text.isdecimal() and text.isascii() and text[0] != "0" else "invalid syntax"
        reason = f"strconv.ParseUint: parsing {quoted(text[:64])}: {reason}"
        raise BadRequestError(f"invalid resource version: {invalid(path, text[:64], reason)}")
    return text


def parse_timeout(query: Query) -> timedelta:
    """Return the timeout of a request that is not a watch: `?timeout=` as a Go duration, at most 60 s. Raises BadRequestError."""
    text = _first(query, "timeout")
    if not text:
        return MAX_TIMEOUT
    try:
        options = parse_duration(text)
    except ValueError as error:
        raise BadRequestError(f"invalid timeout specified in the request URL - {error}") from None
    return MAX_TIMEOUT if options <= timedelta() or options > MAX_TIMEOUT else options


@dataclass(frozen=True, slots=True)
class GetOptions:
    """Options of get. `resource_version`: "" newest, "0" any, N not older than N."""

    resource_version: str = ""


def parse_get_options(query: Query) -> GetOptions:
    return GetOptions(parse_resource_version(_first(query, "resourceVersion")))


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of list, watch and deletecollection. `limit` and `timeout_seconds` are 0 when the server decides."""

    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    match: str = ""
    label_selector: LabelSelector = EVERY_LABEL
    field_selector: FieldSelector = EVERY_FIELD
    watch: bool = False
    timeout_seconds: int = 0
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None

    @property
    def revision(self) -> int:
        """resourceVersion as a number; 0 when absent."""
        return int(self.resource_version or "0")

    @property
    def exact(self) -> bool:
        """True when a list must be that of exactly `revision`: by resourceVersionMatch, or by a limit with a revision and no
        match."""
        return self.match == EXACT or (self.revision > 0 and self.limit > 0 and not self.match)


def parse_list_options(query: Query) -> ListOptions:
    """Return the options of a list, watch or deletecollection. Raises BadRequestError and InvalidError (kind ListOptions)."""
    if not query:
        return ListOptions()
    options = ListOptions(
        limit=max(0, _number(query, "limit")),
        continue_token=_first(query, "continue"),
        resource_version=_first(query, "resourceVersion"),
        match=_first(query, "resourceVersionMatch"),
        label_selector=parse_label_selector(_first(query, "labelSelector")),
        field_selector=parse_field_selector(_first(query, "fieldSelector")),
        watch=truth(query.get("watch", ())),
        timeout_seconds=max(0, _number(query, "timeoutSeconds")),
        allow_bookmarks=truth(query.get("allowWatchBookmarks", ())),
        send_initial_events=_optional_truth(query, "sendInitialEvents"),
    )
    _refuse("ListOptions", _watch_errors(options) if options.watch else _list_errors(options))
    # Checked last, as in kube-apiserver, whose storage checks it.
    parse_resource_version(options.resource_version)
    if options.continue_token and not options.watch and options.revision:
        raise BadRequestError("specifying resource version is not allowed when using continue")
    return options


def _refuse(kind: str, errors: Sequence[FieldError]) -> None:
    if errors:
        raise InvalidError.of(GROUP, kind, "", errors)


_MATCH = "resourceVersionMatch"


def _list_errors(options: ListOptions) -> list[FieldError]:
    errors = []
    match = options.match
    if match:
        if not options.resource_version:
            errors.append(forbidden(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided"))
        if options.continue_token:
            errors.append(forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided"))
        if match not in (EXACT, NOT_OLDER_THAN):
            errors.append(not_supported(_MATCH, match[:64], (EXACT, NOT_OLDER_THAN, "")))
        if match == EXACT and options.resource_version == "0":
            errors.append(forbidden(_MATCH, f'{_MATCH} "exact" is forbidden for resourceVersion "0"'))
    if options.send_initial_events is not None:
        errors.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    return errors


def _watch_errors(options: ListOptions) -> list[FieldError]:
    errors = []
    match, initial = options.match, options.send_initial_events is not None
    if options.continue_token and not match and not initial and options.resource_version in ("", "0"):
        # kube-apiserver has set the initial events and resourceVersionMatch of such a watch.
        errors.append(forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided"))
    if initial and match != NOT_OLDER_THAN:
        errors.append(forbidden(_MATCH, f"sendInitialEvents requires setting {_MATCH} to {NOT_OLDER_THAN}"))
    if match:
        if not initial:
            errors.append(forbidden(_MATCH, f"{_MATCH} is forbidden for watch unless sendInitialEvents is provided"))
        if match != NOT_OLDER_THAN:
            errors.append(not_supported(_MATCH, match[:64], (NOT_OLDER_THAN,)))
        if options.continue_token:
            errors.append(forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided"))
    return errors


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of create, update and patch. An empty text means the default of the server. `force` is for apply patches only."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = ""
    force: bool = False


def parse_write_options(query: Query, kind: str = "CreateOptions", *, apply: bool = False) -> WriteOptions:
    """Return the options of a write. Raises InvalidError of `kind`: CreateOptions, UpdateOptions, or PatchOptions. `apply` marks an
    apply patch."""
    if not query and not apply:
        return WriteOptions()
    manager, validation = _first(query, "fieldManager"), _first(query, "fieldValidation")
    force = _optional_truth(query, "force")
    errors = []
    if apply and not manager:
        errors.append(required("fieldManager", "is required for apply patch"))
    if kind == "PatchOptions" and not apply and force is not None:
        errors.append(forbidden("force", "may not be specified for non-apply patch"))
    if len(manager.encode(errors="replace")) > MAX_FIELD_MANAGER:
        errors.append(too_long("fieldManager", MAX_FIELD_MANAGER))
    for place, char in enumerate(manager[: MAX_FIELD_MANAGER + 1]):
        if not char.isprintable():
            reason = f"invalid character U+{ord(char):04X} (at position {len(manager[:place].encode())})"
            errors.append(invalid("fieldManager", manager, reason))
    dry_run = query.get("dryRun", [])
    errors += _dry_run_errors(dry_run)
    if validation not in ("", IGNORE, WARN, STRICT):
        errors.append(not_supported("fieldValidation", validation[:64], ("", IGNORE, STRICT, WARN)))
    _refuse(kind, errors)
    return WriteOptions(bool(dry_run), manager, validation, bool(force))


def _dry_run_errors(values: Sequence[str]) -> list[FieldError]:
    if all(value == DRY_RUN_ALL for value in values):
        return []
    return [not_supported("dryRun", [value[:64] for value in values[:MAX_DRY_RUN]], (DRY_RUN_ALL,))]


def default_field_manager(user_agent: str) -> str:
    """Return the manager of a request without fieldManager: the printable part of its User-Agent before the first `/`."""
    name = user_agent.partition("/")[0]
    return "".join(character for character in name if character.isprintable())[:MAX_FIELD_MANAGER]


IGNORE_STORE_READ_ERROR = "ignoreStoreReadErrorWithClusterBreakingPotential"
_NOT_WITH_IT = ("propagationPolicy", "orphanDependents", "gracePeriodSeconds", "preconditions")
"""Options that exclude it, in the order of kube-apiserver's errors. An empty object does not count."""
NEGATIVE_GRACE = 1
"""Seconds used for a negative gracePeriodSeconds, as in kube-apiserver."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of delete. `propagation` is "" (the kind's default), Background, Foreground or Orphan.

    `uid` and `resource_version` are preconditions, None when absent. No object has an empty one.
    `ignore_store_read_error` deletes an object that cannot be read, and no other.
    """

    grace_period_seconds: int | None = None
    propagation: str = ""
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False
    ignore_store_read_error: bool = False


def parse_delete_options(query: Query, body: Obj | None = None) -> DeleteOptions:
    """Return the options of a DELETE. Raises BadRequestError for malformed ones, InvalidError (kind DeleteOptions) otherwise."""
    if body:
        return _delete_options(body, query.get("dryRun", []))
    if not query:
        return DeleteOptions()
    options: Obj = {"dryRun": query.get("dryRun", [])}
    if _first(query, "gracePeriodSeconds"):
        options["gracePeriodSeconds"] = _number(query, "gracePeriodSeconds")
    if "propagationPolicy" in query:
        options["propagationPolicy"] = _first(query, "propagationPolicy")
    options["preconditions"] = {name: _first(query, name) for name in ("uid", "resourceVersion") if name in query}
    for name in ("orphanDependents", IGNORE_STORE_READ_ERROR):
        if (flag := _optional_truth(query, name)) is not None:
            options[name] = flag
    return _delete_options(options, [])


def _delete_options(options: Obj, query_dry_run: list[str]) -> DeleteOptions:
    if options.get("kind", "DeleteOptions") != "DeleteOptions":
        raise BadRequestError("the body of a DELETE is a DeleteOptions object")
    grace = _delete_option(options, "gracePeriodSeconds", int)
    policy = _delete_option(options, "propagationPolicy", str)
    orphan = _delete_option(options, "orphanDependents", bool)
    preconditions = _delete_option(options, "preconditions", dict) or {}
    dry_run = _delete_option(options, "dryRun", list) or []
    if not all(isinstance(value, str) for value in dry_run):
        raise BadRequestError("dryRun of DeleteOptions has the wrong type")
    if grace is not None and grace < 0:
        grace = NEGATIVE_GRACE
    errors = []
    if policy is not None and orphan is not None:
        errors.append(
            invalid("propagationPolicy", policy[:64], "orphanDependents and deletionPropagation cannot be both set")
        )
    elif policy is not None and policy not in (BACKGROUND, FOREGROUND, ORPHAN):
        errors.append(not_supported("propagationPolicy", policy[:64], (FOREGROUND, BACKGROUND, ORPHAN, "nil")))
    errors += _dry_run_errors([*dry_run, *query_dry_run])
    ignore = bool(_delete_option(options, IGNORE_STORE_READ_ERROR, bool))
    if ignore:
        every = {**options, "preconditions": preconditions}
        errors += [
            invalid(IGNORE_STORE_READ_ERROR, True, f"cannot be set together with .{name}")
            for name in _NOT_WITH_IT
            if every.get(name) not in (None, {})
        ]
    _refuse("DeleteOptions", errors)
    if orphan is not None:
        policy = ORPHAN if orphan else BACKGROUND
    return DeleteOptions(
        grace,
        policy or "",
        _delete_option(preconditions, "uid", str),
        _delete_option(preconditions, "resourceVersion", str),
        # A body would otherwise hide dryRun of the query, and a dry run would delete.
        bool(dry_run or query_dry_run),
        ignore,
    )


def _delete_option(options: Obj, name: str, kind: type) -> Any:
    value = options.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise BadRequestError(f"{name} of DeleteOptions has the wrong type")
    return value


class _Continue(msgspec.Struct):
    """Content of a continue token; the fields are in the order of kube-apiserver."""

    v: str = ""
    rv: int = 0
    start: str = ""


_continue = msgspec.json.Decoder(_Continue)


def encode_continue(start_key: str, revision: int) -> str:
    """Return an opaque token to continue after `start_key`, at `revision`, or at the newest when that is INCONSISTENT."""
    token = msgspec.json.encode(_Continue(CONTINUE_VERSION, revision, start_key))
    return base64url.encode(token)


def decode_continue(text: str) -> tuple[str, int]:
    """Return (start key, revision) of a token. Raises BadRequestError for text that `encode_continue` does not make.

    The client may have chosen the start key: use it only as a position within the authorized prefix.
    """
    if len(text) > MAX_CONTINUE:
        raise BadRequestError("invalid continue token: continue key is not valid: too long")
    try:
        token = _continue.decode(base64url.decode(text))
    except (ValueError, RecursionError):
        raise BadRequestError(
            "invalid continue token: continue key is not valid: it was not made by this server"
        ) from None
    if token.v != CONTINUE_VERSION:
        raise BadRequestError(
            f"invalid continue token: continue key is not valid: server does not recognize this encoded version {token.v[:64]}"
        )
    if token.rv < 1 and token.rv != INCONSISTENT:
        raise BadRequestError(
            f"invalid continue token: continue key is not valid: incorrect encoded start resourceVersion ({CONTINUE_VERSION})"
        )
    if not token.start:
        raise BadRequestError(
            f"invalid continue token: continue key is not valid: encoded start key empty ({CONTINUE_VERSION})"
        )
    if not {".", ".."}.isdisjoint(token.start.split("/")):
        raise BadRequestError(f"invalid continue token: continue key is not valid: {token.start}")
    return token.start, token.rv
