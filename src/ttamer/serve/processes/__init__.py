"""Several processes as one gateway: workers, the owner of their audits, and calls between them."""
