"""Documents made from the table of kinds: version, discovery (legacy and aggregated), OpenAPI v2 and v3.

Rules kept here (docs/protocol/discovery.md, docs/protocol/openapi.md): each document is built once, on first request, and kept as
bytes with its ETag; which discovery form is answered is read from Accept and told in Content-Type. The legacy form is JSON, YAML or
protobuf, the aggregated one JSON or protobuf; clients that accept none of these get 406.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mooring import __version__
from mooring.apimachinery.codec.json import decode_json, encode_json, indent_json
from mooring.apimachinery.codec.protobuf.envelope import encode_object
from mooring.apimachinery.codec.yaml import encode_yaml
from mooring.apimachinery.discovery import documents as discovery
from mooring.apimachinery.discovery.messages import DOCUMENTS
from mooring.apimachinery.negotiation import (
    AGGREGATED_PARAMETERS,
    JSON,
    MEDIA_TYPES,
    PROTOBUF,
    YAML,
    aggregated_discovery_type,
    parse_accept,
)
from mooring.apimachinery.openapi import (
    v2 as openapiv2,
)
from mooring.apimachinery.openapi import (
    v2protobuf as openapiv2protobuf,
)
from mooring.apimachinery.openapi import (
    v3 as openapi,
)
from mooring.apimachinery.openapi import (
    v3protobuf as openapiv3protobuf,
)
from mooring.apimachinery.schema import Obj
from mooring.errors import NotAcceptableError, NotFoundError
from mooring.server.pipeline import Context
from mooring.server.response.render import accepted, content_type, is_pretty
from mooring.server.services import Services
from mooring.server.transport.http import Response

KUBERNETES_MAJOR, KUBERNETES_MINOR, KUBERNETES_PATCH = "1", "36", "2"
KUBERNETES_VERSION = f"v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.{KUBERNETES_PATCH}"
"""The release whose wire behaviour is served; kubectl and kubeadm compare their own version with it."""
BUILD_DATE = "2026-01-01T00:00:00Z"
"""/version must carry one; a fixed value keeps builds reproducible."""
_VARY = (b"vary", b"Accept")


async def version(context: Context, services: Services) -> Response:
    """`/version`: JSON only."""
    accepted(context.request, medias=("json",))
    document = {
        "major": KUBERNETES_MAJOR,
        "minor": KUBERNETES_MINOR,
        "emulationMajor": KUBERNETES_MAJOR,
        "emulationMinor": KUBERNETES_MINOR,
        "minCompatibilityMajor": KUBERNETES_MAJOR,
        "minCompatibilityMinor": str(int(KUBERNETES_MINOR) - 1),
        "gitVersion": f"{KUBERNETES_VERSION}+mooring-{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": BUILD_DATE,
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{_architecture()}",
    }
    return Response(200, indent_json(encode_json(document)))  # indented for everybody, as kube-apiserver has it


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@lru_cache(maxsize=256)
def _kept(services: Services, path: str, aggregated: bool, as_protobuf: bool = False) -> tuple[bytes, str]:
    """The document of a discovery path and its ETag ("" where none is sent). Raises NotFoundError."""
    parts = [part for part in path.split("/") if part]
    resources = services.resources
    document: Obj | None
    if aggregated:
        document = discovery.aggregated(resources, core=parts == ["api"])
        body = _encoded(document, as_protobuf)
        return body, discovery.etag(body)
    if parts == ["api"]:
        document = discovery.api_versions(services.server_address)
    elif parts == ["apis"]:
        document = discovery.group_list(resources)
    elif parts[0] == "apis" and len(parts) == 2:
        document = discovery.group(resources, parts[1])
    else:
        group, found_version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        document = discovery.resource_list(resources, group, found_version)
    if document is None:
        raise NotFoundError("the server could not find the requested resource")
    return _encoded(document, as_protobuf), ""


def _encoded(document: Obj, as_protobuf: bool) -> bytes:
    if not as_protobuf:
        return encode_json(document)
    return encode_object({"apiVersion": "", **document}, DOCUMENTS[document["kind"]])


async def api(context: Context, services: Services) -> Response:
    """`/api`, `/apis` and everything between them and the resources."""
    path = context.info.path.rstrip("/")
    if "//" in path or context.info.path.startswith(
        "/apis//"
    ):  # an empty version or resource: no document lives there, whatever its other parts name
        return not_found()
    aggregated = aggregated_discovery_type(context.request.header(b"accept")) if path in ("/api", "/apis") else ""
    media = aggregated or MEDIA_TYPES[accepted(context.request).media]
    as_protobuf = media == PROTOBUF
    try:
        body, etag = _kept(services, path, bool(aggregated), as_protobuf)
    except NotFoundError:
        return missing(context, services)
    if not aggregated:
        if media == YAML:
            return Response(200, encode_yaml(decode_json(body)), (content_type(YAML), _VARY))
        if as_protobuf:
            return Response(200, body, (content_type(PROTOBUF), _VARY))
        return Response(200, indent_json(body) if is_pretty(context.request) else body, (content_type(JSON), _VARY))
    headers = (content_type(aggregated + AGGREGATED_PARAMETERS), _VARY, (b"etag", etag.encode()))
    if context.request.header(b"if-none-match") == etag:
        return Response(304, b"", headers)
    return Response(200, body, headers)


def missing(context: Context, services: Services) -> Response:
    """Refuse a path that nobody serves: with a Status below the roots of API groups and of /version, as kube-apiserver does, and
    with text elsewhere. Raises NotFoundError."""
    root, _, rest = context.info.path.removeprefix("/").partition("/")
    group = rest.partition("/")[0]
    if root in ("api", "version") or (root == "apis" and group and group in discovery.groups(services.resources)):
        raise NotFoundError("the server could not find the requested resource")
    return not_found()


def not_found() -> Response:
    """What Go's mux answers for a path nobody serves; client-go makes a NotFound of it."""
    return Response(404, b"404 page not found\n", (content_type("text/plain; charset=utf-8"),))


