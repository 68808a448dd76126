"""Test the first half of the pipeline: 401, 403 and anonymous requests.

Source: docs/protocol/authentication.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from OpenSSL import SSL

from mooring.authn import x509
from mooring.pki.x509.verify import ReadChain, read_chain
from mooring.server import pipeline
from tests.support.costlycertificates import chain
from tests.support.manualclock import settle
from tests.support.registryroom import secret
from tests.support.serverroom import Server, connection, in_server, open_server
from tests.support.testca import ThrowawayCA

UNAUTHORIZED = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "Unauthorized",
    "reason": "Unauthorized",
    "code": 401,
}
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


@in_server
async def test_a_bad_token_is_401_although_anonymous_access_is_on(server: Server) -> None:
    answer = await server.get(CLUSTER_INFO, token="abcdef.0123456789abcdef")
    assert (answer.status, answer.obj) == (401, UNAUTHORIZED)
    assert "www-authenticate" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-cache, private"


@in_server
async def test_an_unverifiable_certificate_alone_is_401(server: Server) -> None:
    stranger = ThrowawayCA("stranger", server.clock.now()).client("admin", "system:masters")
    answer = await server.get(CLUSTER_INFO, via=connection([stranger.der]))
    assert (answer.status, answer.obj) == (401, UNAUTHORIZED)


@in_server
async def test_a_good_bearer_token_rescues_an_unverifiable_certificate(server: Server) -> None:
    stranger = ThrowawayCA("stranger", server.clock.now()).client("x")
    token = await server.bootstrap_token()
    answer = await server.get("/version", via=connection([stranger.der]), token=token)
    assert answer.status == 200


@pytest.mark.parametrize("form", ["alternative names that are empty URIs", "one policy of a long kind"])
@in_server
async def test_requests_of_one_connection_that_ask_for_recovery_at_once_read_its_chain_once(
    server: Server, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other authenticators of certificates, and a second look after the views were brought up to date, read nothing either."""
    read, via = list[Sequence[bytes]](), connection(chain(form, above=True))

    def counting(presented: Sequence[bytes]) -> ReadChain:
        read.append(presented)
        return read_chain(presented)

    monkeypatch.setattr(x509, "read_chain", counting)
    asked = [("authorization", "Mooring-Recovery")]
    answers = await asyncio.gather(*(server.get("/version", via=via, headers=asked) for _ in range(20)))
    assert [one.status for one in answers] == [401] * 20
    assert len(read) == 1


@in_server
async def test_what_follows_the_leaf_in_a_chain_lends_nobody_its_identity(server: Server) -> None:
    mallory = ThrowawayCA("stranger", server.clock.now()).client("mallory")
    admin = server.ca.client("admin", "system:masters")
    answer = await server.get("/api/v1/secrets", via=connection([mallory.der, admin.der]))
    assert answer.status == 401


@in_server
async def test_a_certificate_that_expires_on_an_open_connection_is_401_from_then_on(server: Server) -> None:
    via = connection([server.ca.client("ann", "system:masters", lifetime=timedelta(hours=2)).der])
    assert (await server.get("/api/v1/namespaces", via=via)).status == 200
    await server.clock.advance(2 * 3600 + 1)
    assert (await server.get("/api/v1/namespaces", via=via)).status == 401


@pytest.mark.parametrize(
    ("target", "status"),
    [
        pytest.param(CLUSTER_INFO, 200, id="anonymous reads the public cluster-info"),
        pytest.param("/healthz", 200, id="anonymous reads healthz"),
        pytest.param("/livez", 200, id="anonymous reads livez"),
        pytest.param("/readyz", 200, id="anonymous reads readyz"),
        pytest.param("/version", 200, id="anonymous reads the version"),
        pytest.param("/api", 403, id="anonymous does not read discovery"),
        pytest.param("/apis", 403, id="anonymous does not read the groups"),
        pytest.param("/openapi/v3", 403, id="anonymous does not read OpenAPI"),
        pytest.param("/metrics", 403, id="anonymous does not read metrics"),
        pytest.param("/openid/v1/jwks", 403, id="anonymous does not read the keys of the issuer"),
        pytest.param("/nowhere", 403, id="anonymous does not learn which paths exist"),
        pytest.param("/apis/nobody.example/v1/things", 403, id="anonymous does not learn which groups exist"),
        pytest.param("/api/v1/namespaces/kube-system/secrets", 403, id="anonymous lists no secrets"),
        pytest.param("/api/v1/namespaces/kube-public/configmaps", 403, id="anonymous lists no public config maps"),
        pytest.param(f"{CLUSTER_INFO}/status", 403, id="anonymous reads no subresource of cluster-info"),
    ],
)
@in_server
async def test_what_anonymous_may(server: Server, target: str, status: int) -> None:
    assert (await server.get(target, via=connection())).status == status


