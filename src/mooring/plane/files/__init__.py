"""Files of a data directory: their locks, their permissions, and changes that come into force."""
