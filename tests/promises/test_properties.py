"""Random sequences of events at random doors and moments: what is judged, waits, and takes effect later keeps the promises.

A `Cluster` runs the approvers, the signer and the checks of client certificates on objects that other rules change between a plan
and its effect, as a queue, a leader change or a slow store does. It keeps a history of its own, and the invariants compare each
certificate with the history, never with the gates.

Rules kept here: the doors are requests by a token, by a machine for itself, by a stranger in another's name, for clients and for
serving, and approvals by a person. The moments are plans that wait, deletions held by finalizers, revocations, objects that cannot
be read, other controllers after a leader change, and a clock that moves.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mooring.api.certificates.requestrecords import REQUESTER_CERTIFICATE
from mooring.api.certificates.requeststate import is_undecided, with_condition
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.certificaterevocation import entry_name
from mooring.api.mooring.membership import with_node_recorded
from mooring.api.mooring.nodeidentity import certified_names_of
from mooring.api.view import FixedView, NamespacedName, Views, guarded
from mooring.apimachinery.schema import Obj
from mooring.authn.x509 import rejection
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, CheckAccess, Create, Requeue, Resolve, Retry, Update
from mooring.controllers.certificates.approval import CsrApprover, ServingApprover
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL
from mooring.controllers.certificates.sanpolicy.evidence import serving_names_config_map
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.controllers.table import ControllerSettings, issuance_checks
from mooring.errors import UnreadableObjectError
from mooring.pki.keys import generate_key
from mooring.pki.pem import RootCa
from mooring.pki.x509.bundles import certificates
from mooring.pki.x509.canonicalnames import Name, canonical
from mooring.pki.x509.clientcertificate import recorded
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import NOW, entropy, thing, token_secret
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
TRUST = ClientTrust([CA.certificate])
KEYS = {machine: [generate_key() for _ in range(3)] for machine in ("good", "thief")}
"""Keys of each machine."""
NAMES = ("n1", "n2")
TOKENS = {"shared0": "", "limited": "", "namesn1": "n1"}
"""Bootstrap tokens by id; `namesn1` is for one node, and `limited` for one join."""
SERVER_NAMES = ("api.example.com", "192.0.2.80")
FURTHER_SERVER = "192.0.2.81"
"""Address of a server that is added later."""
ADDRESSES = (
    "10.1.0.1",
    "10.1.0.2",
    "192.0.2.81",
    "::ffff:192.0.2.80",
    "::ffff:10.1.0.1",
    "127.0.0.1",
    "10.96.0.1",
    "10.96.0.7",
)
DNS_NAMES = ("n1", "N2", "vault.example.com", "api.example.com", "kubernetes.default.svc", "localhost", "db.prod")
REQUESTS, NODES, IDENTITIES, REVOCATIONS = (
    "certificatesigningrequests",
    "nodes",
    "nodeidentities",
    "certificaterevocations",
)
OFTEN = st.sampled_from((True, True, False))
EVENTS = (
    "a key is revoked",
    "a node is revoked",
    "a token is deleted",
    "a server is added",
    "an object becomes unreadable",
    "everything can be read again",
    "another server leads",
    "time passes",
)
EMPTY = FixedView()
SERVICES = (
    thing("kubernetes", "default", spec={"clusterIPs": ["10.96.0.1"]}),
    thing("db", "prod", spec={"clusterIPs": ["10.96.0.7"]}),
)


@dataclass(frozen=True, slots=True)
class Request:
    """Facts of a request that the history keeps."""

    name: str
    machine: str
    node: str
    key: str
    created: int
    token: str = ""
    used: VerifiedPeer | None = None
    """Certificate with which it was made; None for a token."""
    serving: frozenset[Name] = frozenset()


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, and when it was issued."""

    request: Request
    peer: VerifiedPeer | None
    """None for a serving certificate."""
    at: int
    not_after: datetime


@dataclass(slots=True)
class History:
    """What happened, by the step in which it did. The gates do not read it."""

    step: int = 0
    deletions: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in NAMES})
    revoked_keys: dict[str, int] = field(default_factory=dict)
    revoked_nodes: dict[str, int] = field(default_factory=dict)
    ended_tokens: dict[str, int] = field(default_factory=dict)
    servers: dict[Name, int] = field(default_factory=lambda: {canonical(name): 0 for name in SERVER_NAMES})
    reported: dict[str, set[Name]] = field(default_factory=lambda: {name: set() for name in NAMES})
    """Addresses that each Node has reported at some time."""
    held_as_taken: set[str] = field(default_factory=set)
    persons: set[str] = field(default_factory=set)
    """Requests that a person approved."""
    issued: list[Issued] = field(default_factory=list)
    claims: list[tuple[Request, int]] = field(default_factory=list)
    """Requests for which a name was claimed, before their certificates were issued."""


