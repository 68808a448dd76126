"""Serve API discovery: `/api`, `/apis` and everything between them and the resources.

Rules kept here (docs/protocol/discovery.md):
* Each document is built on its first request and kept as encoded bytes with its ETag.
* The Accept header selects the form, and Content-Type names it: legacy as JSON, YAML or protobuf, aggregated as JSON or protobuf.
  A client that accepts none of these gets 406.
"""

from __future__ import annotations

from functools import lru_cache

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
)
from mooring.apimachinery.schema import Obj
from mooring.errors import NotFoundError
from mooring.server.endpoints.notfound import missing, not_found
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import accepted, content_type, is_pretty
from mooring.server.transport.http import Response

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
