"""Resource types of the Kubernetes API, one folder an API group, and what all of them share.

Import `kinds` for the table of all kinds, `kind` to declare one, `view` to read stored objects.
Import the schema, constants or predicates of one kind from its own file. A group may import `meta`, and `core` to refer to it.
"""
