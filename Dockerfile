# syntax=docker/dockerfile:1
# Two images: `service` (API, control, beat, migrations) and `worker` (the same with a sandbox, a compiler and torch).
# A change of the source rebuilds only the last layers of both.

# Debian or Ubuntu with Python 3.11 to 3.13, its module venv, and its headers, which torch.compile needs.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS packages
RUN python3 -m venv /opt/kernelwatch
COPY requirements.txt /tmp/requirements.txt
RUN /opt/kernelwatch/bin/python -m pip install --no-cache-dir --require-hashes -r /tmp/requirements.txt
# The source is used in place; `kernelwatch` starts it.
RUN echo /srv/kernelwatch > "$(/opt/kernelwatch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kernelwatch.pth" \
 && printf '#!/bin/sh\nexec /opt/kernelwatch/bin/python -P -m service.cli "$@"\n' > /opt/kernelwatch/bin/kernelwatch \
 && chmod 755 /opt/kernelwatch/bin/kernelwatch

FROM packages AS source
WORKDIR /srv/kernelwatch
COPY kernelwatch kernelwatch
COPY kernels kernels
COPY service service
COPY workers workers
COPY dashboards dashboards
COPY examples examples
COPY docs docs
# Nothing can write byte code later: containers have a read-only root, and contenders see the source read-only.
RUN /opt/kernelwatch/bin/python -m compileall -q kernelwatch kernels service workers dashboards

FROM ${BASE} AS common
# Debian keeps only the newest of each package in a release: a pinned version would stop building within weeks.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends git ca-certificates \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --home-dir /var/lib/kernelwatch --no-create-home kernelwatch \
 && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/kernelwatch
COPY --from=packages /opt/kernelwatch /opt/kernelwatch
# The working folder is the state folder; no module is imported from there (PYTHONSAFEPATH).
ENV PATH=/opt/kernelwatch/bin:$PATH \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    KERNELWATCH_STATE=/var/lib/kernelwatch
WORKDIR /var/lib/kernelwatch

FROM common AS service
COPY --from=source /srv/kernelwatch /srv/kernelwatch
USER 10001:10001
EXPOSE 8712
CMD ["kernelwatch", "api"]

FROM common AS worker
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends bubblewrap g++ libseccomp2 \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/*
# The base environment of contenders, which contains no part of kernelwatch.  An empty STACK is torch for processors.
ARG STACK="torch==2.13.0 quack-kernels==0.6.5 liger-kernel==0.8.5"
COPY service/ops/torch_install.py /tmp/torch_install.py
# hadolint ignore=SC2086
RUN python -m venv --without-pip /opt/stack \
 && PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 python /tmp/torch_install.py /opt/stack/bin/python ${STACK}
COPY --from=source /srv/kernelwatch /srv/kernelwatch
USER 10001:10001
RUN kernelwatch stack adopt host --python /opt/stack/bin/python
CMD ["celery", "--app", "workers.app", "worker", "--queues", "cpu", "--concurrency", "1", "--loglevel", "INFO"]