def test_without_anonymous_access_nothing_is_answered_without_a_credential() -> None:
    async def body() -> None:
        async with open_server(anonymous_auth=False) as server:
            for target in ("/version", CLUSTER_INFO, "/livez"):
                assert (await server.get(target, via=connection())).obj == UNAUTHORIZED
            assert (await server.get("/version", token=await server.bootstrap_token())).status == 200

    asyncio.run(body())


@pytest.mark.parametrize(
    ("method", "target", "message", "details"),
    [
        pytest.param(
            "GET",
            "/api/v1/namespaces/kube-system/secrets",
            'secrets is forbidden: User "bob" cannot list resource "secrets" in API group "" in the namespace "kube-system"',
            {"kind": "secrets"},
            id="a list in a namespace",
        ),
        pytest.param(
            "GET",
            "/api/v1/nodes/n1",
            'nodes "n1" is forbidden: User "bob" cannot get resource "nodes" in API group "" at the cluster scope',
            {"name": "n1", "kind": "nodes"},
            id="a named cluster-scoped object",
        ),
        pytest.param(
            "PUT",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/a/approval",
            'certificatesigningrequests.certificates.k8s.io "a" is forbidden: User "bob" cannot update resource '
            '"certificatesigningrequests/approval" in API group "certificates.k8s.io" at the cluster scope',
            {"name": "a", "group": "certificates.k8s.io", "kind": "certificatesigningrequests"},
            id="a subresource",
        ),
        pytest.param(
            "GET",
            "/metrics",
            'forbidden: User "bob" cannot get path "/metrics"',
            {},
            id="a path",
        ),
        pytest.param(
            "POST",
            "/api/v1/nothings",
            'nothings is forbidden: User "bob" cannot create resource "nothings" in API group "" at the cluster scope',
            {"kind": "nothings"},
            id="a resource that does not exist",
        ),
    ],
)
@in_server
async def test_403_says_who_may_not_do_what(
    server: Server, method: str, target: str, message: str, details: dict[str, str]
) -> None:
    answer = await server.call(method, target, via=server.user("bob"))
    expected = {**UNAUTHORIZED, "message": message, "reason": "Forbidden", "details": details, "code": 403}
    assert answer.obj == expected, "also about a path: with details, and nothing in them"
    assert answer.headers["x-content-type-options"] == "nosniff"


@in_server
async def test_an_extra_space_before_the_token_is_a_warning_and_no_credential(server: Server) -> None:
    answer = await server.get("/version", via=connection(), headers=[("Authorization", "Bearer  abc")])
    assert answer.status == 200
    assert len(answer.warnings) == 1


@in_server
async def test_a_token_made_by_another_server_a_moment_ago_is_known(server: Server) -> None:
    from tests.support.registryroom import open_room

    async with open_room(server.storage, clock=server.clock) as other:
        from mooring.trust.bootstraptoken.token import parse_token
        from mooring.trust.bootstraptoken.tokensecret import TokenRecord, to_secret

        token = parse_token("fedcba.fedcba9876543210")
        record = TokenRecord(token, usages=("authentication", "signing"))
        await other.create("secrets", to_secret(record), namespace="kube-system")
        answer = await server.get("/version", token="fedcba.fedcba9876543210")
    assert answer.status == 200


# -- impersonation -----------------------------------------------------------------------------------------------


@in_server
async def test_an_administrator_acts_as_somebody_else_and_has_their_power(server: Server) -> None:
    answer = await server.get("/api/v1/nodes", headers=[("Impersonate-User", "bob")])
    assert answer.status == 403
    assert 'User "bob"' in answer.message


@in_server
async def test_the_name_to_act_as_need_not_be_ascii(server: Server) -> None:
    sent = "jürgen".encode().decode("latin-1")  # UTF-8, as Go clients send it
    answer = await server.get("/api/v1/nodes", headers=[("Impersonate-User", sent)])
    assert answer.status == 403
    assert 'User "jürgen"' in answer.message


@in_server
async def test_who_may_not_impersonate_is_told_of_the_first_way(server: Server) -> None:
    answer = await server.get("/version", via=server.user("bob"), headers=[("Impersonate-User", "ann")])
    assert answer.status == 403
    assert 'User "bob" cannot impersonate-on:user-info:get path "/version"' in answer.message


