"""`mooring join` and `mooring agent`, with their flags and their progress; and the join command that other commands print."""
