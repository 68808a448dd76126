"""Parts of certificates, requests and CRLs, read and written as their bytes stand there."""
