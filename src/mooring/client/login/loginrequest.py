"""Requests of a login: to the identity provider, whose browser comes back to a loopback address, and to the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http import tls
from mooring.client.http.connection import ConnectionPool
from mooring.clock import Clock, parse_rfc3339, rfc3339
from mooring.errors import ConfigError, ForbiddenError, MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.identity import ANONYMOUS
from mooring.pki.errors import PkiError
from mooring.pki.keys import generate_key, private_key_pem, public_key_der
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import CertificateError, NotKubernetesError
from mooring.trust.kubeconfig import KubeconfigUser
from mooring.trust.loginrecord import CERTIFICATE, Credential, Place
from mooring.trust.oidc.grants import StrayRedirectError

# Connection to an OpenID provider for the exchanges of one login.


@asynccontextmanager
async def provider_connection(issuer: str, ca_pem: bytes) -> AsyncIterator[ConnectionPool]:
    """Yield a connection to `issuer`, verified by the CAs in `ca_pem`, or by the system's roots when it is empty."""
    context = tls.trusting(ca_pem) if ca_pem else tls.trusting_system_roots()
    connection = ConnectionPool(context)
    try:
        yield connection
    finally:
        await connection.close()


# Login request: send a credential of the user's provider to the cluster and receive a short-lived one.
#
# Rules kept here (docs/adr/0020): the key of a certificate is generated here and never sent. The response is checked before it is
# stored: it is for that key and that user, and valid by this machine's clock. Reasons of the server are passed on unchanged.

PATH = "/mooring/v1/login"


class LoginRefusedError(PeerError):
    """The cluster does not accept the user's credential (401). `explained`: end of a message, with the command that explains it."""

    def __init__(self, server: str, user: KubeconfigUser, audit_id: str) -> None:
        self.explained = explained_by(audit_id)
        if user.password is not None:
            cause = "a wrong user name or password"
        elif user.token is not None or user.token_file:
            cause = "the token has expired, or is of another issuer, audience or cluster"
        else:
            cause = "they have expired, or are of another cluster"
        super().__init__(f"{server} does not accept the credentials: {cause}{self.explained}")


async def request_credential(place: Place, user: KubeconfigUser, kind: str, clock: Clock) -> Credential:
    """Return the credential that the cluster issues to `user`. Raises ApiError, PeerError, ConfigError."""
    cluster = place.cluster()
    key = generate_key() if kind == CERTIFICATE else None
    body: Obj = {"certificateRequest": build_request(key, "").decode()} if key else {}
    async with ClusterClient(cluster, user, clock) as client:
        try:
            answer = await client.post_path(PATH, body)
        except CertificateError:
            if place.ca_pem:
                raise
            raise PeerError(
                f"no CA of this machine vouches for the certificate of {place.server}: name the cluster's CA with "
                "--certificate-authority, or its pin with --discovery-token-ca-cert-hash"
            ) from None
        except UnauthorizedError as error:
            raise LoginRefusedError(place.server, user, error.audit_id) from None
        except ForbiddenError as error:
            if f'"{ANONYMOUS}"' not in str(error):
                raise
            raise PeerError(
                f"{place.server} ignores the credentials: it is not set up for passwords, for example"
                + explained_by(error.audit_id)
            ) from None
        except (NotFoundError, NotKubernetesError) as error:
            if isinstance(error, NotKubernetesError) and "404" not in str(error):
                raise
            raise PeerError(
                f"{place.server} offers no login: it is not a Mooring server, or its --login-ttl is 0"
            ) from None
    now = clock.now()
    try:
        username, expires = answer["user"]["username"], parse_rfc3339(answer["expirationTimestamp"])
        if key is None:
            credential = Credential(username, now, expires, token=Secret(answer["token"]))
        else:
            certificate_pem = answer["certificate"].encode("ascii")
            credential = Credential(
                username, now, expires, certificate_pem=certificate_pem, key=Secret(private_key_pem(key))
            )
            # Checked before it is stored, and not when a later command uses it.
            leaf = bundles.certificates(certificate_pem)[0]
            if public_key_der(leaf.public_key()) != public_key_der(key.public_key()):  # type: ignore[arg-type] # any key has a DER form
                raise PeerError(f"{place.server} certified another key than the requested one")
            if names.common_name(leaf.subject) != username:
                raise PeerError(f"{place.server} issued a certificate of another user than it says")
    except (KeyError, TypeError, ValueError, AttributeError, PkiError):
        raise PeerError(f"{place.server} answered the login with something else than a credential") from None
    if not credential.usable(now):
        raise PeerError(
            f"{place.server} issued a credential until {rfc3339(expires)}, but this machine's clock says {rfc3339(now)}: "
            "compare the clocks"
        )
    return credential


