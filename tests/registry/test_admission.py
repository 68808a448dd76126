"""Test admission plugins through the registry.

Source: docs/protocol/certificate-signing-requests.md#admission, docs/protocol/rbac.md#escalation,
docs/protocol/node-authorization.md#noderestriction, docs/protocol/namespaces.md.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import KINDS
from mooring.api.mooring import tombstones
from mooring.api.mooring.lineagerecord import MIN_RETENTION
from mooring.api.view import FixedView
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.clock import rfc3339
from mooring.errors import ApiError, ConfigError, ForbiddenError, InvalidError, NotFoundError, ServiceUnavailableError
from mooring.identity import ANONYMOUS_USER, API_SERVER_USER, MASTERS, NODE_PREFIX, NODES, RECOVERING_NODES, UserInfo
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.registry.admission import certificates
from mooring.registry.admission.certificates import IN_FLIGHT, JoinRequests, SettledTombstones
from mooring.registry.admission.noderestriction import forbidden_labels
from mooring.registry.admission.nodes import NodeMembership
from mooring.registry.admission.request import AdmissionRequest
from mooring.registry.admission.table import ADMISSION, ALWAYS_ENABLED, build
from mooring.trust.bootstraptoken.tokensecret import NOT_ACCEPTED, SECRET_TYPE
from mooring.trust.issuancelog import START, Checkpoint, new_record, record_name, verify
from tests.support.manualclock import EPOCH
from tests.support.registryroom import ADMIN, Room, in_room, kind, masters_only, open_room
from tests.support.testca import ThrowawayCA

NODE = UserInfo(NODE_PREFIX + "n1", groups=(NODES,))
NAMELESS = UserInfo("someone", groups=(NODES,))
USER = UserInfo("user")
KEY = generate_key()
HOUR = timedelta(hours=1)
KUBELET_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
CLIENT = "kubernetes.io/kube-apiserver-client"


def pem(common_name: str, *organizations: str) -> str:
    return base64.b64encode(build_request(KEY, common_name, organizations)).decode()


def csr(request: str, signer: str = CLIENT, name: str = "c") -> Obj:
    return {
        "metadata": {"name": name},
        "spec": {"request": request, "signerName": signer, "usages": ["client auth", "digital signature"]},
    }


# -- the table ------------------------------------------------------------------------------------------------------


def test_every_plugin_has_the_name_of_its_row() -> None:
    assert [plugin.name for plugin in build()] == list(ADMISSION)


def test_a_plugin_can_be_disabled_by_its_name() -> None:
    assert "NodeRestriction" not in [plugin.name for plugin in build(["NodeRestriction"])]


@pytest.mark.parametrize("name", ["Nope", "nodeRestriction", *sorted(ALWAYS_ENABLED)])
def test_other_names_cannot_be_disabled(name: str) -> None:
    with pytest.raises(ConfigError, match=f'disable-admission-plugins: "{name}" is not one of NamespaceLifecycle, '):
        build([name])


@pytest.mark.parametrize(
    ("accepts_tokens", "data", "kind", "is_warned"),
    [
        pytest.param(False, {"usage-bootstrap-authentication": "dHJ1ZQ=="}, SECRET_TYPE, True, id="a token"),
        pytest.param(False, {"usage-bootstrap-signing": "dHJ1ZQ=="}, SECRET_TYPE, False, id="a token that only signs"),
        pytest.param(False, {"usage-bootstrap-authentication": "dHJ1ZQ=="}, "Opaque", False, id="another Secret"),
        pytest.param(
            True, {"usage-bootstrap-authentication": "dHJ1ZQ=="}, SECRET_TYPE, False, id="tokens are accepted"
        ),
    ],
)
def test_a_token_that_is_not_accepted_is_warned_of(
    accepts_tokens: bool, data: dict[str, str], kind: str, is_warned: bool
) -> None:
    (plugin,) = (one for one in build(accepts_tokens=accepts_tokens) if one.name == "BootstrapTokenLimits")
    for operation, new in (
        ("CREATE", {"type": kind, "data": data}),
        ("UPDATE", {"type": kind, "data": data}),
        ("DELETE", None),
    ):
        asked = request("secrets", operation, new=new)
        plugin.admit(asked)
        assert asked.change.warnings == ([NOT_ACCEPTED] if is_warned and new else [])


# -- requests without a credential --------------------------------------------------------------------------------


def asked(
    node: str, source: str = "192.0.2.7", *conditions: Obj, name: str = "", username: str = "system:anonymous"
) -> Obj:
    """Return a stored request of a machine."""
    obj = csr(pem(NODE_PREFIX + node, NODES), KUBELET_CLIENT, name or f"csr-{node}-{source}")
    obj["metadata"]["annotations"] = {"mooring.dev/source-address": source}
    return {**obj, "spec": {**obj["spec"], "username": username}, "status": {"conditions": list(conditions)}}


def denied(message: str = "not ours") -> Obj:
    return {"type": "Denied", "status": "True", "reason": "JoinRequestDenied", "message": message}


def asking(new: Obj, *stored: Obj, source: str = "192.0.2.7", networks: Sequence[str] = (), **what: Any) -> None:
    """Let a machine without a credential make a request. Raises ForbiddenError."""
    (plugin,) = (
        one for one in build(join_request_networks=tuple(map(ip_network, networks))) if one.name == "JoinRequests"
    )
    given = {
        "user": ANONYMOUS_USER,
        "namespace": "",
        "new": new,
        "views": {"certificatesigningrequests": FixedView(stored)},
    }
    made = request("certificatesigningrequests", what.pop("operation", "CREATE"), **{**given, **what})
    plugin.admit(dataclasses.replace(made, change=dataclasses.replace(made.change, source=source)))


WAITING = csr(pem(NODE_PREFIX + "n1", NODES), KUBELET_CLIENT)


@pytest.mark.parametrize(
    ("new", "stored", "more"),
    [
        pytest.param(WAITING, [], {}, id="the first one"),
        pytest.param(WAITING, [], {"networks": ["192.0.2.0/24"]}, id="from a network of the setting"),
        pytest.param(WAITING, [asked("n1", "192.0.2.7", denied())], {"source": "192.0.2.8"}, id="a name that was denied"),
        pytest.param(WAITING, [asked("n2", "192.0.2.7", denied())], {}, id="another name than the denied one"),
        pytest.param(WAITING, [asked("n1", "192.0.2.7", denied(), username="jane")], {}, id="a denial of somebody else"),
        pytest.param(WAITING, [asked(f"w{i}", f"192.0.2.{i}", denied()) for i in range(150)], {}, id="many that were decided"),
        pytest.param(csr(pem("jane")), [], {"user": USER}, id="another user"),
        pytest.param(csr(pem("jane")), [], {"operation": "UPDATE"}, id="an update"),
    ],
)  # fmt: skip
def test_a_machine_without_a_credential_may_ask(new: Obj, stored: list[Obj], more: dict[str, Any]) -> None:
    asking(new, *stored, **more)


@pytest.mark.parametrize(
    ("new", "stored", "more", "message"),
    [
        pytest.param(csr(pem("jane"), KUBELET_CLIENT), [], {}, "only the client certificate of a node", id="a person"),
        pytest.param(csr(pem(NODE_PREFIX + "n1", NODES)), [], {}, "only the client certificate of a node", id="another signer"),
        pytest.param(csr("AAAA", KUBELET_CLIENT), [], {}, "only the client certificate of a node", id="no request at all"),
        pytest.param(WAITING, [], {"networks": ["198.51.100.0/24"]}, "not accepted from this network", id="another network"),
        pytest.param(WAITING, [asked("n1", "192.0.2.7", denied())], {}, "has denied this machine: not ours", id="a denied machine"),
        pytest.param(
            WAITING,
            [asked("n1", "192.0.2.7", {"type": "Denied", "status": "True"})],
            {},
            "has denied this machine: without a reason",
            id="a denied machine, without a reason",
        ),
        pytest.param(WAITING, [asked(f"w{i}") for i in range(4)], {}, "too many requests", id="the fifth of one address"),
        pytest.param(
            WAITING, [asked(f"w{i}", f"192.0.2.{i}") for i in range(100)], {}, "too many requests", id="one of a hundred and one"
        ),
    ],
)  # fmt: skip
def test_a_machine_without_a_credential_may_not_ask(
    new: Obj, stored: list[Obj], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ForbiddenError, match=message):
        asking(new, *stored, **more)


def waiting_with(**metadata: Any) -> Obj:
    return {**WAITING, "metadata": {**WAITING["metadata"], **metadata}}


def named_request(*names: str, organizations: Sequence[str] = (NODES,), common_name: str = NODE_PREFIX + "n1") -> Obj:
    text = base64.b64encode(build_request(KEY, common_name, organizations, names)).decode()
    return csr(text, KUBELET_CLIENT)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        pytest.param(named_request("a.test"), "DNS subjectAltNames", id="another name of the machine"),
        pytest.param(named_request(organizations=(NODES, MASTERS)), "subject organization", id="another group"),
        pytest.param(named_request(organizations=(MASTERS,)), "subject organization", id="a group of administrators"),
        pytest.param(named_request(common_name=NODE_PREFIX), "RFC 1123 subdomain", id="no name"),
        pytest.param(
            named_request(common_name=NODE_PREFIX + "N\x1b[31m"), "RFC 1123 subdomain", id="no name of a node"
        ),
        pytest.param({**WAITING, "spec": {**WAITING["spec"], "usages": ["server auth"]}}, "usages", id="another usage"),
        pytest.param(waiting_with(finalizers=["a.test/x"]), "has no finalizers", id="a finalizer"),
        pytest.param(waiting_with(labels={"a": "b"}), "has no labels", id="labels"),
        pytest.param(waiting_with(ownerReferences=[{"uid": "u"}]), "has no ownerReferences", id="an owner"),
        pytest.param(waiting_with(annotations={"a": "b" * 8192}), "at most 8192 bytes", id="a large annotation"),
    ],
)
def test_what_is_more_than_a_request_of_a_node_needs_a_credential(new: Obj, message: str) -> None:
    with pytest.raises(ForbiddenError, match=message):
        asking(new)


def test_a_server_without_the_setting_takes_no_request_without_a_credential() -> None:
    with pytest.raises(ForbiddenError, match="this server takes no requests without a credential"):
        JoinRequests().admit(request("certificatesigningrequests", "CREATE", user=ANONYMOUS_USER, new=WAITING))


def test_requests_that_are_being_written_count() -> None:
    plugin = JoinRequests(())
    view: list[Obj] = []

    def ask(name: str, at: datetime = EPOCH, *, dry_run: bool = False) -> None:
        made = request(
            "certificatesigningrequests",
            "CREATE",
            user=ANONYMOUS_USER,
            name=name,
            new=WAITING,
            views={"certificatesigningrequests": FixedView(view)},
            dry_run=dry_run,
        )
        plugin.admit(dataclasses.replace(made, change=dataclasses.replace(made.change, source="192.0.2.7", now=at)))

    for name in ("a", "b", "c", "c", "d"):
        ask("dry", dry_run=True)
        ask(name)
    with pytest.raises(ForbiddenError, match="too many"):
        ask("e")
    view = [asked(f"w{name}", name=name) for name in "ab"]
    with pytest.raises(ForbiddenError, match="too many"):
        ask("e")
    ask("a")
    ask("e", EPOCH + IN_FLIGHT)


# -- namespaces -----------------------------------------------------------------------------------------------------


def request(plural: str, operation: Any, **what: Any) -> AdmissionRequest:
    asked: dict[str, Any] = {
        "namespace": "x",
        "name": "a",
        "new": {"metadata": {"name": "a"}},
        "old": None,
        "views": {"namespaces": FixedView([])},
        "authorize": masters_only,
        **what,
    }
    by_plural = {item.resource.plural: item for item in KINDS}
    change = Change(asked.pop("user", USER), EPOCH)
    return AdmissionRequest(operation=operation, kind=by_plural[plural], change=change, **asked)


@pytest.mark.parametrize(
    ("plural", "operation", "more", "allowed"),
    [
        ("secrets", "CREATE", {}, False),
        ("secrets", "UPDATE", {}, True),
        ("secrets", "DELETE", {}, True),
        ("nodes", "CREATE", {"namespace": ""}, True),
        ("localsubjectaccessreviews", "CREATE", {}, True),
        ("serviceaccounts", "CREATE", {"subresource": "token"}, False),
    ],
    ids=[
        "creating is refused",
        "updating is allowed",
        "deleting is allowed",
        "cluster-scoped kinds do not care",
        "a review does not tell whether the namespace exists",
        "a token of a missing namespace is refused",
    ],
)
def test_in_a_missing_namespace(plural: str, operation: str, more: dict[str, Any], allowed: bool) -> None:
    plugin = ADMISSION["NamespaceLifecycle"]()
    asked = request(plural, operation, **more)
    if allowed:
        plugin.admit(asked)
    else:
        with pytest.raises(NotFoundError, match=r'^namespaces "x" not found$'):
            plugin.admit(asked)


# -- recovering nodes ------------------------------------------------------------------------------------------------

RECOVERING = UserInfo("system:recovering-node:n1", groups=(RECOVERING_NODES,))


@pytest.mark.parametrize(
    ("plural", "operation", "new", "user", "refusal"),
    [
        pytest.param("certificatesigningrequests", "CREATE", csr(pem("system:node:n1"), KUBELET_CLIENT), RECOVERING, "",
                     id="its own name is allowed"),
        pytest.param("certificatesigningrequests", "CREATE", csr(pem("system:node:n2"), KUBELET_CLIENT), RECOVERING,
                     'may only request a certificate of "system:node:n1"', id="another name is refused"),
        pytest.param("certificatesigningrequests", "CREATE", csr(pem("system:node:n1")), RECOVERING,
                     f"may only use the signer {KUBELET_CLIENT}", id="another signer is refused"),
        pytest.param("certificatesigningrequests", "CREATE", csr("junk", KUBELET_CLIENT), RECOVERING, "",
                     id="validation refuses a broken request"),
        pytest.param("certificatesigningrequests", "DELETE", None, RECOVERING, "may only create", id="a deletion is refused"),
        pytest.param("configmaps", "CREATE", {"metadata": {}}, RECOVERING, "may only create", id="another kind is refused"),
        pytest.param("selfsubjectaccessreviews", "CREATE", {"metadata": {}}, RECOVERING, "", id="a review is allowed"),
        pytest.param("configmaps", "CREATE", {"metadata": {}}, USER, "", id="other users are not concerned"),
    ],
)  # fmt: skip
def test_a_recovering_node(plural: str, operation: str, new: Obj | None, user: UserInfo, refusal: str) -> None:
    asked = request(plural, operation, new=new, old=None if new else {"metadata": {"name": "a"}}, user=user)
    if not refusal:
        ADMISSION["RecoveringNodeRestriction"]().admit(asked)
        return
    with pytest.raises(ForbiddenError, match=refusal):
        ADMISSION["RecoveringNodeRestriction"]().admit(asked)


# -- certificate requests -------------------------------------------------------------------------------------------


def granting(*grants: tuple[str, str]) -> Callable[[Attributes], Decision]:
    """Allows these (verb, signer name) pairs on signers, and notes nothing else."""

    def authorize(asked: Attributes) -> Decision:
        right = (asked.group, asked.resource) == ("certificates.k8s.io", "signers")
        return Decision(Ruling.ALLOW if right and (asked.verb, asked.name) in grants else Ruling.NO_OPINION)

    return authorize


BUNDLE_CA = ThrowawayCA().certificate_pem.decode()
SIGNER_BUNDLE = {
    "metadata": {"name": "example.com:web:a"},
    "spec": {"signerName": "example.com/web", "trustBundle": BUNDLE_CA},
}


@pytest.mark.parametrize(
    ("obj", "grants", "allowed"),
    [
        pytest.param(SIGNER_BUNDLE, [("attest", "example.com/web")], True, id="attest on the signer"),
        pytest.param(SIGNER_BUNDLE, [("attest", "example.com/*")], True, id="attest on its domain"),
        pytest.param(SIGNER_BUNDLE, [("sign", "example.com/web")], False, id="another verb"),
        pytest.param({"metadata": {"name": "a"}, "spec": {"trustBundle": BUNDLE_CA}}, [], True, id="no signer"),
    ],
)
def test_a_bundle_of_a_signer_needs_attest(obj: Obj, grants: list[tuple[str, str]], allowed: bool) -> None:
    async def scenario() -> None:
        async with open_room(authorize=granting(*grants)) as room:
            call = room.create("clustertrustbundles", deep_copy(obj), user=USER)
            if allowed:
                await call
                return
            with pytest.raises(ForbiddenError, match=r'user not permitted to attest for signerName "example.com/web"'):
                await call

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("metadata", "refused"),
    [
        pytest.param({"finalizers": ["example.com/a"]}, False, id="a finalizer needs nothing"),
        pytest.param({"labels": {"a": "b"}}, True, id="a label needs attest"),
    ],
)
@in_room
async def test_a_change_of_a_bundle(room: Room, metadata: Obj, refused: bool) -> None:
    stored = await room.create("clustertrustbundles", deep_copy(SIGNER_BUNDLE), user=ADMIN)
    body = deep_copy(stored.obj)
    body["metadata"].update(metadata)
    if refused:
        with pytest.raises(ForbiddenError, match="not permitted to attest"):
            await room.update("clustertrustbundles", body, user=USER)
        return
    await room.update("clustertrustbundles", body, user=USER)
    await room.delete("clustertrustbundles", "example.com:web:a", user=USER)


CONDITION = {"type": "Approved", "status": "True", "reason": "r"}


@pytest.mark.parametrize(
    ("grants", "allowed"),
    [
        ([("approve", CLIENT)], True),
        ([("approve", "kubernetes.io/*")], True),
        ([("sign", CLIENT)], False),
        ([("approve", KUBELET_CLIENT)], False),
        ([("approve", "*")], False),
        ([], False),
    ],
    ids=str,
)
def test_approving_needs_the_right_on_the_signer_or_its_domain(grants: list[tuple[str, str]], allowed: bool) -> None:
    async def scenario() -> None:
        async with open_room(authorize=granting(*grants)) as room:
            stored = await room.create("certificatesigningrequests", csr(pem("x")))
            body = deep_copy(stored.obj)
            body["status"] = {"conditions": [CONDITION]}
            call = room.update("certificatesigningrequests", body, subresource="approval", user=USER)
            if allowed:
                approved, _ = await call
                assert approved.obj["status"]["conditions"][0]["type"] == "Approved"
                return
            with pytest.raises(ForbiddenError) as caught:
                await call
            assert caught.value.message == (
                'certificatesigningrequests.certificates.k8s.io "c" is forbidden: '
                f'user not permitted to approve requests with signerName "{CLIENT}"'
            )

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "metadata", "asked"),
    [
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "r"}]}, {}, True),
        ({}, {"labels": {"a": "b"}}, False),
    ],
    ids=["a condition needs sign", "a label through /status does not"],
)
@in_room
async def test_signing(room: Room, status: Obj, metadata: Obj, asked: bool) -> None:
    stored = await room.create("certificatesigningrequests", csr(pem("x")))
    body = deep_copy(stored.obj)
    body["status"] = {**body.get("status", {}), **status}
    body["metadata"].update(metadata)
    call = room.update("certificatesigningrequests", body, subresource="status", user=USER)
    if asked:
        with pytest.raises(ForbiddenError, match="user not permitted to sign requests with signerName"):
            await call
        await room.update("certificatesigningrequests", body, subresource="status", user=ADMIN)
    else:
        assert (await call)[0].labels == {"a": "b"}


@in_room
async def test_nobody_asks_for_a_member_of_system_masters(room: Room) -> None:
    with pytest.raises(ForbiddenError) as caught:
        await room.create("certificatesigningrequests", csr(pem("x", "a", MASTERS)))
    assert caught.value.message == (
        'certificatesigningrequests.certificates.k8s.io "c" is forbidden: '
        f"use of {CLIENT} signer with system:masters group is not allowed"
    )
    await room.create("certificatesigningrequests", csr(pem("x", MASTERS), "example.com/mine"))


@pytest.mark.parametrize("user", [USER, NODE], ids=["a user", "a node"])
@pytest.mark.parametrize("signer", [CLIENT, KUBELET_CLIENT])
@pytest.mark.parametrize("junk", ["", "!", base64.b64encode(b"junk").decode()])
@in_room
async def test_an_unreadable_request_is_told_by_validation(room: Room, user: UserInfo, signer: str, junk: str) -> None:
    with pytest.raises(InvalidError, match=r"spec\.request"):
        await room.create("certificatesigningrequests", csr(junk, signer), user=user)


def bootstrap_token(**annotations: str) -> Obj:
    named = {f"mooring.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system", "annotations": named},
        "type": "bootstrap.kubernetes.io/token",
    }


@pytest.mark.parametrize(
    ("annotations", "common_name", "refusal"),
    [
        pytest.param({"node_name": "worker-*"}, NODE_PREFIX + "worker-1", "", id="a name that matches"),
        pytest.param({"max_joins": "1"}, NODE_PREFIX + "n1", "", id="any name"),
        pytest.param(
            {"node_name": "worker-*"}, NODE_PREFIX + "n1", 'only for nodes named "worker-\\*"', id="another name"
        ),
        pytest.param({"node_name": "*"}, "jane", "only for nodes named", id="no node"),
        pytest.param({"node_name": "A"}, NODE_PREFIX + "n1", "not a node name", id="an unreadable pattern"),
    ],
)
@in_room
async def test_a_bootstrap_token_requests_only_names_that_it_allows(
    room: Room, annotations: dict[str, str], common_name: str, refusal: str
) -> None:
    user = UserInfo("system:bootstrap:abcdef", groups=("system:bootstrappers",))
    wanted = csr(pem(common_name, NODES), KUBELET_CLIENT)
    await room.create("certificatesigningrequests", {**wanted, "metadata": {"name": "before"}}, user=user)
    await room.create("secrets", bootstrap_token(**annotations), "kube-system")
    if not refusal:
        await room.create("certificatesigningrequests", wanted, user=user)
        return
    with pytest.raises(ForbiddenError, match=refusal) as refused:
        await room.create("certificatesigningrequests", wanted, user=user)
    causes = [cause.reason for cause in refused.value.details.causes]
    assert causes == (["NodeNameNotAllowed"] if "only for nodes" in refusal else [])
    if "node_name" in annotations and "A" not in annotations.values():
        with pytest.raises(InvalidError):
            await room.create("certificatesigningrequests", csr("junk", KUBELET_CLIENT), user=user)


# -- join rules ---------------------------------------------------------------------------------------------------------


def join_rule(**spec: Any) -> Obj:
    full = {"issuer": {"url": "https://id.example"}, "claims": [{"claim": "ref", "value": "x"}], **spec}
    return {"metadata": {"name": "ci"}, "spec": full}


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        pytest.param({}, "", id="no expression"),
        pytest.param({"claims": [{"expression": "claims.ref == 'x'"}]}, "", id="one that is compiled"),
        pytest.param(
            {"claims": [{"expression": "claims.ref =="}]}, "an expression cannot be used", id="one that is none"
        ),
        pytest.param(
            {"claims": [{"expression": "claims.ref"}]}, "must evaluate to a bool", id="one that may give anything"
        ),
        pytest.param({"nodeNameExpression": "1 + 1"}, "must evaluate to a string", id="a name that is a number"),
        pytest.param(
            {"nodeNameExpression": "'x'.matches(claims.p) ? 'a' : 'b'"}, "pattern of matches", id="an open pattern"
        ),
        pytest.param({"claims": []}, "without one, every machine", id="a mistake that the validation reports"),
        pytest.param({"claims": [{"claim": "sub", "pattern": "*"}]}, "would fit every value", id="a bare star"),
    ],
)
@in_room
async def test_a_join_rule_whose_expressions_cannot_be_compiled_is_refused(
    room: Room, spec: dict[str, Any], refusal: str
) -> None:
    if refusal:
        with pytest.raises(InvalidError, match=refusal):
            await room.create("joinrules", join_rule(**spec))
    stored = (await room.create("joinrules", join_rule(**({} if refusal else spec)))).obj
    if refusal:
        with pytest.raises(InvalidError, match=refusal):
            await room.update("joinrules", {**stored, "spec": join_rule(**spec)["spec"]})
    await room.delete("joinrules", "ci")


@pytest.mark.parametrize(
    ("stated", "common_name", "refusal"),
    [
        pytest.param({"node-name": "ci-1"}, "system:node:ci-1", "", id="the name that the token gives"),
        pytest.param({"node-name": "ci-*"}, "system:node:ci-9", "", id="a name that fits its pattern"),
        pytest.param({}, "system:node:any", "", id="a rule without names"),
        pytest.param({"node-name": "ci-1"}, "system:node:ci-2", "only for nodes", id="another name"),
        pytest.param({"node-name": "*"}, "jane", "only for nodes", id="no node"),
        pytest.param({"expires": "soon"}, "system:node:ci-1", "not stated", id="attributes that cannot be read"),
    ],
)
@in_room
async def test_an_identity_token_requests_only_the_name_that_it_gives(
    room: Room, stated: dict[str, str], common_name: str, refusal: str
) -> None:
    texts = {
        "rule-digest": "d", "issuer": "https://id.example", "use": "sha256:" + "a" * 64,
        "expires": "2026-01-01T00:00:00Z", **stated,
    }  # fmt: skip
    extra = {f"join.mooring.dev/{name}": (text,) for name, text in texts.items()}
    user = UserInfo("system:joinrule:ci", groups=("system:bootstrappers",), extra=extra)
    wanted = csr(pem(common_name, NODES), KUBELET_CLIENT)
    if not refusal:
        await room.create("certificatesigningrequests", wanted, user=user)
        return
    with pytest.raises(ForbiddenError, match=refusal) as refused:
        await room.create("certificatesigningrequests", wanted, user=user)
    causes = [cause.reason for cause in refused.value.details.causes]
    assert causes == (["NodeNameNotAllowed"] if "only for nodes" in refusal else [])


# -- issuance log -----------------------------------------------------------------------------------------------------------


@in_room
async def test_records_of_the_issuance_log_are_only_appended(room: Room) -> None:
    entry = {"time": "2026-01-01T00:00:00Z", "event": "Issued", "notAfter": "2026-06-01T00:00:00Z"}
    first, head = new_record(START, [entry], None)
    second, _ = new_record(head, [entry], None)
    foreign, _ = new_record(Checkpoint(1, "sha256:" + "f" * 64), [entry], None)
    with pytest.raises(ForbiddenError, match="must follow the last one"):
        await room.create("lineagerecords", second)
    await room.create("lineagerecords", first)
    with pytest.raises(ForbiddenError, match="must follow the last one"):
        await room.create("lineagerecords", foreign)
    with pytest.raises(InvalidError, match="sequence number"):
        await room.create("lineagerecords", {**second, "metadata": {"name": "last"}})
    stored = (await room.create("lineagerecords", second)).obj
    with pytest.raises(ForbiddenError, match="never changed"):
        await room.update("lineagerecords", {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}})
    with pytest.raises(ForbiddenError, match="only where an entry says that the log was trimmed up to it"):
        await room.delete("lineagerecords", stored["metadata"]["name"])


@in_room
async def test_records_of_the_issuance_log_are_deleted_as_an_entry_says_and_never_early(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    def issued(end: datetime) -> Obj:
        return {"time": rfc3339(room.clock.now()), "event": "Issued", "notAfter": rfc3339(end)}

    def trim(checkpoint: Checkpoint, until: datetime) -> Obj:
        return {
            "time": rfc3339(room.clock.now()),
            "event": "Trimmed",
            "checkpoint": str(checkpoint),
            "notAfter": rfc3339(until),
        }

    async def append(entry: Obj) -> Checkpoint:
        record, head = new_record(heads[-1], [entry], None)
        await room.create("lineagerecords", record)
        heads.append(head)
        return head

    async def delete(number: int) -> None:
        await room.delete("lineagerecords", record_name(number))

    heads, end = [START], room.clock.now()
    for offset in (timedelta(0), timedelta(0), timedelta(hours=1)):
        await append(issued(end + offset))
    for checkpoint in (Checkpoint(2, "sha256:" + "f" * 64), Checkpoint(9, heads[1].hash)):
        with pytest.raises(ForbiddenError, match="has no record"):
            await append(trim(checkpoint, end))
    last = end + timedelta(hours=1)
    with pytest.raises(ForbiddenError, match=f"notAfter must be the last end .*, {rfc3339(last)}"):
        await append(trim(heads[3], end))
    monkeypatch.setattr(certificates, "MAX_TRIMMED", 2)
    with pytest.raises(ForbiddenError, match="at most 2 records"):
        await append(trim(heads[3], last))
    monkeypatch.undo()
    await append(trim(heads[3], last))
    with pytest.raises(ForbiddenError, match="has no record"):
        await append(trim(heads[3], last))
    for field in ({"finalizers": ["a.b/c"]}, {"ownerReferences": [OWN_NODE]}):
        record, _ = new_record(heads[-1], [issued(end)], None)
        record["metadata"] |= field
        with pytest.raises(ForbiddenError, match="no finalizers and no owners"):
            await room.create("lineagerecords", record)
    with pytest.raises(ForbiddenError, match="for 30 days after the end of its certificates"):
        await delete(1)
    room.clock.set(end + MIN_RETENTION)
    with pytest.raises(ForbiddenError, match="from the oldest on"):
        await delete(2)
    await delete(1)
    await delete(2)
    with pytest.raises(ForbiddenError, match="for 30 days"):
        await delete(3)
    with pytest.raises(ForbiddenError, match="only where an entry says"):
        await delete(4)
    with pytest.raises(ForbiddenError, match="must follow the last one"):
        await room.create("lineagerecords", new_record(START, [issued(end)], None)[0])
    result = verify(room.registry.views["lineagerecords"].list())
    assert (result.faults, result.start) == ([], heads[2])
    monkeypatch.setattr(certificates, "MAX_TRIMMED", 1)
    await append(trim(heads[4], last))


@in_room
async def test_a_record_of_a_certificate_that_never_ends_stays(room: Room) -> None:
    end = "9999-12-31T23:59:59Z"
    first, head = new_record(START, [{"time": "2026-01-01T00:00:00Z", "event": "Issued", "notAfter": end}], None)
    entry = {"time": "2026-01-01T00:00:00Z", "event": "Trimmed", "checkpoint": str(head), "notAfter": end}
    for record in (first, new_record(head, [entry], None)[0]):
        await room.create("lineagerecords", record)
    with pytest.raises(ForbiddenError, match="for 30 days after the end of its certificates"):
        await room.delete("lineagerecords", record_name(1))


@in_room
async def test_the_issuance_log_is_not_trimmed_up_to_a_certificate_whose_end_is_not_known(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of an earlier version may have any text: it is refused at its creation now."""
    ended = {"time": "2026-01-01T00:00:00Z", "notAfter": "2026-01-01T00:00:00Z"}
    first, head = new_record(START, [{**ended, "event": "Issued"}], None)
    await room.create("lineagerecords", first)
    monkeypatch.setattr(certificates, "end_of", lambda record: None)
    trim = {**ended, "event": "Trimmed", "checkpoint": str(head)}
    with pytest.raises(ForbiddenError, match="is not known"):
        await room.create("lineagerecords", new_record(head, [trim], None)[0])


