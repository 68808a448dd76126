"""Inventory of certificates: those that NodeIdentities record, their state, and the entries of the denylist.

Rules kept here:
* The state is the verdict of the checks with which the server judges a certificate, on the objects that it judges by: the denylist
  (`mooring.authn.x509.denylist`), the membership of the node (`mooring.authn.x509.membership`), and the CAs that verify clients.
* A NodeIdentity is written before the certificate is signed, and holds an upper bound of its end. The end, and the moment of issue,
  are those in the lineage. Without it, for a user who may not read it, the upper bound is shown, and a node entry revokes what it
  recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring import certificateauthorityrollover as carollover
from mooring.api.mooring import certificaterevocation, ends, lineagerecord, nodeidentity
from mooring.api.mooring.certificaterevocation import KIND, node_entry
from mooring.api.mooring.membership import NODES
from mooring.api.view import NamespacedName, Views, namespaced_name
from mooring.apimachinery.schema import Obj
from mooring.authn.clientcas.bundles import NAME as CLIENT_CAS
from mooring.authn.clientcas.bundles import NAMESPACE as CLIENT_CAS_NAMESPACE
from mooring.authn.reasons import UNKNOWN_CA
from mooring.authn.x509 import denylist, membership
from mooring.authn.x509.reasons import RETIRED_CA
from mooring.cli import cluster
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import other_program
from mooring.clock import parse_rfc3339
from mooring.errors import ApiError, ConfigError, ForbiddenError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.pem import certificates
from mooring.pki.x509.checkedpeer import CheckedPeer, PathCertificate, RecordedPeer
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.publickeyinfo import key_identities

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"
VALID, EXPIRED, REVOKED, ENDED, REJECTED = "valid", "expired", "revoked", "ended", "rejected"
"""States of a certificate. `ended`: the server rejects it, because its node is not a member any more. `rejected`: for another
reason, such as its CA."""
STATES = (VALID, EXPIRED, REVOKED, ENDED, REJECTED)
PUBLISHED_CLIENT_CAS = CLIENT_CAS, CLIENT_CAS_NAMESPACE, "client-ca-file"
"""Name, namespace and key of the ConfigMap with the CAs that verify clients."""
_RETIRES = {carollover.RETIRED: "oldCA", carollover.DONE: "oldCA", carollover.ABORTED: "newCA"}
"""CA of a rollover that verifies no client any more, by the phase that was reached."""
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class KnownCertificate:
    """A certificate that the cluster knows. Texts are empty where it does not know."""

    node: str
    serial_number: str
    public_key: str
    expires: str
    state: str
    revoked_by: str = ""
    reason: str = ""
    user: str = ""

    def document(self) -> dict[str, Any]:
        """Return the certificate for JSON and YAML. Empty fields are left out."""
        found = {
            "node": self.node,
            "user": self.user,
            "serialNumber": self.serial_number,
            "publicKey": self.public_key,
            "expires": self.expires,
            "state": self.state,
            "revokedBy": self.revoked_by,
            "reason": self.reason,
        }
        return {key: value for key, value in found.items() if value}


class _Fetched:
    """View of objects that were fetched."""

    revision = 0

    def __init__(self, objects: Iterable[Obj]) -> None:
        self._objects = {namespaced_name(obj): obj for obj in objects}

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self._objects.get((namespace, name))

    def list(self, namespace: str = "") -> Iterable[Obj]:
        return [obj for (found, _), obj in self._objects.items() if namespace in ("", found)]

    def changed(self, since: int) -> None:
        return None

    def problem(self, name: str, namespace: str = "") -> str:
        return ""

    def unreadable(self, namespace: str = "") -> dict[NamespacedName, str]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """NodeIdentities and entries of the denylist, and what their state follows from."""

    identities: Sequence[Obj]
    entries: Sequence[Obj]
    nodes: Sequence[Obj] | None = None
    """None for a user who may not read Nodes: whether a membership has ended is then not known."""
    ends: Sequence[Obj] = ()
    """The ConfigMap of ends that wait to be settled, if there is one."""
    warning: str = ""
    """What the server does not enforce; "" for a Mooring server."""
    issued: Mapping[str, Obj] = field(default_factory=dict)
    """Entries of the lineage by serial number."""
    client_ca_keys: frozenset[str] = frozenset()
    """Public keys of the CAs that verify clients, as sha256:<hex>. Empty for a user who may not read them."""
    retired_ca_keys: frozenset[str] = frozenset()
    """Public keys of the CAs that the last rollover has retired or given up."""

    def certificates(self, now: datetime) -> Iterator[KnownCertificate]:
        """Yield the certificates of nodes, then those that only an entry of the denylist names."""
        views = self.views()
        shown: set[str] = set()
        for identity in self.identities:
            name = identity["metadata"]["name"]
            own = [
                self._of_node(name, key, f"{NODE_PREFIX}{name}", views, now) for key in nodeidentity.keys_of(identity)
            ]
            shared = [self._of_node(name, key, "", views, now) for key in nodeidentity.companions_of(identity)]
            for found in (*own, *shared):
                shown.add(found.serial_number)
                yield found
        for entry in self.entries:
            spec, name = spec_of(entry), entry["metadata"]["name"]
            for number in certificaterevocation.known_serial_numbers(spec):
                if number not in shown:
                    shown.add(number)
                    recorded_end = spec.get("expiresAt", "") if spec.get("serialNumber") else ""
                    record = self.issued.get(number, {})
                    yield KnownCertificate(
                        spec.get("nodeName", ""),
                        number,
                        spec.get("publicKey", ""),
                        record.get("notAfter") or recorded_end,
                        REVOKED,
                        name,
                        spec.get("reason", ""),
                        record.get("subject", ""),
                    )

    def views(self) -> Views:
        """Return the views that the server's checks read."""
        return {
            PLURAL: _Fetched(self.entries),
            nodeidentity.PLURAL: _Fetched(self.identities if self.nodes is not None else ()),
            NODES: _Fetched(self.nodes or ()),
            ends.CONFIG_MAPS: _Fetched(self.ends),
        }

    def _of_node(self, node: str, key: Obj, user: str, views: Views, now: datetime) -> KnownCertificate:
        """Return a certificate of a node. `user` is "" for one of a user that machines share, whom the lineage names.

        Without the memberships such a certificate is judged as one of the node, which needs no record.
        """
        number = normalized(key.get("serialNumber", ""))
        record = self.issued.get(number, {})
        public_key, expires = key.get("publicKey", ""), record.get("notAfter") or key.get("notAfter", "")
        peer = RecordedPeer(
            common_name=user if self.nodes is not None else f"{NODE_PREFIX}{node}",
            node_name=node,
            fingerprint=str(record.get("certificate", "")).removeprefix("sha256:"),
            serial_number=int(number or "0", 16),
            public_key=public_key,
            issuer=key.get("issuer", ""),
            issued_at=self._issued_at(node, number, record),
            path=(PathCertificate(number, key.get("issuer", ""), (public_key,)),),
        )
        judged = judge(peer, views, now)
        if judged.state == VALID and expires and parse_rfc3339(expires) <= now:
            judged = Judged(EXPIRED)
        elif judged.state == VALID and self.client_ca_keys and peer.issuer and peer.issuer not in self.client_ca_keys:
            judged = Judged(REJECTED, "", RETIRED_CA if peer.issuer in self.retired_ca_keys else UNKNOWN_CA)
        known_user = user or record.get("subject", "")
        return KnownCertificate(
            node, number, public_key, expires, judged.state, judged.revoked_by, judged.reason, known_user
        )

    def _issued_at(self, node: str, number: str, record: Obj) -> datetime:
        """Return when a certificate was issued; without a record of it a moment that is before or after the entry of its node."""
        if record.get("notBefore"):
            return parse_rfc3339(record["notBefore"]) + BACKDATE
        name = node_entry(node)
        of_node = next((one for one in self.entries if one["metadata"]["name"] == name), None)
        is_known = of_node is not None and number in certificaterevocation.known_serial_numbers(spec_of(of_node))
        return _EARLIEST if is_known else _LATEST


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict on a certificate: its state, the entry that revokes it, and the reason."""

    state: str
    revoked_by: str = ""
    reason: str = ""


def judge(peer: CheckedPeer, views: Views, now: datetime) -> Judged:
    """Return the verdict of the denylist and of the membership on a certificate. Its end and its CA are not judged."""
    for _, entry in denylist.entries_about(peer, views[PLURAL]):
        return Judged(REVOKED, entry["metadata"]["name"], spec_of(entry).get("reason", ""))
    if rejected := denylist.revoked(peer, views, now):
        return Judged(REVOKED, "", rejected.reason)
    if rejected := membership.ended_or_replaced(peer, views, now):
        return Judged(ENDED, "", rejected.reason)
    return Judged(VALID)


async def fetch(client: ClusterClient) -> Inventory:
    """Read the objects. Raises PeerError for a server that does not have these kinds."""
    try:
        entries = (await client.list(PLURAL)).items
        identities = (await client.list(nodeidentity.PLURAL)).items
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None
    records = await readable_objects(client, lineagerecord.PLURAL) or ()
    client_cas = await published_cas(client, *PUBLISHED_CLIENT_CAS)
    return Inventory(
        identities=identities,
        entries=entries,
        nodes=await readable_objects(client, NODES),
        ends=await _ends(client),
        warning=await unenforced(client),
        issued={
            entry["serialNumber"]: entry
            for record in records
            for entry in lineagerecord.entries_of(record)
            if entry.get("serialNumber")
        },
        client_ca_keys=frozenset(key for ca in client_cas for key in key_identities(ca)),
        retired_ca_keys=retired_keys(await readable_objects(client, carollover.KIND.resource.plural) or ()),
    )


def retired_keys(rollovers: Iterable[Obj]) -> frozenset[str]:
    """Return the public keys of the CAs that rollovers have retired, or given up by an abort."""
    reached = map(carollover.status_of, rollovers)
    cas = (status.get(_RETIRES.get(status.get("phase", ""), "")) or {} for status in reached)
    return frozenset(ca["publicKey"] for ca in cas if ca.get("publicKey"))


async def published_cas(client: ClusterClient, name: str, namespace: str, key: str) -> tuple[x509.Certificate, ...]:
    """Return the CAs in a ConfigMap; none where they cannot be read."""
    try:
        published = await client.get("configmaps", name, namespace)
        return certificates(published["data"][key].encode())
    except (ApiError, PkiError, KeyError):
        return ()


async def readable_objects(client: ClusterClient, plural: str, namespace: str = "") -> Sequence[Obj] | None:
    """Return the objects of a kind; None when the user may not read them, or the server does not have the kind."""
    try:
        return (await client.list(plural, namespace)).items
    except (ForbiddenError, NotFoundError):
        return None


async def _ends(client: ClusterClient) -> Sequence[Obj]:
    try:
        return (await client.get(ends.CONFIG_MAPS, ends.NAME, ends.NAMESPACE),)
    except (ForbiddenError, NotFoundError):
        return ()


async def unenforced(client: ClusterClient) -> str:
    """Return the sentence that the server does not read the denylist; "" for a Mooring server."""
    program = await other_program(client)
    return program and (
        f"{client.server} is {program}, not Mooring, and does not read the denylist: it accepts every certificate of its CA until "
        "the certificate expires"
    )


def normalized(text: str) -> str:
    """Return a serial number as objects have it: hex digits in lower case, without 0x, colons and leading zeros."""
    return text.strip().lower().removeprefix("0x").replace(":", "").lstrip("0")


def parse_serial_number(text: str) -> str:
    """Return the normalized serial number. Raises ConfigError for anything else."""
    number = normalized(text)
    if not number or not _HEX.issuperset(number) or len(number) > certificaterevocation.MAX_SERIAL_DIGITS:
        raise ConfigError(
            f'"{text}" is no serial number: give hexadecimal digits, as openssl x509 -noout -serial and '
            "mooring certs list print them"
        )
    return number
