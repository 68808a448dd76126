"""`mooring token`: bootstrap tokens and server tokens."""
