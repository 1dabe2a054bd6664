"""The source build: the source tree, Bazel with remote execution, and the results of its tests."""
