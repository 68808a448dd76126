"""Content negotiation: the representation of a response, by the parameters and q-values of Accept.

Source: docs/protocol/negotiation.md, docs/protocol/tables.md, docs/protocol/discovery.md.

Rules kept here:
* No Accept header, and `*/*`, mean JSON. Clauses are tried by q-value, then named types before wildcards, then as written.
* `as=Kind;v=version;g=group` requests another kind (Table, PartialObjectMetadata, …). A clause for a kind that is not offered is
  skipped and never answered with the object itself. Without any other clause the response is 406 with a list of the offers.
* The words of a 406 are those of the part of kube-apiserver that refuses first: its router, where no clause names a media type of
  the endpoint (a list offers the types of a watch too), and otherwise its handler.
* A Table has no protobuf form, so its clause is skipped too, as in kube-apiserver. So is a clause with a stream other than `watch`.
  A watch has no YAML form.
* The aggregated discovery document is selected when any clause names it, in any order of the clauses.

Negotiation runs on every request and clients send few different headers, so the results are kept in bounded caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mooring.errors import NotAcceptableError, RoutedNotAcceptableError

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

Media = Literal["json", "yaml", "protobuf"]
MEDIA_TYPES: dict[Media, str] = {"json": JSON, "yaml": YAML, "protobuf": PROTOBUF}
"""Representations of an object, the preferred one first."""
STREAMED: tuple[Media, ...] = ("json", "protobuf")
"""Representations of a watch. YAML has no frames to separate events."""

META_GROUP = "meta.k8s.io"
DISCOVERY_GROUP = "apidiscovery.k8s.io"
TRANSFORMS = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
"""Kinds of meta.k8s.io, v1 and v1beta1, into which any resource can be transformed."""
_META_VERSIONS = frozenset({"v1", "v1beta1"})

MAX_CLAUSES = 64
"""Clauses parsed of one header; clients send at most six."""
_CACHE = 512
"""Headers in the cache: more than there are client libraries, and bounded against requests with random headers."""
MAX_HEADER = 4096
"""Characters parsed of one header, which bounds the size of the caches."""
_PRETTY_AGENTS = ("curl", "Wget", "Mozilla/5.0")


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of an Accept header. `params` are lower-case names with their values, without `q`."""

    type: str
    subtype: str
    params: tuple[tuple[str, str], ...] = ()
    quality: float = 1.0

    def param(self, name: str) -> str:
        """Return the value of one parameter, or ""."""
        return dict(self.params).get(name, "")


@dataclass(frozen=True, slots=True)
class Representation:
    """Representation of a response. `as_kind` is the requested kind of meta.k8s.io, or "" for the object itself."""

    media: Media = "json"
    as_kind: str = ""
    as_group: str = ""
    as_version: str = ""
    pretty: bool = False

    @property
    def content_type(self) -> str:
        """Content-Type of a response that is not a watch."""
        return MEDIA_TYPES[self.media]

    @property
    def stream_content_type(self) -> str:
        """Content-Type of a watch: only that of protobuf has `stream=watch` (docs/protocol/watch.md)."""
        return f"{PROTOBUF};stream=watch" if self.media == "protobuf" else MEDIA_TYPES[self.media]

    @property
    def as_api_version(self) -> str:
        """apiVersion of the requested kind of meta.k8s.io, or "" for the object itself."""
        return f"{self.as_group}/{self.as_version}" if self.as_kind else ""


def parse_accept(header: str) -> tuple[Clause, ...]:
    """Return the clauses of an Accept header in order of preference, without malformed ones and those with `q=0`."""
    return _parse(header[:MAX_HEADER])


@lru_cache(maxsize=_CACHE)
def _parse(header: str) -> tuple[Clause, ...]:
    clauses = []
    for text in header.split(",")[:MAX_CLAUSES]:
        media, *rest = text.split(";")
        main, _, sub = media.strip().lower().partition("/")
        if not main or (not sub and main != "*"):
            continue
        quality = 1.0
        params = []
        for item in rest:
            name, _, value = item.partition("=")
            name, value = name.strip().lower(), value.strip().strip('"')
            if name == "q":
                quality = _quality(value)
            elif name:
                params.append((name, value))
        if quality > 0:
            clauses.append(Clause(main, sub or "*", tuple(params), quality))
    return tuple(sorted(clauses, key=lambda clause: (-clause.quality, clause.type == "*", clause.subtype == "*")))


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 1.0
    return value if 0 <= value <= 1 else 1.0


