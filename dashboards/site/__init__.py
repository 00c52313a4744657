"""The boards, trends and releases of public targets as plain files, for any web host."""
