"""Settings of a server: the declaration from which flag, environment variable, configuration key, check and reference row follow.

- `declaration`: `setting`, `Setting` and `Settings`, with which every room declares its settings; `kinds`: the types of values.
- `checks`, `addresses`: checks that several settings share, and the values that they return.
- `network`, `serving`, `storage`, `authorization`, `admission`, `flowcontrol`, `audit`: the settings of one subject each.

Pure: values come in as arguments, from the command line room. All rooms above may import from here.
"""
