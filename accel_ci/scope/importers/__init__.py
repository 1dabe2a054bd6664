"""Importers: what other projects know of their tests, as rules of a scope."""
