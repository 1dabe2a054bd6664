"""The source build: the source tree, Bazel with remote execution, and what its tests came to."""
