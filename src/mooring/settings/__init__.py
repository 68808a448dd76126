"""Settings of a server: the declaration from which flag, environment variable, configuration key, check and reference row follow.

- `declaration`: `setting`, `Setting` and `Settings`, with which every room declares its settings, the types of values, and checks
  that several settings share; `addresses`: checks of addresses, and the values that they return.
- `network`, `serving`, `storage`, `signing`, `snapshots`, `controllers`, `nodes`: the settings of one subject each.

Pure: values come in as arguments, from the command line room. All rooms above may import from here.
"""
