"""The backend's wheels: built, audited, repaired, and checked as a user installs them."""
