"""Time of the event loop for certificates and requests that a stranger makes costly, of the greatest size that is read.

Rules kept here: measured in this process, without TLS. Of all forms the one that takes longest is the figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from mooring.authn.credentials import Credentials
from mooring.authn.recovery.authenticator import RecoveryAuthenticator
from mooring.pki.errors import PkiError
from mooring.pki.x509 import requests
from mooring.pki.x509.verify import ClientTrust
from tests.support.costlycertificates import ATTRIBUTES, FORMS, certificate_request, chain
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
    texts = [certificate_request(form, OF_REQUESTS) for form in (*FORMS, *ATTRIBUTES)]
    for work, wanted, computations in (
        ("a stranger's certificate of 64 KiB", "≤ 10 ms", [lambda one=one: trust.verify(one, now) for one in leaves]),
        (
            "the same with an intermediate of 32 KiB",
            "≤ 10 ms",
            [lambda one=one: trust.verify(one, now) for one in chains],
        ),
        ("the same, asking for recovery", "≤ 10 ms", [lambda one=one: recovering(one) for one in chains]),
        ("a certificate request of 54 KiB", "≤ 10 ms", [lambda one=one: requests._parse(one) for one in texts]),  # noqa: SLF001 - beside its memory
    ):
        slowest = max(min(_seconds(compute) for _ in range(max(5, runs))) for compute in computations)
        yield f"{work}, the form that takes longest", wanted, f"{slowest * 1000:.1f} ms"


def _seconds(compute: Callable[[], object]) -> float:
    start = time.perf_counter()
    with suppress(PkiError):
        compute()
    return time.perf_counter() - start
