"""JUnit XML, whoever wrote it, to rows. XML itself is `markup.py`'s concern."""
