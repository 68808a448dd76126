"""Serve what clients discover: the API groups, OpenAPI documents, the version, and the issuer of tokens."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mooring import __version__, build
from mooring.apimachinery import discovery
from mooring.apimachinery.codec.json import decode_json, encode_json, indent_json
from mooring.apimachinery.codec.protobuf import encode_object
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.discovery import DOCUMENTS
from mooring.apimachinery.negotiation import (
    AGGREGATED_PARAMETERS,
    JSON,
    MEDIA_TYPES,
    PROTOBUF,
    YAML,
    aggregated_discovery_type,
    parse_accept,
)
from mooring.apimachinery.openapi import v2, v3, v3protobuf
from mooring.apimachinery.schema import Obj
from mooring.errors import NotAcceptableError, NotFoundError
from mooring.pki.jwt.keyset import algorithm_of, discovery_document, is_discoverable, jwks_document
from mooring.pki.jwt.token import TokenKeys
from mooring.pki.keys import PublicKey
from mooring.server.endpoints.servedapi import ServedApi, missing, not_found
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import accepted, content_type, is_pretty
from mooring.server.transport.http import Response

# Serve API discovery: `/api`, `/apis` and everything between them and the resources.
#
# Rules kept here (docs/protocol/discovery.md):
# * Each document is built on its first request and kept as encoded bytes with its ETag.
# * The Accept header selects the form, and Content-Type names it: legacy as JSON, YAML or protobuf, aggregated as JSON or
#   protobuf. A client that accepts none of these gets 406.

_VARY = (b"vary", b"Accept")


async def api(context: RequestContext, served: ServedApi) -> Response:
    """Answer with the discovery document of a path. Raises NotFoundError, NotAcceptableError."""
    path = context.info.path.rstrip("/")
    if "//" in path or context.info.path.startswith("/apis//"):
        return not_found()  # no document has an empty version or resource in its path
    aggregated = aggregated_discovery_type(context.request.header(b"accept")) if path in ("/api", "/apis") else ""
    media = aggregated or MEDIA_TYPES[accepted(context.request).media]
    as_protobuf = media == PROTOBUF
    try:
        body, etag = _encoded_document(served, path, bool(aggregated), as_protobuf)
    except NotFoundError:
        return missing(context, served)
    if not aggregated:
        if media == YAML:
            return Response(200, encode_yaml(decode_json(body)), (content_type(YAML), _VARY))
        if as_protobuf:
            return Response(200, body, (content_type(PROTOBUF), _VARY))
        return Response(200, indent_json(body) if is_pretty(context.request) else body, (content_type(JSON), _VARY))
    headers = (content_type(aggregated + AGGREGATED_PARAMETERS), _VARY, (b"etag", etag.encode()))
    if context.request.has_current(etag):
        return Response(304, b"", headers)
    return Response(200, body, headers)


@lru_cache(maxsize=256)
def _encoded_document(served: ServedApi, path: str, aggregated: bool, as_protobuf: bool = False) -> tuple[bytes, str]:
    """Return the document of a path and its ETag, which is empty for the legacy form. Raises NotFoundError."""
    parts = [part for part in path.split("/") if part]
    resources = served.resources
    document: Obj | None
    if aggregated:
        document = discovery.aggregated(resources, core=parts == ["api"])
        body = _encode(document, as_protobuf)
        return body, discovery.etag(body)
    if parts == ["api"]:
        document = discovery.api_versions(served.server_address)
    elif parts == ["apis"]:
        document = discovery.group_list(resources)
    elif parts[0] == "apis" and len(parts) == 2:
        document = discovery.group(resources, parts[1])
    else:
        group, found_version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        document = discovery.resource_list(resources, group, found_version)
    if document is None:
        raise NotFoundError("the server could not find the requested resource")
    return _encode(document, as_protobuf), ""


def _encode(document: Obj, as_protobuf: bool) -> bytes:
    if not as_protobuf:
        return encode_json(document)
    return encode_object({"apiVersion": "", **document}, DOCUMENTS[document["kind"]])


# Serve OpenAPI: `/openapi/v2`, and `/openapi/v3` with one document for each group version.
#
# Rules kept here (docs/protocol/openapi.md):
# * Each document is built on its first request and kept as encoded bytes with its ETag, in JSON and in gnostic's protobuf. JSON
#   and protobuf are different bytes, so that each has an ETag of its own.
# * A version 3 document is immutable under its `?hash=`, which is computed from the JSON for both forms.
# * A client that accepts neither form gets 406.

_FAR_FUTURE = b"Fri, 31 Dec 2060 00:00:00 GMT"


async def openapi_v2(context: RequestContext, api: ServedApi) -> Response:
    """Answer with the one document of version 2. Raises NotAcceptableError (406)."""
    media = _negotiate(context.request.header(b"accept"), v2.ACCEPTED)
    body, etag = _encoded_v2(api, media)
    headers = (content_type(media), (b"etag", etag.encode()), (b"vary", b"Accept-Encoding, Accept"))
    if context.request.has_current(etag):
        return Response(304, b"", headers)
    return Response(200, body, headers)


async def openapi_v3(context: RequestContext, api: ServedApi) -> Response:
    """Answer with the index, or with the document of one group version. Raises NotAcceptableError (406)."""
    path = context.info.path.rstrip("/")
    if path == "/openapi/v3":
        body, etag = _encoded_v3_index(api)
        headers = [content_type(JSON), (b"etag", etag.encode())]
        return (
            Response(304, b"", tuple(headers))
            if context.request.has_current(etag)
            else Response(200, body, tuple(headers))
        )
    key = path.removeprefix("/openapi/v3/")
    if key not in _v3_documents(api):
        return not_found()
    media = _negotiate(context.request.header(b"accept"), v3protobuf.ACCEPTED)
    digest = _v3_documents(api)[key].hash
    requested = context.request.query.get("hash", [""])[0]
    if requested and requested != digest:
        location = f"{path}?hash={digest}".encode()
        return Response(301, b"", ((b"location", location), (b"cache-control", b"no-cache, private")))
    body, etag = _encoded_v3(api, key, media)
    headers = [content_type(media), (b"etag", etag.encode()), (b"vary", b"Accept-Encoding, Accept")]
    if requested:
        headers.append((b"cache-control", b"public, immutable"))
        headers.append((b"expires", _FAR_FUTURE))
    if context.request.has_current(etag):
        return Response(304, b"", tuple(headers))
    return Response(200, body, tuple(headers))


@lru_cache(maxsize=8)
def _encoded_v2(api: ServedApi, media: str) -> tuple[bytes, str]:
    """Return the document of version 2 in one form and its ETag."""
    document = v2.openapi_v2_document(api.resources)
    body = encode_json(document) if media == JSON else v2.encode_document(document)
    return body, f'"{discovery.digest(body)}"'


@lru_cache(maxsize=8)
def _v3_documents(api: ServedApi) -> Mapping[str, v3.Document]:
    return v3.openapi_v3_documents(api.resources)


@lru_cache(maxsize=8)
def _encoded_v3_index(api: ServedApi) -> tuple[bytes, str]:
    """Return the index of version 3 and its ETag."""
    body = encode_json(v3.index_of(_v3_documents(api)))
    return body, f'"{discovery.digest(body)}"'


@lru_cache(maxsize=64)
def _encoded_v3(api: ServedApi, key: str, media: str) -> tuple[bytes, str]:
    """Return one document of version 3 in one form and its ETag."""
    document = _v3_documents(api)[key]
    if media == JSON:
        return document.raw, f'"{document.hash}"'
    body = v3protobuf.encode_document(decode_json(document.raw))
    return body, f'"{discovery.digest(body)}"'


def _negotiate(accept: str, protobuf: Sequence[str]) -> str:
    """Return the Content-Type of the form that the client prefers, JSON when it prefers none.

    `protobuf` lists the media types by which clients request protobuf; replies use the first of them.
    """
    if not accept.strip():
        return JSON
    for clause in parse_accept(accept):
        name = f"{clause.type}/{clause.subtype}"
        if name in protobuf:
            return protobuf[0]
        if name in (JSON, "application/*", "*/*"):
            return JSON
    raise NotAcceptableError(f"only the following media types are accepted: {JSON}, {protobuf[0]}")


# Serve `/version`: the Kubernetes release whose wire behaviour this server implements.
#
# Source: docs/protocol/discovery.md#version.

KUBERNETES_MAJOR, KUBERNETES_MINOR, KUBERNETES_PATCH = "1", "37", "1"
KUBERNETES_VERSION = f"v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.{KUBERNETES_PATCH}"
"""Kubernetes release whose wire behaviour is served; kubectl and kubeadm compare their own version with it."""
BUILD_DATE = "2026-01-01T00:00:00Z"
"""Required in the document. A fixed value keeps builds reproducible."""


async def version(context: RequestContext, nothing: None) -> Response:
    """Answer with the version document, which exists in JSON only. Raises NotAcceptableError (406)."""
    accepted(context.request, medias=("json",))
    document = {
        "major": KUBERNETES_MAJOR,
        "minor": KUBERNETES_MINOR,
        "emulationMajor": KUBERNETES_MAJOR,
        "emulationMinor": KUBERNETES_MINOR,
        "minCompatibilityMajor": KUBERNETES_MAJOR,
        "minCompatibilityMinor": str(int(KUBERNETES_MINOR) - 1),
        "gitVersion": f"{KUBERNETES_VERSION}+mooring-{__version__}",
        "gitCommit": build.commit(),
        "gitTreeState": "clean",
        "buildDate": BUILD_DATE,
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{_architecture()}",
    }
    return Response(200, indent_json(encode_json(document)))  # kube-apiserver indents it for every client


def _architecture() -> str:
    """Return Go's name of this machine's architecture."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


