"""Table of the supervisor API: every path that `--k3s-supervisor` adds, and the parts that their handlers get."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.errors import BadRequestError, ServiceUnavailableError
from mooring.server.endpoints.servedapi import not_found
from mooring.server.endpoints.supervisor.certificates import NodeCertificates, certificate, refuse_guesses
from mooring.server.endpoints.supervisor.servers import ServerKeys, rotate_token, server_bootstrap
from mooring.server.endpoints.supervisor.tunnel import Tunnels, connect
from mooring.server.requestcontext import RequestContext, Supervised
from mooring.server.response.render import content_type
from mooring.server.transport.http import JSON, Response
from mooring.trust.k3s import identity as paths
from mooring.trust.k3s.identity import Access

# Parts that handlers of the supervisor API use, one field for each group of routes. The control plane builds them once.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SupervisorServices:
    """Parts of one server process. A handler gets what its row names, and not the whole."""

    server_ca: Callable[[], bytes]
    """Returns the bundle that verifies the serving certificate, as `/cacerts` serves it."""
    client_ca: Callable[[], bytes]
    """Returns the bundle that verifies clients."""
    config: Callable[[], Obj]
    """Returns the document of `/v1-k3s/config`."""
    apiservers: Callable[[], tuple[str, ...]]
    """Returns `host:port` of the servers that live."""
    certificates: NodeCertificates
    ready: Callable[[], bool]
    """Returns whether this server is ready."""
    tunnels: Tunnels
    encryption: Callable[[], Awaitable[Obj]]
    """Returns the document of `/v1-k3s/encrypt/status`."""
    server_keys: ServerKeys


# Table of the supervisor API: every path that `--k3s-supervisor` adds, with the short handlers. Without it none of them exists.
#
# Rules kept here (docs/protocol/k3s.md#supervisor):
# * A path matches exactly. `/static/` stands for every path below it.
# * A path whose clean form is that of a row is redirected there, as k3s does it, before a credential is read. The redirect names
#   the path of the row and nothing that the client sent. `/static` is redirected to `/static/`.
# * Every other path belongs to the Kubernetes API, as the client wrote it.
# * A row names the level that opens it. A method that it does not name is 405, after authentication.
# * The bytes of `/cacerts` are those of which tokens carry the hash.
# * A change of keys or of the CA has its own commands, which go in steps that no machine notices. The answer to k3s's request
#   names them, and nothing is changed. The status of encryption names keys, and shows none.

N = TypeVar("N")

MAX_AGENT_BODY = 64 << 10
"""Bytes of a request body. A certificate request takes 10 kB at most, and many machines have the token."""
MAX_TOKEN_BODY = 16 << 10
"""Bytes of a rotation: the longest token, each of its characters escaped, and the grace."""
_CERTIFICATE = ("GET", "HEAD", "POST")
"""Methods of a certificate. Its handler refuses GET with a sentence: agents before 2024 sent it, and got a key that all shared."""
TEXT = content_type("text/plain")


async def ca_bundle(context: RequestContext, bundle: Callable[[], bytes]) -> Response:
    """Answer with a CA bundle as PEM."""
    return Response(200, bundle(), (TEXT,))


async def ping(context: RequestContext, nothing: None) -> Response:
    """Answer `pong`."""
    return Response(200, b"pong", (TEXT,))


async def agent_config(context: RequestContext, config: Callable[[], Obj]) -> Response:
    """Answer with the settings of the cluster that an agent or a joining server reads."""
    return Response(200, encode_json(config()) + b"\n", (JSON,))


async def apiservers(context: RequestContext, addresses: Callable[[], tuple[str, ...]]) -> Response:
    """Answer with `host:port` of each server."""
    return Response(200, json.dumps(addresses()).encode() + b"\n", (JSON,))


async def readiness(context: RequestContext, ready: Callable[[], bool]) -> Response:
    """Answer `ok`. Raises ServiceUnavailableError while this server is not ready."""
    if not ready():
        raise ServiceUnavailableError("runtime core not ready")
    return Response(200, b"ok", (TEXT,))


async def encryption_state(context: RequestContext, status: Callable[[], Awaitable[Obj]]) -> Response:
    """Answer with the state of the encryption of Secrets."""
    return Response(200, encode_json(await status()), (JSON,))


async def encryption_change(context: RequestContext, nothing: None) -> Response:
    """Refuse a change of keys. Raises BadRequestError."""
    raise BadRequestError("keys of stored values are changed with: mooring secrets-encryption rotate, on a server")


async def ca_replacement(context: RequestContext, nothing: None) -> Response:
    """Refuse another CA. Raises BadRequestError."""
    raise BadRequestError("the CA is replaced in phases, with: mooring ca rollover start, on a server")


async def static_file(context: RequestContext, nothing: None) -> Response:
    """Answer 404: no file is served."""
    return not_found()


@dataclass(frozen=True, slots=True)
class Route(Generic[N]):
    """One path of the supervisor API."""

    path: str
    access: Access
    serve: Callable[[RequestContext, N], Awaitable[Response]]
    needs: Callable[[SupervisorServices], N]
    """Returns the parts that `serve` gets."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    max_body: int = MAX_AGENT_BODY
    screen: Callable[[RequestContext, N], None] | None = None
    needs_machine: bool = False


