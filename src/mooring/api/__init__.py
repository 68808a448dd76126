"""Resource types of the Kubernetes API, a file or a folder for each API group, and what all of them share.

Import `kinds` for the table of all kinds, `kind` to declare one, `view` to read stored objects.
Import the schema, constants or predicates of one kind from its own file. A group may import `objectmeta`, and `core` to refer to
it.
"""
