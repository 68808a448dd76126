"""Impersonation headers: every way to be allowed, in order.

Source: docs/protocol/impersonation.md.
"""

from __future__ import annotations

import pytest

from mooring.authn.impersonation import POD_NAME, Impersonation, NeededGrant, read_impersonation
from mooring.errors import BadRequestError
from mooring.identity import AUTHENTICATED, MASTERS, NODE_NAME, NODES, UNAUTHENTICATED, UserInfo

AUTHN = "authentication.k8s.io"
BOB = UserInfo("bob")
NODE = "system:node:n1"
ACCOUNT = "system:serviceaccount:ns:sa"


def pod(node: str = "n1", name: str = ACCOUNT, **more: tuple[str, ...]) -> UserInfo:
    return UserInfo(name, extra={NODE_NAME: (node,), POD_NAME: ("p",), **more})


def old(headers: dict[str, list[str]]) -> Impersonation:
    """The last way: the one every Kubernetes release knows."""
    way = read_impersonation(headers, BOB)[-1]
    assert (way.mode, way.verb, way.constraint, way.verb_on("get")) == ("", "impersonate", "", "")
    return way


def test_a_malformed_service_account_is_authorized_as_a_user_and_gets_no_groups_of_service_accounts() -> None:
    way = old({"impersonate-user": ["system:serviceaccount:De fault:x"]})
    assert way.grants == (NeededGrant("", "v1", "users", "system:serviceaccount:De fault:x"),)
    assert way.user == UserInfo("system:serviceaccount:De fault:x", groups=(AUTHENTICATED,))


def test_no_header_impersonates_nobody() -> None:
    assert read_impersonation({"accept": ["*/*"]}, BOB) == ()


@pytest.mark.parametrize(
    ("headers", "requester", "modes"),
    [
        pytest.param({"impersonate-user": ["jane"]}, BOB, ["user-info", ""], id="a user"),
        pytest.param({"impersonate-user": [ACCOUNT]}, BOB, ["serviceaccount", ""], id="a service account"),
        pytest.param(
            {"impersonate-user": [ACCOUNT], "impersonate-group": ["g"]}, BOB, [""], id="a service account with a group"
        ),
        pytest.param(
            {"impersonate-user": [ACCOUNT], "impersonate-uid": ["1"]}, BOB, [""], id="a service account with a uid"
        ),
        pytest.param(
            {"impersonate-user": [ACCOUNT], "impersonate-extra-a.io%2fb": ["1"]},
            BOB,
            [""],
            id="a service account with an extra",
        ),
        *(
            pytest.param({"impersonate-user": [name]}, BOB, ["user-info", ""], id=f"an ordinary user: {name}")
            for name in (
                "system:serviceaccount:De fault:x",
                "system:serviceaccount:Default:x",
                "system:serviceaccount:a.b:x",
                f"system:serviceaccount:{'n' * 64}:x",
                "system:serviceaccount:ns:X",
                "system:serviceaccount:ns:a_b",
                "system:serviceaccount:ns:",
                "system:serviceaccount::sa",
                "system:serviceaccount:ns",
                "system:serviceaccount:ns:ro:bot",
                "system:serviceaccounts:ns:sa",
            )
        ),
        pytest.param(
            {"impersonate-user": ["system:serviceaccount:ns:a.b"]}, BOB, ["serviceaccount", ""], id="a name with a dot"
        ),
        pytest.param(
            {"impersonate-user": ["jane"], "impersonate-extra-a.io%2fb": [""]},
            BOB,
            ["user-info", ""],
            id="an extra without a value",
        ),
        pytest.param({"impersonate-user": [NODE]}, BOB, ["arbitrary-node", ""], id="a node"),
        pytest.param({"impersonate-user": [NODE], "impersonate-group": [NODES]}, BOB, [""], id="a node with a group"),
        pytest.param({"impersonate-user": ["system:node:A_B"]}, BOB, [""], id="a node of a name that no node can have"),
        pytest.param(
            {"impersonate-user": [NODE]}, pod(), ["associated-node", "arbitrary-node", ""], id="a node by a Pod on it"
        ),
        pytest.param({"impersonate-user": [NODE]}, pod("n2"), ["arbitrary-node", ""], id="a node by a Pod elsewhere"),
        pytest.param(
            {"impersonate-user": [NODE]},
            pod(name="bob"),
            ["arbitrary-node", ""],
            id="a node by a user with a Pod's extra",
        ),
        pytest.param(
            {"impersonate-user": [NODE]},
            UserInfo(ACCOUNT, extra={NODE_NAME: ("n1",)}),
            ["arbitrary-node", ""],
            id="a node by a token that is bound to the node without a Pod",
        ),
        pytest.param(
            {"impersonate-user": ["jane"], "impersonate-group": [MASTERS]},
            BOB,
            ["user-info", ""],
            id="a user in system:masters",
        ),
        pytest.param(
            {"impersonate-user": ["jane"], "impersonate-group": [""]},
            BOB,
            ["user-info", ""],
            id="a user in a nameless group",
        ),
        pytest.param(
            {"impersonate-user": ["jane"], "impersonate-extra-scopes": ["1"]},
            BOB,
            ["user-info", ""],
            id="a user with an extra key without a domain",
        ),
        pytest.param(
            {"impersonate-user": ["jane"], "impersonate-extra-a.io%2f": ["1"]},
            BOB,
            ["user-info", ""],
            id="a user with an extra key without a path",
        ),
        pytest.param(
            {"impersonate-user": ["jane"], "impersonate-extra-a.io%2fb": ["1"], "impersonate-group": ["g"]},
            BOB,
            ["user-info", ""],
            id="a user with an extra key that is a path, and a group",
        ),
    ],
)
def test_the_ways_in_order(headers: dict[str, list[str]], requester: UserInfo, modes: list[str]) -> None:
    assert [way.mode for way in read_impersonation(headers, requester)] == modes


