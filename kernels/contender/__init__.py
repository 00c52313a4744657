"""The process that runs one provider on one device."""
