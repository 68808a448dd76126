"""Reports of health checks: failures, warnings, exclusions."""

from __future__ import annotations

import logging

import pytest

from mooring.server.healthchecks import HealthChecks


def checks(*, works: bool, warns: bool) -> HealthChecks:
    found = HealthChecks()
    found.add("part", lambda: works)
    found.add_warning("snapshots", lambda: not warns, "readyz")
    return found


def test_a_warning_is_named_and_the_endpoint_passes() -> None:
    warning = checks(works=True, warns=True)
    assert warning.report("readyz") == (True, "ok")
    assert warning.report("readyz", verbose=True) == (
        True,
        "[+]ping ok\n[+]part ok\n[!]snapshots warning: see the log of the server\nreadyz check passed\n",
    )
    assert warning.single("readyz", "snapshots") == (True, "ok")
    assert warning.single("livez", "snapshots") is None


def test_a_failure_beside_a_warning_is_a_failure() -> None:
    passed, text = checks(works=False, warns=True).report("readyz")
    assert not passed
    assert "[-]part failed: reason withheld\n[!]snapshots warning" in text


def test_without_a_cause_there_is_no_warning() -> None:
    assert "[+]snapshots ok\n" in checks(works=True, warns=False).report("readyz", verbose=True)[1]
    assert "[+]snapshots excluded: ok\n" in checks(works=True, warns=True).report("readyz", ["snapshots"], True)[1]


def test_a_failure_that_lasts_is_logged_when_it_changes_and_then_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, failing = [0.0], {"a"}
    found = HealthChecks(lambda: now[0])
    found.add("a", lambda: "a" not in failing)
    found.add("b", lambda: "b" not in failing)
    caplog.set_level(logging.INFO)

    def probe_for(seconds: int) -> list[str]:
        caplog.clear()
        for _ in range(0, seconds, 10):
            found.report("readyz")
            now[0] += 10
        return [record.getMessage() for record in caplog.records]

    assert probe_for(60) == ["readyz check failed: a"]
    assert probe_for(60 + 120 + 240 + 10) == ["readyz check failed: a"] * 3
    assert len(probe_for(24 * 3600)) <= 24 + 3
    failing.add("b")
    assert probe_for(10) == ["readyz check failed: a,b"]
    failing.clear()
    assert probe_for(600) == ["readyz check passes again"]
    failing.add("a")
    assert probe_for(10) == ["readyz check failed: a"]
    caplog.clear()
    found.report("livez")
    assert caplog.messages == ["livez check failed: a"], "each endpoint has its own lines"


def test_a_check_may_pass_and_warn() -> None:
    found = HealthChecks()
    found.add("log", lambda: True, "readyz", warns=lambda: True)
    assert found.report("readyz") == (True, "ok")
    assert "[!]log warning" in found.report("readyz", verbose=True)[1]
    assert found.single("readyz", "log") == (True, "ok")
