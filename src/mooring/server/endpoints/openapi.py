"""Serve OpenAPI: `/openapi/v2`, and `/openapi/v3` with one document for each group version.

Rules kept here (docs/protocol/openapi.md):
* Each document is built on its first request and kept as encoded bytes with its ETag, in JSON and in gnostic's protobuf. JSON and
  protobuf are different bytes, so that each has an ETag of its own.
* A version 3 document is immutable under its `?hash=`, which is computed from the JSON for both forms.
* A client that accepts neither form gets 406.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.apimachinery.discovery import documents as discovery
from mooring.apimachinery.negotiation import JSON, parse_accept
from mooring.apimachinery.openapi import v2, v2protobuf, v3, v3protobuf
from mooring.errors import NotAcceptableError
from mooring.server.endpoints.notfound import not_found
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response

_FAR_FUTURE = b"Fri, 31 Dec 2060 00:00:00 GMT"


async def openapi_v2(context: RequestContext, api: ServedApi) -> Response:
    """Answer with the one document of version 2. Raises NotAcceptableError (406)."""
    media = _negotiate(context.request.header(b"accept"), v2protobuf.ACCEPTED)
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
    body = encode_json(document) if media == JSON else v2protobuf.encode_document(document)
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