AUTHN = ["authentication.k8s.io"]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def allow(server: Server, subject: str, *rules: dict[str, Any]) -> None:
    """These rules, everywhere, for the user."""
    metadata = {"name": subject.replace(":", "-")}
    await server.create("clusterroles", {"metadata": metadata, "rules": list(rules)})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": metadata["name"]}
    who = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": subject}
    await server.create("clusterrolebindings", {"metadata": metadata, "roleRef": reference, "subjects": [who]})


def on(mode: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["configmaps"], "verbs": [f"impersonate-on:{mode}:list"]}


def of(mode: str, *resources: str) -> dict[str, Any]:
    return {"apiGroups": AUTHN, "resources": list(resources), "verbs": [f"impersonate:{mode}"]}


OLD = {
    "apiGroups": ["", *AUTHN],
    "resources": ["users", "groups", "uids", "userextras/a.io/b"],
    "verbs": ["impersonate"],
}


@pytest.mark.parametrize(
    ("target", "rules", "refusal"),
    [
        pytest.param("jane", [on("user-info"), of("user-info", "users")], "", id="a user by both grants"),
        pytest.param("jane", [OLD], "", id="a user by the old grant"),
        pytest.param(
            "jane", [on("user-info")], 'impersonate:user-info resource "users"', id="a user without its own grant"
        ),
        pytest.param(
            "jane",
            [of("user-info", "users")],
            'impersonate-on:user-info:list resource "configmaps"',
            id="a user without a grant on what is asked for",
        ),
        pytest.param(
            "system:serviceaccount:default:default",
            [on("serviceaccount"), of("serviceaccount", "serviceaccounts")],
            "",
            id="a service account by both grants",
        ),
        pytest.param(
            "system:serviceaccount:default:default",
            [on("user-info"), of("user-info", "users", "serviceaccounts")],
            "impersonate-on:serviceaccount:list",
            id="a service account not by those for users",
        ),
        pytest.param(
            "system:node:n1", [on("arbitrary-node"), of("arbitrary-node", "nodes")], "", id="a node by both grants"
        ),
        pytest.param(
            "system:node:n1",
            [on("associated-node"), of("associated-node", "nodes")],
            "impersonate-on:arbitrary-node:list",
            id="a node by who runs on none",
        ),
    ],
)
@in_server
async def test_constrained_impersonation(
    server: Server, target: str, rules: list[dict[str, Any]], refusal: str
) -> None:
    await allow(server, "bob", *rules)
    await allow(server, target, {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]})
    answer = await server.get(CONFIGMAPS, via=server.user("bob"), headers=[("Impersonate-User", target)])
    assert (answer.status, refusal in answer.obj.get("message", "")) == (403 if refusal else 200, True)


@pytest.mark.parametrize(
    ("headers", "rules", "refusal"),
    [
        pytest.param(
            [("Impersonate-Group", "system:masters")],
            [],
            'impersonate-on:user-info:list resource "configmaps"',
            id="masters, without a grant",
        ),
        pytest.param(
            [("Impersonate-Group", "system:masters")],
            [on("user-info"), of("user-info", "*")],
            'groups.authentication.k8s.io "system:masters" is forbidden: User "bob" cannot impersonate:user-info resource "groups" '
            'in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed',
            id="masters, by every grant of the constrained way",
        ),
        pytest.param(
            [("Impersonate-Extra-Scopes", "x")],
            [on("user-info"), of("user-info", "*", "userextras/scopes")],
            "impersonating an invalid key in extra is not allowed",
            id="an extra key that is no path",
        ),
        pytest.param([("Impersonate-Group", "system:masters")], [OLD], "", id="masters, by the old grant"),
    ],
)
@in_server
async def test_some_parts_only_the_old_way_grants(
    server: Server, headers: list[tuple[str, str]], rules: list[dict[str, Any]], refusal: str
) -> None:
    await allow(server, "bob", *rules)
    answer = await server.get(CONFIGMAPS, via=server.user("bob"), headers=[("Impersonate-User", "jane"), *headers])
    assert (answer.status, refusal in answer.obj.get("message", "")) == (403 if refusal else 200, True)


@in_server
async def test_the_target_s_own_rights_still_count(server: Server) -> None:
    await allow(server, "bob", on("user-info"), of("user-info", "users"))
    answer = await server.get(CONFIGMAPS, via=server.user("bob"), headers=[("Impersonate-User", "jane")])
    assert answer.status == 403
    assert 'User "jane" cannot list resource "configmaps"' in answer.message


