"""The cluster's CA, replaced on disk by an administrator while the server runs: used whole or not at all."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from mooring.clock import Clock, SystemClock
from mooring.controlplane.carolloverfiles import LOOK, CaRenewal
from mooring.controlplane.configuration import server_config
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.keystore import KeyStore, prepare
from mooring.controlplane.servingcertificate import ServingPair
from mooring.pki.keys import private_key_pem
from mooring.pki.x509.bundles import certificates
from mooring.settings.serving import ServingSettings
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.support.manualclock import EPOCH, ManualClock, settle
from tests.support.testca import ThrowawayCA, by_library

OTHER = ThrowawayCA("kubernetes@1")


class Room:
    """A running server's CA and serving pair."""

    def __init__(self, root: Path, clock: Clock = SystemClock()) -> None:
        self.root, self.pki = root, root / "pki"
        config = server_config(data_dir=str(root), detected_addresses=("192.0.2.1",))
        self.store: KeyStore = prepare(config, clock.now(), secrets.token_bytes).key_store
        self.reloading = Reloading()
        self.changes = 0
        pair = (self.store.serving_chain, self.store.serving_key)
        self.serving = ServingPair(
            config[ServingSettings], pair, self.store.ca, self.reloading, clock.now, changed=self._changed
        )
        self.renewal = CaRenewal(config, self.store, self.serving, clock, secrets.token_bytes)
        self.renewal.follow(self.reloading)

    def _changed(self) -> None:
        self.changes += 1

    def write(self, **files: bytes) -> None:
        """Replace files of `pki/`, and let the server look until they have rested."""
        for name, data in files.items():
            path = self.pki / name.replace("_", ".")
            path.write_bytes(data)
            path.chmod(0o600)
        for _ in range(2):
            asyncio.run(self.reloading.look())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "data")


def test_a_bundle_is_published_and_the_key_decides_which_ca_issues(room: Room) -> None:
    old = room.store.ca.authority.certificate
    room.write(ca_crt=room.store.ca.trusted_pem + OTHER.certificate_pem)
    assert room.store.ca.trusted == (old, OTHER.certificate)
    assert room.serving.root_ca.pem == room.store.ca.trusted_pem
    assert (room.store.ca.authority.certificate, room.changes) == (old, 1)
    room.write(ca_key=private_key_pem(OTHER.key))
    assert room.store.ca.authority.certificate == OTHER.certificate
    by_library(room.serving.chain[0]).verify_directly_issued_by(by_library(OTHER.certificate))
    admin = parse_kubeconfig((room.root / "admin.conf").read_bytes())
    assert admin.clusters[0].ca_pem == room.store.ca.trusted_pem


def test_half_of_a_change_is_never_in_force(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    before, chain = room.store.ca.state, room.serving.chain
    room.write(ca_key=private_key_pem(OTHER.key))
    assert room.store.ca.state is before
    assert "the CA's private key does not belong to its certificate" in caplog.text
    (room.pki / "ca.crt").unlink()
    for _ in range(2):
        asyncio.run(room.reloading.look())
    assert room.store.ca.state is before
    assert not (room.pki / "ca.crt").exists(), "no CA is made again while the server runs"
    assert (room.serving.chain, room.changes) == (chain, 0)
    room.write(ca_crt=OTHER.certificate_pem)
    assert room.store.ca.trusted == (OTHER.certificate,)
    by_library(room.serving.chain[0]).verify_directly_issued_by(by_library(OTHER.certificate))


def test_files_that_were_only_touched_change_nothing(room: Room) -> None:
    before = room.store.ca.state
    room.write(ca_crt=(room.pki / "ca.crt").read_bytes())
    assert room.store.ca.state is before


def test_a_server_that_runs_for_months_renews_its_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        room = Room(tmp_path / "data", clock)
        first, admin = room.serving.chain[0], (room.root / "admin.conf").read_bytes()

        async def look() -> None:
            await clock.advance(LOOK.total_seconds())
            while clock.sleepers == 0:  # the look is made in a thread
                await asyncio.sleep(0.001)

        running = asyncio.create_task(room.renewal.run())
        await look()
        assert room.serving.chain[0] == first, "most of its life is left"
        clock.set(clock.now() + timedelta(days=300))
        hidden = room.pki / "hidden"
        (room.pki / "ca.crt").rename(hidden)
        await look()
        assert "could not be renewed" in caplog.text
        hidden.rename(room.pki / "ca.crt")
        await look()
        running.cancel()
        assert room.serving.chain[0].not_valid_after_utc > first.not_valid_after_utc
        assert (room.root / "admin.conf").read_bytes() != admin

    asyncio.run(scenario())


def valid_until(room: Room, now: datetime) -> datetime:
    """Assert that the serving certificate and that of admin.conf count at `now`, and return the end of the former."""
    admin = parse_kubeconfig((room.root / "admin.conf").read_bytes()).users[0]
    for certificate in (room.serving.chain[0], *certificates(admin.certificate_pem)):
        assert certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
    return room.serving.chain[0].not_valid_after_utc


@pytest.mark.parametrize(
    "days", [pytest.param(10, id="in jumps of ten days"), pytest.param(200, id="in jumps of 200 days")]
)
def test_every_worker_and_server_has_valid_certificates_a_minute_after_each_jump_of_three_years(
    tmp_path: Path, days: int
) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        first = Room(tmp_path / "data", clock)
        rooms = [first, Room(tmp_path / "data", clock)]
        shutil.copytree(first.root, tmp_path / "other")
        rooms.append(Room(tmp_path / "other", clock))
        running = [asyncio.create_task(room.renewal.run()) for room in rooms]
        await settle()
        for _ in range(3 * 365 // days):
            clock.set(clock.now() + timedelta(days=days))
            await clock.advance(60.0)
            while clock.sleepers < len(running):  # the looks are made in threads
                await asyncio.sleep(0.001)
            ends = [valid_until(room, clock.now()) for room in rooms]
            assert ends[0] == ends[1], "the workers of a server have one certificate"
        for task in running:
            task.cancel()

    asyncio.run(scenario())


def test_a_server_whose_clock_ran_a_year_ahead_gets_certificates_that_have_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(EPOCH + timedelta(days=365))
        room = Room(tmp_path / "data", clock)
        running = asyncio.create_task(room.renewal.run())
        await settle()
        clock.set(EPOCH + timedelta(days=360))
        await clock.advance(60.0)
        while clock.sleepers < 1:
            await asyncio.sleep(0.001)
        valid_until(room, clock.now())
        running.cancel()

    asyncio.run(scenario())