@pytest.mark.parametrize(
    ("end", "unreadable", "message"),
    [
        pytest.param(rfc3339(EPOCH - MIN_RETENTION), {}, "", id="which is the oldest and old enough"),
        pytest.param(
            rfc3339(EPOCH - MIN_RETENTION),
            {("", record_name(1)): "no JSON"},
            "from the oldest on",
            id="after one that cannot be read",
        ),
        pytest.param("soon", {}, "stays for 30 days", id="whose end is not known, whatever the entry says"),
    ],
)
def test_a_record_that_a_stored_entry_trims(end: str, unreadable: dict[tuple[str, str], str], message: str) -> None:
    entry = {"time": rfc3339(EPOCH), "event": "Issued", "notAfter": end}
    second, head = new_record(Checkpoint(1, START.hash), [entry], None)
    third, _ = new_record(head, [{"event": "Trimmed", "checkpoint": str(head)}], None)
    view = FixedView([second, third], unreadable=unreadable)
    asked = request(
        "lineagerecords", "DELETE", name=record_name(2), new=None, old=second, views={"lineagerecords": view}
    )
    with pytest.raises(ForbiddenError, match=message) if message else nullcontext():
        ADMISSION["LineageAppendOnly"]().admit(asked)


@pytest.mark.parametrize("plugin", ["CertificateSubjectRestriction", "NodeRestriction"])
def test_a_request_only_validation_can_read_is_refused_all_the_same(plugin: str) -> None:
    lenient = dataclasses.replace(kind("certificatesigningrequests"), validate=lambda obj: [])
    signer = CLIENT if plugin == "CertificateSubjectRestriction" else KUBELET_CLIENT
    asked = request("certificatesigningrequests", "CREATE", namespace="", new=csr("junk", signer), user=NODE)
    asked.kind = lenient
    with pytest.raises(ForbiddenError, match="unable to parse csr"):
        ADMISSION[plugin]().admit(asked)


