"""`mooring status`: a whole cluster on one screen; the table of sections, and the command."""
