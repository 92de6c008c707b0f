# The broker with its name-server role, as an unprivileged user, its store in the volume /data.
#   docker build -t triomq . && docker run --name triomq -d triomq && docker exec triomq triomq ping
# By itself it listens within the container only. The compose files listen on its network and publish ports: on this
# machine without accounts (docker-compose.yml), or anywhere with accounts and TLS (docker-compose.secure.yml).
# All that it is built from is pinned: `make lock` renews the digest and requirements.lock.
ARG BASE=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE /src/
COPY src /src/src
COPY protocol /src/protocol
COPY common /src/common
COPY storage /src/storage
COPY broker /src/broker
COPY client /src/client
COPY cli /src/cli
COPY dashboard /src/dashboard
COPY testing /src/testing
COPY demo /src/demo
RUN python -m venv /opt/triomq
ENV PIP_QUIET=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN /opt/triomq/bin/pip install --require-hashes --no-deps --requirement /src/requirements.lock
RUN /opt/triomq/bin/pip install --no-deps --no-build-isolation "/src[compression,dashboard]"
# setuptools has built the package; the rest is complete.
RUN /opt/triomq/bin/pip uninstall --yes setuptools && /opt/triomq/bin/pip check

FROM ${BASE}
COPY --from=build /opt/triomq /opt/triomq
RUN mkdir /data && chown 10911:10911 /data
# Forwarded ports may make every client look like this container: none counts as local.
ENV PATH=/opt/triomq/bin:$PATH PYTHONUNBUFFERED=1 TRIOMQ_BROKER_NO_LOCAL_PEERS=true TRIOMQ_NAMESRV_NO_LOCAL_PEERS=true
USER 10911:10911
VOLUME /data
# name server, broker, and the second port (broker's minus 2) that Java clients with the VIP channel use
EXPOSE 9876 10911 10909
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["triomq", "ping", "--namesrv", "127.0.0.1:9876"]
CMD ["triomq", "broker", "--store", "/data"]
