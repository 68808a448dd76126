"""Words of a machine about itself: what a request may say, and what is read of one that any client made."""

from __future__ import annotations

import pytest

from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.trust.requestfacts import MAX_FACTS, MAX_VALUE, as_annotations, facts_of, has_facts, parse_facts


def request(annotations: dict[str, str] | None) -> Obj:
    return {"metadata": {"name": "x", **({"annotations": annotations} if annotations is not None else {})}}


def test_facts_go_into_annotations_and_come_back() -> None:
    facts = parse_facts(["rack=7", "serial=C02=X", "rack=7"], "key")
    assert facts == {"rack": "7", "serial": "C02=X"}
    assert as_annotations(facts) == {"request.mooring.dev/rack": "7", "request.mooring.dev/serial": "C02=X"}
    assert facts_of(request(as_annotations(facts))) == facts


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rack"], '"rack" has no value: give NAME=VALUE'),
        (["rack="], "the value of rack must be 1 to 256 printable characters"),
        (["rack=a\nb"], "the value of rack must be 1 to 256 printable characters"),
        ([f"rack={'x' * (MAX_VALUE + 1)}"], "the value of rack must be 1 to 256 printable characters"),
        (["a/b=1"], '"a/b" is not a name'),
        (["=1"], '"" is not a name'),
        ([f"{'x' * 64}=1"], "is not a name"),
        (["rack=1", "rack=2"], "rack is given twice"),
        ([f"n{number}=1" for number in range(MAX_FACTS + 1)], "more than 16 facts"),
    ],
    ids=str,
)
def test_what_no_request_says(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^key: .*{message}"):
        parse_facts(texts, "key")


@pytest.mark.parametrize(
    ("annotations", "facts"),
    [
        pytest.param(None, {}, id="no annotations"),
        pytest.param({"example.com/rack": "7"}, {}, id="those of others"),
        pytest.param({"request.mooring.dev/rack": "\x1b[31m"}, {}, id="a value that writes into a terminal"),
        pytest.param({"request.mooring.dev/rack": "x" * 300}, {}, id="a long value"),
        pytest.param({"request.mooring.dev/a b": "1"}, {}, id="a name that is none"),
        pytest.param(
            {f"request.mooring.dev/n{number:02}": "1" for number in range(30)},
            {f"n{number:02}": "1" for number in range(MAX_FACTS)},
            id="too many",
        ),
    ],
)
def test_a_request_of_any_client_is_read_within_bounds(annotations: dict[str, str] | None, facts: Obj) -> None:
    assert facts_of(request(annotations)) == facts


@pytest.mark.parametrize(
    ("wanted", "said"), [({}, True), ({"rack": "7"}, True), ({"rack": "8"}, False), ({"rack": "7", "row": "1"}, False)]
)
def test_a_request_says_what_is_wanted(wanted: dict[str, str], said: bool) -> None:
    assert has_facts(request({"request.mooring.dev/rack": "7"}), wanted) is said
