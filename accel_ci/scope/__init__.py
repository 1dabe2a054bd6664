"""Which tests are in scope of a build."""
