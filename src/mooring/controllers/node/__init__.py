"""Controllers of Nodes.

`identity` keeps their NodeIdentities, `lifecycle` judges their heartbeats, `taints` keeps the taints of their conditions.
"""
