# The image of a code location with Docker's client: runs build images with it, and start containers of the pool.
#   docker build -f deploy/docker/engine.Dockerfile -t accel-ci-docker deploy/docker
ARG BASE=accel-ci
ARG CLIENT=docker:28.5-cli
FROM ${CLIENT} AS client

FROM ${BASE}
COPY --from=client /usr/local/bin/docker /usr/local/bin/docker
COPY --from=client /usr/local/libexec/docker/cli-plugins /usr/local/libexec/docker/cli-plugins