@pytest.mark.parametrize(
    ("headers", "prohibited", "reason", "asked"),
    [
        pytest.param(
            {"impersonate-group": ["g", MASTERS]},
            NeededGrant(AUTHN, "v1", "groups", MASTERS),
            "impersonating the system:masters group is not allowed",
            ["users", "uids"],
            id="the group system:masters",
        ),
        pytest.param(
            {"impersonate-group": [MASTERS, ""]},
            NeededGrant(AUTHN, "v1", "groups", ""),
            "impersonating the empty string group is not allowed",
            ["users", "uids"],
            id="an empty group",
        ),
        pytest.param(
            {"impersonate-group": ["g"], "impersonate-extra-scopes": ["1"]},
            NeededGrant(AUTHN, "v1", "userextras", ""),
            "impersonating an invalid key in extra is not allowed",
            ["users", "uids", "groups"],
            id="an extra key that is no path",
        ),
        pytest.param(
            {"impersonate-extra-": ["1"]},
            NeededGrant(AUTHN, "v1", "userextras", ""),
            "impersonating the empty string key in extra is not allowed",
            ["users", "uids"],
            id="an extra without a key",
        ),
        pytest.param(
            {"impersonate-extra-a.io%2fb": ["1", ""]},
            NeededGrant(AUTHN, "v1", "userextras", ""),
            "impersonating the empty string value in extra is not allowed",
            ["users", "uids"],
            id="an empty value",
        ),
        pytest.param({"impersonate-group": ["g"]}, None, "", ["users", "uids", "groups"], id="nothing of these"),
    ],
)
def test_parts_that_user_info_never_grants(
    headers: dict[str, list[str]], prohibited: NeededGrant | None, reason: str, asked: list[str]
) -> None:
    way = read_impersonation({"impersonate-user": ["jane"], "impersonate-uid": ["1"], **headers}, BOB)[0]
    assert (way.mode, way.prohibited, way.reason) == ("user-info", prohibited, reason)
    assert [grant.resource for grant in way.grants] == asked, "what is asked for before"


