# syntax=docker/dockerfile:1
# Two images: `service` (API, control, beat, migrations) and `worker` (the same with a sandbox, a compiler and torch).

FROM python:3.13-slim-bookworm AS packages
RUN python -m venv /opt/kernelwatch
COPY requirements.txt /tmp/requirements.txt
RUN /opt/kernelwatch/bin/python -m pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
# The source is used in place; `kernelwatch` starts it.
RUN echo /srv/kernelwatch > "$(/opt/kernelwatch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kernelwatch.pth" \
 && printf '#!/bin/sh\nexec /opt/kernelwatch/bin/python -m service.cli "$@"\n' > /opt/kernelwatch/bin/kernelwatch \
 && chmod 755 /opt/kernelwatch/bin/kernelwatch

FROM python:3.13-slim-bookworm AS service
# Debian keeps only the newest of each package in a release: a pinned version would stop building within weeks.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends git ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --home-dir /var/lib/kernelwatch --create-home kernelwatch
COPY --from=packages /opt/kernelwatch /opt/kernelwatch
COPY kernels /srv/kernelwatch/kernels
COPY service /srv/kernelwatch/service
COPY workers /srv/kernelwatch/workers
COPY dashboards /srv/kernelwatch/dashboards
COPY examples /srv/kernelwatch/examples
ENV PATH=/opt/kernelwatch/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    KERNELWATCH_STATE=/var/lib/kernelwatch
WORKDIR /var/lib/kernelwatch
USER 10001:10001
EXPOSE 8712
CMD ["kernelwatch", "api"]

FROM service AS worker
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap g++ libseccomp2 \
 && rm -rf /var/lib/apt/lists/*
# The base environment of contenders.  It also runs on processors, and contains no part of kernelwatch.
ARG STACK="torch==2.13.0 quack-kernels==0.6.5 liger-kernel==0.8.5"
# hadolint ignore=DL3059,SC2086
RUN python -m venv --without-pip /opt/stack \
 && PIP_NO_CACHE_DIR=1 python -m service.ops.torch_install /opt/stack/bin/python ${STACK} \
 && kernelwatch stack adopt host --python /opt/stack/bin/python \
 && chown -R 10001:10001 /var/lib/kernelwatch
USER 10001:10001
CMD ["celery", "--app", "workers.app", "worker", "--queues", "cpu", "--concurrency", "1", "--loglevel", "INFO"]
