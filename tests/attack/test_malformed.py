"""Ten thousand credentials that are almost right, at a server with every authenticator turned on.

Rules kept here: no request gets a 5xx or is accepted, and none causes a traceback; all refusals are equal in every byte except the
Audit-Id; no secret is in a response or the log. The credentials are equal in each run. HYPOTHESIS_PROFILE=thorough makes forty
times as many.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.pki.pem import encode
from mooring.server.transport.tlsconnection import TlsConnection
from tests.support.damage import CONTROLS, STRANGE, certificates, damaged, flipped, forged, same_token
from tests.support.everyway import EveryWay, every_way
from tests.support.serverroom import Reply, connection

TARGET = "/api/v1/namespaces/kube-system/secrets"
TIMES = max(1, settings().max_examples // 50)
AUTHORIZATIONS, TOKENS, PASSWORDS, CHAINS, WEBSOCKETS = (TIMES * number for number in (2500, 4500, 800, 1600, 600))
BEARER = "base64url.bearer.authorization.k8s.io."


@dataclass(frozen=True)
class Attempt:
    """One request: its headers, and the connection's certificates."""

    headers: tuple[tuple[str, str], ...] = ()
    chain: tuple[bytes, ...] = ()


def authorized(value: str) -> Attempt:
    return Attempt((("Authorization", value),))


def sendable(text: str) -> str:
    """Return text that a header can carry: text outside Latin-1 is sent as UTF-8."""
    return text.encode("utf-8", "replace").decode("latin-1")


def authorizations(way: EveryWay, random: Random) -> Iterator[Attempt]:
    good = [f"Bearer {token}" for token in way.tokens.values()]
    basic = [f"Basic {base64.b64encode(f'{name}:{word}'.encode()).decode()}" for name, word in way.passwords.items()]
    good += basic
    whole = {one.partition(" ")[2].rstrip("=") for one in basic}
    schemes = (
        "Bearer",
        "bearer",
        "BEARER",
        "Basic",
        "Digest",
        "Negotiate",
        "Bearer\t",
        "Bearer,",
        "",
        "Bearer:",
        " Bearer",
    )
    while True:
        value = random.choice(good)
        scheme, _, rest = value.partition(" ")
        made = random.choice(
            (
                f"{random.choice(schemes)} {damaged(rest, random)}",
                f"{scheme}  {rest}",
                f"{random.choice(schemes)} {random.choice(STRANGE)}",
                f"{scheme} {random.choice(CONTROLS)}{rest}",
                damaged(value, random),
                "".join(map(chr, random.choices(range(256), k=random.randrange(60)))),
                f"{scheme} " + "x" * random.randrange(100_000),
            )
        )
        offered = [*made.strip().split(" ", 2), ""][1]
        if not any(same_token(offered, one.partition(" ")[2]) for one in good) and offered.rstrip("=") not in whole:
            yield authorized(sendable(made))


