"""Machines that request certificates for node names with single API requests, for tests of names and membership."""

from __future__ import annotations

from dataclasses import dataclass, field

from mooring.agent import certificaterequest
from mooring.api.certificates.requeststate import with_condition
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient, connect
from mooring.pki.keys import PrivateKey, generate_key, private_key_pem, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.kubeconfig import Cluster, KubeconfigUser, Selected
from tests.support.liveserver import LiveServer

REQUESTS = certificaterequest.PLURAL
SECONDS = 30.0


@dataclass
class Machine:
    """One machine with one key."""

    server: LiveServer
    name: str
    key: PrivateKey = field(default_factory=generate_key)
    certificate: bytes = b""

    @property
    def public_key(self) -> str:
        return f"sha256:{public_key_fingerprint(self.key)}"

    def _connect(self, user: KubeconfigUser) -> ClusterClient:
        return connect(Selected(Cluster("", self.server.url, self.server.ca_pem), user, ""))

    def client(self) -> ClusterClient:
        """Return a client with the certificate of the machine."""
        return self._connect(
            KubeconfigUser("", certificate_pem=self.certificate, key=Secret(private_key_pem(self.key)))
        )

    async def request(self, token: BootstrapToken) -> Obj:
        """Create a request of a new name with the token, as one call of curl would."""
        async with self._connect(KubeconfigUser("", token=Secret(token.reveal().encode()))) as client:
            return await self._create(client)

    async def request_by(self, member: Machine) -> Obj:
        """Create a request with the certificate of a member, as its renewal does."""
        async with member.client() as client:
            return await self._create(client)

    async def _create(self, client: ClusterClient) -> Obj:
        made = certificaterequest.node_request(self.key, self.name)
        pem = build_request(self.key, f"system:node:{self.name}", ("system:nodes",))
        obj = certificaterequest.NodeRequest("", pem, made.usages).obj()
        return await client.create(REQUESTS, {**obj, "metadata": {"generateName": "csr-"}})

    async def receive(self, request: Obj) -> None:
        """Wait for the certificate of a request and keep it."""
        async with self.server.client() as admin:
            self.certificate = await certificaterequest.wait(admin, request, SECONDS)

    async def join(self, token: BootstrapToken) -> None:
        await self.receive(await self.request(token))

    async def register(self) -> Obj:
        """Create the Node as the machine."""
        node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": self.name}}
        async with self.client() as client:
            return await client.create("nodes", node)

    async def own_node(self) -> Obj:
        """Get the Node as the machine, on a new connection."""
        async with self.client() as client:
            return await client.get("nodes", self.name)


async def conditions(admin: ClusterClient, request: Obj) -> dict[str, str]:
    """Return the reasons of a request's conditions, by type."""
    obj = await admin.get(REQUESTS, request["metadata"]["name"])
    return {one["type"]: one["reason"] for one in (obj.get("status") or {}).get("conditions") or ()}


async def approve(admin: ClusterClient, request: Obj) -> None:
    """Approve a request as a person does."""
    obj = await admin.get(REQUESTS, request["metadata"]["name"])
    await admin.update(REQUESTS, with_condition(obj, "Approved", "Reviewed", "by a test"), subresource="approval")
