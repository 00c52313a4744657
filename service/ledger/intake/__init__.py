"""How targets and revisions enter the ledger."""
