# mt in a container, for a CPU or for NVIDIA GPUs.
#
#   docker build -t mt .                                             CPU
#   docker build -t mt:cuda --build-arg TORCH_BACKEND=cu128 .        CUDA; the driver of the host must be new enough for it
#   mkdir -p runs                                                    else Docker makes it, for root only
#   docker run --rm --shm-size=1g --user "$(id -u):$(id -g)" -v "$PWD/runs:/workspace/runs" mt train --config tiny.yaml
#   docker run --rm --gpus all --ipc=host --user "$(id -u):$(id -g)" -v "$PWD:/workspace" mt:cuda train --config base.yaml
#
# Several GPUs: `--entrypoint torchrun`, then `--standalone --nproc-per-node=gpu -m mt train ...`.
# Kubernetes: mt is process 1 and gets SIGTERM, on which training writes a checkpoint; give the pod's
# terminationGracePeriodSeconds room for one update and one checkpoint, and mount a volume at /workspace/runs.
# Slurm: build an Apptainer or enroot image of this one and name the command in the variable MT; see
# scripts/slurm/README.md.

FROM python:3.12-slim

# cpu, cu126, cu128, cu130, ... or auto: which build of PyTorch uv installs.
ARG TORCH_BACKEND=cpu
# Optional parts of mt, such as huggingface; see pyproject.toml.
ARG EXTRAS=""

# With a C compiler torch.compile can fuse kernels.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/mt
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY mt mt
# hadolint ignore=DL3013
RUN pip install --no-cache-dir uv \
    && uv pip install --system --no-cache --torch-backend="${TORCH_BACKEND}" ".${EXTRAS:+[${EXTRAS}]}"

# The container may run under any user id: nothing is written outside /workspace and /tmp.
ENV HOME=/tmp TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor PYTHONUNBUFFERED=1
WORKDIR /workspace
COPY data/demo data/demo
RUN mkdir runs && chmod 1777 . runs
USER 1000:1000

ENTRYPOINT ["mt"]
CMD ["--help"]
