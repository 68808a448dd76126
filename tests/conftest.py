"""Settings of every test, and `live_server`, a whole server process shared by a session's tests.

Rules kept here: no fixture applies to a test that does not name it. Hypothesis sets no deadline, because machines of continuous
integration stall; there its examples are the same in each run, so that a failure comes from the change.
HYPOTHESIS_PROFILE=thorough makes more examples. Programs that tests start receive SIGINT, also where a shell that runs the tests in
the background ignores it.
"""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.liveserver", "tests.purecoverage"]

_STALLS = (HealthCheck.too_slow,)
settings.register_profile("developer", deadline=None, max_examples=50, suppress_health_check=_STALLS)
settings.register_profile("ci", parent=settings.get_profile("developer"), derandomize=True, database=None)
settings.register_profile("thorough", parent=settings.get_profile("developer"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "developer"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep 17 000 collected tests out of every full collection of garbage to come."""
    gc.collect()
    gc.freeze()
