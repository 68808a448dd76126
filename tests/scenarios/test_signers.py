"""CAs of the operator's own sign, from files and from a token; the server is killed while one is being replaced."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import ConflictError, UnauthorizedError
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem
from mooring.pki.x509.bundles import certificates, certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.kubeconfig import Cluster, KubeconfigUser
from tests.support.commandline import process
from tests.support.liveserver import LiveServer, start_server
from tests.support.ports import free_port
from tests.support.softhsm import MISSING, SoftHsm, soft_hsm
from tests.support.testca import Pair, ThrowawayCA, by_library

FIRST, SECOND, WEB = ThrowawayCA("first"), ThrowawayCA("second"), ThrowawayCA("web")
USERS, OWN = "kubernetes.io/kube-apiserver-client", "example.com/web"
PATIENCE = 60.0
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
POLICY = f"""
apiVersion: mooring.dev/v1alpha1
kind: SigningPolicy
signers:
- name: {OWN}
  rules:
  - {{name: web, commonNames: ["web-*"], maxLifetime: 1h}}
"""


def write(ca: ThrowawayCA, directory: Path, name: str) -> tuple[str, str]:
    certificate, key = Pair(ca.certificate, ca.key).write(directory, name)
    key.chmod(0o600)
    return str(certificate), str(key)


async def until(look: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await look():
            await asyncio.sleep(0.02)


async def approve(client: ClusterClient, name: str) -> None:
    """Approve, again after a conflict: the signer may write a finding of its policy at the same moment."""
    condition = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
    while True:
        obj = await client.get("certificatesigningrequests", name)
        conditions = [*(obj.get("status") or {}).get("conditions", ()), condition]
        try:
            await client.update(
                "certificatesigningrequests", {**obj, "status": {"conditions": conditions}}, subresource="approval"
            )
        except ConflictError:
            continue
        return


async def issued(client: ClusterClient, name: str, signer: str, user: str, key: PrivateKey) -> Obj:
    """Create and approve a request. Return its status when it was signed or failed."""
    usages = ["client auth"] if signer == USERS else ["server auth"]
    spec = {"request": base64.b64encode(build_request(key, user)).decode(), "signerName": signer, "usages": usages}
    await client.create("certificatesigningrequests", {"metadata": {"name": name}, "spec": spec})
    await approve(client, name)
    status: Obj = {}

    async def decided() -> bool:
        nonlocal status
        status = (await client.get("certificatesigningrequests", name)).get("status") or {}
        return "certificate" in status or any(one["type"] == "Failed" for one in status["conditions"])

    await until(decided)
    return status


def leaf(status: Obj) -> Certificate:
    (found,) = certificates(base64.b64decode(status["certificate"]))
    return found


async def is_known(server: LiveServer, certificate: Certificate, key: PrivateKey) -> bool:
    """Return whether the server accepts the client certificate."""
    user = KubeconfigUser("jane", certificate_pem=certificates_pem([certificate]), key=Secret(private_key_pem(key)))
    async with ClusterClient(Cluster("", server.url, server.ca_pem), user, SystemClock()) as client:
        try:
            await client.post_path("/apis/authentication.k8s.io/v1/selfsubjectreviews", REVIEW)
        except UnauthorizedError:
            return False
        return True


@pytest.fixture(scope="module")
def hsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftHsm]:
    with soft_hsm(tmp_path_factory.mktemp("hsm")) as made:
        made.make_token("mooring")
        made.put_key("mooring", "web", WEB.key)
        yield made


@pytest.mark.crash
@pytest.mark.skipif(bool(MISSING), reason=MISSING or "SoftHSM is here")
def test_signers_follow_their_files_and_outlive_the_server(hsm: SoftHsm, tmp_path: Path) -> None:
    certificate, key_file = write(FIRST, tmp_path, "users")
    web, _ = write(WEB, tmp_path, "web")
    (tmp_path / "policy.yaml").write_text(POLICY)
    server = start_server(
        tmp_path / "data",
        "--cluster-signing-kube-apiserver-client-cert-file", certificate,
        "--cluster-signing-kube-apiserver-client-key-file", key_file,
        "--signer", f"{OWN}={web},{hsm.uri('mooring', 'web')}",
        "--cluster-signing-policy-file", str(tmp_path / "policy.yaml"),
    )  # fmt: skip
    key = generate_key()

    async def before() -> Certificate:
        async with server.client() as client:
            # (1) A certificate of a user, by the first CA, which the server trusts and publishes.
            jane = leaf(await issued(client, "jane-1", USERS, "jane", key))
            by_library(jane).verify_directly_issued_by(by_library(FIRST.certificate))
            assert await is_known(server, jane, key)
            info = await client.get("configmaps", "cluster-info", "kube-public")
            trusted = base64.b64encode(Path(server.data_dir / "pki/ca.crt").read_bytes() + FIRST.certificate_pem)
            assert trusted.decode() in info["data"]["kubeconfig"].replace("\n", "").replace(" ", "")
            # (2) A certificate of a signer of one's own, by a token, within the policy.
            site = leaf(await issued(client, "web-1", OWN, "web-1", key))
            by_library(site).verify_directly_issued_by(by_library(WEB.certificate))
            assert (site.not_valid_after_utc - site.not_valid_before_utc).total_seconds() <= 3900
            (*_, failed) = (await issued(client, "db-1", OWN, "db-1", key))["conditions"]
            assert (failed["type"], failed["reason"]) == ("Failed", "SigningPolicy")
            # (3) The next CA is trusted beside the first. The server is killed while only half of the new pair is there.
            Path(certificate).write_bytes(FIRST.certificate_pem + SECOND.certificate_pem)
            extension = "extension-apiserver-authentication"

            async def is_published() -> bool:
                data = (await client.get("configmaps", extension, "kube-system"))["data"]
                return SECOND.certificate_pem.decode() in data["client-ca-file"]

            await until(is_published)
            return jane

    async def after(jane: Certificate) -> None:
        async with server.client() as client:
            again = leaf(await issued(client, "jane-2", USERS, "jane", key))
            by_library(again).verify_directly_issued_by(by_library(FIRST.certificate))
            # (4) The new key signs, and certificates of the first CA are good until it is removed.
            write(SECOND, tmp_path, "new")
            Path(key_file).write_bytes((tmp_path / "new.key").read_bytes())
            number = 2

            async def by_second() -> bool:
                nonlocal number
                number += 1
                found = leaf(await issued(client, f"jane-{number}", USERS, "jane", key))
                return found.issuer == SECOND.certificate.subject

            await until(by_second)
            assert await is_known(server, jane, key)
            Path(certificate).write_bytes(SECOND.certificate_pem)

            async def first_is_gone() -> bool:
                return not await is_known(server, jane, key)

            await until(first_is_gone)

    try:
        jane = asyncio.run(before())
        server.kill()
        server.restart()
        asyncio.run(after(jane))
    finally:
        server.stop()
    assert "271828" not in server.log


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "SoftHSM is here")
def test_a_missing_token_stops_the_start_with_one_line(hsm: SoftHsm, tmp_path: Path) -> None:
    web, _ = write(WEB, tmp_path, "web")
    outcome = process(
        "server", "--data-dir", f"{tmp_path}/data", "--bind-address", "127.0.0.1", "--secure-port", str(free_port()),
        "--signer", f"{OWN}={web},{hsm.uri('gone', 'web')}",
    )  # fmt: skip
    assert outcome.code == 1
    (line,) = [line for line in outcome.err.splitlines() if "token" in line]
    assert line.startswith("Error: signer: no token of ")
    assert line.endswith('is the one of the key "web" in the token "gone": insert it, or correct the URI')
