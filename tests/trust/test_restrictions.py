"""Restrictions of bootstrap tokens: joins, networks and node names, read strictly from annotations."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.settings.addresses import MAX_NETWORKS
from mooring.trust.bootstraptoken.restrictions import (
    ALLOWED_CIDRS,
    EPHEMERAL,
    JOINED_KEYS,
    MAX_JOINS,
    MAX_TEXT,
    MOST_JOINS,
    NO_RESTRICTIONS,
    NODE_NAME,
    REQUIRE_APPROVAL,
    Restrictions,
    joined_keys,
    matches,
    parse_networks,
    read_restrictions,
    with_joined_key,
)
from mooring.trust.bootstraptoken.token import TokenError

KEYS = ("a" * 64, "b" * 64)


def secret(**annotations: str) -> Obj:
    named = {f"mooring.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {"metadata": {"name": "bootstrap-token-abcdef", **({"annotations": named} if named else {})}}


def test_a_token_without_annotations_is_not_restricted() -> None:
    read = read_restrictions(secret())
    assert read is NO_RESTRICTIONS
    assert not read
    assert read.allows_address("")
    assert read.allows_name("any")
    assert read.annotations() == {}
    assert not read_restrictions(secret(last_used="2026-01-01T00:00:00Z"))
    assert not read_restrictions({"metadata": {"annotations": {"example.com/max-joins": "x"}}})


def test_annotations_are_read_and_written_alike() -> None:
    given = secret(max_joins="3", allowed_cidrs="10.0.0.0/8,fd00::/64", node_name="worker-*", ephemeral="30m0s")
    given["metadata"]["annotations"][REQUIRE_APPROVAL] = "true"
    read = read_restrictions(given)
    assert read == Restrictions(3, parse_networks("10.0.0.0/8,fd00::/64"), "worker-*", timedelta(minutes=30), True)
    assert read
    assert read.annotations() == given["metadata"]["annotations"]
    assert set(read.annotations()) == {MAX_JOINS, ALLOWED_CIDRS, NODE_NAME, EPHEMERAL, REQUIRE_APPROVAL}


@pytest.mark.parametrize(
    ("text", "silence"),
    [
        ("2m", timedelta(minutes=2)),
        ("30m", timedelta(minutes=30)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("365d", timedelta(days=365)),
    ],
)
def test_the_silence_of_an_ephemeral_machine_is_a_duration(text: str, silence: timedelta) -> None:
    read = read_restrictions(secret(ephemeral=text))
    assert read
    assert read.ephemeral == silence
    assert read_restrictions({"metadata": {"annotations": read.annotations()}}) == read


def test_a_token_that_requires_approval_says_so_or_not() -> None:
    read = read_restrictions(secret(require_approval="true"))
    assert read
    assert read.require_approval
    assert read.annotations() == {REQUIRE_APPROVAL: "true"}
    assert not read_restrictions(secret(require_approval="false"))


def test_the_error_of_an_unknown_restriction_names_all_of_them() -> None:
    with pytest.raises(TokenError) as caught:
        read_restrictions(secret(ephemerial="30m"))
    assert all(name in str(caught.value) for name in (MAX_JOINS, ALLOWED_CIDRS, NODE_NAME, EPHEMERAL, REQUIRE_APPROVAL))


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"max_join": "3"}, id="a restriction with a wrong letter in its name"),
        pytest.param({"max_joins": "3", "other": "x"}, id="an annotation that tokens do not have"),
        pytest.param({"max_joins": ""}, id="no number"),
        pytest.param({"max_joins": "0"}, id="no join at all"),
        pytest.param({"max_joins": "-1"}, id="a negative number"),
        pytest.param({"max_joins": "03"}, id="a leading zero"),
        pytest.param({"max_joins": " 3"}, id="a blank"),
        pytest.param({"max_joins": "٣"}, id="a digit outside ASCII"),
        pytest.param({"max_joins": str(MOST_JOINS + 1)}, id="more keys than an object holds"),
        pytest.param({"allowed_cidrs": ""}, id="no network"),
        pytest.param({"allowed_cidrs": "10.0.0.0/8,"}, id="a trailing comma"),
        pytest.param({"allowed_cidrs": "10.0.0.1/8"}, id="host bits"),
        pytest.param({"allowed_cidrs": "10.0.0.1"}, id="an address without a prefix"),
        pytest.param({"allowed_cidrs": "fe80::%eth0/64"}, id="a zone"),
        pytest.param({"allowed_cidrs": "::ffff:10.0.0.0/104"}, id="IPv4 written as IPv6"),
        pytest.param({"allowed_cidrs": ",".join(["10.0.0.0/8"] * (MAX_NETWORKS + 1))}, id="too many networks"),
        pytest.param({"allowed_cidrs": "1" * (MAX_TEXT + 1)}, id="a long text"),
        pytest.param({"ephemeral": ""}, id="no silence"),
        pytest.param({"ephemeral": "30"}, id="a silence without a unit"),
        pytest.param({"ephemeral": "-30m"}, id="a silence below zero"),
        pytest.param({"ephemeral": "1m59s"}, id="a silence as short as a reboot"),
        pytest.param({"ephemeral": "8761h"}, id="a silence of more than a year"),
        pytest.param({"ephemeral": " 30m"}, id="a blank before the silence"),
        *(
            pytest.param({"require_approval": text}, id=f"{text!r}, where a person is required")
            for text in ("", "True", "yes", "1", " true", "false ")
        ),
        pytest.param({"node_name": ""}, id="no name"),
        pytest.param({"node_name": "Worker-*"}, id="a capital"),
        pytest.param({"node_name": "worker?"}, id="a sign that no name has"),
        pytest.param({"node_name": "*" * 254}, id="a long pattern"),
    ],
)
def test_an_annotation_that_cannot_be_read_refuses_the_token(annotations: dict[str, str]) -> None:
    with pytest.raises(TokenError, match=r"^mooring\.dev/"):
        read_restrictions(secret(**annotations))


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        pytest.param("10.1.2.3", True, id="within"),
        pytest.param("11.1.2.3", False, id="outside"),
        pytest.param("::ffff:10.1.2.3", True, id="IPv4 over an IPv6 socket"),
        pytest.param("fd00::1", True, id="IPv6 within"),
        pytest.param("fd00::1%eth0", True, id="a zone is dropped"),
        pytest.param("fd01::1", False, id="IPv6 outside"),
        pytest.param("", False, id="an unknown address"),
        pytest.param("/run/socket", False, id="no address"),
    ],
)
def test_networks(address: str, allowed: bool) -> None:
    assert read_restrictions(secret(allowed_cidrs="10.0.0.0/8, fd00::/64")).allows_address(address) is allowed


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        pytest.param("worker-1", "worker-1", True, id="the very name"),
        pytest.param("worker-1", "worker-2", False, id="another name"),
        pytest.param("worker-*", "worker-", True, id="the star may be empty"),
        pytest.param("worker-*", "worker-17", True, id="a number"),
        pytest.param("worker-*", "master-1", False, id="another beginning"),
        pytest.param("worker-*", "worker-1.example.com", False, id="no dot for a star"),
        pytest.param("worker-*.example.com", "worker-1.example.com", True, id="a star in one label"),
        pytest.param("*-eu-*-1", "rack-eu-b7-1", True, id="two stars"),
        pytest.param("*-eu-*-1", "rack-us-b7-1", False, id="a part is missing"),
        pytest.param("a*a", "a", False, id="both ends need a sign"),
        pytest.param("a*b*b", "abb", True, id="the leftmost part leaves the last"),
        pytest.param("a*bc*c", "abc", False, id="parts do not overlap"),
        pytest.param("*", "n1", True, id="any one label"),
        pytest.param("*", "", True, id="an empty label"),
    ],
)
def test_node_names(pattern: str, name: str, allowed: bool) -> None:
    assert matches(pattern, name) is allowed
    assert Restrictions(node_name=pattern).allows_name(name) is allowed


def test_a_key_that_joined_is_recorded_after_the_others() -> None:
    before = secret(max_joins="2")
    once = with_joined_key(before, KEYS[0])
    twice = with_joined_key(once, KEYS[1])
    assert joined_keys(before) == ()
    assert joined_keys(twice) == KEYS
    assert twice["metadata"]["annotations"][MAX_JOINS] == "2"
    assert joined_keys(with_joined_key(secret(), KEYS[0])) == KEYS[:1]
    assert JOINED_KEYS not in before["metadata"]["annotations"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x", id="no key"),
        pytest.param(KEYS[0] + ",", id="a trailing comma"),
        pytest.param(",".join([KEYS[0]] * (MOST_JOINS + 1)), id="more keys than any token lets in"),
    ],
)
def test_an_unreadable_record_of_keys_is_an_error(text: str) -> None:
    with pytest.raises(TokenError, match="delete the token"):
        joined_keys(secret(joined_keys=text))


@pytest.mark.parametrize(
    ("text", "meant"),
    [("10.0.0.1/8", "; 10.0.0.0/8 is meant"), ("fd00::1/64", "; fd00::/64 is meant"), ("10.0.0.0/99", "prefix"), ("x", "prefix")],
)  # fmt: skip
def test_the_network_that_is_meant_is_named(text: str, meant: str) -> None:
    with pytest.raises(TokenError, match=f"{meant}$"):
        parse_networks(text)


def test_only_what_is_limited_is_a_field() -> None:
    assert Restrictions().fields() == {}
    limits = Restrictions(3, parse_networks("10.0.0.0/8"), "web-*", timedelta(hours=1), True)
    assert limits.fields() == {
        "maxJoins": 3,
        "allowedCIDRs": ["10.0.0.0/8"],
        "nodeName": "web-*",
        "ephemeral": "1h0m0s",
        "requireApproval": True,
    }
