"""The Kubernetes pool: a worker is a pod of a Job, and the round is kept in a bucket."""
