"""What a server remembers of its store: the file `store.mark`, and what happens when the store is older than it."""
