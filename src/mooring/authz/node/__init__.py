"""Node authorizer: its rules, the graph from objects to nodes, and the identifier that recognises a node's user."""