ROUTES: tuple[Route[Any], ...] = (
    Route(paths.CACERTS, Access.PUBLIC, ca_bundle, lambda services: services.server_ca),
    Route(paths.PING, Access.PUBLIC, ping, lambda services: None),
    Route(paths.CONFIG, Access.AGENT, agent_config, lambda services: services.config),
    Route(paths.CLIENT_CA, Access.AGENT, ca_bundle, lambda services: services.client_ca),
    Route(paths.SERVER_CA, Access.AGENT, ca_bundle, lambda services: services.server_ca),
    Route(paths.APISERVERS, Access.AGENT, apiservers, lambda services: services.apiservers),
    Route(
        paths.SERVING_KUBELET,
        Access.AGENT,
        certificate,
        lambda services: services.certificates,
        _CERTIFICATE,
        screen=refuse_guesses,
    ),
    Route(
        paths.CLIENT_KUBELET,
        Access.AGENT,
        certificate,
        lambda services: services.certificates,
        _CERTIFICATE,
        screen=refuse_guesses,
    ),
    Route(
        paths.CLIENT_KUBE_PROXY,
        Access.AGENT,
        certificate,
        lambda services: services.certificates,
        _CERTIFICATE,
        needs_machine=True,
    ),
    Route(
        paths.CLIENT_CONTROLLER,
        Access.AGENT,
        certificate,
        lambda services: services.certificates,
        _CERTIFICATE,
        needs_machine=True,
    ),
    Route(paths.READYZ, Access.AGENT, readiness, lambda services: services.ready),
    Route(paths.CONNECT, Access.NODE, connect, lambda services: services.tunnels, methods=("GET",)),
    Route(paths.ENCRYPT_STATUS, Access.SERVER, encryption_state, lambda services: services.encryption),
    Route(paths.ENCRYPT_CONFIG, Access.SERVER, encryption_change, lambda services: None, methods=("PUT",)),
    Route(paths.CERT_CACERTS, Access.SERVER, ca_replacement, lambda services: None, methods=("PUT",)),
    Route(paths.STATIC, Access.PUBLIC, static_file, lambda services: None),
    Route(paths.SERVER_BOOTSTRAP, Access.SERVER, server_bootstrap, lambda services: services.server_keys),
    Route(paths.TOKEN, Access.SERVER, rotate_token, lambda services: services.server_keys, ("PUT",), MAX_TOKEN_BODY),
)


def routes(services: SupervisorServices) -> Callable[[str], Supervised | None]:
    """Return the function that finds the route of a path."""
    exact = {
        row.path: Supervised(
            row.path,
            row.access,
            row.methods,
            _handler(row, services),
            row.max_body,
            _screen(row, services),
            row.needs_machine,
        )
        for row in ROUTES
    }

    redirects = {
        path: Supervised(path, Access.PUBLIC, None, _redirection(path), MAX_AGENT_BODY)
        for path in exact
        if path != paths.STATIC
    }
    static = Supervised(paths.STATIC, Access.PUBLIC, None, _redirection(paths.STATIC), MAX_AGENT_BODY)

    def find(path: str) -> Supervised | None:
        clean = clean_path(path)
        if clean.startswith(paths.STATIC):
            return exact[paths.STATIC]
        if clean == paths.STATIC.rstrip("/"):
            return static
        return exact.get(path) if clean == path else redirects.get(clean)

    return find


def _redirection(path: str) -> Callable[[RequestContext], Awaitable[Response]]:
    """Return the handler that sends a client to a path of the table. Status 307 keeps method and body."""
    headers = ((b"location", path.encode()),)

    async def redirect(context: RequestContext) -> Response:
        return Response(307, b"", headers)

    return redirect


def _handler(row: Route[Any], services: SupervisorServices) -> Callable[[RequestContext], Awaitable[Response]]:
    return lambda context: row.serve(context, row.needs(services))


def _screen(row: Route[Any], services: SupervisorServices) -> Callable[[RequestContext], None] | None:
    screen = row.screen
    return None if screen is None else lambda context: screen(context, row.needs(services))


def clean_path(path: str) -> str:
    """Return the clean form of a path: no empty segment, no `.` and no `..`. A slash at its end stays.

    Source: net/http, cleanPath, and path.Clean (Go 1.26, with which k3s is built).
    """
    if path[:1] == "/" and "//" not in path and "/." not in path:
        return path
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments) + ("/" if segments and path.endswith("/") else "")
