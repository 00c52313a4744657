"""The REST API: thin endpoints over the ledger.  An endpoint says what, the ledger says how."""