# Loopback redirect listener: receives the browser at the end of an authorization code grant (RFC 8252 section 7.3).
#
# Rules kept here: it listens on 127.0.0.1 alone, for the time of one login. A request line has a limit. A request that does not
# belong to this login gets an error page and does not end the login. The page for the browser repeats nothing of the request. The
# person who waits gets few notices, because any page can send a browser here.

MAX_LINE = 16 << 10
"""Bytes of a request line that are read at once. Of a longer line twice as many are kept: more than any redirect has."""
MAX_PASSED_OVER = 1 << 20
"""Bytes that are read of a longer line, so that the browser shows the answer and not a broken connection."""
MAX_NOTICES = 3
"""Notices of one login."""
READ_SECONDS = 10.0
"""Seconds for a browser on this machine to send the request line."""
NO_REPLY = b"This does not belong to the login that is waiting. It is still waiting: see its terminal."
_PAGE = b"<!doctype html><meta charset=utf-8><title>mooring</title><p>%b You can close this page.\n"


class Loopback:
    """One listener, on `port`. `read` returns the code in a request target, or None; set it before the browser starts.

    `notify` receives the notices of redirects that do not prove to belong to this login.
    """

    def __init__(self) -> None:
        self.port = 0
        self.read: Callable[[str], Secret | None] = _ignore
        self.notify: Callable[[str], None] = _drop
        self._notices = 0
        self._found: asyncio.Future[Secret] = asyncio.get_running_loop().create_future()

    async def answer(self, seconds: float) -> Secret:
        """Return the code that `read` returned, or raise its error. Raises TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            return await self._found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request on one connection."""
        with (
            closing(writer),
            suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            async with asyncio.timeout(READ_SECONDS):
                line = (await _request_line(reader)).decode("ascii").split(" ")
            status, text = self._page_for(line[1] if line[0] == "GET" and len(line) > 1 else "")
            page = _PAGE % text
            writer.write(
                b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(page), page)
            )
            await writer.drain()

    def _page_for(self, target: str) -> tuple[bytes, bytes]:
        try:
            found = self.read(target)
        except StrayRedirectError as error:
            # Any page can send a browser here: the terminal gets few notices, and the login goes on.
            if self._notices < MAX_NOTICES and not self._found.done():
                self._notices += 1
                self.notify(str(error))
            return b"400 Bad Request", NO_REPLY
        except MooringError as error:
            if not self._found.done():
                self._found.set_exception(error)
            return b"200 OK", b"Login failed."
        if found is None:
            return b"404 Not Found", b"There is nothing here."
        if not self._found.done():
            self._found.set_result(found)
        # The code is redeemed after this page, and the provider or the cluster may still refuse.
        return b"200 OK", b"Return to the terminal: it says whether you are logged in."


async def _request_line(reader: asyncio.StreamReader) -> bytes:
    """Return the request line. A line that is too long is cut, and the rest of it passed over."""
    try:
        return await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        line, length = b"", 0
        while length < MAX_PASSED_OVER and (piece := await reader.read(MAX_LINE)):
            line, length = (line + piece)[: 2 * MAX_LINE], length + len(piece)
            if b"\n" in piece:
                break
        return line


def _drop(notice: str) -> None:
    """Drop a notice."""


def _ignore(target: str) -> Secret | None:
    return None


@asynccontextmanager
async def listening(port: int = 0) -> AsyncIterator[Loopback]:
    """Yield a listener on `port`, or on a free port for 0. Raises ConfigError when it cannot listen."""
    loopback = Loopback()
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(loopback.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    try:
        server = await asyncio.start_server(connected, "127.0.0.1", port, limit=MAX_LINE)
    except OSError as error:
        raise ConfigError(f"port {port} of 127.0.0.1 cannot be listened on: {(error.strerror or '').lower()}") from None
    loopback.port = server.sockets[0].getsockname()[1]
    try:
        yield loopback
    finally:
        server.close()
        # Browsers open connections in advance, and send nothing.
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
