"""Agent that joins the k3s way: its files, the join through a supervisor, renewals, and the process.

`process.run` is what the command line starts.
"""