# Serve service account issuer discovery: the OpenID configuration and the public keys of this cluster's token issuer.
#
# Source: docs/protocol/service-account-tokens.md#issuer-discovery.
#
# Rules kept here:
# * The documents hold public keys only.
# * They exist only when the issuer is an https URL without query and fragment.
# * RBAC decides which users may read them (ClusterRole `system:service-account-issuer-discovery`).

_CACHE = (b"cache-control", b"public, max-age=3600")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenIssuer:
    """Issuer of service account tokens, as relying parties see it."""

    url: str
    jwks_uri: str
    keys: TokenKeys

    @property
    def public_keys(self) -> Sequence[PublicKey]:
        """The keys that verify tokens now."""
        return self.keys.public_keys


async def openid_configuration(context: RequestContext, issuer: TokenIssuer) -> Response:
    """Answer `/.well-known/openid-configuration`."""
    if not is_discoverable(issuer.url):
        return not_found()
    document = discovery_document(issuer.url, issuer.jwks_uri, map(algorithm_of, issuer.public_keys))
    return Response(200, encode_json(document), (content_type("application/json"), _CACHE))


async def jwks(context: RequestContext, issuer: TokenIssuer) -> Response:
    """Answer `/openid/v1/jwks` with the keys that verify tokens."""
    if not is_discoverable(issuer.url):
        return not_found()
    document = jwks_document(issuer.public_keys)
    return Response(200, encode_json(document), (content_type("application/jwk-set+json"), _CACHE))
