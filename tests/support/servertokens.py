"""Server tokens of k3s's way: asks a live server whether it accepts one."""

from __future__ import annotations

import asyncio

from mooring.client.http.requests import fetch
from mooring.clock import SystemClock
from mooring.secret import Secret
from mooring.trust.httpexchange import HttpRequest, HttpResponse, Trust
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.liveserver import LiveServer
from tests.support.polling import eventually


def accepts(server: LiveServer, password: str, *, user: str = "server", path: str = "/v1-k3s/server-bootstrap") -> bool:
    """Return whether the server accepts a password, also when earlier tests used up the guesses of this address."""
    request = HttpRequest(
        Trust(server.ca_pem),
        url=server.url + path,
        credentials=KubeconfigUser("", username=user, password=Secret(password)),
    )

    def judged() -> HttpResponse | None:
        reply = asyncio.run(fetch(request, SystemClock()))
        assert isinstance(reply, HttpResponse), reply
        return None if reply.status == 429 else reply

    reply = eventually(judged, server)
    assert reply is not None
    assert reply.status in (200, 401), reply
    return reply.status == 200