@pytest.mark.parametrize(
    ("headers", "user", "grants"),
    [
        pytest.param(
            {"impersonate-user": [NODE]},
            UserInfo(NODE, groups=(NODES, AUTHENTICATED)),
            (NeededGrant(AUTHN, "v1", "nodes", "*"),),
            id="the node a Pod is on is granted as any",
        ),
        pytest.param(
            {"impersonate-user": [ACCOUNT]},
            UserInfo(ACCOUNT, groups=("system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED)),
            (NeededGrant(AUTHN, "v1", "serviceaccounts", "sa", namespace="ns"),),
            id="a service account is granted by namespace and name",
        ),
        pytest.param(
            {
                "impersonate-user": ["jane"],
                "impersonate-uid": ["42"],
                "impersonate-group": ["dev"],
                "impersonate-extra-a.io%2Fb": ["x"],
            },
            UserInfo("jane", "42", ("dev", AUTHENTICATED), {"a.io/b": ("x",)}),
            (
                NeededGrant(AUTHN, "v1", "users", "jane"),
                NeededGrant(AUTHN, "v1", "uids", "42"),
                NeededGrant(AUTHN, "v1", "groups", "dev"),
                NeededGrant(AUTHN, "v1", "userextras", "x", subresource="a.io/b"),
            ),
            id="every part of a user is granted in authentication.k8s.io",
        ),
    ],
)
def test_the_first_way(headers: dict[str, list[str]], user: UserInfo, grants: tuple[NeededGrant, ...]) -> None:
    way = read_impersonation(headers, pod())[0]
    assert (way.user, way.grants) == (user, grants)
    assert way.verb == way.constraint == f"impersonate:{way.mode}"
    assert way.verb_on("list") == f"impersonate-on:{way.mode}:list"


def test_an_arbitrary_node_is_granted_by_its_name() -> None:
    way = read_impersonation({"impersonate-user": [NODE]}, BOB)[0]
    assert way.grants == (NeededGrant(AUTHN, "v1", "nodes", "n1"),)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"impersonate-group": ["g"]}, id="a group alone"),
        pytest.param({"impersonate-uid": ["u"]}, id="a uid alone"),
        pytest.param({"impersonate-extra-k": ["v"]}, id="an extra alone"),
        pytest.param({"impersonate-user": [""], "impersonate-group": ["g"]}, id="an empty user"),
        pytest.param({"impersonate-user": [], "impersonate-group": ["g"]}, id="a user header without a value"),
    ],
)
def test_bad_requests(headers: dict[str, list[str]]) -> None:
    with pytest.raises(BadRequestError, match="impersonat"):
        read_impersonation(headers, BOB)


def test_every_part_wants_its_grant() -> None:
    found = old(
        {
            "impersonate-user": ["jane"],
            "impersonate-group": ["dev", "ops"],
            "impersonate-uid": ["42"],
            "impersonate-extra-acme.com%2Fscope": ["a", "b"],
        }
    )
    assert found.grants == (
        NeededGrant("", "v1", "users", "jane"),
        NeededGrant(AUTHN, "v1", "uids", "42"),
        NeededGrant("", "v1", "groups", "dev"),
        NeededGrant("", "v1", "groups", "ops"),
        NeededGrant(AUTHN, "v1", "userextras", "a", subresource="acme.com/scope"),
        NeededGrant(AUTHN, "v1", "userextras", "b", subresource="acme.com/scope"),
    )
    assert found.user == UserInfo("jane", "42", ("dev", "ops", AUTHENTICATED), {"acme.com/scope": ("a", "b")})