OWN_NODE = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}


@pytest.mark.parametrize("subresource", ["", "status"])
@in_room
async def test_a_node_changes_no_finalizers_that_others_set(room: Room, subresource: str) -> None:
    await room.create("nodes", {"metadata": {"name": "n1", "finalizers": ["a.b/c"]}})
    for finalizers in (None, ["a.b/c", "d.e/f"]):
        with suppress(ForbiddenError):  # the strategy of the status ignores metadata
            await room.patch(
                "nodes", "n1", {"metadata": {"finalizers": finalizers}}, subresource=subresource, user=NODE
            )
    with suppress(InvalidError):
        await room.patch("nodes", "n1", {"metadata": {"deletionTimestamp": None}}, subresource=subresource, user=NODE)
    assert (await room.get("nodes", "n1")).obj["metadata"]["finalizers"] == ["a.b/c"]
    await room.patch("nodes", "n1", {"metadata": {"labels": {"free": "1"}}}, user=NODE)
    await room.delete("nodes", "n1", user=ADMIN)
    with suppress(ForbiddenError, InvalidError):
        await room.patch(
            "nodes",
            "n1",
            {"metadata": {"deletionTimestamp": None, "finalizers": []}},
            subresource=subresource,
            user=NODE,
        )
    metadata = (await room.get("nodes", "n1")).obj["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["finalizers"] == ["a.b/c"]


# -- nodes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plural", "namespace", "obj", "why"),
    [
        ("nodes", "", {"metadata": {"name": "n2"}}, 'node "n1" is not allowed to modify node "n2"'),
        (
            "nodes",
            "",
            {"metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/control-plane": "", "mine": "1"}}},
            'node "n1" is not allowed to set the following labels: node-role.kubernetes.io/control-plane',
        ),
        ("leases", "kube-node-lease", {"metadata": {"name": "n2"}}, "can only access node lease with the same name"),
        ("leases", "default", {"metadata": {"name": "n1"}}, 'can only access leases in the "kube-node-lease" system'),
        (
            "certificatesigningrequests",
            "",
            csr(pem(NODE_PREFIX + "n2", NODES), KUBELET_CLIENT),
            "can only create a node CSR with CN=system:node:n1",
        ),
        ("nodes", "", {"metadata": {"name": "n1", "finalizers": ["a.b/c"]}}, "is not allowed to modify finalizers"),
        (
            "nodes",
            "",
            {"metadata": {"name": "n1", "ownerReferences": [OWN_NODE]}},
            "not allowed to modify ownerReferences",
        ),
        (
            "certificatesigningrequests",
            "",
            {**csr(pem(NODE_PREFIX + "n1", NODES), KUBELET_CLIENT), "metadata": {"name": "c", "finalizers": ["a.b/c"]}},
            "is not allowed to modify finalizers",
        ),
        (
            "leases",
            "kube-node-lease",
            {"metadata": {"name": "n1", "ownerReferences": [{**OWN_NODE, "name": "n2"}]}},
            "is not allowed to set an owner other than its own Node",
        ),
        (
            "leases",
            "kube-node-lease",
            {"metadata": {"name": "n1", "ownerReferences": [{**OWN_NODE, "blockOwnerDeletion": True}]}},
            "is not allowed to set an owner other than its own Node",
        ),
        (
            "certificaterevocations",
            "",
            {"metadata": {"name": "node-n2"}, "spec": {"nodeName": "n2"}},
            'node "n1" is not allowed to change the denylist of certificates',
        ),
    ],
    ids=[
        "another node",
        "a label of Kubernetes' own",
        "another's lease",
        "a lease elsewhere",
        "another's certificate",
        "a finalizer of its Node",
        "an owner of its Node",
        "a finalizer of a request",
        "an owner that is another node",
        "an owner whose deletion it blocks",
        "a revocation",
    ],
)
@in_room
async def test_a_node_may_not_create(room: Room, plural: str, namespace: str, obj: Obj, why: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        await room.create(plural, obj, namespace, user=NODE)
    assert why in caught.value.message
    with pytest.raises(ForbiddenError, match='could not determine node from user "someone"'):
        await room.create(plural, obj, namespace, user=NAMELESS)


@in_room
async def test_a_node_has_its_own(room: Room) -> None:
    own = {"kubernetes.io/hostname": "n1", "node.kubernetes.io/x": "1", "a.kubelet.kubernetes.io/y": "1", "free": "1"}
    await room.create("nodes", {"metadata": {"name": "n1", "labels": own}}, user=NODE)
    await room.patch("nodes", "n1", {"metadata": {"labels": {"free": None}}}, user=NODE)
    await room.patch("nodes", "n1", {"status": {"phase": "Running"}}, subresource="status", user=NODE)
    await room.create(
        "leases", {"metadata": {"name": "n1", "ownerReferences": [OWN_NODE]}}, "kube-node-lease", user=NODE
    )
    await room.patch("leases", "n1", {"spec": {"holderIdentity": "n1"}}, "kube-node-lease", user=NODE)
    await room.delete("leases", "n1", "kube-node-lease", user=NODE)
    await room.create("certificatesigningrequests", csr(pem(NODE_PREFIX + "n1", NODES), KUBELET_CLIENT), user=NODE)
    await room.create("certificatesigningrequests", csr(pem("x"), "example.com/mine", "d"), user=NODE)
    await room.patch("certificatesigningrequests", "c", {"metadata": {"labels": {"a": "b"}}}, user=NODE)
    await room.create("configmaps", {"metadata": {"name": "other-kinds-are-the-authorizer-s-business"}}, user=NODE)
    await room.delete("nodes", "n1", user=NODE)


@pytest.mark.parametrize(
    ("identities", "error"),
    [
        pytest.param(FixedView(unreadable={("", "n1"): "no key"}), ServiceUnavailableError, id="cannot be read"),
        pytest.param(FixedView([{"metadata": {"name": "n1"}, "spec": {"nodeUID": "u1"}}]), ForbiddenError, id="ended"),
    ],
)
def test_a_machine_whose_membership_ended_or_cannot_be_read_puts_no_node_back(
    identities: FixedView, error: type[ApiError]
) -> None:
    node = {"namespace": "", "name": "n1", "new": {"metadata": {"name": "n1"}}, "views": {"nodeidentities": identities}}
    with pytest.raises(error):
        NodeMembership().admit(request("nodes", "CREATE", user=NODE, **node))
    NodeMembership().admit(request("nodes", "CREATE", user=ADMIN, **node))


@pytest.mark.parametrize(
    ("name", "patch", "why"),
    [
        ("n1", {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}, "is not allowed to modify taints"),
        (
            "n1",
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u"}]}},
            "is not allowed to modify ownerReferences",
        ),
        (
            "n1",
            {"metadata": {"labels": {"x.node-restriction.kubernetes.io/a": "b", "k8s.io/c": "d"}}},
            "is not allowed to modify labels: k8s.io/c, x.node-restriction.kubernetes.io/a",
        ),
        ("n1", {"metadata": {"finalizers": ["a.b/c"]}}, "is not allowed to modify finalizers"),
        (
            "n1",
            {"metadata": {"annotations": {"mooring.dev/may-be-silent": "true"}}},
            "is not allowed to modify the annotation mooring.dev/may-be-silent",
        ),
        ("n2", {"metadata": {"labels": {"free": "1"}}}, 'is not allowed to modify node "n2"'),
    ],
    ids=["taints", "owner references", "protected labels", "finalizers", "its exemption", "another node"],
)
@in_room
async def test_a_node_may_not_change(room: Room, name: str, patch: Obj, why: str) -> None:
    await room.create("nodes", {"metadata": {"name": name}})
    with pytest.raises(ForbiddenError) as caught:
        await room.patch("nodes", name, patch, user=NODE)
    assert caught.value.message.startswith(f'nodes "{name}" is forbidden: ')
    assert why in caught.value.message
    await room.patch("nodes", name, patch, user=ADMIN)


@in_room
async def test_a_node_with_an_exemption_reports_and_does_not_take_it_back(room: Room) -> None:
    exempt = {"mooring.dev/may-be-silent": "true"}
    await room.create("nodes", {"metadata": {"name": "n1", "annotations": exempt}})
    await room.patch("nodes", "n1", {"metadata": {"annotations": {"other": "1"}}}, user=NODE)
    await room.patch("nodes", "n1", {"status": {"phase": "Running"}}, user=NODE, subresource="status")
    removed = {"metadata": {"annotations": {"mooring.dev/may-be-silent": None}}}
    for subresource in ("", "status"):
        with pytest.raises(ForbiddenError):
            await room.patch("nodes", "n1", removed, user=NODE, subresource=subresource)
    await room.delete("nodes", "n1")
    with pytest.raises(ForbiddenError):
        await room.create("nodes", {"metadata": {"name": "n1", "annotations": exempt}}, user=NODE)


@in_room
async def test_a_node_may_not_delete_another(room: Room) -> None:
    await room.create("nodes", {"metadata": {"name": "n2"}})
    with pytest.raises(ForbiddenError):
        await room.delete("nodes", "n2", user=NODE)


@pytest.mark.parametrize(
    ("plural", "obj"),
    [
        ("configmaps", {"metadata": {"name": "c"}}),
        ("secrets", {"metadata": {"name": "c"}}),
        ("events", {"metadata": {"name": "c"}, "involvedObject": {"namespace": "default"}}),
    ],
)
@in_room
async def test_a_node_that_names_itself_nowhere_writes_nothing(room: Room, plural: str, obj: Obj) -> None:
    with pytest.raises(ForbiddenError, match='could not determine node from user "someone"'):
        await room.create(plural, obj, "default", user=NAMELESS)


def test_a_node_may_not_set_config_source() -> None:
    plugin = ADMISSION["NodeRestriction"]()
    new = {"metadata": {"name": "n1"}, "spec": {"configSource": {"configMap": {}}}}
    for old in (None, {"metadata": {"name": "n1"}}):
        with pytest.raises(ForbiddenError, match="configSource"):
            plugin.admit(request("nodes", "UPDATE", namespace="", name="n1", new=new, old=old, user=NODE))
    plugin.admit(request("nodes", "UPDATE", namespace="", name="n1", new=new, old=new, user=NODE))


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        ({}, {"beta.kubernetes.io/os": "linux", "example.com/x": "1", "plain": "1"}, []),
        ({"kubernetes.io/role": "a"}, {"kubernetes.io/role": "a"}, []),
        ({"kubernetes.io/role": "a"}, {}, ["kubernetes.io/role"]),
        ({"kubernetes.io/role": "a"}, {"kubernetes.io/role": "b"}, ["kubernetes.io/role"]),
        ({}, {"node-restriction.kubernetes.io/x": "1"}, ["node-restriction.kubernetes.io/x"]),
        ({}, {"sub.node.kubernetes.io/x": "1", "notnode.kubernetes.io/x": "1"}, ["notnode.kubernetes.io/x"]),
        ({}, {"x.k8s.io/y": "1", "notk8s.io/y": "1"}, ["x.k8s.io/y"]),
    ],
)
def test_labels_a_node_may_not_touch(before: dict[str, str], after: dict[str, str], refused: list[str]) -> None:
    assert forbidden_labels(before, after) == refused


