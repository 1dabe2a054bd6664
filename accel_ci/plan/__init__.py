"""Spreading tests over cards: batches, estimates and the bound that no schedule can beat. Pure functions."""
