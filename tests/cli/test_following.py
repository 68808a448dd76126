"""Requests of a refresh: the addresses of a cluster share its time, and one that hangs is waited for once."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from mooring.cli.login import following
from mooring.cli.login.following import SECONDS, check_same, follow, followed, remembered_id
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.trust.discovery.clusterinfo import config_map
from mooring.trust.discovery.errors import AnotherClusterError, EndpointTimeoutError
from mooring.trust.discovery.pins import pins_of
from mooring.trust.discovery.refresh import MergeBase, Refreshed, digest
from mooring.trust.httpexchange import (
    CERTIFICATE,
    REQUEST_TIMEOUT,
    SHORTEST_WAIT,
    TIMEOUT,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
)
from mooring.trust.kubeconfig import Cluster
from mooring.trust.loginrecord import Place
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


# ── another cluster of the same CA ───────────────────────────────────────────────────────────────────────────────────

A, B = "https://a.test:6443", "https://b.test:6443"
UNREADABLE = status(401)


class Clusters:
    """Servers by URL, each of the cluster with this id, or with an answer in place of cluster-info; the rest is away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, str | HttpResponse]) -> None:
        self.clock, self.asked = ManualClock(), list[str]()
        self.answers = answers
        monkeypatch.setattr(following, "fetch", self.fetch)

    async def fetch(self, request: HttpRequest, clock: Clock) -> HttpResponse | HttpFailure:
        server = f"https://{urlsplit(request.url).netloc}"
        self.asked.append(server)
        answer = self.answers.get(server)
        if answer is None:
            return HttpFailure(UNREACHABLE, "connection refused")
        if isinstance(answer, HttpResponse):
            return answer
        return Server(config_map(server, CA, cluster_id=answer)).answer(request)


def place(known_id: str, *servers: str) -> Place:
    base = MergeBase(servers or (A,), digest(CA), digest(CA), cluster_id=known_id)
    return Place(A, CA, published=base.extension())


@pytest.mark.parametrize(
    ("remembered", "given", "answers", "server", "asked"),
    [
        pytest.param(place("one"), "", {A: "one"}, A, [A], id="the known cluster, by one request"),
        pytest.param(place("one"), "", {A: "two"}, None, [A, A], id="another one"),
        pytest.param(place("one"), "two", {A: "one"}, None, [A, A], id="another one than the entry remembers"),
        pytest.param(Place(A, CA), "two", {A: "one"}, None, [A, A], id="another one than the entry alone remembers"),
        pytest.param(place(""), "", {A: "two"}, A, [A], id="an id that is not known"),
        pytest.param(Place(A, CA), "", {A: "two"}, A, [A], id="nothing is known"),
        pytest.param(place("one"), "", {A: ""}, A, [A], id="an id that is not published"),
        pytest.param(place("one"), "", {A: UNREADABLE}, A, [A], id="cluster-info that cannot be read"),
        pytest.param(place("one"), "", {}, A, [A], id="a server that is away"),
        pytest.param(place("one", A, B), "", {A: "two", B: "one"}, B, [A, B], id="the known one at a further address"),
        pytest.param(
            place("one", A, B), "", {A: UNREADABLE, B: "two"}, A, [A, B, A], id="another one at a further address alone"
        ),
    ],
)
def test_a_login_does_not_follow_another_cluster(
    monkeypatch: pytest.MonkeyPatch,
    remembered: Place,
    given: str,
    answers: dict[str, str | HttpResponse],
    server: str | None,
    asked: list[str],
) -> None:
    clusters = Clusters(monkeypatch, answers)
    if server is None:
        with pytest.raises(AnotherClusterError, match="another cluster answers there: its id is "):
            followed(remembered, clusters.clock, given)
    else:
        assert followed(remembered, clusters.clock, given).server == server
    assert clusters.asked == asked


@pytest.mark.parametrize(
    ("known_id", "answer", "is_refused", "requests"),
    [
        pytest.param("one", "one", False, 1, id="the known one"),
        pytest.param("one", "two", True, 1, id="another one"),
        pytest.param("one", UNREADABLE, False, 1, id="cluster-info that cannot be read"),
        pytest.param("", "two", False, 0, id="an id that is not known asks nothing"),
    ],
)
def test_a_new_login_compares_an_id_that_is_known(
    monkeypatch: pytest.MonkeyPatch, known_id: str, answer: str | HttpResponse, is_refused: bool, requests: int
) -> None:
    clusters = Clusters(monkeypatch, {A: answer})
    if is_refused:
        with pytest.raises(AnotherClusterError, match="its id is two, and the known one is one"):
            check_same(Place(A, CA), clusters.clock, known_id)
    else:
        check_same(Place(A, CA), clusters.clock, known_id)
    assert len(clusters.asked) == requests


def test_the_first_entry_that_remembers_an_id_counts() -> None:
    entries = [one.cluster() for one in (Place(A, CA), place(""), place("one"), place("two"))]
    assert (remembered_id(*entries), remembered_id(*entries[:2])) == ("one", "")