def projected(**token: str) -> Obj:
    return {"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": token}]}}


DISK = {"name": "d", "persistentVolumeClaim": {"claimName": "disk"}}
EPHEMERAL = {"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}
INLINE = {"name": "c", "csi": {"driver": "d"}}


def running(*volumes: Obj, node: str = "n1") -> Obj:
    return {"metadata": {"name": "p", "namespace": "x", "uid": "u"}, "spec": {"nodeName": node, "volumes": [*volumes]}}


def storage(**objects: list[Obj]) -> dict[str, FixedView]:
    """Return views of claims, volumes and CSI drivers, which another server wrote."""
    plurals = ("persistentvolumeclaims", "persistentvolumes", "csidrivers")
    return {plural: FixedView(objects.get(plural, [])) for plural in plurals}


def judge_token(audiences: list[str], pod: Obj, views: dict[str, FixedView], why: str, **more: Any) -> None:
    """Let NodeRestriction judge a node's request for a token of the Pod, which it refuses with `why`, or allows without."""
    spec = {"boundObjectRef": OF_POD, "audiences": audiences}
    asked = request(
        "serviceaccounts",
        "CREATE",
        subresource="token",
        name="robot",
        new={"metadata": {}, "spec": spec},
        views={"pods": FixedView([pod]), **views},
        user=NODE,
        **more,
    )
    plugin = ADMISSION["NodeRestriction"]()
    if why:
        with pytest.raises(ForbiddenError, match=why):
            plugin.admit(asked)
    else:
        plugin.admit(asked)


POD = running({"name": "e", "emptyDir": {}}, projected(path="token"))
OF_POD = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}


