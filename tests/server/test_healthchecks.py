"""Reports of health checks: failures, warnings, exclusions."""

from __future__ import annotations

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