# -- guesses -----------------------------------------------------------------------------------------------------


async def guess(server: Server, number: int, source: str = "198.51.100.7") -> int:
    token = f"abcdef.{number:016d}"
    return (await server.get(CLUSTER_INFO, token=token, via=connection(source=source))).status


@in_server
async def test_a_source_that_guesses_is_answered_late_and_with_429_beyond_its_budget(server: Server) -> None:
    first = [await guess(server, number) for number in range(20)]
    late = asyncio.ensure_future(guess(server, 20))
    await settle()
    assert first == [401] * 20
    assert not late.done(), "a refused guess is not answered at once"
    await server.clock.advance(pipeline.TARPIT_SECONDS)
    assert await late == 429


def test_who_offers_nothing_guesses_nothing() -> None:
    async def test() -> None:
        async with open_server(anonymous_auth=False) as server:
            via = connection(source="198.51.100.7")
            first = [await server.get("/version", via=via) for _ in range(50)]
            assert [answer.status for answer in first] == [401] * 50, "asking to be asked, as some clients do"
            assert await guess(server, 1) == 401, "a guess after that is the first of the source"

    asyncio.run(test())


@in_server
async def test_429_to_a_guesser_names_seconds_and_not_the_token(server: Server) -> None:
    for number in range(20):
        await guess(server, number)
    late = asyncio.ensure_future(
        server.get(CLUSTER_INFO, token="abcdef.0000000000000020", via=connection(source="198.51.100.7"))
    )
    await settle()
    await server.clock.advance(pipeline.TARPIT_SECONDS)
    answer = await late
    assert answer.status == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.obj["reason"] == "TooManyRequests"
    assert "abcdef" not in answer.text


@in_server
async def test_others_behind_the_same_address_who_prove_who_they_are_are_not_slowed(server: Server) -> None:
    for number in range(20):
        await guess(server, number)
    token = await server.bootstrap_token()
    waiting = asyncio.ensure_future(guess(server, 21))
    await settle()
    answer = await server.get("/version", token=token, via=connection(source="198.51.100.7"))
    assert answer.status == 200
    assert not waiting.done()
    await server.clock.advance(pipeline.TARPIT_SECONDS)
    await waiting


@in_server
async def test_another_source_has_a_budget_of_its_own(server: Server) -> None:
    for number in range(20):
        await guess(server, number)
    assert await guess(server, 0, "198.51.100.8") == 401


@in_server
async def test_after_a_pause_a_guesser_is_heard_again(server: Server) -> None:
    for number in range(20):
        await guess(server, number)
    await server.clock.advance(5)
    assert [await guess(server, number) for number in range(5)] == [401] * 5


@in_server
async def test_held_guessers_are_bounded(server: Server) -> None:
    for number in range(20):
        await guess(server, number)
    held = [asyncio.ensure_future(guess(server, number)) for number in range(pipeline.TARPIT_PLACES)]
    await settle()
    assert await guess(server, 9999) == 429, "no place left: refused at once"
    await server.clock.advance(pipeline.TARPIT_SECONDS)
    assert set(await asyncio.gather(*held)) == {429}


@in_server
async def test_a_scan_of_tokens_is_counted_and_leaves_no_label_of_its_own(server: Server) -> None:
    via = connection(source="198.51.100.7")
    tasks = [
        asyncio.ensure_future(server.get(f"/apis/g{number}/v1/r{number}", token=f"abcdef.{number:016d}", via=via))
        for number in range(1000)
    ]
    await settle()
    await server.clock.advance(pipeline.TARPIT_SECONDS)
    await asyncio.gather(*tasks)
    text = (await server.get("/metrics")).text
    assert "mooring_failed_authentications_total 1000.0" in text
    assert 'resource="r999"' not in text
    assert "g999" not in text


# -- places that a Role in a namespace must not reach --------------------------------------------------------------


async def namespace_admin(server: Server) -> None:
    rbac = "rbac.authorization.k8s.io"
    await server.create("namespaces", {"metadata": {"name": "team"}})
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    await server.create("roles", {"metadata": {"name": "all"}, "rules": [rule]}, namespace="team")
    binding = {
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "all"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": rbac}],
    }
    await server.create("rolebindings", binding, namespace="team")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "POST"])
