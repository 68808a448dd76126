"""Snapshots as files: one (`file.py`), a directory of them (`directory.py`), and the schedule of a server (`schedule.py`)."""