@pytest.mark.parametrize(
    ("headers", "groups", "grant"),
    [
        pytest.param(
            {"impersonate-user": ["system:serviceaccount:ns:sa"]},
            ("system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED),
            NeededGrant("", "v1", "serviceaccounts", "sa", namespace="ns"),
            id="a service account gets its groups",
        ),
        pytest.param(
            {"impersonate-user": ["system:serviceaccount:ns:sa"], "impersonate-group": ["g"]},
            ("g", AUTHENTICATED),
            NeededGrant("", "v1", "serviceaccounts", "sa", namespace="ns"),
            id="unless groups are given",
        ),
        pytest.param(
            {"impersonate-user": ["system:anonymous"]},
            (UNAUTHENTICATED,),
            NeededGrant("", "v1", "users", "system:anonymous"),
            id="anonymous stays unauthenticated",
        ),
        pytest.param(
            {"impersonate-user": ["x"], "impersonate-group": [UNAUTHENTICATED]},
            (UNAUTHENTICATED,),
            NeededGrant("", "v1", "users", "x"),
            id="the unauthenticated group is not contradicted",
        ),
    ],
)
def test_groups_of_the_target(headers: dict[str, list[str]], groups: tuple[str, ...], grant: NeededGrant) -> None:
    found = old(headers)
    assert (found.user.groups, found.grants[0]) == (groups, grant)


@pytest.mark.parametrize("key", ["a%zz", "a%2", "a%", "a%2fb%zz"])
def test_a_malformed_escape_in_an_extra_key_leaves_all_of_it_raw(key: str) -> None:
    found = old({"impersonate-user": ["x"], f"impersonate-extra-{key}": ["1"]})
    assert dict(found.user.extra) == {key: ("1",)}


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        pytest.param(
            {"impersonate-uid": ["5"]}, 'UID:"5", Groups:[]string(nil), Extra:map[string][]string(nil)', id="a uid"
        ),
        pytest.param(
            {"impersonate-group": ["a", "b"]},
            'UID:"", Groups:[]string{"a", "b"}, Extra:map[string][]string(nil)',
            id="groups",
        ),
        pytest.param(
            {"impersonate-extra-k": ["v"]},
            'UID:"", Groups:[]string(nil), Extra:map[string][]string{"k":[]string{"v"}}',
            id="an extra",
        ),
    ],
)
def test_a_request_without_a_user_name_is_shown_what_it_asked_for(headers: dict[str, list[str]], identity: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_impersonation(headers, BOB)
    assert str(caught.value) == f'requested &user.DefaultInfo{{Name:"", {identity}}} without impersonating a user name'


# Go keeps the bytes of a header and compares them, so two names stay two. Replaced bytes would make them one.
@pytest.mark.parametrize(
    ("headers", "unreadable"),
    [
        pytest.param({"impersonate-user": ["M\udcfcller"]}, "the user name", id="a user in Latin-1"),
        pytest.param({"impersonate-user": ["\udcc3"]}, "the user name", id="half a letter of UTF-8"),
        pytest.param({"impersonate-user": ["\udced\udca0\udc80"]}, "the user name", id="a surrogate in UTF-8"),
        pytest.param({"impersonate-user": ["x"], "impersonate-group": ["a", "\udcf6"]}, "a group", id="a group"),
        pytest.param({"impersonate-group": ["\udcf6"]}, "a group", id="a group without a user"),
        pytest.param({"impersonate-user": ["x"], "impersonate-uid": ["\udcf6"]}, "the uid", id="a uid"),
        pytest.param(
            {"impersonate-user": ["x"], "impersonate-extra-a": ["\udcf6"]}, "an extra attribute", id="an extra"
        ),
        pytest.param({"impersonate-user": ["x"], "impersonate-extra-a%ff": ["1"]}, "an extra attribute", id="a key"),
        pytest.param(
            {"impersonate-user": ["x"], "impersonate-extra-%c3": ["1"]}, "an extra attribute", id="half a letter"
        ),
    ],
)
def test_a_name_that_is_not_utf8_is_refused_with_the_part(headers: dict[str, list[str]], unreadable: str) -> None:
    with pytest.raises(BadRequestError, match=f"{unreadable} is not UTF-8: send the Impersonate headers in UTF-8"):
        read_impersonation(headers, BOB)


@pytest.mark.parametrize(
    "name", ["Müller", "张三", "M\ufffdller", "a\x00b", "jane\n", " jane", "JANE", "e\u0301", "\u212aate"]
)
def test_names_are_taken_as_they_are(name: str) -> None:
    assert old({"impersonate-user": [name], "impersonate-group": [name]}).user == UserInfo(
        name, groups=(name, AUTHENTICATED)
    )
