"""A whole server (`serverroom`) behind a listener on a port of the kernel: what clients see over TLS, without a process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mooring.server.transport.http import Request, Response
from tests.support.serverroom import Server, open_server
from tests.support.testca import ThrowawayCA
from tests.support.tlspeer import Served, serving


@contextlib.contextmanager
def served_room(**flags: Any) -> Iterator[tuple[Served, Server]]:
    """Serve `open_server(**flags)`. A test may put another handler around `server.handle` into `served.application`."""
    with serving(ThrowawayCA(), _not_yet) as served:
        opened = open_server(**flags)
        server = served.run(opened.__aenter__)
        served.application.handler = server.handle
        try:
            yield served, server
        finally:
            served.run(lambda: opened.__aexit__(None, None, None))


async def _not_yet(request: Request) -> Response:
    raise AssertionError("no client knows the port yet")
