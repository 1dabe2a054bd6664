"""The account of a build: the verdict rule, the sums, closing it, and a build's status."""
