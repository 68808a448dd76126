"""Difference between two clocks, in seconds and with its side."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.agent.steps import SKEW_LIMIT, creation_time, describe_skew, describe_validity, server_date
from mooring.apimachinery.schema import Obj
from tests.support.testca import ThrowawayCA

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("server", "described"),
    [
        pytest.param(NOW + SKEW_LIMIT, "", id="at the limit"),
        pytest.param(NOW + SKEW_LIMIT + SECOND, "this machine's clock is 61 s behind the server's", id="behind"),
        pytest.param(NOW - timedelta(hours=1), "this machine's clock is 3600 s ahead of the server's", id="ahead"),
        pytest.param(None, "", id="unknown"),
    ],
)
def test_a_difference_above_the_limit_is_described(server: datetime | None, described: str) -> None:
    assert describe_skew(server, NOW) == described


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"date": "Fri, 02 Jan 2026 03:04:05 GMT"}, NOW),
        ({"date": "Fri, 02 Jan 2026 04:04:05 +0100"}, NOW),
        ({"date": "yesterday"}, None),
        ({"date": "Fri, 02 Jan 99999 03:04:05 GMT"}, None),
        ({}, None),
    ],
)
def test_the_date_of_a_response_is_read(headers: dict[str, str], found: datetime | None) -> None:
    assert server_date(headers) == found


def test_the_creation_of_an_object_tells_the_time_of_the_server() -> None:
    assert creation_time({"metadata": {"creationTimestamp": "2026-01-02T03:04:05Z"}}) == NOW
    without: tuple[Obj, ...] = ({}, {"metadata": None}, {"metadata": {}}, {"metadata": {"creationTimestamp": "soon"}})
    for obj in without:
        assert creation_time(obj) is None


@pytest.mark.parametrize(
    ("here", "described"),
    [
        (NOW - 3 * SECOND, "this machine's clock is at least 3 s behind the server's"),
        (NOW + timedelta(hours=1), "this machine's clock is at least 0 s ahead of the server's"),
        (NOW, ""),
    ],
)
def test_a_new_certificate_that_is_not_valid_here_tells_which_clock_differs(here: datetime, described: str) -> None:
    made = ThrowawayCA(now=NOW).custom("m1", not_before=NOW, not_after=NOW + timedelta(hours=1))
    assert describe_validity(made.certificate, here) == described
