"""How tests are spread over cards: batches, estimates and the bound that no schedule beats. Pure functions."""
