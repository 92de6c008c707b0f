# The broker with its name-server role, as an unprivileged user, its store in the volume /data.
#   docker build -t triomq . && docker run -p 9876:9876 -p 10911:10911 triomq
# Clients connect to the address that the broker advertises: 127.0.0.1 serves clients on the same host; for others
# repeat the command with --advertise and the host's address (docker-compose.yml takes it from TRIOMQ_ADVERTISE).
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
COPY protocol /src/protocol
COPY storage /src/storage
COPY broker /src/broker
COPY client /src/client
RUN python -m venv /opt/triomq
RUN /opt/triomq/bin/pip install --quiet --no-cache-dir --disable-pip-version-check "/src[compression]"

FROM python:3.12-slim
COPY --from=build /opt/triomq /opt/triomq
RUN mkdir /data && chown 10911:10911 /data
ENV PATH=/opt/triomq/bin:$PATH PYTHONUNBUFFERED=1
USER 10911:10911
VOLUME /data
# name server, broker, and the second port (broker's minus 2) that Java clients with the VIP channel use
EXPOSE 9876 10911 10909
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["triomq", "ping", "--namesrv", "127.0.0.1:9876"]
# 0.0.0.0 is the container's own network: what is reachable from outside is decided by the published ports.
CMD ["triomq", "broker", "--listen", "0.0.0.0:10911", "--namesrv-listen", "0.0.0.0:9876", \
     "--store", "/data", "--insecure", "--advertise", "127.0.0.1"]