@lru_cache(maxsize=8)
def _openapi(services: Services) -> Mapping[str, openapi.Document]:
    return openapi.openapi_v3_documents(services.resources)


@lru_cache(maxsize=64)
def _openapi_v3(services: Services, key: str, media: str) -> tuple[bytes, str]:
    """One document in one form and its ETag. The `?hash=` of both forms is that of the JSON."""
    document = _openapi(services)[key]
    if media == JSON:
        return document.raw, f'"{document.hash}"'
    body = openapiv3protobuf.encode_document(decode_json(document.raw))
    return body, f'"{discovery.digest(body)}"'


async def openapi_v3(context: Context, services: Services) -> Response:
    """`/openapi/v3` and one document a group version, immutable under its `?hash=`, as JSON or as the protobuf of gnostic.
    406 for anything else."""
    path = context.info.path.rstrip("/")
    if path == "/openapi/v3":
        return Response(200, encode_json(openapi.index_of(_openapi(services))))
    key = path.removeprefix("/openapi/v3/")
    if key not in _openapi(services):
        return not_found()
    media = _openapi_media(context.request.header(b"accept"), openapiv3protobuf.ACCEPTED)
    digest = _openapi(services)[key].hash
    asked = context.request.query.get("hash", [""])[0]
    if asked and asked != digest:
        location = f"{path}?hash={digest}".encode()
        return Response(301, b"", ((b"location", location), (b"cache-control", b"no-cache, private")))
    body, etag = _openapi_v3(services, key, media)
    headers = [content_type(media), (b"etag", etag.encode()), (b"vary", b"Accept-Encoding, Accept")]
    if asked:
        headers.append((b"cache-control", b"public, immutable"))
        headers.append((b"expires", _FAR))
    if context.request.header(b"if-none-match") == etag:
        return Response(304, b"", tuple(headers))
    return Response(200, body, tuple(headers))


_FAR = b"Fri, 31 Dec 2060 00:00:00 GMT"


async def openapi_v2(context: Context, services: Services) -> Response:
    """`/openapi/v2`: one document for everything, as JSON or as the protobuf of gnostic. 406 for anything else."""
    media = _openapi_media(context.request.header(b"accept"), openapiv2protobuf.ACCEPTED)
    body, etag = _openapi_v2(services, media)
    headers = (content_type(media), (b"etag", etag.encode()), (b"vary", b"Accept-Encoding, Accept"))
    if context.request.header(b"if-none-match") == etag:
        return Response(304, b"", headers)
    return Response(200, body, headers)


@lru_cache(maxsize=8)
def _openapi_v2(services: Services, media: str) -> tuple[bytes, str]:
    """The document in one form and its ETag: the forms are different bytes, so each has its own."""
    document = openapiv2.openapi_v2_document(services.resources)
    body = encode_json(document) if media == JSON else openapiv2protobuf.encode_document(document)
    return body, f'"{discovery.digest(body)}"'


def _openapi_media(accept: str, protobuf: Sequence[str]) -> str:
    """Content-Type of the form that the caller prefers; JSON where it does not care. `protobuf`: how clients call the other
    one, first what answers call it."""
    if not accept.strip():
        return JSON
    for clause in parse_accept(accept):
        name = f"{clause.type}/{clause.subtype}"
        if name in protobuf:
            return protobuf[0]
        if name in (JSON, "application/*", "*/*"):
            return JSON
    raise NotAcceptableError(f"only the following media types are accepted: {JSON}, {protobuf[0]}")
