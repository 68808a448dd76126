"""Objects that a server writes into its cluster: first objects, the first token and the CAs in force."""