@pytest.mark.parametrize(
    "target",
    [
        "/api/v1/namespaces/team/nodes/n1",
        "/api/v1/namespaces/team/namespaces/kube-system",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/team/clusterroles/cluster-admin",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/team/clusterrolebindings/cluster-admin",
        "/apis/certificates.k8s.io/v1/namespaces/team/certificatesigningrequests/a",
        "/apis/authentication.k8s.io/v1/namespaces/team/tokenreviews",
        "/apis/authorization.k8s.io/v1/namespaces/team/subjectaccessreviews",
    ],
)
@in_server
async def test_all_power_in_a_namespace_reaches_no_cluster_scoped_kind(
    server: Server, target: str, method: str
) -> None:
    await namespace_admin(server)
    bob = server.user("bob")
    assert (await server.get("/api/v1/namespaces/team/secrets", via=bob)).status == 200
    for path in (target, target.rpartition("/")[0]):
        answer = await server.call(method, path, via=bob, body={})
        assert answer.status in (403, 404, 405), answer.text


@in_server
async def test_a_watch_of_one_name_by_path_shows_that_name_only(server: Server) -> None:
    await server.create("secrets", secret("mine"))
    await server.create("secrets", secret("yours"))
    watch = await server.follow("/api/v1/watch/namespaces/default/secrets/mine")
    assert watch.event_names == ["ADDED mine"]
    await watch.end()


@pytest.mark.parametrize("selector", ["metadata.name=yours", "metadata.name!=mine", "type=Opaque"])
@in_server
async def test_a_selector_beside_a_name_in_the_path_must_agree_with_it(server: Server, selector: str) -> None:
    answer = await server.get(f"/api/v1/watch/namespaces/default/secrets/mine?fieldSelector={selector}")
    assert answer.status == 400


@in_server
async def test_a_rule_for_one_name_is_no_rule_for_the_collection(server: Server) -> None:
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["watch", "list"], "resourceNames": ["mine"]}
    await server.create("roles", {"metadata": {"name": "one"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "one"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "one"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": rbac}],
    }
    await server.create("rolebindings", binding)
    await server.create("secrets", secret("mine"))
    await server.create("secrets", secret("yours"))
    bob, base = server.user("bob"), "/api/v1/namespaces/default/secrets"
    assert (await server.get(base, via=bob)).status == 403
    listed = await server.get(f"{base}?fieldSelector=metadata.name=mine", via=bob)
    assert [item["metadata"]["name"] for item in listed.obj["items"]] == ["mine"]
    twice = await server.get(f"{base}?fieldSelector=metadata.name=mine&fieldSelector=metadata.name=yours", via=bob)
    assert [item["metadata"]["name"] for item in twice.obj["items"]] == ["mine"]
    watch = await server.follow("/api/v1/watch/namespaces/default/secrets/mine", via=bob)
    assert watch.event_names == ["ADDED mine"]
    await watch.end()


@pytest.mark.parametrize(
    ("how", "farewell"),
    [
        pytest.param({"via": connection()}, True, id="anonymous"),
        pytest.param({"token": "wrong"}, True, id="a bad token"),
        pytest.param({}, False, id="the administrator"),
        pytest.param(
            {"headers": [("impersonate-user", "system:anonymous")]}, False, id="the administrator as anonymous"
        ),
    ],
)
@in_server
async def test_an_http2_connection_ends_after_a_reply_to_nobody_in_particular(
    server: Server, how: dict[str, Any], farewell: bool
) -> None:
    assert (await server.response("GET", "/version", **how)).closes_http2 == farewell


@pytest.mark.parametrize(("flags", "agreed"), [({}, b"h2"), ({"disable_http2_serving": True}, b"http/1.1")], ids=str)
def test_http2_is_offered_unless_it_is_disabled(flags: dict[str, Any], agreed: bytes) -> None:
    async def look() -> None:
        async with open_server(**flags) as server:
            tls, client = SSL.Connection(server.assembly.trust.context.current), SSL.Context(SSL.TLS_CLIENT_METHOD)
            client.set_alpn_protos([b"h2", b"http/1.1"])
            peer = SSL.Connection(client)
            tls.set_accept_state()
            peer.set_connect_state()
            for _ in range(4):
                for one, other in ((peer, tls), (tls, peer)):
                    with contextlib.suppress(SSL.WantReadError):
                        one.do_handshake()
                    with contextlib.suppress(SSL.WantReadError):
                        other.bio_write(one.bio_read(1 << 16))
            assert peer.get_alpn_proto_negotiated() == agreed

    asyncio.run(look())
