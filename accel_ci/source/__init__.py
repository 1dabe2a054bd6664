"""The sources under test: git states, revisions, patches, and new upstream commits."""
