"""What ends soon: from when on a person is told, how often, where, and what stays quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controlplane.expirywatch import ExpirySource, ExpiryWatch, is_near
from mooring.errors import ConfigError
from mooring.pki.x509.certificate import Certificate
from tests.support.manualclock import EPOCH, ManualClock
from tests.support.serverroom import Server, in_server
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=EPOCH)
ADVICE = "write its successor to the same file"
EVENTS = "/api/v1/namespaces/default/events"


def ending(days: float) -> Certificate:
    """Return a certificate that began at EPOCH and ends so many days later."""
    return CA.custom("server", not_before=EPOCH, not_after=EPOCH + timedelta(days=days)).certificate


@pytest.mark.parametrize(
    ("life", "left", "is_ca", "near"),
    [
        pytest.param(365, 31, False, False, id="31 days of a year"),
        pytest.param(365, 29, False, True, id="29 days of a year"),
        pytest.param(365, -1, False, True, id="a day after the end"),
        pytest.param(90, 23, False, False, id="a certificate of 90 days: more than a quarter is left"),
        pytest.param(90, 22, False, True, id="a certificate of 90 days: a quarter is left"),
        pytest.param(1, 0.26, False, False, id="a certificate of a day: seven hours"),
        pytest.param(1, 0.24, False, True, id="a certificate of a day: less than six hours"),
        pytest.param(3650, 366, True, False, id="more than a year of a CA"),
        pytest.param(3650, 364, True, True, id="less than a year of a CA"),
        pytest.param(365, 92, True, False, id="a CA of a year: more than a quarter is left"),
        pytest.param(365, 91, True, True, id="a CA of a year: a quarter is left"),
    ],
)
def test_from_when_on_a_person_is_told(life: float, left: float, is_ca: bool, near: bool) -> None:
    assert is_near(ending(life), EPOCH + timedelta(days=life - left), is_ca=is_ca) is near


def watch_of(server: Server, clock: ManualClock, found: list[Certificate], **options: Any) -> ExpiryWatch:
    written = options.pop("event_written", lambda event: None)
    source = ExpirySource("the serving certificate of tls-cert-file", ADVICE, lambda: found, **options)
    parts = server.assembly.base.parts
    return ExpiryWatch({"serving-certificate": source}, parts.registry, clock, "192-0-2-1", event_written=written)


async def events(server: Server) -> list[tuple[str, str]]:
    reply = await server.get(EVENTS)
    found = [one for one in reply.obj["items"] if one["metadata"]["name"].startswith("serving-certificate.")]
    return [(one["reason"], one["message"]) for one in found]


@in_server
async def test_a_warning_is_a_line_an_event_and_a_check_once_a_day_until_it_is_replaced(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    clock, found = ManualClock(), [ending(365)]
    watch = watch_of(server, clock, found)
    running = asyncio.ensure_future(watch.run())
    await clock.advance(60)
    assert (watch.passes, await events(server), caplog.text) == (True, [], "")
    assert watch.end_of("serving-certificate") == (EPOCH + timedelta(days=365)).timestamp()

    clock.set(EPOCH + timedelta(days=340))  # a virtual machine that was restored from disk
    await clock.advance(60)
    said = f"the serving certificate of tls-cert-file expires in 24d, at 2027-01-02T03:04:05Z: {ADVICE}"
    assert (watch.passes, await events(server)) == (False, [("CertificateExpiring", said)])
    assert caplog.text.count(said) == 1
    await clock.advance(3600)
    assert caplog.text.count("expires in") == 1, "once a day"
    await clock.advance(86400)
    assert len(await events(server)) == 2

    clock.set(EPOCH + timedelta(days=366))
    await clock.advance(60)
    assert (await events(server))[-1][0] == "CertificateExpired"
    assert "the serving certificate of tls-cert-file expired 24h ago" in caplog.text

    found[:] = [ending(800)]
    await clock.advance(60)
    assert watch.passes
    running.cancel()


@in_server
async def test_what_the_server_renews_is_warned_of_when_the_renewal_did_not_come(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Test with a jump of the clock, at which the watch looks first and the renewal comes then."""
    clock, found = ManualClock(), [ending(365)]
    watch = watch_of(server, clock, found, is_renewed=True)
    clock.set(EPOCH + timedelta(days=1500))
    await watch.look()
    assert (watch.passes, await events(server), caplog.text) == (True, [], "")
    found[:] = [ending(1865)]
    await watch.look()
    assert watch.passes
    clock.set(EPOCH + timedelta(days=3000))
    for passes in (True, False):
        await watch.look()
        assert watch.passes is passes
    assert [reason for reason, _ in await events(server)] == ["CertificateExpired"]


@in_server
async def test_the_workers_of_a_server_share_an_event(server: Server) -> None:
    clock, certificate = ManualClock(EPOCH + timedelta(days=350)), ending(365)
    written: list[Obj] = []
    for _ in range(3):
        await watch_of(server, clock, [certificate], event_written=written.append).look()
    assert len(await events(server)) == len(written) == 1


@pytest.mark.parametrize(
    ("days", "last_counts", "passes"),
    [
        pytest.param((365, 800), False, False, id="a chain ends with its first certificate"),
        pytest.param((365, 800), True, True, id="a bundle of CAs ends with its last one"),
        pytest.param((), False, True, id="nothing is in force"),
    ],
)
def test_what_ends_a_chain_and_what_a_bundle(days: Sequence[float], last_counts: bool, passes: bool) -> None:
    @in_server
    async def body(server: Server) -> None:
        clock = ManualClock(EPOCH + timedelta(days=350))
        watch = watch_of(server, clock, [ending(one) for one in days], last_counts=last_counts)
        await watch.look()
        assert watch.passes is passes

    body()


@in_server
async def test_a_file_that_cannot_be_read_is_reported_by_its_user(server: Server) -> None:
    def read() -> Sequence[Certificate]:
        raise ConfigError("etcd.crt: cannot be read")

    watch = ExpiryWatch(
        {"etcd": ExpirySource("a file", ADVICE, read)}, server.assembly.base.parts.registry, ManualClock(), "a"
    )
    await watch.look()
    assert watch.passes
    assert watch.end_of("etcd") > EPOCH.timestamp()


@in_server
async def test_a_whole_server_watches_its_certificates_and_cas(server: Server) -> None:
    text = (await server.get("/metrics")).text
    for name in ("ca", "client_ca", "serving_certificate"):
        assert f"mooring_{name}_expiration_timestamp_seconds" in text
    assert "[+]certificates ok" in (await server.get("/readyz?verbose")).text
