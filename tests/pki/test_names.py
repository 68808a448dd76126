"""Subjects and alternative names."""

from __future__ import annotations

import subprocess
from ipaddress import ip_address

import pytest
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from mooring.pki.x509 import der, names
from mooring.pki.x509.distinguishedname import DistinguishedName
from tests.support.testca import ThrowawayCA, group_name, name_of, user_name


def test_the_uid_is_where_kubernetes_reads_it() -> None:
    assert names.UID_ATTRIBUTE.dotted_string == "1.3.6.1.4.1.57683.2"


def test_a_subject_states_groups_then_the_user() -> None:
    name = names.subject("jane", ["b", "a", "b"])
    assert [[text for _, text in rdn] for rdn in name.rdns] == [["a", "b"], ["jane"]]
    assert names.common_name(name) == "jane"
    assert names.organizations(name) == ("a", "b")


def test_a_uid_has_an_attribute_of_its_own() -> None:
    name = names.subject("jane", ["a"], "42")
    assert names.values(name, names.UID_ATTRIBUTE) == ("42",)
    assert names.values(names.subject("jane", ["a"], ""), names.UID_ATTRIBUTE) == ()


def test_a_standard_subject_has_no_value_twice_and_none_that_is_empty() -> None:
    stated = name_of(group_name("x"), group_name(""), group_name("x"), user_name("jane"))
    assert names.standard_subject(stated) == names.subject("jane", ["x"])


def test_a_common_name_may_be_longer_than_x520_allows() -> None:
    assert names.common_name(names.subject("system:node:" + "n" * 253)) == "system:node:" + "n" * 253


@pytest.mark.parametrize(
    ("name", "common_name", "organizations"),
    [
        pytest.param(name_of(), "", (), id="an empty subject names nobody"),
        pytest.param(name_of(user_name("a"), user_name("b")), "b", (), id="the last common name counts, as in Go"),
        pytest.param(
            name_of(group_name("y"), user_name("a"), group_name("x")),
            "a",
            ("y", "x"),
            id="organizations keep their order",
        ),
        pytest.param(
            name_of(group_name("x"), group_name("x")), "", ("x", "x"), id="an organization stated twice is read twice"
        ),
        pytest.param(
            name_of(group_name(""), group_name("x")), "", ("", "x"), id="an empty organization is read as such"
        ),
    ],
)
def test_reading(name: DistinguishedName, common_name: str, organizations: tuple[str, ...]) -> None:
    assert names.common_name(name) == common_name
    assert names.organizations(name) == organizations


def test_rebuilding_keeps_standard_attributes_in_gos_order_and_nothing_else() -> None:
    name = name_of(
        (NameOID.SERIAL_NUMBER, "7"),
        user_name("jane"),
        (names.UID_ATTRIBUTE, "1234"),
        (NameOID.EMAIL_ADDRESS, "jane@example.org"),
        (NameOID.POSTAL_CODE, "10115"),
        (NameOID.STREET_ADDRESS, "Invalidenstr."),
        (NameOID.STATE_OR_PROVINCE_NAME, "Berlin"),
        (NameOID.LOCALITY_NAME, "Berlin"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "unit"),
        group_name("one"),
        (NameOID.COUNTRY_NAME, "DE"),
        group_name("two"),
    )
    again = names.standard_subject(name)
    assert [[text for _, text in rdn] for rdn in again.rdns] == [
        ["DE"], ["one", "two"], ["unit"], ["Berlin"], ["Berlin"], ["Invalidenstr."], ["10115"], ["jane"], ["7"]
    ]  # fmt: skip
    assert names.standard_subject(again) == again


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=16),
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=10), unique=True),
)
def test_a_rebuilt_subject_names_the_same_user_and_groups(user: str, groups: list[str]) -> None:
    again = names.standard_subject(DistinguishedName.read(der.only(names.subject(user, groups).der, der.SEQUENCE)))
    assert names.common_name(again) == user
    assert set(names.organizations(again)) == set(groups)


def test_alternative_names_survive_a_certificate() -> None:
    listed = names.AlternativeNames(
        ("a.example",), (ip_address("10.0.0.1"), ip_address("::1")), ("a@b.example",), ("spiffe://x/y",)
    )
    pair = ThrowawayCA().custom("x", extensions=[(listed.extension(), False)])
    assert names.alternative_names(pair.certificate.extensions) == listed
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName"],
        input=pair.certificate_pem,
        capture_output=True,
        check=True,
    ).stdout
    assert b"DNS:a.example, email:a@b.example, IP Address:10.0.0.1" in shown


def test_a_certificate_without_alternative_names_has_none() -> None:
    found = names.alternative_names(ThrowawayCA().certificate.extensions)
    assert found == names.NO_NAMES
    assert not found


@pytest.mark.parametrize(
    "given_names", [{"dns": ("a",)}, {"ips": (ip_address("::1"),)}, {"emails": ("a@b",)}, {"uris": ("u:x",)}], ids=str
)
def test_any_name_makes_the_names_true(given_names: dict[str, tuple[str, ...]]) -> None:
    assert names.AlternativeNames(**given_names)  # type: ignore[arg-type]  # a table of one field each


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(names.subject("jane", ("devs",)), "CN=jane,O=devs", id="as people write it"),
        pytest.param(names.subject("a\nfake log line"), "CN=a fake log line", id="a line break is none"),
        pytest.param(names.subject("a" * 300), "CN=" + "a" * 197 + "…", id="no more than can be read"),
        pytest.param(name_of(), "(empty)", id="no name at all"),
    ],
)
def test_a_name_in_a_message(name: DistinguishedName, text: str) -> None:
    assert names.printable(name) == text


def test_constraints_permit_the_names_and_the_addresses_alone() -> None:
    found = names.AlternativeNames(("example.com",), (ip_address("10.0.0.1"),)).constraints()
    assert [str(one.value) for one in found.permitted_subtrees or ()] == ["example.com", "10.0.0.1/32"]
    assert found.excluded_subtrees is None
