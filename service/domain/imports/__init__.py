"""Files of other benchmark tools as values: what each measured, in which unit, and which values are better.  Pure."""
