"""The alert rules of `examples/monitoring`: their own tests pass, and a server has every metric that they name."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server"]
RULES = Path("examples/monitoring")
PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool on PATH")
@pytest.mark.parametrize("words", [("check", "rules", "mooring.rules.yaml"), ("test", "rules", "mooring.test.yaml")])
def test_the_rules_pass_their_own_tests(words: tuple[str, ...]) -> None:
    done = subprocess.run([PROMTOOL or "", *words], cwd=RULES, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_every_rule_has_a_test_that_fires_and_one_that_does_not() -> None:
    alerts = re.findall(r"alert: (\w+)", (RULES / "mooring.rules.yaml").read_text())
    tests = (RULES / "mooring.test.yaml").read_text()
    assert len(alerts) > 10
    for alert in alerts:
        assert f"alertname: {alert}, exp_alerts: []" in tests
        assert re.search(rf"alertname: {alert}\n +exp_alerts:\n +- exp_labels", tests)


def test_a_server_has_every_metric_that_the_rules_name(live_server: LiveServer) -> None:
    named = set(re.findall(r"\b(?:mooring|leader)_[a-z_]+", (RULES / "mooring.rules.yaml").read_text()))
    text = live_server.run(lambda client: client.read("/metrics")).decode()
    assert named <= set(re.findall(r"^# TYPE (\w+) ", text, re.M))
