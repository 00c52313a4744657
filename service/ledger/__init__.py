"""State changes and queries of the database: functions that take a Session."""
