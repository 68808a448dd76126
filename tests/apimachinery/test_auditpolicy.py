"""Audit policies: strict reading, and the first rule that matches.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery import auditpolicy
from mooring.apimachinery.auditpolicy import METADATA, STAGES, Level, parse_policy
from mooring.apimachinery.requestinfo import parse_request
from mooring.errors import ConfigError
from mooring.identity import UserInfo

BOB = UserInfo("bob", groups=("dev", "system:authenticated"))
PODS = "/api/v1/namespaces/default/pods"


def policy(*rules: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": list(rules), **more}).encode()


def level_of(rule: dict[str, Any], request: str, user: UserInfo = BOB) -> str:
    method, target = request.split()
    path, _, query = target.partition("?")
    info = parse_request(method, path, {"watch": ["1"]} if query else {})
    found = parse_policy(policy({"level": "Request", **rule}, {"level": "Metadata"}), "file")
    return found.decide(user, info).level.text


@pytest.mark.parametrize(
    ("rule", "request_line", "matches"),
    [
        pytest.param({}, f"GET {PODS}", True, id="a rule without conditions matches resources"),
        pytest.param({}, "GET /version", True, id="a rule without conditions matches paths"),
        pytest.param({"users": ["bob"]}, f"GET {PODS}", True, id="the user"),
        pytest.param({"users": ["ann"]}, f"GET {PODS}", False, id="another user"),
        pytest.param({"userGroups": ["ops", "dev"]}, f"GET {PODS}", True, id="one of the user's groups"),
        pytest.param({"userGroups": ["ops"]}, f"GET {PODS}", False, id="none of the user's groups"),
        pytest.param({"verbs": ["watch"]}, f"GET {PODS}?watch", True, id="the verb"),
        pytest.param({"verbs": ["watch"]}, f"GET {PODS}", False, id="another verb"),
        pytest.param({"verbs": ["get"]}, "GET /version", True, id="the verb of a path"),
        pytest.param({"namespaces": ["default"]}, f"GET {PODS}", True, id="the namespace"),
        pytest.param({"namespaces": ["other"]}, f"GET {PODS}", False, id="another namespace"),
        pytest.param({"namespaces": [""]}, "GET /api/v1/nodes/n", True, id="no namespace"),
        pytest.param(
            {"namespaces": [""]}, "GET /version", False, id="a path is in no namespace, but no resource either"
        ),
        pytest.param({"resources": [{"group": ""}]}, f"GET {PODS}", True, id="the whole core group"),
        pytest.param({"resources": [{}]}, f"GET {PODS}", True, id="a group not named is the core group"),
        pytest.param({"resources": [{"group": "apps"}]}, f"GET {PODS}", False, id="another group"),
        pytest.param({"resources": [{}]}, "GET /version", False, id="resources are no paths"),
        pytest.param({"resources": [{"resources": ["pods"]}]}, f"GET {PODS}/a", True, id="the resource"),
        pytest.param(
            {"resources": [{"resources": ["pods"]}]}, f"GET {PODS}/a/log", False, id="without its subresources"
        ),
        pytest.param({"resources": [{"resources": ["pods/log"]}]}, f"GET {PODS}/a/log", True, id="one subresource"),
        pytest.param(
            {"resources": [{"resources": ["pods/log"]}]}, f"GET {PODS}/a", False, id="a subresource is not the resource"
        ),
        pytest.param({"resources": [{"resources": ["pods/*"]}]}, f"GET {PODS}/a/log", True, id="every subresource"),
        pytest.param(
            {"resources": [{"resources": ["pods/*"]}]},
            f"GET {PODS}/a",
            False,
            id="every subresource is not the resource",
        ),
        pytest.param({"resources": [{"resources": ["*/log"]}]}, f"GET {PODS}/a/log", True, id="a subresource of all"),
        pytest.param(
            {"resources": [{"resources": ["*/scale"]}]}, f"GET {PODS}/a/log", False, id="another subresource of all"
        ),
        pytest.param(
            {"resources": [{"resources": ["nodes/*"]}]}, f"GET {PODS}/a/log", False, id="subresources of another"
        ),
        pytest.param({"resources": [{"resources": ["*"]}]}, f"GET {PODS}/a/log", True, id="a star is everything"),
        pytest.param(
            {"resources": [{"resources": ["nodes"]}, {"resources": ["pods"]}]},
            f"GET {PODS}/a",
            True,
            id="one of several",
        ),
        pytest.param(
            {"resources": [{"resources": ["pods"], "resourceNames": ["a"]}]}, f"GET {PODS}/a", True, id="the name"
        ),
        pytest.param(
            {"resources": [{"resources": ["pods"], "resourceNames": ["a"]}]}, f"GET {PODS}/b", False, id="another name"
        ),
        pytest.param(
            {"resources": [{"resources": ["pods"], "resourceNames": ["a"]}]}, f"POST {PODS}", False, id="no name"
        ),
        pytest.param({"nonResourceURLs": ["/version"]}, "GET /version", True, id="the path"),
        pytest.param({"nonResourceURLs": ["/version"]}, "GET /versions", False, id="a longer path"),
        pytest.param({"nonResourceURLs": ["/healthz*"]}, "GET /healthz/etcd", True, id="a path with any rest"),
        pytest.param({"nonResourceURLs": ["*"]}, "GET /version", True, id="any path"),
        pytest.param({"nonResourceURLs": ["*"]}, f"GET {PODS}", False, id="paths are no resources"),
        pytest.param({"verbs": ["list"], "users": ["ann"]}, f"GET {PODS}", False, id="every condition must hold"),
    ],
)
def test_what_a_rule_matches(rule: dict[str, Any], request_line: str, matches: bool) -> None:
    assert level_of(rule, request_line) == ("Request" if matches else "Metadata")


def test_a_request_that_no_rule_matches_is_not_recorded() -> None:
    found = parse_policy(policy({"level": "Request", "users": ["ann"]}), "file").decide(
        BOB, parse_request("GET", PODS, {})
    )
    assert found.level is Level.NONE
    assert not any(map(found.keeps, STAGES))


def test_the_first_rule_that_matches_wins() -> None:
    found = parse_policy(policy({"level": "None"}, {"level": "RequestResponse"}), "file")
    assert found.decide(BOB, parse_request("GET", PODS, {})).level is Level.NONE


@pytest.mark.parametrize(
    ("rules", "keeps_any"),
    [
        pytest.param([{"level": "None"}], False, id="no level but None"),
        pytest.param(
            [{"level": "None"}, {"level": "Request"}], False, id="a rule behind one that matches every request"
        ),
        pytest.param([{"level": "None", "users": ["ann"]}], False, id="None for one user, and no rule for the others"),
        pytest.param([{"level": "None", "users": ["ann"]}, {"level": "Metadata"}], True, id="None for one user"),
        pytest.param([{"level": "Metadata", "users": ["ann"]}, {"level": "None"}], True, id="records of one user"),
    ],
)
def test_a_policy_may_keep_no_record(rules: list[dict[str, Any]], keeps_any: bool) -> None:
    assert parse_policy(policy(*rules), "file").keeps_any is keeps_any


def test_omitted_stages_are_combined_and_the_rule_overrides_managed_fields() -> None:
    rules = (
        {"level": "Request", "verbs": ["list"], "omitStages": ["Panic"], "omitManagedFields": False},
        {"level": "RequestResponse"},
    )
    found = parse_policy(policy(*rules, omitStages=["RequestReceived"], omitManagedFields=True), "file")
    listed, got = (found.decide(BOB, parse_request("GET", path, {})) for path in (PODS, f"{PODS}/a"))
    assert [stage for stage in STAGES if listed.keeps(stage)] == ["ResponseStarted", "ResponseComplete"]
    assert [stage for stage in STAGES if got.keeps(stage)] == ["ResponseStarted", "ResponseComplete", "Panic"]
    assert (listed.omit_managed_fields, got.omit_managed_fields) == (False, True)


def test_without_a_policy_there_is_one_record_a_request() -> None:
    assert [stage for stage in STAGES if METADATA.keeps(stage)] == ["ResponseComplete", "Panic"]


def test_yaml_with_metadata_is_read() -> None:
    text = (
        b"apiVersion: audit.k8s.io/v1\nkind: Policy\nmetadata: {name: mine}\nrules:\n- level: Metadata\n  users: null\n"
    )
    assert len(parse_policy(text, "file").rules) == 1


ONE = {"level": "Metadata"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"\xff", "file: the file is not UTF-8 text", id="no text"),
        pytest.param(b"a: [", "file: ", id="no YAML"),
        pytest.param(b"- a", "file: one Policy of audit.k8s.io/v1 is expected", id="no object"),
        pytest.param(b"kind: Policy\nkind: Policy", "kind", id="a repeated field"),
        pytest.param(b"kind: Policy\napiVersion: v1", "set apiVersion and kind", id="another version"),
        pytest.param(policy(), "file: rules: from 1 to", id="no rules"),
        pytest.param(policy(ONE, rule=[]), 'file: unknown field "rule"', id="an unknown field of the policy"),
        pytest.param(policy(ONE, metadata=[]), "file: metadata must be an object", id="metadata that is none"),
        pytest.param(policy(ONE, omitStages=["Done"]), 'file: omitStages: "Done" is none of', id="an unknown stage"),
        pytest.param(
            policy(ONE, {"level": "All"}), "file: rules[1].level: give one of None, Metadata", id="an unknown level"
        ),
        pytest.param(policy({}), "file: rules[0].level: give one of", id="no level"),
        pytest.param(
            policy({**ONE, "user": ["a"]}), 'file: rules[0]: unknown field "user"', id="an unknown field of a rule"
        ),
        pytest.param(policy({**ONE, "users": "a"}), "file: rules[0].users must be a list", id="no list"),
        pytest.param(policy({**ONE, "users": [1]}), "file: rules[0].users[0] must be text", id="no text in a list"),
        pytest.param(
            policy({**ONE, "omitManagedFields": "no"}), "omitManagedFields must be true or false", id="no truth"
        ),
        pytest.param(
            policy({**ONE, "resources": ["pods"]}), "file: rules[0].resources[0] must be an object", id="no resource"
        ),
        pytest.param(
            policy({**ONE, "resources": [{"group": "apps/v1"}]}),
            "resources[0].group: give the group alone",
            id="a version",
        ),
        pytest.param(
            policy({**ONE, "resources": [{"resources": ["a/b/c"]}]}),
            'rules[0].resources[0].resources: "a/b/c" is neither',
            id="two slashes",
        ),
        pytest.param(
            policy({**ONE, "resources": [{"resources": ["a/"]}]}), '"a/" is neither', id="an empty subresource"
        ),
        pytest.param(
            policy({**ONE, "resources": [{"resourceNames": ["a"]}]}),
            "resourceNames: name their resources",
            id="names of nothing",
        ),
        pytest.param(
            policy({**ONE, "resources": [{"names": []}]}),
            'resources[0]: unknown field "names"',
            id="an unknown field within",
        ),
        pytest.param(
            policy({**ONE, "nonResourceURLs": ["/a"], "namespaces": ["b"]}),
            "a rule about paths has no",
            id="paths and more",
        ),
        pytest.param(policy({**ONE, "nonResourceURLs": ["a"]}), '"a" is not a path', id="a path without its slash"),
        pytest.param(policy({**ONE, "nonResourceURLs": ["/*/a"]}), '"/*/a" is not a path', id="a star in the middle"),
    ],
)
def test_errors_name_the_rule_and_the_field(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(data, "file")
    assert str(caught.value).startswith("file")
    assert message in str(caught.value)


def test_a_policy_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditpolicy, "MAX_RULES", 1)
    with pytest.raises(ConfigError, match="from 1 to 1 rules"):
        parse_policy(policy(ONE, ONE), "file")
    with pytest.raises(ConfigError, match="at most"):
        parse_policy(b" " * (auditpolicy.MAX_BYTES + 1), "file")


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "*", "None", "/a", "pods/log", "Panic"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["level", "users", "resources", "group", "omitStages", "x"]), inner, max_size=4
        )
    ),
)


@given(_JUNK)
def test_junk_is_an_error_or_a_policy_never_a_crash(junk: Any) -> None:
    with contextlib.suppress(ConfigError):
        parse_policy(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [junk]}).encode(), "file")
