"""The isolation of a stack as sentences and as a document."""