def _not_acceptable(accept: str, medias: tuple[Media, ...], is_listing: bool) -> NotAcceptableError:
    """Return the 406 error that lists the offered types."""
    media_types = [MEDIA_TYPES[media] for media in medias]
    streamed = [f"{MEDIA_TYPES[media]};stream=watch" for media in STREAMED]
    # The list that a watch begins as has accepted the header.
    if medias == STREAMED:
        media_types = streamed
    elif {clause.partition(";")[0].strip() for clause in accept.split(",")}.isdisjoint(("*/*", *media_types)):
        available = ", ".join(media_types + streamed if is_listing else media_types)
        return RoutedNotAcceptableError(f"406: Not Acceptable\n\nAvailable representations: {available}")
    return NotAcceptableError(f"only the following media types are accepted: {', '.join(media_types)}")


def negotiate(
    accept: str,
    transforms: frozenset[str] = TRANSFORMS,
    medias: tuple[Media, ...] = tuple(MEDIA_TYPES),
    *,
    is_listing: bool = False,
) -> Representation:
    """Return the preferred representation of those offered. Raises NotAcceptableError.

    `transforms` are the kinds of meta.k8s.io that the endpoint offers, `medias` the encodings, the preferred one first.
    `is_listing`: the endpoint lists, and also answers watches.
    """
    return _negotiate(accept[:MAX_HEADER], transforms, medias, is_listing)


@lru_cache(maxsize=_CACHE)
def _negotiate(accept: str, transforms: frozenset[str], medias: tuple[Media, ...], is_listing: bool) -> Representation:
    if not accept.strip():
        return Representation(medias[0])
    for clause in parse_accept(accept):
        for media in medias:
            if (accepted := _match(clause, media, transforms)) is not None:
                return accepted
    raise _not_acceptable(accept, medias, is_listing)


def _match(clause: Clause, media: Media, transforms: frozenset[str]) -> Representation | None:
    main, sub = MEDIA_TYPES[media].split("/")
    if clause.type not in ("*", main) or clause.subtype not in ("*", sub):
        return None
    if clause.param("stream") not in ("", "watch"):
        return None
    pretty = clause.param("pretty") == "1"
    kind = clause.param("as")
    if not kind:
        return Representation(media, pretty=pretty)
    group, version = clause.param("g"), clause.param("v")
    if kind not in transforms or group != META_GROUP or version not in _META_VERSIONS:
        return None
    # A Table has no protobuf form. The next clause decides, as in kube-apiserver.
    if kind == "Table" and media == "protobuf":
        return None
    return Representation(media, kind, group, version, pretty)


AGGREGATED_PARAMETERS = f";g={DISCOVERY_GROUP};v=v2;as=APIGroupDiscoveryList"
"""Parameters of the Content-Type of the aggregated discovery document."""


def aggregated_discovery_type(accept: str) -> str:
    """Return the media type of the first clause that names APIGroupDiscoveryList v2, as JSON or as protobuf; empty when none does.

    v2beta1 is no longer served (1.33+).
    """
    for clause in parse_accept(accept):
        named = (clause.param("g"), clause.param("v"), clause.param("as"))
        if clause.type in ("*", "application") and named == (DISCOVERY_GROUP, "v2", "APIGroupDiscoveryList"):
            if clause.subtype in ("*", "json"):
                return JSON
            if f"{clause.type}/{clause.subtype}" == PROTOBUF:
                return PROTOBUF
    return ""


def wants_pretty(pretty: str | None, user_agent: str) -> bool:
    """Return whether JSON is indented: by `?pretty=`, or for the user agents of interactive tools."""
    if pretty:
        return pretty in ("1", "t", "T", "true", "TRUE", "True")
    return user_agent.startswith(_PRETTY_AGENTS)