@pytest.mark.parametrize(
    ("bound", "pods", "why"),
    [
        (None, [POD], "not bound to a pod"),
        ({"kind": "Secret", "name": "p", "uid": "u"}, [POD], "not bound to a pod"),
        ({"kind": "Pod", "name": "p", "uid": "u"}, [POD], "not bound to a pod"),
        ({"apiVersion": "v1", "kind": "Pod", "name": "p"}, [POD], "without a uid"),
        ({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}, [], 'pods "p" not found'),
        ({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "other"}, [POD], "does not match the UID in record"),
        (
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            [running(projected(), node="n2")],
            "scheduled on a different node",
        ),
        ({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}, [POD], ""),
    ],
    ids=[
        "unbound",
        "bound to a secret",
        "no API version",
        "no uid",
        "no such pod",
        "another pod",
        "a pod elsewhere",
        "its own pod",
    ],
)
def test_tokens_a_node_may_ask_for(bound: Obj | None, pods: list[Obj], why: str) -> None:
    new = {"metadata": {}, "spec": {"boundObjectRef": bound} if bound else {}}
    asked = request(
        "serviceaccounts", "CREATE", subresource="token", new=new, views={"pods": FixedView(pods)}, user=NODE
    )
    plugin = ADMISSION["NodeRestriction"]()
    if why:
        with pytest.raises(ApiError, match=why):
            plugin.admit(asked)
    else:
        plugin.admit(asked)


