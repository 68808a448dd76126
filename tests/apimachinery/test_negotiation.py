"""Content negotiation: the representation for each real client.

Source: docs/protocol/discovery.md, docs/protocol/tables.md, docs/protocol/negotiation.md.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.negotiation import (
    AGGREGATED_PARAMETERS,
    JSON,
    STREAMED,
    Representation,
    aggregated_discovery_type,
    negotiate,
    parse_accept,
    wants_pretty,
)
from mooring.errors import NotAcceptableError

PROTOBUF = "application/vnd.kubernetes.protobuf"
KUBECTL_TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)
METADATA_INFORMER = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)
AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        pytest.param("", Representation("json"), id="no header means JSON"),
        pytest.param("*/*", Representation("json"), id="curl and Python requests take anything, which is JSON"),
        pytest.param("*", Representation("json"), id="a lone star is anything"),
        pytest.param("application/*", Representation("json"), id="any application type is JSON"),
        pytest.param("application/json", Representation("json"), id="the official Python client asks for JSON"),
        pytest.param("application/json, */*", Representation("json"), id="the dynamic client of Go asks for JSON"),
        pytest.param(
            f"{PROTOBUF},application/json", Representation("protobuf"), id="typed clients of Go prefer protobuf"
        ),
        pytest.param(f"{PROTOBUF}, */*", Representation("protobuf"), id="old typed clients prefer protobuf"),
        pytest.param(f"*/*, {PROTOBUF}", Representation("protobuf"), id="a named type goes before a wildcard"),
        pytest.param(
            f"application/*, {PROTOBUF}", Representation("protobuf"), id="a named type goes before a partial wildcard"
        ),
        pytest.param("application/yaml", Representation("yaml"), id="YAML on request"),
        pytest.param("application/json;q=0.1, application/yaml;q=0.9", Representation("yaml"), id="q-values decide"),
        pytest.param("application/yaml;q=junk", Representation("yaml"), id="an unreadable q counts as 1"),
        pytest.param(
            "application/yaml;q=7, application/json;q=0.5", Representation("yaml"), id="a q out of range counts as 1"
        ),
        pytest.param("application/yaml;q=0, application/json", Representation("json"), id="q=0 refuses a type"),
        pytest.param("APPLICATION/JSON", Representation("json"), id="media types have no letter case"),
        pytest.param("application/json;pretty=1", Representation("json", pretty=True), id="pretty as a parameter"),
        pytest.param(
            "application/json;stream=watch", Representation("json"), id="newer Python clients name the stream"
        ),
        pytest.param(
            "application/json;;charset=utf-8", Representation("json"), id="unknown and empty parameters are nothing"
        ),
        pytest.param("text/html, application/xhtml+xml, */*;q=0.8", Representation("json"), id="a browser"),
        pytest.param(
            "application/json, application/json;stream=watch, application/vnd.kubernetes.protobuf, application/yaml",
            Representation("json"),
            id="the first of equals wins",
        ),
        pytest.param(
            KUBECTL_TABLE, Representation("json", "Table", "meta.k8s.io", "v1"), id="kubectl get asks for a Table"
        ),
        pytest.param(
            'application/json;as="Table";v=v1beta1;g=meta.k8s.io',
            Representation("json", "Table", "meta.k8s.io", "v1beta1"),
            id="a Table of the old version, quoted",
        ),
        pytest.param(
            METADATA_INFORMER,
            Representation("protobuf", "PartialObjectMetadataList", "meta.k8s.io", "v1"),
            id="metadata informers ask for partial metadata in protobuf",
        ),
        pytest.param(
            f"{PROTOBUF};as=Table;v=v1;g=meta.k8s.io,{KUBECTL_TABLE}",
            Representation("json", "Table", "meta.k8s.io", "v1"),
            id="a Table has no protobuf form",
        ),
        pytest.param(
            "application/json;as=Table;v=v2;g=meta.k8s.io,application/json",
            Representation("json"),
            id="an unknown version",
        ),
        pytest.param(
            "application/json;as=Table;v=v1;g=other,application/json", Representation("json"), id="an unknown group"
        ),
        pytest.param("application/json;as=Chair;v=v1;g=meta.k8s.io,*/*", Representation("json"), id="an unknown shape"),
        pytest.param(
            "junk,,/json,application/json", Representation("json"), id="clauses that cannot be read are left out"
        ),
    ],
)
def test_negotiation(accept: str, wanted: Representation) -> None:
    assert negotiate(accept) == wanted


OFFERS = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
STREAMS = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"


@pytest.mark.parametrize(
    ("accept", "is_named"),
    [
        pytest.param("text/html", False, id="an unknown type"),
        pytest.param("text/json", False, id="a known subtype of another type"),
        pytest.param("application/*;as=Chair;v=v1;g=meta.k8s.io", False, id="a wildcard of subtypes"),
        pytest.param("junk", False, id="nothing that can be read"),
        pytest.param(";;;", False, id="nothing at all"),
        pytest.param("application/json;as=Chair;v=v1;g=meta.k8s.io", True, id="only an unknown shape"),
        pytest.param("text/html, */*;as=Chair;v=v1;g=meta.k8s.io", True, id="anything of an unknown shape"),
        pytest.param("application/json;q=0", True, id="everything refused"),
        pytest.param("application/json;stream=list", True, id="a stream that nobody knows"),
    ],
)
def test_not_acceptable_lists_the_offers(accept: str, is_named: bool) -> None:
    for is_listing, available in ((False, OFFERS), (True, f"{OFFERS}, {STREAMS}")):
        with pytest.raises(NotAcceptableError) as caught:
            negotiate(accept, is_listing=is_listing)
        unnamed = f"406: Not Acceptable\n\nAvailable representations: {available}"
        assert str(caught.value) == (f"only the following media types are accepted: {OFFERS}" if is_named else unnamed)
        assert caught.value.shows_details is not is_named, "the router answers before the media types are compared"


def test_a_watch_lists_its_streams() -> None:
    with pytest.raises(NotAcceptableError) as caught:
        negotiate("application/yaml", medias=STREAMED)
    assert str(caught.value) == f"only the following media types are accepted: {STREAMS}"


def test_an_endpoint_without_metadata_refuses_tables() -> None:
    with pytest.raises(NotAcceptableError):
        negotiate("application/json;as=Table;v=v1;g=meta.k8s.io", frozenset())


def test_an_endpoint_may_write_fewer_types() -> None:
    assert negotiate(f"{PROTOBUF}, application/json", medias=("json",)) == Representation("json")
    assert negotiate("", medias=("yaml", "json")) == Representation("yaml")


def test_content_types_of_answers() -> None:
    assert Representation("json").content_type == "application/json"
    assert Representation("json").stream_content_type == "application/json"
    assert Representation("protobuf").stream_content_type == f"{PROTOBUF};stream=watch"
    assert Representation().as_api_version == ""
    assert negotiate(KUBECTL_TABLE).as_api_version == "meta.k8s.io/v1"


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        pytest.param(AGGREGATED, JSON, id="what kubectl and client-go send"),
        pytest.param("application/json," + AGGREGATED, JSON, id="plain JSON first does not matter"),
        pytest.param(
            "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io;q=0.1", JSON, id="any order and q"
        ),
        pytest.param(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", "", id="only v2beta1"
        ),
        pytest.param("application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "", id="as YAML"),
        pytest.param("text/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "", id="as text"),
        pytest.param(f"{PROTOBUF};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", PROTOBUF, id="as protobuf"),
        pytest.param("application/json", "", id="the Python client"),
        pytest.param("", "", id="no header"),
    ],
)
def test_aggregated_discovery_is_chosen(accept: str, media: str) -> None:
    assert aggregated_discovery_type(accept) == media


def test_the_aggregated_content_type_is_the_one_clients_look_for() -> None:
    assert JSON + AGGREGATED_PARAMETERS == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.mark.parametrize(
    ("query", "agent", "wanted"),
    [
        pytest.param(None, "kubectl/v1.36.0", False, id="programs get compact text"),
        pytest.param(None, "curl/8.5.0", True, id="curl gets readable text"),
        pytest.param(None, "Wget/1.21", True, id="so does Wget"),
        pytest.param("", "Mozilla/5.0 (X11)", True, id="and a browser"),
        pytest.param("false", "curl/8.5.0", False, id="unless it says no"),
        pytest.param("1", "kubectl/v1.36.0", True, id="and anyone who asks"),
    ],
)
def test_pretty(query: str | None, agent: str, wanted: bool) -> None:
    assert wants_pretty(query, agent) is wanted


def test_long_headers_are_read_up_to_a_limit() -> None:
    assert len(parse_accept("a/b," * 1000)) == 64
    assert parse_accept("x" * 5000 + ",application/json") == ()


@given(st.text(max_size=60) | st.text("application/json*;q=.01, vg", max_size=60))
def test_any_header_is_negotiated_or_refused(accept: str) -> None:
    with contextlib.suppress(NotAcceptableError):
        assert isinstance(negotiate(accept), Representation)
