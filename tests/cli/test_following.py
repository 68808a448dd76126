"""Requests of a refresh: the addresses of a cluster share its time, and one that hangs is waited for once."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from mooring.cli.login import following
from mooring.cli.login.following import SECONDS, follow
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.trust.discovery.clusterinfo import config_map
from mooring.trust.discovery.errors import EndpointTimeoutError
from mooring.trust.discovery.pins import pins_of
from mooring.trust.discovery.refresh import MergeBase, Refreshed, digest
from mooring.trust.httpexchange import (
    CERTIFICATE,
    REQUEST_TIMEOUT,
    SHORTEST_WAIT,
    TIMEOUT,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
)
from mooring.trust.kubeconfig import Cluster
from tests.support.discoverypeer import CA, OTHER_CA, Server, status
from tests.support.manualclock import ManualClock


class HangingNetwork:
    """Servers that answer, at the names that are given; each other address hangs for as long as the request allows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answering: str, published: tuple[str, ...] = ()) -> None:
        first, *others = (f"https://{one}" for one in published or answering or ("a.test",))
        self.clock = ManualClock()
        self.server = Server(config_map(first, CA, others=others))
        self.answering = answering
        self.waits: list[tuple[str, float]] = []
        monkeypatch.setattr(following, "fetch", self.fetch)

    async def fetch(self, request: HttpRequest, clock: Clock) -> HttpResponse | HttpFailure:
        host = urlsplit(request.url).netloc.removesuffix(":443")
        if host in self.answering:
            return self.server.answer(request)
        seconds = min(request.timeout, request.within)
        self.waits.append((host, seconds))
        self.clock.spend(seconds)
        return HttpFailure(TIMEOUT, f"no connection within {seconds:g} s", elapsed=seconds)

    def follow(self, remembered: list[str], seconds: float = SECONDS) -> Refreshed:
        """Follow the cluster of an entry that names the first address, and remembers all of them."""
        base = MergeBase(tuple(f"https://{one}" for one in remembered), digest(CA), digest(CA))
        entry = Cluster("kubernetes", f"https://{remembered[0]}", CA)
        return asyncio.run(follow((entry,), base, (), self.clock, seconds))


def addresses(count: int) -> list[str]:
    return [f"n{number}.test" for number in range(count)]


def test_the_last_of_thirty_addresses_is_found_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = addresses(30)
    network = HangingNetwork(monkeypatch, remembered[-1])
    assert network.follow(remembered).clusters[0].server == f"https://{remembered[-1]}"
    assert network.waits == [(one, SECONDS / 30) for one in remembered[:-1]]


@pytest.mark.parametrize(
    ("count", "seconds", "share"),
    [
        pytest.param(1, SECONDS, REQUEST_TIMEOUT, id="no request is longer than without the limit"),
        pytest.param(6, SECONDS, 5.0, id="each has its share"),
        pytest.param(2, 4.0, 2.0, id="of the time that was given"),
    ],
)
def test_the_time_is_shared(monkeypatch: pytest.MonkeyPatch, count: int, seconds: float, share: float) -> None:
    network = HangingNetwork(monkeypatch)
    with pytest.raises(EndpointTimeoutError, match=f"n{count - 1}.test.*no connection within {share:g} s"):
        network.follow(addresses(count), seconds)
    assert network.waits == [(one, share) for one in addresses(count)]


def test_where_the_time_is_over_no_further_address_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    network = HangingNetwork(monkeypatch)
    with pytest.raises(
        EndpointTimeoutError,
        match=r"from https://n3\.test:443 with TLS verified: no answer in time \(no connection within 0\.5 s; "
        r"no time is left for 996 more of the addresses, which share --timeout\)",
    ):
        network.follow(addresses(1000), 2.0)
    assert network.waits == [(one, SHORTEST_WAIT) for one in addresses(4)]
    assert network.clock.monotonic() == 2.0


def test_an_address_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is published still: the merge would ask it again, and then by the way of the entry."""
    network = HangingNetwork(monkeypatch, "n1.test", published=("n0.test", "n1.test"))
    found = network.follow(addresses(2))
    assert [one.server for one in found.clusters] == ["https://n1.test", "https://n0.test"]
    assert [host for host, _ in network.waits] == ["n0.test"]


PIN = str(pins_of(CA)[0])
COMPARE = (
    f"The machine there names the CA {PIN}. If the CA of the cluster was replaced because it was compromised, compare"
)


@pytest.mark.parametrize(
    ("known", "shown", "advice"),
    [
        pytest.param(
            CA + OTHER_CA,
            CA,
            f"The machine there names the CA {PIN}, which is known here: a hash does not help. Use an "
            "address that its certificate names, or add this one to the certificate of the server (--tls-san)",
            id="the CA of the file: a name is missing",
        ),
        pytest.param(OTHER_CA, CA, COMPARE, id="another CA"),
        pytest.param(b"", CA, COMPARE, id="the CAs of the system"),
        pytest.param(CA, None, "If the CA of the cluster was replaced without this file", id="no CA is shown"),
    ],
)
def test_a_certificate_that_does_not_verify_leads_to_what_a_person_can_do(
    monkeypatch: pytest.MonkeyPatch, known: bytes, shown: bytes | None, advice: str
) -> None:
    network = HangingNetwork(monkeypatch, "n0.test")

    def mismatched(count: int, request: HttpRequest) -> HttpResponse | HttpFailure | None:
        assert isinstance(request.target, Trust)
        if request.target.verify:
            return HttpFailure(CERTIFICATE, "hostname mismatch, certificate is not valid for 'n0.test'")
        return None if shown else status(403)

    network.server.override = mismatched
    with pytest.raises(ConfigError) as caught:
        asyncio.run(follow((Cluster("kubernetes", "https://n0.test", known),), None, (), network.clock))
    assert "certificate is not valid for 'n0.test'" in str(caught.value)
    assert advice in str(caught.value)
