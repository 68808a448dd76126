"""A certificate is revoked at one of two servers, which is killed at once: both refuse it, the killed one after its restart."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from mooring.api.mooring.certificaterevocation import PLURAL, serial_entry
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import UnauthorizedError
from mooring.pki.keys import generate_key, load_private_key, private_key_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, serial_number
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import process
from tests.support.killable import client_of, servers_on_one_store

PATIENCE = 60.0
PAUSE = 0.02

clock = SystemClock()


def jane(data_dir: Path) -> tuple[KubeconfigUser, Certificate]:
    """Return an administrator whose certificate the cluster's CA signs now."""
    return user_of(data_dir, "jane", profiles.CLUSTER_ADMINS)


def user_of(data_dir: Path, name: str, group: str) -> tuple[KubeconfigUser, Certificate]:
    """Return a user whose certificate the cluster's CA signs now."""
    pki = data_dir / "pki"
    authority = Authority(
        certificates((pki / "ca.crt").read_bytes())[0], load_private_key((pki / "ca.key").read_bytes())
    )
    key, now = generate_key(), clock.now()
    template = profiles.client(key.public_key(), now, name, (group,))
    leaf = authority.sign(template, now, serial_number(secrets.token_bytes))
    return KubeconfigUser(name, certificate_pem=certificates_pem([leaf]), key=Secret(private_key_pem(key))), leaf


async def refused(client: ClusterClient) -> bool:
    """Return whether the server refuses the client's certificate."""
    try:
        await client.get("namespaces", "default")
    except UnauthorizedError:
        return True
    return False


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not look():
            await asyncio.sleep(PAUSE)


async def until_refused(client: ClusterClient, *, expected: bool) -> None:
    async with asyncio.timeout(PATIENCE):
        while await refused(client) is not expected:
            await asyncio.sleep(PAUSE)


async def watched(client: ClusterClient, begun: asyncio.Event) -> None:
    """Follow ConfigMaps until the server ends the watch."""
    begun.set()
    async for _ in client.watch("configmaps", resource_version="", seconds=600):
        pass


@pytest.mark.crash
def test_a_revocation_outlives_the_server_that_acknowledged_it(tmp_path: Path) -> None:
    first, second = servers_on_one_store(tmp_path, 2)

    async def scenario() -> None:
        first.launch()
        await first.ready()
        second.launch()
        await second.ready()
        ca_pem = (first.data_dir / "pki/ca.crt").read_bytes()
        user, leaf = jane(first.data_dir)
        file = tmp_path / "jane.crt"
        file.write_bytes(certificates_pem([leaf]))
        async with client_of(first, ca_pem, user) as at_first, client_of(second, ca_pem, user) as at_second:
            assert not await refused(at_first)
            assert not await refused(at_second)
            begun = asyncio.Event()
            watch = asyncio.create_task(watched(at_second, begun))
            await begun.wait()

            command = ("certs", "revoke", "--certificate", str(file), "--reason", "keyCompromise")
            config = ("--kubeconfig", str(first.data_dir / "admin.conf"))
            revoked = await asyncio.to_thread(process, *command, *config)
            first.kill()
            assert revoked.code == 0, revoked.err

            async with asyncio.timeout(PATIENCE):
                await watch
            await until_refused(at_second, expected=True)
            assert "certificate-revoked" in second.log

            first.launch()
            await first.ready()
            async with client_of(first, ca_pem, user) as again:
                assert await refused(again), "from the first request on"
                await check_crl(first.data_dir, file, leaf.serial_number)
                async with first.client() as admin:
                    await admin.delete(PLURAL, serial_entry(f"{leaf.serial_number:x}"))
                await until_refused(again, expected=False)
            await until_refused(at_second, expected=False)

    try:
        asyncio.run(scenario())
    finally:
        first.kill()
        second.kill()


async def check_crl(data_dir: Path, file: Path, serial_number: int) -> None:
    """Assert that the CRL in the data directory lists the certificate, and that openssl refuses it by that list."""
    crl = data_dir / "pki/crl.pem"

    def listed() -> bool:
        return any(one.serial_number == serial_number for one in x509.load_pem_x509_crl(crl.read_bytes()))

    await until(listed)
    if openssl := shutil.which("openssl"):
        ca = str(data_dir / "pki/ca.crt")
        done = await asyncio.to_thread(
            subprocess.run,
            [openssl, "verify", "-CAfile", ca, "-CRLfile", str(crl), "-crl_check", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "certificate revoked" in done.stderr
