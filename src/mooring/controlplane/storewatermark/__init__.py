"""Memory that a server has of its store: the file `store.mark`, and what happens when the store is older than it."""
