"""The example in the asynchronous form, through the code that runs it, against a login service over TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.company_tokens import MAX_ANSWER, CompanyTokens
from mooring.authn.plugin import ConfigError, NotMine, Offered, Rejected, Secret, User
from mooring.clock import SystemClock
from mooring.server.authentication.custom import CustomCalls
from tests.support.testca import ThrowawayCA

NOW = SystemClock().now()
LATER = int((NOW + timedelta(hours=1)).timestamp())
JANE = {"active": True, "sub": "jane", "groups": ["dev"], "exp": LATER, "aud": "cluster"}


class Service:
    """A login service with one response; it records each request."""

    def __init__(self, answer: bytes, status: str = "200 OK", more: str = "") -> None:
        self.answer, self.status, self.more = answer, status, more
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.requests.append(head + await reader.readexactly(int(length.split(b":")[1])))
        writer.write(
            f"HTTP/1.1 {self.status}\r\n{self.more}content-length: {len(self.answer)}\r\n\r\n".encode() + self.answer
        )
        await reader.read()
        writer.close()


@pytest.fixture
def ca(tmp_path: Path) -> ThrowawayCA:
    made = ThrowawayCA("service", NOW)
    (tmp_path / "ca.crt").write_bytes(made.certificate_pem)
    (tmp_path / "secret").write_text("of the server\n")
    return made


def options(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {
        "url": "https://127.0.0.1:1/introspect",
        "ca-file": str(tmp_path / "ca.crt"),
        "client-id": "mooring",
        "client-secret-file": str(tmp_path / "secret"),
        "token-prefix": "company_",
        "audience": "cluster",
        **more,
    }


def answered(service: Service, ca: ThrowawayCA, tmp_path: Path, token: str = "company_t0ken") -> object:
    """Return the example's verdict on a token with this service behind it."""
    certificate, key = ca.server().write(tmp_path, "service")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def run() -> object:
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        code = CustomCalls("company", CompanyTokens(options(tmp_path, url=f"https://127.0.0.1:{port}/introspect")))
        try:
            return await code.authenticate(Offered(token=Secret(token), now=NOW))
        finally:
            await code.close(10)
            server.close()

    return asyncio.run(run())


def body(**changes: Any) -> bytes:
    return json.dumps({**JANE, **changes}).encode()


UNREAD = Rejected("service-failed", "no answer that could be read")


@pytest.mark.parametrize(
    ("service", "said"),
    [
        pytest.param(Service(body()), User("company:jane", groups=["company:dev"]), id="a token that the service knows"),
        pytest.param(Service(body(aud=["other", "cluster"])), User("company:jane", groups=["company:dev"]),
                     id="a token for several"),
        pytest.param(Service(b'{"active": false}'), Rejected("inactive"), id="a token that was taken back"),
        pytest.param(Service(body(active="true")), Rejected("inactive"), id="a yes that is a text"),
        pytest.param(Service(body(exp=int(NOW.timestamp()))), Rejected("expired"), id="a token whose time is over"),
        pytest.param(Service(body(exp=None)), Rejected("expired"), id="a token without end"),
        pytest.param(Service(body(aud="other")), Rejected("wrong-audience"), id="a token for another"),
        pytest.param(Service(body(aud=None)), Rejected("wrong-audience"), id="a token without an audience"),
        pytest.param(Service(body(sub=None)), Rejected("failed", "it raised TypeError"), id="a token without a subject"),
        pytest.param(Service(b"<html>"), UNREAD, id="an answer that is no JSON"),
        pytest.param(Service(b"[]"), UNREAD, id="an answer that is a list"),
        pytest.param(Service(b" " * (MAX_ANSWER + 1)), UNREAD, id="an endless answer"),
        pytest.param(Service(body(), "500 Oops"), UNREAD, id="an error"),
        pytest.param(Service(body(), "302 Found", "location: https://elsewhere.example/\r\n"), UNREAD,
                     id="a redirect, which is not followed"),
    ],
)  # fmt: skip
def test_each_answer_has_its_verdict(service: Service, said: object, ca: ThrowawayCA, tmp_path: Path) -> None:
    assert answered(service, ca, tmp_path) == said
    assert len(service.requests) == 1


def test_the_service_receives_the_token_and_the_client_id(ca: ThrowawayCA, tmp_path: Path) -> None:
    service = Service(body())
    answered(service, ca, tmp_path)
    head, _, form = service.requests[0].partition(b"\r\n\r\n")
    assert form == b"token=company_t0ken"
    assert b"Basic " + base64.b64encode(b"mooring:of the server") in head


@pytest.mark.parametrize("token", ["other_t0ken", "company", "ç"])
def test_tokens_with_another_prefix_are_not_sent_to_the_service(token: str, ca: ThrowawayCA, tmp_path: Path) -> None:
    service = Service(body())
    assert answered(service, ca, tmp_path, token) == NotMine()
    assert service.requests == []


def test_a_password_is_not_sent_to_the_service(ca: ThrowawayCA, tmp_path: Path) -> None:
    async def run() -> object:
        code = CustomCalls("company", CompanyTokens(options(tmp_path)))
        return await code.authenticate(Offered(user="company_jane", password=Secret("company_"), now=NOW))

    assert asyncio.run(run()) == NotMine()


def test_no_token_is_sent_to_a_service_under_another_ca(ca: ThrowawayCA, tmp_path: Path) -> None:
    service = Service(body())
    (tmp_path / "ca.crt").write_bytes(ThrowawayCA("stranger", NOW).certificate_pem)
    assert answered(service, ca, tmp_path) == Rejected("service-unreachable", "ConnectError")
    assert service.requests == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"url": "http://login.example"}, "url: it must begin with https://", id="no TLS"),
        pytest.param({"audience": ""}, "audience: give a text", id="no audience"),
        pytest.param({"token-prefix": 7}, "token-prefix: give a text", id="a number"),
        pytest.param({"ca-file": "/nowhere"}, "ca-file or client-secret-file: FileNotFoundError", id="no CA"),
        pytest.param({"colour": "red"}, '"colour" is not known; there are audience, ca-file, client-id, '
                     "client-secret-file, prefix, token-prefix, url", id="an unknown key"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused_at_start(
    change: dict[str, Any], told: str, ca: ThrowawayCA, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        CompanyTokens(options(tmp_path, **change))
    assert str(raised.value) == told
