"""An HTTP proxy of a test's own on 127.0.0.1: it leads every tunnel to one port of this machine, or refuses.

Rules kept here: it records the head of each request, and stops when its `with` ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support import peer

CONNECTED = b"HTTP/1.1 200 Connected\r\n\r\n"
SECONDS = 5.0


@dataclass
class ConnectProxy:
    """A running proxy."""

    port: int = 0
    heads: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def targets(self) -> list[str]:
        return [head.split(" ")[1] for head in self.heads]


@contextlib.contextmanager
def connect_proxy(port: int = 0, *, refusal: bytes = b"") -> Iterator[ConnectProxy]:
    """Lead tunnels to `port`, or answer each request with `refusal`."""
    proxy, threads = ConnectProxy(), list[threading.Thread]()

    def serve(client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head and (data := client.recv(4096)):
            head += data
        proxy.heads.append(head.decode())
        if refusal:
            client.sendall(refusal)
            return
        server = socket.create_connection(("127.0.0.1", port), SECONDS)
        client.sendall(CONNECTED)
        thread = threading.Thread(target=pipe, args=(client.dup(), server))
        threads.append(thread)
        thread.start()

    def pipe(client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                for one in select.select([client, server], [], [], SECONDS)[0]:
                    if not (data := one.recv(65536)):
                        return
                    (server if one is client else client).sendall(data)

    with peer.byte_peer(serve) as running:
        proxy.port = running.port
        yield proxy
    for thread in threads:
        thread.join()
