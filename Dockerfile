# Images for Python programs on machines of a cluster. docs/guides/gke.md shows how to build and push them.
#   --target=tpu: Python and the packages for TPUs, for `python -m launch run --backend=gke`, which sends the code
#   --target=cpu: this package and the packages for CPUs, with the program vit-jax
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# A user without rights. A pod of launch runs as root instead, because the devices of TPUs belong to root.
RUN useradd --create-home --uid 1000 vit
WORKDIR /home/vit

FROM base AS tpu
COPY requirements/tpu.txt requirements/
RUN python3 -m pip install --require-hashes --requirement requirements/tpu.txt
USER vit

FROM base AS cpu
COPY requirements/gcs.txt requirements/
RUN python3 -m pip install --require-hashes --requirement requirements/gcs.txt
COPY pyproject.toml setup.py README.md source/
COPY vit_jax source/vit_jax
COPY launch source/launch
COPY configs source/configs
RUN python3 -m pip install --no-deps --no-build-isolation ./source && rm -r source
USER vit
ENTRYPOINT ["vit-jax"]
