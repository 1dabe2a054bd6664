"""Where the sources under test come from: git states, revisions, and what is new upstream."""
