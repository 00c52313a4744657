"""Charts that a reader explores, as values in the schema of Plotly.  Pure."""
