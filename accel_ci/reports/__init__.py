"""Test reports of any producer as rows with a status and warnings: never an exception for bad input, never a silent drop."""
