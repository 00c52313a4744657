"""The service: models, ledger, intake, verdicts, reports, forge clients, REST API."""
