"""JUnit XML of any producer to rows. XML itself belongs to `markup.py`."""
