"""k3s's way of joining: its tokens, the hash of a CA in them, and what its agents and servers say to each other."""
