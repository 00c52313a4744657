"""What happened in a week: calendar weeks, and the time at stake."""
