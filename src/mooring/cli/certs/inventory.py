"""Inventory of certificates: those that NodeIdentities and the issuance log record, their state, and the entries of the denylist.

Rules kept here:
* The state is the verdict of the checks with which the server judges a certificate, on the objects that it judges by: the denylist
  (`mooring.authn.revocations`), the membership of the node (`mooring.authn.revocations`), and the CAs that verify clients.
* A NodeIdentity is written before the certificate is signed, and holds an upper bound of its end. The end, and the moment of issue,
  are those in the issuance log. Without it, for a user who may not read it, the upper bound is shown, and a node entry revokes what
  it recorded.
* Serving certificates of machines, and certificates of users, are in the issuance log only. They are listed until FORGOTTEN after
  their end.
* Of several certificates of one user of the same machine, or of one subject and signer, the one that ends last counts; the others
  were renewed. One that the server rejects renews none.
* Pods of one account have certificates of one name, and none renews another. They are listed until their end: a kubelet asks for
  the next one long before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from mooring.api.mooring import certificateauthorityrollover as carollover
from mooring.api.mooring import certificaterevocation, lineagerecord, nodeidentity, tombstones
from mooring.api.mooring.certificaterevocation import KIND, node_entry
from mooring.api.mooring.membership import NODES, has_ended
from mooring.api.objectmeta import spec_of
from mooring.api.view import NamespacedName, Views, namespaced_name
from mooring.apimachinery.schema import Obj
from mooring.authn import revocations
from mooring.authn.clientcas import NAME as CLIENT_CAS
from mooring.authn.clientcas import NAMESPACE as CLIENT_CAS_NAMESPACE
from mooring.authn.reasons import UNKNOWN_CA
from mooring.authn.revocations import RETIRED_CA
from mooring.cli import cluster
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import other_program
from mooring.clock import parse_rfc3339
from mooring.errors import ApiError, ConfigError, ForbiddenError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clientcertificate import ClientCertificate, PathCertificate, RecordedCertificate
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.signers import (
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    KUBE_APISERVER_CLIENT,
    KUBE_APISERVER_CLIENT_KUBELET,
    KUBELET_SERVING,
    SHARED_SIGNERS,
)

PLURAL = KIND.resource.plural
QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"
VALID, EXPIRED, REVOKED, ENDED, REJECTED = "valid", "expired", "revoked", "ended", "rejected"
"""States of a certificate. `ended`: the server rejects it, because its node is not a member any more. `rejected`: for another
reason, such as its CA."""
STATES = (VALID, EXPIRED, REVOKED, ENDED, REJECTED)
CLIENT, SERVING, USER, POD, SERVER, CA = "client", "serving", "user", "pod", "server", "ca"
KINDS = (CLIENT, SERVING, USER, POD, SERVER, CA)
"""Kinds of certificates: of a machine as a client, of its HTTPS port, of a user or for another purpose, of a Pod, of a server, of a
CA."""
FORGOTTEN = timedelta(days=30)
"""Time after its end until which a certificate is listed that only the issuance log has; `mooring issuance list` has them all."""
PUBLISHED_CLIENT_CAS = CLIENT_CAS, CLIENT_CAS_NAMESPACE, "client-ca-file"
"""Name, namespace and key of the ConfigMap with the CAs that verify clients."""
_RETIRES = {carollover.RETIRED: "oldCA", carollover.DONE: "oldCA", carollover.ABORTED: "newCA"}
"""CA of a rollover that verifies no client any more, by the phase that was reached."""
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_HEX = frozenset("0123456789abcdef")
_OF_IDENTITIES = frozenset({KUBE_APISERVER_CLIENT_KUBELET, K3S_KUBELET_CLIENT, *SHARED_SIGNERS})
"""Signers whose certificates count as long as a NodeIdentity has them."""


@dataclass(frozen=True, slots=True)
class KnownCertificate:
    """A certificate that the cluster knows. Texts are empty where it does not know."""

    node: str
    """Name of its machine; "" for one of a user or a server."""
    serial_number: str
    public_key: str
    expires: str
    state: str
    revoked_by: str = ""
    reason: str = ""
    user: str = ""
    kind: str = CLIENT
    token: str = ""
    """Id of the bootstrap token that bought it, or the first one of its machine."""
    source: str = ""
    """Address from which it was requested."""
    join_rule: str = ""
    """Name of the join rule by which it was requested, or the machine got its name."""
    identity_issuer: str = ""
    identity_subject: str = ""
    """Issuer and subject of the identity token with which it was requested."""
    is_renewed: bool = False
    renewed_at: str = ""
    """When the one was issued that counts in its place."""
    description: str = ""
    place: str = ""
    """Server and file that have it."""

    @property
    def name(self) -> str:
        """Machine or user whose certificate it is, or file of a server."""
        return self.node or self.user or self.place.rpartition("/")[2]

    def document(self) -> dict[str, Any]:
        """Return the certificate for JSON and YAML. Empty fields are left out."""
        found = {
            "kind": self.kind,
            "node": self.node,
            "user": self.user,
            "description": self.description,
            "place": self.place,
            "serialNumber": self.serial_number,
            "publicKey": self.public_key,
            "expires": self.expires,
            "state": self.state,
            "revokedBy": self.revoked_by,
            "reason": self.reason,
            "token": self.token,
            "joinRule": self.join_rule,
            "identityIssuer": self.identity_issuer,
            "identitySubject": self.identity_subject,
            "from": self.source,
            "renewed": self.is_renewed,
            "renewedAt": self.renewed_at,
        }
        return {key: value for key, value in found.items() if value}


def _identity(record: Obj) -> tuple[str, str, str]:
    """Return the join rule of a record, and issuer and subject of the identity token."""
    return record.get("joinRule", ""), record.get("identityIssuer", ""), record.get("identitySubject", "")


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


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """NodeIdentities and entries of the denylist, and what their state follows from."""

    identities: Sequence[Obj]
    entries: Sequence[Obj]
    nodes: Sequence[Obj] | None = None
    """None for a user who may not read Nodes: whether a membership has ended is then not known."""
    tombstones: Sequence[Obj] = ()
    """The ConfigMap of tombstones that wait to be settled, if there is one."""
    warning: str = ""
    """Promise that the server does not enforce; "" for a Mooring server."""
    issued: Mapping[str, Obj] = field(default_factory=dict)
    """Entries of the issuance log by serial number, in the order of their issue."""
    is_issuance_log_read: bool = True
    """False for a user who may not read the issuance log, and for a server without one."""
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
                self._of_node(identity, key, f"{NODE_PREFIX}{name}", views, now)
                for key in nodeidentity.keys_of(identity)
            ]
            shared = [self._of_node(identity, key, "", views, now) for key in nodeidentity.companions_of(identity)]
            for found in _with_renewals((*own, *shared), self.issued):
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
                        kind_of(record),
                        record.get("token", ""),
                        record.get("sourceAddress", ""),
                        *_identity(record),
                    )

    def recorded(self, now: datetime) -> Iterator[KnownCertificate]:
        """Yield the certificates that only the issuance log has: serving certificates of machines, and those of users.

        A serving certificate whose machine is not a member any more has the state `ended`: no client of this cluster uses it.
        """
        return _with_renewals(list(self._recorded(now)), self.issued)

    def _recorded(self, now: datetime) -> Iterator[KnownCertificate]:
        views = self.views()
        named = {
            number for entry in self.entries for number in certificaterevocation.known_serial_numbers(spec_of(entry))
        }
        for number, entry in self.issued.items():
            signer, expires = entry.get("signer", ""), entry.get("notAfter", "")
            kept = FORGOTTEN if kind_of(entry) != POD else timedelta(0)
            if signer in _OF_IDENTITIES or number in named or not expires or parse_rfc3339(expires) < now - kept:
                continue
            subject = entry.get("subject", "")
            is_serving = kind_of(entry) == SERVING
            node = subject.removeprefix(NODE_PREFIX) if is_serving else ""
            judged = self._judged_entry(entry, node, views, now)
            if is_serving and judged.state == VALID and self._is_gone(node):
                judged = Judged(ENDED)
            if judged.state == VALID and parse_rfc3339(expires) <= now:
                judged = Judged(EXPIRED)
            elif judged.state == VALID and signer == KUBE_APISERVER_CLIENT:
                judged = self._judged_issuer(entry.get("issuer", ""))
            yield KnownCertificate(
                node,
                number,
                entry.get("publicKey", ""),
                expires,
                judged.state,
                judged.revoked_by,
                judged.reason,
                subject,
                kind_of(entry),
                entry.get("token", ""),
                entry.get("sourceAddress", ""),
                *_identity(entry),
            )

    @cached_property
    def _gone(self) -> frozenset[str]:
        nodes = {node["metadata"]["name"]: node for node in self.nodes or ()}
        return frozenset(
            name for identity in self.identities if has_ended(identity, nodes.get(name := identity["metadata"]["name"]))
        )

    def _is_gone(self, node: str) -> bool:
        return self.nodes is not None and node in self._gone

    def _judged_entry(self, entry: Obj, node: str, views: Views, now: datetime) -> Judged:
        """Return the verdict of the denylist on a certificate of the issuance log. `node` has it as its serving certificate."""
        number, issuer, key = entry["serialNumber"], entry.get("issuer", ""), entry.get("publicKey", "")
        peer = RecordedCertificate(
            # k3s's subject lacks the prefix, by which the membership would take it for a user that machines share
            common_name=f"{NODE_PREFIX}{node}" if node else entry.get("subject", ""),
            node_name=node,
            fingerprint=entry.get("certificate", "").removeprefix("sha256:"),
            serial_number=int(number, 16),
            public_key=key,
            issuer=issuer,
            issued_at=parse_rfc3339(entry["notBefore"]) + BACKDATE if entry.get("notBefore") else _LATEST,
            path=(PathCertificate(number, issuer, (key,)),),
        )
        return judge(peer, {**views, nodeidentity.PLURAL: _Fetched(())}, now)

    def views(self) -> Views:
        """Return the views that the server's checks read."""
        return {
            PLURAL: _Fetched(self.entries),
            nodeidentity.PLURAL: _Fetched(self.identities if self.nodes is not None else ()),
            NODES: _Fetched(self.nodes or ()),
            tombstones.CONFIG_MAPS: _Fetched(self.tombstones),
        }

    def _of_node(self, identity: Obj, key: Obj, user: str, views: Views, now: datetime) -> KnownCertificate:
        """Return a certificate of a node. `user` is "" for one of a user that machines share, whom the issuance log names.

        Without the memberships such a certificate is judged as one of the node, which needs no record.
        """
        node = identity["metadata"]["name"]
        number = normalized(key.get("serialNumber", ""))
        record = self.issued.get(number, {})
        public_key, expires = key.get("publicKey", ""), record.get("notAfter") or key.get("notAfter", "")
        peer = RecordedCertificate(
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
        elif judged.state == VALID:
            judged = self._judged_issuer(peer.issuer)
        known_user = user or record.get("subject", "")
        return KnownCertificate(
            node,
            number,
            public_key,
            expires,
            judged.state,
            judged.revoked_by,
            judged.reason,
            known_user,
            CLIENT,
            record.get("token") or spec_of(identity).get("token", ""),
            record.get("sourceAddress") or spec_of(identity).get("sourceAddress", ""),
            *_identity({"joinRule": spec_of(identity).get("joinRule", ""), **record}),
        )

    def _judged_issuer(self, issuer: str) -> Judged:
        """Return the verdict on a client certificate by the key of its CA, where both are known."""
        if not self.client_ca_keys or not issuer or issuer in self.client_ca_keys:
            return Judged(VALID)
        return Judged(REJECTED, "", RETIRED_CA if issuer in self.retired_ca_keys else UNKNOWN_CA)

    def _issued_at(self, node: str, number: str, record: Obj) -> datetime:
        """Return when a certificate was issued; without a record of it a moment that is before or after the entry of its node."""
        if record.get("notBefore"):
            return parse_rfc3339(record["notBefore"]) + BACKDATE
        name = node_entry(node)
        of_node = next((one for one in self.entries if one["metadata"]["name"] == name), None)
        is_known = of_node is not None and number in certificaterevocation.known_serial_numbers(spec_of(of_node))
        return _EARLIEST if is_known else _LATEST


def kind_of(entry: Obj) -> str:
    """Return the kind of the certificate in an entry of the issuance log; CLIENT where there is none."""
    signer = entry.get("signer", "")
    if signer in (KUBELET_SERVING, K3S_KUBELET_SERVING):
        return SERVING
    if "/" in entry.get("request", ""):
        # Its request has a namespace.
        return POD
    return CLIENT if not signer or signer in _OF_IDENTITIES else USER


def _with_renewals(found: Sequence[KnownCertificate], issued: Mapping[str, Obj]) -> Iterator[KnownCertificate]:
    """Yield the certificates of one machine or of the issuance log, each with its renewal."""

    def purpose(one: KnownCertificate) -> tuple[str, str]:
        if one.kind == POD:
            return one.user, one.serial_number
        return one.user, "" if one.kind == CLIENT else issued.get(one.serial_number, {}).get("signer", "")

    current: dict[tuple[str, str], KnownCertificate] = {}
    for one in found:
        best = current.get(purpose(one))
        if one.state in (VALID, EXPIRED) and (best is None or one.expires >= best.expires):
            current[purpose(one)] = one
    for one in found:
        best = current.get(purpose(one), one)
        time = issued.get(best.serial_number, {}).get("time", "")
        yield one if best is one else replace(one, is_renewed=True, renewed_at=time)


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdict on a certificate: its state, the entry that revokes it, and the reason."""

    state: str
    revoked_by: str = ""
    reason: str = ""


def judge(peer: ClientCertificate, views: Views, now: datetime) -> Judged:
    """Return the verdict of the denylist and of the membership on a certificate. Its end and its CA are not judged."""
    for _, entry in revocations.entries_about(peer, views[PLURAL]):
        return Judged(REVOKED, entry["metadata"]["name"], spec_of(entry).get("reason", ""))
    if rejected := revocations.revoked(peer, views, now):
        return Judged(REVOKED, "", rejected.reason)
    if rejected := revocations.ended_or_replaced(peer, views, now):
        return Judged(ENDED, "", rejected.reason)
    return Judged(VALID)


async def fetch(client: ClusterClient, *, with_issuance_log: bool = True) -> Inventory:
    """Read the objects. Raises PeerError for a server that does not have these kinds.

    The issuance log is the longest list of a cluster: without it, ends are upper bounds.
    """
    try:
        entries = (await client.list(PLURAL)).items
        identities = (await client.list(nodeidentity.PLURAL)).items
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None
    records, client_cas, nodes, ended, warning, rollovers = await asyncio.gather(
        readable_objects(client, lineagerecord.PLURAL) if with_issuance_log else _nothing(),
        published_cas(client, *PUBLISHED_CLIENT_CAS),
        readable_objects(client, NODES),
        _tombstones(client),
        unenforced(client),
        readable_objects(client, carollover.KIND.resource.plural),
    )
    return Inventory(
        identities=identities,
        entries=entries,
        nodes=nodes,
        tombstones=ended,
        warning=warning,
        issued={
            entry["serialNumber"]: entry
            for record in records or ()
            for entry in lineagerecord.entries_of(record)
            if entry.get("serialNumber")
        },
        is_issuance_log_read=records is not None,
        client_ca_keys=frozenset(key for ca in client_cas for key in key_identities(ca)),
        retired_ca_keys=retired_keys(rollovers or ()),
    )


def retired_keys(rollovers: Iterable[Obj]) -> frozenset[str]:
    """Return the public keys of the CAs that rollovers have retired, or given up by an abort."""
    reached = map(carollover.status_of, rollovers)
    cas = (status.get(_RETIRES.get(status.get("phase", ""), "")) or {} for status in reached)
    return frozenset(ca["publicKey"] for ca in cas if ca.get("publicKey"))


async def published_cas(client: ClusterClient, name: str, namespace: str, key: str) -> tuple[Certificate, ...]:
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


async def _nothing() -> None:
    return None


async def _tombstones(client: ClusterClient) -> Sequence[Obj]:
    try:
        return (await client.get(tombstones.CONFIG_MAPS, tombstones.NAME, tombstones.NAMESPACE),)
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
    """Return a serial number as objects have it: hex digits in lower case, without serial=, 0x, colons and leading zeros."""
    return text.strip().lower().removeprefix("serial=").removeprefix("0x").replace(":", "").lstrip("0")


def parse_serial_number(text: str) -> str:
    """Return the normalized serial number. Raises ConfigError for anything else."""
    number = normalized(text)
    if not number or not _HEX.issuperset(number) or len(number) > certificaterevocation.MAX_SERIAL_DIGITS:
        raise ConfigError(
            f'"{text}" is no serial number: give hexadecimal digits, as openssl x509 -noout -serial and '
            "mooring certs list print them"
        )
    return number
