"""History checker: records what clients asked and were told, and judges whether one correct store could have told it.

`operations` is the record, `linearizability` judges single keys, `revisions`, `watches` and `lists` what holds across keys. Values
that clients write are unique in a record, so that a value names its write. No package on PyPI checks linearizability.
"""
