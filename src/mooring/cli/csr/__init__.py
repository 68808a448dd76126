"""`mooring csr`: certificate signing requests; `show` reads them, `decision` approves, denies and reviews them."""