@pytest.mark.parametrize(
    ("audiences", "pod", "granted", "why"),
    [
        ([], POD, "", ""),
        ([""], POD, "", ""),
        ([], running(), "", 'system:node:n1 is not authorized to request tokens for audience ""'),
        (["vault"], POD, "", 'is not authorized to request tokens for audience "vault"'),
        (["vault"], running(projected(audience="vault")), "", ""),
        (["vault"], running(projected(audience="vault"), projected(audience="mesh")), "", ""),
        ([], running(projected(audience="vault")), "", 'for audience ""'),
        (["vault", "mesh"], running(projected(audience="vault"), projected(audience="mesh")), "", "0 or 1 audiences"),
        (
            ["vault"],
            running(DISK),
            "",
            'error validating audience "vault": persistentvolumeclaim "disk" not found',
        ),
        (
            ["vault"],
            running(DISK, EPHEMERAL, INLINE, DISK),
            "mesh",
            r'\[persistentvolumeclaim "disk" not found, persistentvolumeclaim "p-e" not found, csidriver.storage.k8s.io "d" not',
        ),
        (["vault"], running(DISK, EPHEMERAL, INLINE), "vault", ""),
        (["vault"], running(DISK, projected(audience="vault")), "", ""),
        (["vault"], POD, "vault", ""),
        (["vault"], POD, "mesh", 'for audience "vault"'),
        ([], running(), "vault", 'for audience ""'),
    ],
    ids=[
        "the API's, as a volume asks",
        "the API's, said as nothing",
        "the API's, and no volume asks",
        "another than the volume's",
        "the volume's",
        "one of two volumes'",
        "the API's, and the volume asks for another",
        "two at once",
        "of a claim that does not exist",
        "of several objects that do not exist",
        "of objects that do not exist, and RBAC allows it",
        "a volume's, beside a claim",
        "one that RBAC allows",
        "another than RBAC allows",
        "the API's, when RBAC allows another",
    ],
)
def test_audiences_a_node_may_ask_for(audiences: list[str], pod: Obj, granted: str, why: str) -> None:
    def authorize(asked: Attributes) -> Decision:
        assert (asked.user, asked.group, asked.namespace) == (NODE, "", "x")
        assert asked.verb == "request-serviceaccounts-token-audience"
        return Decision(Ruling.ALLOW if (asked.resource, asked.name) == (granted, "robot") else Ruling.NO_OPINION)

    judge_token(audiences, pod, storage(), why, authorize=authorize)