def tokens(way: EveryWay, random: Random) -> Iterator[Attempt]:
    good = tuple(way.tokens.values())
    signed = [one for one in good if one.count(".") == 2]
    key = way.server.assembly.trust.authentication.tokens.keys.public_keys[0]
    known = encode("PUBLIC KEY", key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()
    while True:
        one = random.choice(signed)
        made = random.choice((forged(one, known, random), forged(one, known, random), damaged(one, random)))
        if not any(same_token(made, other) for other in good):
            yield authorized(sendable(f"Bearer {made}"))


def passwords(way: EveryWay, random: Random) -> Iterator[Attempt]:
    names = (*way.passwords, "", "nobody", "plain:", "plain\0", "system:admin", "jane@Default", "@", "é" * 300)
    while True:
        name, word = random.choice(list(way.passwords.items()))
        text = random.choice(
            (
                f"{name}:{flipped(word, random)}",
                f"{random.choice(names)}:{word}x",
                f"{name}:{word}:",
                f"{name}::{word}",
                f":{name}:{word}",
                f"{name}{word}",
                f"{name}:",
                f"{name.upper()}:{word}",
                f"{name} :{word}",
                f"{name}:{word}\0",
                f"{name}:" + "x" * random.randrange(50_000),
            )
        )
        if text != f"{name}:{word}":
            raw = text.encode("utf-8", "surrogatepass")
            sent = base64.b64encode(raw if random.random() < 0.9 else raw + b"\xff").decode()
            yield authorized(f"Basic {sent if random.random() < 0.9 else sent + random.choice('~é*')}")


def chains(way: EveryWay, random: Random) -> Iterator[Attempt]:
    authority = way.server.ca.certificate_pem
    root = base64.b64decode(b"".join(authority.splitlines()[1:-1]))
    told = (("X-Remote-User", "root"), ("X-Remote-Group", "system:masters"), ("X-Remote-Extra-%zz", "\x7f"))
    ours, proxies = certificates([way.client.der, root], random), certificates([way.proxy.der], random)
    while True:
        yield Attempt(random.choice(((), told)), tuple(next(random.choice((ours, proxies)))))


def websockets(way: EveryWay, random: Random) -> Iterator[Attempt]:
    upgrade = (("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"),
               ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="))  # fmt: skip
    while True:
        token = random.choice(tuple(way.tokens.values()))
        sent = base64.urlsafe_b64encode(damaged(token, random).encode()).rstrip(b"=").decode()
        offered = random.choice(
            (
                f"{BEARER}{sent}x, v4.channel.k8s.io",
                f"{BEARER}{sent}, {BEARER}{sent}, v4.channel.k8s.io",
                f"{BEARER}{sent}",
                f"v4.channel.k8s.io,{BEARER}{damaged(sent or 'A', random)}-_",
                f"{BEARER}{sent}=, a",
                f"{BEARER}_w, a",
            )
        )
        yield Attempt((*upgrade, ("Sec-WebSocket-Protocol", sendable(offered))))


Attempts = Callable[[EveryWay, Random], Iterator[Attempt]]
KINDS: tuple[tuple[str, Attempts, int], ...] = (
    ("headers without a valid credential", authorizations, AUTHORIZATIONS),
    ("tokens without a valid signature", tokens, TOKENS),
    ("passwords that are not theirs", passwords, PASSWORDS),
    ("certificates that were damaged", chains, CHAINS),
    ("tokens among WebSocket subprotocols", websockets, WEBSOCKETS),
)


def fingerprint(reply: Reply) -> tuple[int, bytes, tuple[tuple[str, str], ...]]:
    """Return everything that a caller sees except the Audit-Id."""
    return reply.status, reply.body, tuple(pair for pair in reply.every_header if pair[0] != "audit-id")


class Sources:
    """Connections with a source address of their own, so that the limit on guesses does not apply."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def connection(self, chain: tuple[bytes, ...] = ()) -> TlsConnection:
        number = next(self._numbers)
        return connection(chain, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")


def test_the_attempts_are_ten_thousand() -> None:
    assert sum(number for _, _, number in KINDS) >= 10_000


@pytest.mark.parametrize(("make", "number"), [pytest.param(*row[1:], id=row[0]) for row in KINDS])
def test_damaged_credentials_are_refused_without_a_hint(
    make: Attempts, number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: Counter[int] = Counter()
    refusals, unknown = set(), set()
    audit = tmp_path / "audit.log"
    secrets: tuple[str, ...] = ()

    async def body() -> None:
        nonlocal secrets
        sources = Sources()
        async with every_way(tmp_path, audit_log_path=str(audit)) as way:
            secrets = way.secrets
            nobody = fingerprint(await way.server.get(TARGET, via=sources.connection()))
            assert nobody[0] == 403
            for attempt in itertools.islice(make(way, Random(number)), number):
                reply = await way.server.get(TARGET, headers=attempt.headers, via=sources.connection(attempt.chain))
                seen[reply.status] += 1
                assert "audit-id" in reply.headers
                if reply.status == 401:
                    refusals.add(fingerprint(reply))
                elif fingerprint(reply) != nobody and "warning" not in reply.headers:
                    unknown.add((attempt, reply.status, reply.body))

    with caplog.at_level(logging.DEBUG):
        asyncio.run(body())
    assert not unknown
    assert len(refusals) == 1, "one refusal looks like another"
    assert seen.keys() <= {401, 403}
    assert seen[401] > number // 4
    assert [one.getMessage() for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR] == []
    came_out = caplog.text + audit.read_text() + repr(refusals)
    assert "authentication.mooring.dev/refused" in came_out
    assert not [one for one in secrets if one in came_out]


NAMES = st.sampled_from(
    ("authorization", "x-remote-user", "x-remote-extra-a%4", "upgrade", "connection", "sec-websocket-protocol", "audit-id",
     "impersonate-user", "impersonate-extra-%", "impersonate-group", "accept", "user-agent")
)  # fmt: skip
VALUES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from((b"websocket", b"Upgrade", b"v4.channel.k8s.io", BEARER.encode() + b"YQ, a")),
    st.text(max_size=80).map(str.encode),
    st.builds(lambda scheme, rest: scheme + rest, st.sampled_from((b"Bearer ", b"Basic ", b"basic  ")), st.binary(max_size=90)),
    st.text(max_size=80).map(lambda text: b"Basic " + base64.b64encode(text.encode())),
)  # fmt: skip


def test_any_headers_at_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        way: EveryWay = runner.run(stack.enter_async_context(every_way(tmp_path)))
        sources = Sources()

        @given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
        def any_headers(headers: list[tuple[str, bytes]]) -> None:
            sent = [(name, value.decode("latin-1")) for name, value in headers]
            reply = runner.run(way.server.get(TARGET, headers=sent, via=sources.connection()))
            assert reply.status in (400, 401, 403, 406)
            if reply.status == 401:
                assert reply.message == "Unauthorized"

        try:
            any_headers()
        finally:
            runner.run(stack.aclose())
    assert [one.getMessage() for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR] == []
