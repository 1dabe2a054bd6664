"""The backend's pull requests: which are built, and the answer to each."""
