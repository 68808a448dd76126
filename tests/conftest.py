"""Fixtures of every room: `live_server`, a whole server process shared by a session's tests."""

pytest_plugins = ["tests.support.liveserver"]
