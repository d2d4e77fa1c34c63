# The server (default target), and `demo`: an image in which examples/digits_ddp.py runs on the CPU.
#   docker build -t client-lib-server .          docker build -t client-lib-demo --target demo .
# `--build-arg COMMIT=$(git rev-parse HEAD)` makes the server tell the commit of its code.
# `--build-arg` also names other sources of what is downloaded: docs/kubernetes.md, "Without the internet".
# CONTRIBUTING.md says how the digests are renewed.

ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim-bookworm@sha256:34386ef0cb081344d7ec1c103ba398e6e9f64e9ab3a1509accc92a4e24a07258

# what downloads packages: from the index of PIP_INDEX_URL, with the certificate authority of CA_PEM (text) beside the known ones
FROM ${PYTHON_IMAGE} AS download
ARG PIP_INDEX_URL
ARG CA_PEM
RUN test -z "$CA_PEM" || { \
      echo "$CA_PEM" > /usr/local/share/ca-certificates/given.crt && update-ca-certificates && \
      python -m pip config --global set global.cert /etc/ssl/certs/ca-certificates.crt; }

FROM download AS build
WORKDIR /src
# the packages, by their hashes: a layer that changes with the lock file alone
COPY requirements/install.py requirements/bootstrap.txt requirements/server.txt requirements/
RUN --mount=type=cache,target=/root/.cache \
    python requirements/install.py /opt/installer requirements/server.txt --into /opt/client-lib/packages
FROM build AS project
COPY requirements/dev.txt requirements/
COPY pyproject.toml README.md LICENSE ./
COPY release/build_hook.py release/
COPY client_lib client_lib
COPY server_stub server_stub
ARG COMMIT=
RUN test -z "$COMMIT" || echo "$COMMIT" > client_lib/COMMIT
RUN --mount=type=cache,target=/root/.cache \
    python requirements/install.py /opt/installer requirements/dev.txt --project --into /opt/client-lib/project

FROM download AS demo
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY requirements/demo.txt requirements/
RUN python -m pip install --no-cache-dir --require-hashes -r requirements/demo.txt && \
    python -m pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX_URL" torch==2.15.0
USER 1000:1000

FROM ${PYTHON_IMAGE} AS server
ARG COMMIT=
LABEL org.opencontainers.image.title="client-lib-server" \
      org.opencontainers.image.version="0.2.0.dev0" \
      org.opencontainers.image.revision="$COMMIT" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/client-lib/packages /opt/client-lib/packages
COPY --from=project /opt/client-lib/project /opt/client-lib/project
ENV PYTHONPATH=/opt/client-lib/project:/opt/client-lib/packages \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["python3", "-P", "-m", "server_stub"]
