"""The cluster's CA, replaced on disk by an administrator while the server runs: used whole or not at all."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from mooring.clock import Clock, SystemClock
from mooring.pki.keys import private_key_pem
from mooring.plane.carenewal import LOOK_SECONDS, CaRenewal
from mooring.plane.configuration import server_config
from mooring.plane.keystore import KeyStore, prepare
from mooring.plane.reloading import Reloading
from mooring.plane.serving.pair import ServingPair
from mooring.settings.serving import ServingSettings
from mooring.trust.kubeconfig.text import parse_kubeconfig
from tests.support.manualclock import ManualClock
from tests.support.testca import ThrowawayCA

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
    room.serving.chain[0].verify_directly_issued_by(OTHER.certificate)
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
    assert not (room.pki / "ca.crt").exists(), "no CA is made anew while the server runs"
    assert (room.serving.chain, room.changes) == (chain, 0)
    room.write(ca_crt=OTHER.certificate_pem)
    assert room.store.ca.trusted == (OTHER.certificate,)
    room.serving.chain[0].verify_directly_issued_by(OTHER.certificate)


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
            await clock.advance(LOOK_SECONDS)
            while clock.sleepers == 0:  # the look is made in a thread
                await asyncio.sleep(0.001)

        running = asyncio.create_task(room.renewal.run())
        await look()
        assert room.serving.chain[0] == first, "most of its life is left"
        clock.spend(300 * 86400)
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
