# byol on CPUs: docker build -t byol . && docker run --rm -v "$PWD/images:/data:ro" -v "$PWD/runs:/runs" byol pretrain /data
FROM python:3.12-slim

# --build-arg TORCH_INDEX=URL takes PyTorch's index of wheels for CPUs, a tenth of those for CUDA, or one of your own.
ARG TORCH_INDEX=
RUN pip install --no-cache-dir torch torchvision ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}

COPY pyproject.toml README.md LICENSE /src/
COPY byol /src/byol
RUN pip install --no-cache-dir "/src[eval,plots,formats]" && rm -r /src

# Nobody needs to be root; give --user "$(id -u):$(id -g)" to own what is written outside.
RUN useradd --create-home --uid 1000 byol && mkdir -p /data /runs && chown byol /data /runs && chmod 1777 /runs
USER byol
ENV XDG_CACHE_HOME=/tmp/cache PYTHONUNBUFFERED=1
WORKDIR /runs
VOLUME ["/data", "/runs"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["byol"]
CMD ["--help"]
