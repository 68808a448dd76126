"""Request info: verb, resource, namespace and name of a request, from its method, path and query.

Rules kept here:
* `/api/<version>/<resource>…` and `/apis/<group>/<version>/<resource>…` are resource requests; everything else, `/api/v1`
  included, is a path with the lower-case method as its verb.
* GET and HEAD with a name are `get`; without one `list`, or `watch` with the parameter `watch`. POST is `create`, PUT
  `update`, PATCH `patch`, DELETE `delete`, or `deletecollection` without a name. Any other method on a resource has the
  verb "".
* A field selector that pins metadata.name on list or watch gives the request that name.
* `/watch/` and `/proxy/` before the resource are the old form of the verb; the rest of the path is parsed as usual.
* `/namespaces/<ns>` and its subresources `status` and `finalize` are requests about that Namespace *in* that namespace.
* Slashes before the path and empty groups and versions are skipped, as in kube-apiserver. Authorization then decides on the
  resource, and the router serves only `canonical` paths.
* A request with the verb in its path has no selectors for authorizers: it watches one object whatever its selectors are.

The caller has percent-decoded the path once and parsed the query with blank values (`?watch` requests a watch).

Source: docs/protocol/requests.md#attributes; k8s.io/apiserver pkg/endpoints/request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.selectors import parse_field_selector
from mooring.errors import BadRequestError

_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PREFIX_VERBS = frozenset({"watch", "proxy"})
_NAMESPACE_SUBRESOURCES = frozenset({"status", "finalize"})
_FALSE = frozenset({"false", "0"})
MAX_REMEMBERED = 256
"""Characters of paths and methods in the cache. Longer ones are parsed each time, so that requests cannot fill memory."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """Attributes of one request for authorization, audit and routing. `parts`: the path from the resource on."""

    verb: str
    is_resource: bool
    path: str
    prefix: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    parts: tuple[str, ...] = ()
    verb_in_path: bool = False

    @property
    def canonical(self) -> bool:
        """Return whether a resource path begins with one slash and names a group after `/apis` and a version."""
        has_group = bool(self.group) == (self.prefix == "apis")
        return has_group and bool(self.version) and self.path.startswith(f"/{self.prefix}/")


def truth(values: Sequence[str]) -> bool:
    """Return a boolean query parameter: absent, `false` and `0` are false; any other value, and none, is true."""
    return bool(values) and values[0].lower() not in _FALSE


def parse_request(method: str, path: str, query: Mapping[str, list[str]]) -> RequestInfo:
    """Return the info of a request. Raises BadRequestError when nothing follows `/watch` or `/proxy`."""
    if query or len(path) + len(method) > MAX_REMEMBERED:
        return _parse(method, path, query)
    return _parse_cached(method, path)


@lru_cache(maxsize=4096)
def _parse_cached(method: str, path: str) -> RequestInfo:
    """Parse with a cache: clients request the same few objects repeatedly, such as a kubelet its Node and its Lease."""
    return _parse(method, path, {})


def _parse(method: str, path: str, query: Mapping[str, list[str]]) -> RequestInfo:
    parts = path.strip("/").split("/")
    prefix = parts[0]
    if prefix == "api":
        at = 2
    elif prefix == "apis":
        at = 3
    else:
        return RequestInfo(method.lower(), False, path)
    count = len(parts)
    if count <= at:
        return RequestInfo(method.lower(), False, path)
    group, version = (parts[1] if at == 3 else ""), parts[at - 1]

    verb_in_path = parts[at] in _PREFIX_VERBS
    if verb_in_path:
        verb = parts[at]
        at += 1
        if count <= at:
            raise BadRequestError(f"unable to determine kind and namespace from url, {path}")
    else:
        # Any other method has a verb that no rule allows.
        verb = _VERBS.get(method, "")

    namespace = ""
    if parts[at] == "namespaces" and count > at + 1:
        namespace = parts[at + 1]
        if count > at + 2 and parts[at + 2] not in _NAMESPACE_SUBRESOURCES:
            at += 2

    # An empty resource (`/api/v1//x`): no route serves it.
    if not parts[at]:
        return RequestInfo(method.lower(), False, path)
    name = parts[at + 1] if count > at + 1 else ""
    subresource = parts[at + 2] if count > at + 2 and verb != "proxy" else ""
    if not name:
        if verb == "get":
            verb = "watch" if truth(query.get("watch", ())) else "list"
            # So that rules with resourceNames can allow it. Never on deletecollection: kube-apiserver gives it no
            # name, and a rule must not allow more here.
            name = _pinned_name(query.get("fieldSelector", ()))
        elif verb == "delete":
            verb = "deletecollection"
    return RequestInfo(
        verb,
        True,
        path,
        prefix,
        group,
        version,
        parts[at],
        subresource,
        namespace,
        name,
        tuple(parts[at:]),
        verb_in_path,
    )


def _pinned_name(selectors: Sequence[str]) -> str:
    if not selectors:
        return ""
    try:
        name = parse_field_selector(selectors[0]).requires("metadata.name") or ""
    # Ignored here: the options are refused with 400 after authorization.
    except BadRequestError:
        return ""
    return "" if path_segment_errors(name) else name
