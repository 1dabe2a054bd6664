"""The backend's wheels: built, audited, repaired, and checked as users install them."""
