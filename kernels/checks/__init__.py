"""Whether a result is right: inputs, references in float64, error bounds, checks against cheating."""
