"""Time for what a stranger makes costly, of the greatest size that is read: certificates, requests, tokens, key sets, kubeconfigs.

Rules kept here: measured in this process, without TLS. Of all forms the one that takes longest is the figure. The table in
docs/performance.md has the same rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric import ec

from mooring import base64url
from mooring.api.certificates import certificatesigningrequest
from mooring.authn.credentials import Credentials
from mooring.authn.oidc.authenticator import MAX_HEADER, MAX_KEY_SET, MAX_TOKEN, Expected, check
from mooring.authn.recovery import RecoveryAuthenticator
from mooring.errors import MooringError
from mooring.pki.jwt.keyset import MAX_KEYS, parse_key_set
from mooring.pki.jwt.token import claimed_issuer, decode_unverified
from mooring.pki.pem import MAX_PEM_BYTES
from mooring.pki.x509 import bundles, requests
from mooring.pki.x509.certificate import MAX_ELEMENTS
from mooring.pki.x509.verify import ClientTrust
from mooring.registry.offload import LONG_BYTES
from mooring.server.endpoints.supervisor.certificates import MAX_REQUEST as MAX_SUPERVISED
from mooring.trust.discovery.fetch import MAX_BODY, read_cluster_info
from mooring.trust.httpexchange import HttpResponse
from mooring.trust.kubeconfigtext import MAX_BYTES, parse_kubeconfig
from tests.support.costlycertificates import ATTRIBUTES, FORMS, bundle, certificate_request, chain, labels
from tests.support.testca import ThrowawayCA

OF_REQUESTS = 40 << 10
"""Octets of what is large in a request of 54 KiB."""


def rows(runs: int, say: Callable[[str], None]) -> Iterator[tuple[str, str, str]]:
    """Yield the work, the wanted figure and Mooring's."""
    say("costly certificates")
    now = datetime.now(UTC)
    trust = ClientTrust([ThrowawayCA(now=now).certificate])
    retired = ClientTrust([ThrowawayCA("retired", now).certificate])

    def recovering(presented: tuple[bytes, ...]) -> object:
        offered = Credentials(presented, headers=lambda name: ("Mooring-Recovery",) if name == "authorization" else ())
        return RecoveryAuthenticator(trust, (), retired).authenticate(offered, {}, now, ())

    leaves, chains = [chain(form) for form in FORMS], [chain(form, above=True) for form in FORMS]
    every, parse = (*FORMS, *ATTRIBUTES), requests._parse  # noqa: SLF001 - beside its memory
    texts = [certificate_request(form, OF_REQUESTS) for form in every]
    supervised = [certificate_request(form, MAX_SUPERVISED - 1024) for form in every]
    texts_of_cas = [
        labels(MAX_PEM_BYTES // 50),
        *(bundle(form, MAX_ELEMENTS // 4, MAX_PEM_BYTES - 99) for form in FORMS),
    ]
    usages = {"usages": ["a"] * (LONG_BYTES // 4)}
    table: Sequence[tuple[str, str, Sequence[Callable[[], object]]]] = (
        ("a stranger's certificate of 64 KiB", "≤ 10 ms", [lambda one=one: trust.verify(one, now) for one in leaves]),
        (
            "the same with an intermediate of 32 KiB",
            "≤ 10 ms",
            [lambda one=one: trust.verify(one, now) for one in chains],
        ),
        ("the same, asking for recovery", "≤ 10 ms", [lambda one=one: recovering(one) for one in chains]),
        ("a certificate request of 54 KiB", "≤ 10 ms", [lambda one=one: parse(one) for one in texts]),
        (
            "a certificate request of 10 KiB of a k3s agent",
            "≤ 10 ms",
            [lambda one=one: parse(one) for one in supervised],
        ),
        ("4 000 usages of a request", "≤ 10 ms", [lambda: certificatesigningrequest.spec_errors(usages)]),
        (
            "a bearer token of 64 KiB, until its issuer is known",
            "≤ 10 ms",
            [lambda one=one: claimed_issuer(one) for one in _tokens(64 << 10)],
        ),
        (
            "an ID token of 32 KiB, until its key is looked up",
            "≤ 10 ms",
            [lambda one=one: _judge(one, now) for one in _tokens(MAX_TOKEN)],
        ),
        ("a key set of 256 KiB", "≤ 10 ms", [lambda one=one: parse_key_set(one) for one in _key_sets()]),
        (
            "1 MiB of CAs, in a thread of the server or on a client",
            "≤ 1 s",
            [lambda one=one: bundles.certificates_among(one) for one in texts_of_cas],
        ),
        (
            "a kubeconfig of 1 MiB, on a client",
            "≤ 1 s",
            [lambda one=one: parse_kubeconfig(one) for one in _kubeconfigs()],
        ),
        (
            "a cluster-info of 4 MiB, on a client",
            "≤ 1 s",
            [lambda one=one: read_cluster_info("", HttpResponse(200, one)) for one in _answers()],
        ),
    )
    for work, wanted, computations in table:
        slowest = max(min(_seconds(compute) for _ in range(max(5, runs))) for compute in computations)
        yield f"{work}, the form that takes longest", wanted, f"{slowest * 1000:.1f} ms"


def _tokens(octets: int) -> Iterator[str]:
    """Yield tokens whose payloads have many members, elements, audiences or digits."""
    room = (octets - 99) * 3 // 4
    for payload in (
        b'{"aud":[' + b",".join([b'""'] * (room // 3 - 9)) + b"]}",
        b"{" + b",".join(b'"%d":1' % number for number in range(room // 10)) + b"}",
        b'{"a":[' + b",".join([b"{}"] * (room // 3 - 9)) + b"]}",
        b'{"a":' + b"[" * (room // 2 - 9) + b"]" * (room // 2 - 9) + b"}",
        b'{"exp":' + b"9" * (room - 20) + b"}",
    ):
        yield f"{base64url.encode(json.dumps({'alg': 'RS256'}).encode())}.{base64url.encode(payload)}.AA"


def _judge(token: str, now: datetime) -> object:
    audiences = tuple(f"https://{number}.example.com" for number in range(64))
    return check(*decode_unverified(token, MAX_HEADER, MAX_TOKEN), Expected(audiences, ("RS256",)), now)


def _key_sets() -> Iterator[bytes]:
    """Yield key sets of the greatest keys, of one long number, and of elements that are no keys."""
    point = ec.generate_private_key(ec.SECP521R1()).public_key().public_numbers()
    x, y = (base64url.encode(number.to_bytes(66, "big")) for number in (point.x, point.y))
    modulus = base64url.encode((1 << 8191 | 1).to_bytes(1024, "big"))
    for keys in (
        [{"kty": "RSA", "n": modulus, "e": "AQAB"}] * MAX_KEYS,
        [{"kty": "EC", "crv": "P-521", "x": x, "y": y}] * MAX_KEYS,
        [{"kty": "EC", "crv": "P-256", "x": "A" * (MAX_KEY_SET - 99), "y": "AA"}],
        [1] * (MAX_KEY_SET // 3 - 9),
    ):
        yield json.dumps({"keys": keys}).encode()


def _kubeconfigs() -> Iterator[str]:
    """Yield kubeconfigs of many entries, levels and keys, and of one long value."""
    yield "clusters:\n" + "- {}\n" * (MAX_BYTES // 5 - 9)
    yield "a: [" + "1," * (MAX_BYTES // 2 - 9) + "]"
    yield "a:\n" + "".join(" " * (number % 60 + 1) + f"b{number}:\n" for number in range(20_000))
    yield "".join(f"k{number}: 1\n" for number in range(90_000))
    yield "clusters:\n- cluster:\n    certificate-authority-data: " + "A" * (MAX_BYTES - 99)


def _answers() -> Iterator[bytes]:
    """Yield answers of many lists and of many signatures."""
    yield b'{"a":[' + b"[]," * (MAX_BODY // 3 - 9) + b"1]}"
    data = b",".join(b'"jws-kubeconfig-%06d":""' % number for number in range(MAX_BODY // 27))
    yield b'{"kind":"ConfigMap","metadata":{"name":"cluster-info"},"data":{' + data + b"}}"


def _seconds(compute: Callable[[], object]) -> float:
    start = time.perf_counter()
    with suppress(MooringError):
        compute()
    return time.perf_counter() - start