@dataclass(slots=True)
class Waiting:
    """A plan whose actions are not applied yet."""

    request: str
    actions: Sequence[Action]


class Cluster(RuleBasedStateMachine):
    """Objects, controllers, plans that wait, and the history."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.history = History()
        self.requests: dict[str, Request] = {}
        self.waiting: list[Waiting] = []
        self.unreadable: set[tuple[str, str]] = set()
        self.objects: dict[str, dict[NamespacedName, Obj]] = {plural: {} for plural in BY_PLURAL}
        for token, node in TOKENS.items():
            notes = {"mooring.dev/node-name": node} if node else {}
            notes |= {"mooring.dev/max-joins": "1"} if token == "limited" else {}
            secret = token_secret(token, **{"usage-bootstrap-authentication": "true"})
            self._put("secrets", {**secret, "metadata": {**secret["metadata"], "annotations": notes}})
        for service in SERVICES:
            self._put("services", service)
        self.server_names: tuple[str, ...] = SERVER_NAMES
        self.judged = 0
        """Number of certificates that the promises were compared with."""
        self._seen: tuple[int, Views] = (-1, {})
        self._lead()

    def _lead(self) -> None:
        checks = issuance_checks(
            ControllerSettings(
                authority_for=CA.cluster_ca.for_signer,
                root_ca=RootCa(CA.certificate_pem),
                server_names=lambda: self.server_names,
                trusts_source_address=True,
                signing_duration=SIGNING_DURATION,
            )
        )
        self.approver = CsrApprover(checks)
        self.serving = ServingApprover(checks)
        self.signer = CsrSigner(
            CA.cluster_ca.for_signer, checks=checks, trusts_source_address=True, signing_duration=SIGNING_DURATION
        )

    # the store

    def _put(self, plural: str, obj: Obj) -> None:
        self.history.step += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.history.step)}
        key = metadata.get("namespace", ""), metadata["name"]
        self.objects[plural][key] = {**obj, "metadata": metadata}

    def _get(self, plural: str, name: str, namespace: str = "") -> Obj | None:
        return self.objects[plural].get((namespace, name))

    def views(self) -> Views:
        if self._seen[0] != self.history.step:
            self._seen = self.history.step, {plural: self._view(plural) for plural in BY_PLURAL}
        return self._seen[1]

    def _view(self, plural: str) -> FixedView:
        stored = self.objects[plural]
        if not stored:
            return EMPTY
        problems = {("", name): "no key decrypts it" for kind, name in self.unreadable if kind == plural}
        readable = [obj for key, obj in stored.items() if key not in problems]
        return FixedView(readable, self.history.step, {key: why for key, why in problems.items() if key in stored})

    def _apply(self, waiting: Waiting) -> None:
        """Apply actions as the loop does. One that needs an object which cannot be read is planned again later."""
        with suppress(UnreadableObjectError):
            self._apply_each(waiting)

    def _apply_each(self, waiting: Waiting) -> None:
        """Apply actions: each with its precondition, and none after one that failed."""
        for action in waiting.actions:
            match action:
                case CheckAccess():  # RBAC grants it
                    self._apply_each(replace(waiting, actions=action.then(True)))
                case Resolve():
                    self._apply_each(
                        replace(waiting, actions=action.then({name: frozenset() for name in action.names}))
                    )
                case Create():
                    key = action.obj["metadata"].get("namespace", ""), action.obj["metadata"]["name"]
                    if key in self.objects[action.plural]:
                        return
                    uid = f"uid-{self.history.step}"
                    self._put(action.plural, {**action.obj, "metadata": {**action.obj["metadata"], "uid": uid}})
                    self._note_claim(action.plural, waiting)
                case Update():
                    metadata = action.obj["metadata"]
                    stored = self._get(action.plural, metadata["name"], metadata.get("namespace", ""))
                    if stored is None or stored["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
                        return
                    if action.precondition is not None and not action.precondition(self.views(), self.now):
                        return
                    self._put(action.plural, action.obj)
                    self._note_claim(action.plural, waiting)
                    if action.plural == REQUESTS:
                        self._note(action.obj)
                case Retry() | Requeue():
                    pass
                case _:  # a record of the issuance log
                    pass

    def _note_claim(self, plural: str, waiting: Waiting) -> None:
        request = self.requests[waiting.request]
        if plural == IDENTITIES and not request.serving:
            self.history.claims.append((request, self.history.step))

    def _note(self, csr: Obj) -> None:
        """Write into the history what became of a request."""
        request = self.requests[csr["metadata"]["name"]]
        status = csr.get("status") or {}
        for one in status.get("conditions", ()):
            if (one["type"], one["reason"]) == (NEEDS_APPROVAL, "NodeNameTaken"):
                self.history.held_as_taken.add(request.name)
        if text := status.get("certificate"):
            certificate = certificates(base64.b64decode(text))[0]
            peer = None if request.serving else TRUST.verify([certificate.der], self.now)
            self.history.issued.append(
                Issued(request, peer, self.history.step, certificate.not_valid_after_utc),
            )

    # doors

    def _request(
        self, machine: str, node: str, number: int, requester: Mapping[str, Any], request: Request, **more: Any
    ) -> None:
        names = more.pop("names", ())
        forms = [canonical(name) for name in names]
        dns = [text for text, form in zip(names, forms, strict=True) if isinstance(form, str)]
        ips = [ip_address(text) for text, form in zip(names, forms, strict=True) if not isinstance(form, str)]
        pem = build_request(KEYS[machine][number], f"system:node:{node}", ("system:nodes",), dns, ips)
        serving = bool(names)
        spec = {
            "request": base64.b64encode(pem).decode(),
            "signerName": KUBELET_SERVING if serving else KUBE_APISERVER_CLIENT_KUBELET,
            "usages": ["digital signature", "server auth" if serving else "client auth"],
            **requester,
        }
        annotations = {"mooring.dev/source-address": "10.1.0.1"}
        if request.used is not None:
            annotations[REQUESTER_CERTIFICATE] = recorded(request.used)
        metadata = {"uid": f"uid-of-{request.name}", "annotations": annotations, "creationTimestamp": rfc3339(self.now)}
        self.requests[request.name] = request
        self._put(REQUESTS, thing(request.name, spec=spec, status={}, metadata=metadata))

    def _next(self, machine: str, node: str, number: int, **more: Any) -> Request:
        key = f"{machine}/{number}"
        return Request(f"csr-{self.history.step}", machine, node, key, self.history.step + 1, **more)

    def _join(self, machine: str, node: str, number: int, token: str, *, is_at_once: bool) -> None:
        if token in self.history.ended_tokens or TOKENS[token] not in ("", node):
            return  # the authenticator and admission refuse these
        request = self._next(machine, node, number, token=token)
        requester = {"username": f"system:bootstrap:{token}", "groups": ["system:bootstrappers"]}
        self._request(machine, node, number, requester, request)
        if is_at_once:
            self._work_on(request.name)

    def accepted(self) -> list[Issued]:
        """Return the client certificates that authenticate now."""
        seen = self.views()
        return [
            one
            for one in self.history.issued
            if one.peer is not None and self.now <= one.not_after and rejection(one.peer, seen, self.now) is None
        ]

    def _report(self, node: str, addresses: Sequence[str]) -> None:
        self.history.reported[node] |= {*map(canonical, addresses)}
        stored = self._get(NODES, node)
        made = thing(node, metadata={"uid": f"node-{self.history.step}"}) if stored is None else stored
        self._put(
            NODES, {**made, "status": {"addresses": [{"type": "InternalIP", "address": one} for one in addresses]}}
        )

    @rule(data=st.data())
    def a_person_approves(self, data: st.DataObject) -> None:
        undecided = [obj for obj in self.objects[REQUESTS].values() if is_undecided(obj)]
        if undecided:
            self._approve(data.draw(st.sampled_from(undecided)))

    def _approve(self, csr: Obj) -> None:
        self._put(REQUESTS, with_condition(csr, "Approved", "MooringApprove", "seen in rack 7"))
        self.history.persons.add(csr["metadata"]["name"])
        self.now += timedelta(seconds=1)  # requests of the same second count as new ones (ADR 0062)

    # moments

    def _plan(self, name: str) -> Waiting:
        """Return the actions that the controller in charge of a request plans now."""
        csr, request = self._get(REQUESTS, name), self.requests[name]
        approver = self.serving if request.serving else self.approver
        controller = approver if csr is not None and is_undecided(csr) else self.signer
        try:
            return Waiting(name, controller.plan(("", name), guarded(self.views()), self.now, entropy))
        except UnreadableObjectError:
            return Waiting(name, ())  # the plan waits until the object can be read

    def _work_on(self, name: str) -> None:
        """Plan and apply until the certificate is there, or nothing changes any more."""
        for _ in range(6):
            before = self.history.step
            self._apply(self._plan(name))
            if self.history.step == before or (
                self.history.issued[-1:] and self.history.issued[-1].at == self.history.step
            ):
                return

    @rule(data=st.data())
    def controllers_work_on_a_request(self, data: st.DataObject) -> None:
        self._work_on(data.draw(st.sampled_from(sorted(self.requests))))

    @rule(data=st.data())
    def a_controller_plans(self, data: st.DataObject) -> None:
        self.waiting.append(self._plan(data.draw(st.sampled_from(sorted(self.requests)))))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_plan_takes_effect(self, data: st.DataObject) -> None:
        self._apply(self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))))

    @rule(node=st.sampled_from(NAMES), is_held=st.booleans())
    def a_node_is_deleted(self, node: str, is_held: bool) -> None:
        self._delete(node, is_held=is_held)

    def _delete(self, node: str, *, is_held: bool) -> None:
        stored = self._get(NODES, node)
        if stored is None or (IDENTITIES, node) in self.unreadable or (NODES, node) in self.unreadable:
            return
        if stored["metadata"].get("deletionTimestamp"):
            del self.objects[NODES]["", node]  # the last finalizer goes
            self.history.step += 1
            return
        self.now += timedelta(seconds=1)  # requests of the same second count as new ones (ADR 0062)
        recorded_identity = with_node_recorded(self._get(IDENTITIES, node), stored, deleted_at=self.now)
        if recorded_identity is not None:
            self._put(IDENTITIES, recorded_identity)
        if is_held:
            marks = {"deletionTimestamp": rfc3339(self.now), "finalizers": ["example.com/hold"]}
            self._put(NODES, {**stored, "metadata": {**stored["metadata"], **marks}})
        else:
            del self.objects[NODES]["", node]
            self.history.step += 1
        self.history.deletions[node].append(self.history.step)
        self.now += timedelta(seconds=1)

    @rule(event=st.sampled_from(EVENTS), node=st.sampled_from(NAMES), data=st.data())
    def something_happens(self, event: str, node: str, data: st.DataObject) -> None:
        match event:
            case "a key is revoked":
                self._revoke_key(data)
            case "a node is revoked":
                self._revoke_node(node)
            case "a token is deleted":
                self._delete_token(data.draw(st.sampled_from(sorted(TOKENS))))
            case "a server is added":
                until = self.now + timedelta(days=3650)
                self._put("configmaps", serving_names_config_map("server-2", [FURTHER_SERVER], until))
                self.history.servers.setdefault(canonical(FURTHER_SERVER), self.history.step)
            case "an object becomes unreadable":
                self._lose_key_of(data)
            case "everything can be read again":
                self.unreadable.clear()
                self.history.step += 1
            case "another server leads":
                self._lead()
            case "time passes":
                self.now += timedelta(hours=data.draw(st.sampled_from((1, 24, 24 * 200))))

    def _revoke_key(self, data: st.DataObject) -> None:
        clients = [one for one in self.history.issued if one.peer is not None]
        if clients:
            one = data.draw(st.sampled_from(clients))
            assert one.peer is not None
            spec = {"publicKey": one.peer.public_key, "reason": "keyCompromise"}
            self._put(REVOCATIONS, thing(entry_name(spec), spec=spec))
            self.history.revoked_keys.setdefault(one.request.key, self.history.step)

    def _revoke_node(self, node: str) -> None:
        self.now += timedelta(seconds=1)
        spec = {"nodeName": node, "reason": "keyCompromise", "issuedBefore": rfc3339(self.now)}
        self._put(REVOCATIONS, thing(entry_name(spec), spec=spec))
        self.history.revoked_nodes[node] = self.history.step

    def _delete_token(self, token: str) -> None:
        if self.objects["secrets"].pop(("kube-system", f"bootstrap-token-{token}"), None) is not None:
            self.history.step += 1
            self.history.ended_tokens[token] = self.history.step

    def _lose_key_of(self, data: st.DataObject) -> None:
        plural = data.draw(st.sampled_from((IDENTITIES, NODES, REVOCATIONS)))
        if self.objects[plural]:
            name = data.draw(st.sampled_from(sorted(key[1] for key in self.objects[plural])))
            self.unreadable.add((plural, name))
            self.history.step += 1

    # promises

    @invariant()
    def the_promises_are_kept(self) -> None:
        self.no_certificate_takes_a_revocation_or_a_deletion_back()
        self.a_name_changes_hands_by_its_rules_alone()
        self.no_machine_serves_under_a_name_of_another()
        self.a_token_lets_in_what_it_allows()
        self.no_certificate_counts_that_ended()
        self.judged = len(self.history.issued)

    def no_certificate_takes_a_revocation_or_a_deletion_back(self) -> None:
        """requests-end-with-their-requester, revoked-keys-get-no-certificate"""
        for one in self._new():
            request = one.request
            assert request.key not in self.history.revoked_keys, f"{request} has a revoked key"
            assert request.created > self.history.revoked_nodes.get(request.node, -1), f"{request} is from before"
            if request.used is not None:
                used = next(old for old in self.history.issued if old.peer is request.used)
                assert used.request.key not in self.history.revoked_keys, f"{request} was made with a revoked key"
                assert not self._ended_since(used.request.key, request.node, one.at), f"{request} is of a deleted node"

    def a_name_changes_hands_by_its_rules_alone(self) -> None:
        """a-name-belongs-to-its-machine, a-deletion-gives-nothing-to-who-waited"""
        for one in self._new():
            request = one.request
            if one.peer is None or request.name in self.history.persons or TOKENS.get(request.token):
                continue
            before = [
                obtained
                for obtained in self._owners(request.node)
                if obtained[1] < one.at and obtained[0] is not request
            ]
            if not before or before[-1][0].machine == request.machine:
                continue
            owner, since = before[-1]
            assert request.name not in self.history.held_as_taken, f"{request} had waited"
            assert any(since < deleted <= request.created for deleted in self.history.deletions[request.node]), (
                f"{request} takes {owner.node} from {owner.machine}"
            )

    def no_machine_serves_under_a_name_of_another(self) -> None:
        """names-of-api-servers-are-reserved, names-of-other-machines, the-word-of-a-node"""
        forbidden = set(
            map(canonical, ("127.0.0.1", "10.96.0.1", "10.96.0.7", "localhost", "kubernetes.default.svc", "db.prod"))
        )
        for one in self._new():
            names, node = one.request.serving, one.request.node
            reserved = {name for name, since in self.history.servers.items() if since <= one.at}
            assert not names & (forbidden | reserved), f"{one.request} passes as the API server or a Service"
            if one.request.name in self.history.persons:
                continue
            addresses = {name for name in self.history.reported[node] if not isinstance(name, str)}
            earlier = [old for old in self.history.issued if old.at < one.at]
            renewed = {name for old in earlier if old.request.node == node for name in old.request.serving}
            strange = names - {node} - addresses - renewed  # a person may have approved what is renewed
            assert not strange, f"{one.request} has {strange} by its own word"
            others = [old for old in earlier if old.request.node != node and old.not_after > self.now]
            for old in others:
                # what the other had left is this one's since, and a claim of the other holds no renewal
                since = [one for one in earlier if one.request.node == node and one.at > old.at]
                kept = {name for one in self._granted(since, node) for name in one.request.serving}
                # what a person granted since is renewed, too, while the other has left it
                kept |= self._left(old.request.node) & {name for one in since for name in one.request.serving}
                shared = old.request.serving & names & self._reported_now(old.request.node) - kept
                assert not shared, f"{one.request} has {shared} of {old.request.node}"

    def _granted(self, issued: Sequence[Issued], node: str) -> list[Issued]:
        """Return the certificates of a node that no person approved."""
        return [one for one in issued if one.request.node == node and one.request.name not in self.history.persons]

    def _left(self, node: str) -> set[Name]:
        """Return the names that a member was certified for, and has left by a request of its own."""
        listed = certified_names_of(self._get(IDENTITIES, node) or {})
        return {canonical(one["name"]) for one in listed if one.get("leftAt")}

    def _reported_now(self, node: str) -> set[Name]:
        """Return the addresses of a member. Those of a Node whose deletion a finalizer holds are free: its membership has ended."""
        stored = self._get(NODES, node)
        if stored is None or stored["metadata"].get("deletionTimestamp"):
            return set()
        return {canonical(one["address"]) for one in (stored.get("status") or {}).get("addresses", ())}

    def a_token_lets_in_what_it_allows(self) -> None:
        """requests-of-a-token, joins-are-counted"""
        for one in self._new():
            request = one.request
            if request.token and request.name not in self.history.persons:
                assert request.token not in self.history.ended_tokens, f"{request} outlived its token"
        joins = {
            (one.request.key, one.request.node)
            for one in self.history.issued
            if one.request.token == "limited" and one.request.name not in self.history.persons
        }
        assert len(joins) <= 1, joins

    def no_certificate_counts_that_ended(self) -> None:
        """membership-ends-with-the-deletion, membership-that-cannot-be-read, revocation-that-cannot-be-read"""
        for one in self.accepted():
            request = one.request
            assert request.key not in self.history.revoked_keys, f"{request}: its key is revoked"
            assert one.at > self.history.revoked_nodes.get(request.node, -1), f"{request}: its node is revoked"
            assert (IDENTITIES, request.node) not in self.unreadable, f"{request}: nobody knows whether it is a member"
            assert not self._ended_since(request.key, request.node, self.history.step), (
                f"{request}: its Node was deleted"
            )
            assert self._owners(request.node)[-1][0].machine == request.machine, (
                f"{request}: the name has another machine"
            )

    def _owners(self, node: str) -> list[tuple[Request, int]]:
        """Return the requests that obtained the name in turn: by a certificate, or by a claim that the history justifies."""
        issued = [(one.request, one.at) for one in self.history.issued if one.peer and one.request.node == node]
        claims = [(one, at) for one, at in self.history.claims if one.node == node and self._may_claim(one, at)]
        return sorted((*issued, *claims), key=lambda obtained: obtained[1])

    def _may_claim(self, request: Request, at: int) -> bool:
        """Return true for a request that was made after the last deletion, or that a person approved."""
        if request.name in self.history.persons:
            return True
        return all(not request.created <= deleted <= at for deleted in self.history.deletions[request.node])

    def _ended_since(self, key: str, node: str, until: int) -> bool:
        """Return true when the Node was deleted after the key obtained the name for the last time, and before `until`."""
        newest = max(at for request, at in self._owners(node) if request.key == key)
        return any(newest < deleted <= until for deleted in self.history.deletions[node])

    def _new(self) -> list[Issued]:
        """Return the certificates that were issued since the promises were judged."""
        return self.history.issued[self.judged :]


class Joins(Cluster):
    """Machines that want to be members under two names, and renew."""

    @initialize()
    def a_machine_has_joined(self) -> None:
        self._join("good", "n1", 0, "shared0", is_at_once=True)
        assert [one.request.machine for one in self.accepted()] == ["good"], "the model lets no machine join"
        self._report("n1", ["10.1.0.1"])

    @rule(
        machine=st.sampled_from(sorted(KEYS)), node=st.sampled_from(NAMES), number=st.integers(0, 2),
        token=st.sampled_from(sorted(TOKENS)), is_at_once=OFTEN,
    )  # fmt: skip
    def a_token_requests(self, machine: str, node: str, number: int, token: str, is_at_once: bool) -> None:
        self._join(machine, node, number, token, is_at_once=is_at_once)

    @rule(data=st.data(), number=st.integers(0, 2), is_at_once=OFTEN)
    def a_member_renews(self, data: st.DataObject, number: int, is_at_once: bool) -> None:
        members = self.accepted()
        if members:
            used = data.draw(st.sampled_from(members))
            machine, node = used.request.machine, used.request.node
            requester = {"username": f"system:node:{node}", "groups": ["system:nodes"]}
            request = self._next(machine, node, number, used=used.peer)
            self._request(machine, node, number, requester, request)
            if is_at_once:
                self._work_on(request.name)

    @rule(machine=st.sampled_from(sorted(KEYS)), node=st.sampled_from(NAMES), is_held=st.booleans())
    def a_request_waits_for_a_deletion(self, machine: str, node: str, is_held: bool) -> None:
        self._join(machine, node, 1, "shared0", is_at_once=False)
        waiting = next(reversed(self.requests))
        self._delete(node, is_held=is_held)
        self._work_on(waiting)

    @rule(node=st.sampled_from(NAMES))
    def an_administrator_creates_a_node(self, node: str) -> None:
        if self._get(NODES, node) is None:
            self._put(NODES, thing(node, metadata={"uid": f"node-{self.history.step}"}))


class Names(Cluster):
    """Two members that want certificates of servers, and say of themselves what they like."""

    @initialize()
    def two_machines_have_joined(self) -> None:
        self._join("good", "n1", 0, "shared0", is_at_once=True)
        self._join("thief", "n2", 0, "shared0", is_at_once=True)
        for node, address in (("n1", "10.1.0.1"), ("n2", "10.1.0.2")):
            self._report(node, [address])
            self._serve(node, [address])
        assert [one.request.node for one in self.history.issued if one.request.serving] == ["n1", "n2"]

    def _serve(self, node: str, names: Sequence[str], *, is_at_once: bool = True) -> None:
        used = next((one for one in self.accepted() if one.request.node == node), None)
        if used is None:
            return
        machine = used.request.machine
        requester = {"username": f"system:node:{node}", "groups": ["system:nodes"]}
        request = self._next(machine, node, 0, used=used.peer, serving=frozenset(map(canonical, names)))
        self._request(machine, node, 0, requester, request, names=names)
        if is_at_once:
            self._work_on(request.name)

    @rule(
        node=st.sampled_from(NAMES), is_at_once=OFTEN, by_person=st.booleans(),
        names=st.lists(st.sampled_from((*ADDRESSES, *DNS_NAMES)), min_size=3, max_size=8, unique=True),
    )  # fmt: skip
    def a_member_requests_what_it_reports(self, node: str, names: list[str], is_at_once: bool, by_person: bool) -> None:
        """A machine tries names one after the other, says of each that it is its own, and may ask a person."""
        for name in names:
            if self._get(NODES, node) is None:
                return
            self._report(node, [name])
            self._serve(node, [name], is_at_once=is_at_once)
            csr = self._get(REQUESTS, next(reversed(self.requests)))
            if by_person and csr is not None and is_undecided(csr):
                self._approve(csr)
                self._work_on(csr["metadata"]["name"])

    @rule(
        node=st.sampled_from(NAMES), is_at_once=OFTEN,
        names=st.lists(st.sampled_from((*ADDRESSES, *DNS_NAMES)), min_size=1, max_size=2),
    )  # fmt: skip
    def a_member_requests(self, node: str, names: list[str], is_at_once: bool) -> None:
        self._serve(node, names, is_at_once=is_at_once)

    @rule(node=st.sampled_from(NAMES), addresses=st.lists(st.sampled_from(ADDRESSES), max_size=2))
    def a_member_reports(self, node: str, addresses: list[str]) -> None:
        if any(one.request.node == node for one in self.accepted()):
            self._report(node, addresses)


PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
"""All but the explanation of a failure, which traces each line and takes minutes."""
EXAMPLES = settings().max_examples
"""Examples of the profile; a developer's has fewer than these machines need."""
TestJoins = Joins.TestCase
TestJoins.settings = settings(max_examples=max(80, EXAMPLES), stateful_step_count=30, deadline=None, phases=PHASES)
TestNames = Names.TestCase
TestNames.settings = settings(max_examples=max(30, EXAMPLES), stateful_step_count=20, deadline=None, phases=PHASES)


def test_a_deletion_that_a_finalizer_holds_frees_the_names_of_the_node() -> None:
    state = Names()
    state.two_machines_have_joined()
    addresses = list(ADDRESSES[:3])
    state.a_member_requests_what_it_reports(node="n2", names=addresses, is_at_once=True, by_person=True)
    state.the_promises_are_kept()
    state.a_node_is_deleted(node="n1", is_held=True)
    state.a_member_requests_what_it_reports(node="n2", names=addresses, is_at_once=True, by_person=False)
    state.the_promises_are_kept()
    own = canonical("10.1.0.1")
    granted = [one.request for one in state.history.issued if own in one.request.serving]
    assert [one.node for one in granted if one.name not in state.history.persons] == ["n1", "n2"]