def claim(name: str, volume: str = "pv", namespace: str = "x") -> Obj:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"volumeName": volume}}


def driver(*audiences: str, name: str = "d") -> list[Obj]:
    requests = [{"audience": audience} for audience in audiences]
    return [{"metadata": {"name": name}, "spec": {"tokenRequests": requests}}]


CLAIMS = [claim("disk"), claim("p-e")]
VOLUMES: list[Obj] = [{"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "d"}}}]
NO_CLAIM = 'error validating audience "vault": persistentvolumeclaim "disk" not found'
NO_VOLUME = 'error validating audience "vault": persistentvolume "{}" not found'
NO_RIGHT = 'is not authorized to request tokens for audience "vault"'


@pytest.mark.parametrize(
    ("volume", "views", "why"),
    [
        pytest.param(INLINE, storage(csidrivers=driver("mesh", "vault")), "", id="of an inline CSI volume"),
        pytest.param(
            DISK,
            storage(persistentvolumeclaims=CLAIMS, persistentvolumes=VOLUMES, csidrivers=driver("vault")),
            "",
            id="of a claim",
        ),
        pytest.param(
            EPHEMERAL,
            storage(persistentvolumeclaims=CLAIMS, persistentvolumes=VOLUMES, csidrivers=driver("vault")),
            "",
            id="of the claim of an ephemeral volume",
        ),
        pytest.param(
            {"name": "a", "azureFile": {"shareName": "s"}},
            storage(csidrivers=driver("vault", name="file.csi.azure.com")),
            "",
            id="of an in-tree volume",
        ),
        pytest.param(
            DISK,
            storage(
                persistentvolumeclaims=CLAIMS,
                persistentvolumes=[{"metadata": {"name": "pv"}, "spec": {"cinder": {"volumeID": "i"}}}],
                csidrivers=driver("vault", name="cinder.csi.openstack.org"),
            ),
            "",
            id="of a claim of an in-tree volume",
        ),
        pytest.param(INLINE, storage(csidrivers=driver("mesh")), NO_RIGHT, id="another than the driver's"),
        pytest.param(INLINE, storage(csidrivers=driver("")), NO_RIGHT, id="the driver's is that of the API"),
        pytest.param(
            INLINE,
            storage(csidrivers=[{"metadata": {"name": "d"}, "spec": {}}]),
            NO_RIGHT,
            id="the driver needs no token",
        ),
        pytest.param(
            INLINE,
            storage(csidrivers=[{"metadata": {"name": "d"}, "spec": "junk"}]),
            NO_RIGHT,
            id="a driver of no shape",
        ),
        pytest.param(
            DISK,
            storage(
                persistentvolumeclaims=[claim("disk", namespace="y")],
                persistentvolumes=VOLUMES,
                csidrivers=driver("vault"),
            ),
            NO_CLAIM,
            id="of a claim in another namespace",
        ),
        pytest.param(
            DISK,
            storage(persistentvolumeclaims=[claim("disk", "")], persistentvolumes=VOLUMES, csidrivers=driver("vault")),
            NO_VOLUME.format(""),
            id="of a claim without a volume",
        ),
        pytest.param(
            DISK,
            storage(persistentvolumeclaims=CLAIMS, csidrivers=driver("vault")),
            NO_VOLUME.format("pv"),
            id="of a volume that does not exist",
        ),
        pytest.param(
            DISK,
            storage(
                persistentvolumeclaims=CLAIMS,
                persistentvolumes=[{"metadata": {"name": "pv"}, "spec": {"nfs": {}}}],
                csidrivers=driver("vault"),
            ),
            NO_RIGHT,
            id="of a volume without a driver",
        ),
        pytest.param(
            INLINE,
            {**storage(), "csidrivers": FixedView(unreadable={("", "d"): "no key"})},
            'error validating audience "vault": csidriver.storage.k8s.io "d" cannot be read$',
            id="of a driver that cannot be read",
        ),
    ],
)
def test_audiences_of_csi_drivers(volume: Obj, views: dict[str, FixedView], why: str) -> None:
    judge_token(["vault"], running(volume), views, why)


# -- escalation -----------------------------------------------------------------------------------------------------

RULES = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]


@in_room
async def test_a_role_is_written_only_by_who_holds_its_rules(room: Room) -> None:
    role = {"metadata": {"name": "r"}, "rules": RULES}
    with pytest.raises(ForbiddenError, match="is attempting to grant RBAC permissions not currently held"):
        await room.create("clusterroles", role, user=USER)
    await room.create("clusterroles", role)
    await room.create(
        "clusterrolebindings",
        {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "user"}],
        },
    )
    await room.create("roles", role, user=USER)
    with pytest.raises(ForbiddenError):
        await room.patch("roles", "r", {"rules": [{**RULES[0], "verbs": ["get", "delete"]}]}, user=USER)


