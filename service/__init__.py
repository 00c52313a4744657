"""What is true and what is decided: models, ledger, intake, verdicts, reports, forge clients, REST API."""
