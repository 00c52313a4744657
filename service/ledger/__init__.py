"""What happened and what is to be done: functions named as facts or questions, each taking a Session."""
