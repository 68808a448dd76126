"""Connection to an OpenID provider for the exchanges of one login."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mooring.client.http import tls
from mooring.client.http.connection import ConnectionPool


@asynccontextmanager
async def provider_connection(issuer: str, ca_pem: bytes) -> AsyncIterator[ConnectionPool]:
    """Yield a connection to `issuer`, verified by the CAs in `ca_pem`, or by the system's roots when it is empty."""
    context = tls.trusting(ca_pem) if ca_pem else tls.trusting_system_roots()
    connection = ConnectionPool(context)
    try:
        yield connection
    finally:
        await connection.close()
