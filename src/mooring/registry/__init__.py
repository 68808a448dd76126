"""Read and change objects of every kind: the one way for HTTP, controllers and commands (law 6).

* `store`: `Registry`, the entry. Rooms above import it, objects and events of `cache`, the `admission` types, and `offload`.
* `write`: create, update, patch, apply, delete. `reader`: get, list, watch. `cache`: the watch cache. `admission`: plugins.
"""
