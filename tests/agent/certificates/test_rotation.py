"""Times of renewals and of retries, as kubelet has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from mooring.agent.renewal import decision_pauses, renewal_time, retry_pauses
from tests.support.testca import ThrowawayCA

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
LEAF = (
    ThrowawayCA(now=BEGIN).custom("system:node:m1", not_before=BEGIN, not_after=BEGIN + timedelta(hours=10)).certificate
)


@pytest.mark.parametrize(
    ("draw", "hours"),
    [
        pytest.param(0.0, 7.0, id="never before 70 % of the lifetime"),
        pytest.param(0.5, 8.0, id="uniform between"),
        pytest.param(0.999999, 9.0, id="never after 90 %"),
    ],
)
def test_a_certificate_is_renewed_between_70_and_90_percent_of_its_life(draw: float, hours: float) -> None:
    after = (renewal_time(LEAF, draw, BEGIN) - BEGIN).total_seconds() / 3600
    assert after == pytest.approx(hours, abs=0.001)


@pytest.mark.parametrize(("draw", "hours"), [(0.0, 9.2), (0.999999, 9.7)])
def test_one_that_a_kubelet_may_renew_is_renewed_after_the_kubelet(draw: float, hours: float) -> None:
    after = (renewal_time(LEAF, draw, BEGIN, defers=True) - BEGIN).total_seconds() / 3600
    assert after == pytest.approx(hours, abs=0.001)


@pytest.mark.parametrize(
    ("begin", "obtained", "seconds"),
    [
        pytest.param(-300, None, 24, id="a certificate on disk: from five minutes after its begin"),
        pytest.param(0, None, 24, id="a signer that does not backdate, where five minutes are beyond the end"),
        pytest.param(-10 * 365 * 86400, 0, 24, id="k3s begins with its CA: from the time at which it was obtained"),
        pytest.param(-300, 5, 25, id="a signer that answers after five seconds"),
    ],
)
def test_the_life_of_a_short_certificate_counts_from_its_issue(
    begin: int, obtained: int | None, seconds: float
) -> None:
    leaf = (
        ThrowawayCA(now=BEGIN).custom(
            "system:node:m1", not_before=BEGIN + timedelta(seconds=begin), not_after=BEGIN + timedelta(seconds=30)
        ).certificate
    )  # fmt: skip
    moment = None if obtained is None else BEGIN + timedelta(seconds=obtained)
    assert (renewal_time(leaf, 0.5, moment) - BEGIN).total_seconds() == seconds


def test_pauses_double_four_times_and_are_32_seconds_from_then_on() -> None:
    assert list(islice(retry_pauses(lambda: 0.0), 7)) == [2, 4, 8, 16, 32, 32, 32]


def test_growing_pauses_are_up_to_a_tenth_longer() -> None:
    assert list(islice(retry_pauses(lambda: 1.0), 5)) == pytest.approx([2.2, 4.4, 8.8, 17.6, 32])


def test_pauses_after_decisions_double_up_to_an_hour() -> None:
    growing = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    assert list(islice(decision_pauses(lambda: 0.0), 13)) == [*growing, 3600, 3600]
    assert list(islice(decision_pauses(lambda: 1.0), 13)) == pytest.approx(
        [*(1.1 * pause for pause in growing), 3600, 3600]
    )