@in_room
async def test_a_binding_to_a_missing_role_is_404_and_one_without_role_ref_is_422(room: Room) -> None:
    binding: Obj = {"metadata": {"name": "b"}, "subjects": []}
    with pytest.raises(InvalidError):
        await room.create("rolebindings", binding, user=USER)
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "none"}
    with pytest.raises(NotFoundError):
        await room.create("rolebindings", binding, user=USER)
    await room.create("rolebindings", binding)


@in_room
async def test_admission_alone_is_asked_for_what_is_not_stored(room: Room) -> None:
    with pytest.raises(NotFoundError):
        room.registry.writer.admit(
            AdmissionRequest(
                operation="CREATE",
                kind=kind("serviceaccounts"),
                subresource="token",
                namespace="missing",
                name="a",
                new={"metadata": {}},
                old=None,
                change=room.change(),
                views=room.registry.views,
                authorize=masters_only,
            )
        )


# -- the denylist ---------------------------------------------------------------------------------------------------

SHA = "sha256:" + "ab" * 32


def identity(name: str, *serial_numbers: str, key: str = SHA, end: str = "2999-01-01T00:00:00Z") -> Obj:
    keys = [{"publicKey": key, "serialNumber": number, "notAfter": end} for number in serial_numbers]
    return {"metadata": {"name": name}, "spec": {"keys": keys}}


IDENTITIES = [
    identity("n1", "0a1", "b2"),
    identity("n2", "c3"),
    identity("n3", "d4", key=SHA.replace("a", "0")),
    identity("n4", "e5", end="2000-01-01T00:00:00Z"),
]


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        pytest.param({"nodeName": "n1"}, ["a1", "b2"], id="the certificates of a node"),
        pytest.param({"nodeName": "n9"}, None, id="none of a node that nobody knows"),
        pytest.param({"nodeName": "n4"}, None, id="none that expired"),
        pytest.param({"publicKey": SHA}, ["a1", "b2", "c3"], id="the certificates of a key"),
        pytest.param({"serialNumber": "a1"}, None, id="a serial number needs no other"),
        pytest.param({"nodeName": "n2", "knownSerialNumbers": ["f"]}, ["c3"], id="not those that a client names"),
    ],
)
def test_the_server_records_which_certificates_an_entry_revokes(spec: Obj, known: list[str] | None) -> None:
    (plugin,) = (one for one in build() if one.name == "KnownSerialNumbers")
    new: Obj = {"metadata": {"name": "x"}, "spec": dict(spec)}
    views = {"nodeidentities": FixedView(IDENTITIES)}
    plugin.admit(request("certificaterevocations", "CREATE", namespace="", new=new, views=views))
    assert new["spec"].get("knownSerialNumbers") == known


def test_recorded_serial_numbers_stay_and_are_bounded() -> None:
    (plugin,) = (one for one in build() if one.name == "KnownSerialNumbers")
    old: Obj = {
        "metadata": {"name": "x"},
        "spec": {"nodeName": "n2", "knownSerialNumbers": [f"1{i:x}" for i in range(64)]},
    }
    new: Obj = {"metadata": {"name": "x"}, "spec": {"nodeName": "n2"}}
    views = {"nodeidentities": FixedView(IDENTITIES)}
    plugin.admit(request("certificaterevocations", "UPDATE", namespace="", new=new, old=old, views=views))
    assert new["spec"]["knownSerialNumbers"] == [*old["spec"]["knownSerialNumbers"][1:], "c3"]
    kept: Obj = {"metadata": {"name": "x"}, "spec": {"nodeName": "n2", "issuedBefore": rfc3339(EPOCH - HOUR)}}
    plugin.admit(request("certificaterevocations", "UPDATE", namespace="", new=kept, old=old, views=views))
    assert kept["spec"]["knownSerialNumbers"] == old["spec"]["knownSerialNumbers"], "the machine may be back since"
    plugin.admit(request("certificaterevocations", "DELETE", namespace="", old=old, views=views))
    plugin.admit(request("nodes", "CREATE", namespace="", new={"metadata": {"name": "x"}}, views=views))


# -- the tombstones that a restored store would bring back ------------------------------------------------------------------

BACK = {tombstones.key_of(tombstones.Tombstone.NODE, "n1"): tombstones.entry("n1", {"uid": "u1"})}
ACCEPTED = {tombstones.ACCEPTED + key: text for key, text in BACK.items()}
MORE = {tombstones.more_key("node", "s1"): "{}"}

LIST = {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}}


def list_write(operation: str, node: bool = True, name: str = tombstones.NAME, **what: Any) -> AdmissionRequest:
    nodes = FixedView([{"metadata": {"name": "n1", "uid": "u1"}}] if node else [])
    views = {"nodes": nodes, "nodeidentities": FixedView([])}
    given = {"old": {**LIST, "data": BACK}, "new": None, "user": ADMIN, **what}
    return request(tombstones.CONFIG_MAPS, operation, namespace=tombstones.NAMESPACE, name=name, views=views, **given)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        pytest.param(list_write("DELETE"), "node.n1 is not settled", id="its deletion"),
        pytest.param(
            list_write("UPDATE", new=LIST), "node.n1 is not settled", id="a write that leaves a tombstone out"
        ),
        pytest.param(list_write("UPDATE", new={**LIST, "data": ACCEPTED}), None, id="one that accepts it"),
        pytest.param(list_write("UPDATE", new=LIST, node=False), None, id="one after the end"),
        pytest.param(
            list_write("DELETE", old={**LIST, "data": ACCEPTED}), None, id="the deletion of what was accepted"
        ),
        pytest.param(
            list_write("UPDATE", new={**LIST, "data": BACK, "immutable": True}), "may not be immutable", id="immutable"
        ),
        pytest.param(
            list_write("CREATE", old=None, new={**LIST, "immutable": True}, name=""),
            "may not be immutable",
            id="immutable from the start",
        ),
        pytest.param(list_write("DELETE", old={**LIST, "data": MORE}), "is not settled", id="while a server has more"),
        pytest.param(
            list_write("UPDATE", old={**LIST, "data": MORE}, new=LIST, user=API_SERVER_USER),
            None,
            id="that server lists the rest",
        ),
        pytest.param(
            list_write("UPDATE", new=LIST, user=API_SERVER_USER),
            "node.n1 is not settled",
            id="a server leaves a tombstone out, too",
        ),
        pytest.param(list_write("DELETE", name="other"), None, id="another ConfigMap"),
        pytest.param(request("secrets", "DELETE", name=tombstones.NAME), None, id="another kind"),
    ],
)
def test_the_list_of_tombstones_loses_only_what_is_settled(write: AdmissionRequest, why: str | None) -> None:
    if why is None:
        SettledTombstones().admit(write)
        return
    with pytest.raises(ForbiddenError, match=why):
        SettledTombstones().admit(write)
