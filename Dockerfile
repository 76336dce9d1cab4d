# Dyno: a deep-learning image that proves itself on the GPU it is given.
#
#   base ─┬─ wheels (the locked stack, /opt/venv) ── stack ─┬───────────────────── runtime
#         │                                            │    └─ + nvcc, g++-13 ──── devel
#         │                              flash-attn ───┘                             │
#         │                               ├─ -source                                 │
#         ├─ toolkit (nvcc, g++-13) ──────┘                                          │
#         │                               ├─ -wheelhouse                             │
#         │                               └─ -none                                   │
#         ├─ tools (/opt/dyno/venv) ──────────────────────────────── copied into both┤
#         └─ payload (entrypoint, healthcheck) ───────────────────── copied into both┘
#
# `make image` fills every argument (python3 -m image plan shows them); a plain `docker build .` takes the defaults,
# which equal image/stack.py. A step runs under image/step, which brings the build's CA certificates, if any,
# and leaves nothing behind that differs from one build to the next. A RUN mounts only the files it reads,
# so that a change elsewhere does not rebuild it.

ARG SUITE=trixie
ARG BASE_IMAGE=debian:${SUITE}-slim
ARG FLASH_ATTN=none

# Replaced by the named build context of the same name when there is a wheelhouse.
FROM scratch AS wheelhouse

# ---------------------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS base
ARG SUITE
ARG DEBIAN_MIRROR=http://deb.debian.org/debian
ARG SOURCE_DATE_EPOCH=1754006400

RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=image/apt,target=/apt \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    /step <<'EOF'
cp /apt/dpkg-excludes /etc/dpkg/dpkg.cfg.d/dyno
rm -f /etc/apt/sources.list /etc/apt/apt.conf.d/docker-clean
sed "s|@MIRROR@|${DEBIAN_MIRROR%/}|; s|@SUITE@|${SUITE}|g" /apt/debian.sources > /etc/apt/sources.list.d/debian.sources
apt-get update
xargs -a <(sed 's/ *#.*//' /apt/packages) apt-get install --yes --no-install-recommends
useradd --uid 1000 --gid 0 --home-dir /workspace --no-create-home --shell /bin/bash dyno
# Open to any uid and gid, since --user may be anything; the set-group-ID bit keeps what is made there in group 0.
install -d -m 2777 -o 1000 -g 0 /workspace /workspace/models /workspace/output /workspace/.cache /data
EOF

ENV LANG=C.UTF-8 \
    PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    VIRTUAL_ENV=/opt/venv \
    HOME=/workspace USER=dyno LOGNAME=dyno \
    XDG_CACHE_HOME=/workspace/.cache \
    HF_HOME=/workspace/.cache/huggingface \
    TORCHINDUCTOR_CACHE_DIR=/workspace/.cache/inductor \
    TRITON_CACHE_DIR=/workspace/.cache/triton \
    PIP_CONSTRAINT=/opt/dyno/constraints.txt \
    UV_CONSTRAINT=/opt/dyno/constraints.txt \
    UV_LINK_MODE=copy \
    PYTORCH_NVML_BASED_CUDA_CHECK=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video \
    SELFTEST=full SELFTEST_POLICY=warn SELFTEST_TIMEOUT=180
WORKDIR /workspace

# ---------------------------------------------------------------------------------------------------------------
# Dyno's own Python environment, and the uv that installs the stack.
FROM base AS tools
ARG PYPI_INDEX=https://pypi.org/simple
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=requirements/tools.lock,target=/lock/tools.lock \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    /step <<'EOF'
python3 -m venv /opt/dyno/venv
/opt/dyno/venv/bin/pip install --quiet --no-cache-dir --no-compile --no-deps --require-hashes --only-binary :all: \
    --index-url "$PYPI_INDEX" --requirement /lock/tools.lock
/opt/dyno/venv/bin/pip uninstall --quiet --yes pip
echo /opt/dyno/lib > "$(echo /opt/dyno/venv/lib/python3*/site-packages)/dyno.pth"
/opt/dyno/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/dyno/venv/lib
EOF

# ---------------------------------------------------------------------------------------------------------------
# Everything of the lock that comes as a wheel. Group-writable from the start: a chmod later would copy it all.
FROM base AS wheels
ARG PYPI_INDEX=https://pypi.org/simple
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,from=tools,source=/opt/dyno/venv/bin/uv,target=/uv \
    --mount=type=bind,source=requirements/stack.lock,target=/lock/stack.lock \
    --mount=type=cache,target=/var/cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    /step <<'EOF'
python3 -m venv --without-pip /opt/venv
/uv pip install --python /opt/venv/bin/python --cache-dir /var/cache/uv --no-config \
    --require-hashes --no-deps --only-binary :all: --default-index "$PYPI_INDEX" --requirement /lock/stack.lock
echo /opt/dyno/lib > "$(echo /opt/venv/lib/python3*/site-packages)/dyno.pth"
/opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/venv/lib
chmod -R g=u /opt/venv
EOF

# ---------------------------------------------------------------------------------------------------------------
# The CUDA toolkit, for compiling flash-attn: nvcc and headers.
FROM base AS toolkit
ARG CUDA_TOOLKIT=12.4.131
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=image/apt,target=/apt \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    /step < /apt/install-toolkit
ENV CUDA_HOME=/usr NVCC_PREPEND_FLAGS="-ccbin /usr/bin/g++-13"

# ---------------------------------------------------------------------------------------------------------------
# flash-attn, by one of three routes. Each leaves its wheel, or nothing, in /wheels.
FROM toolkit AS flash-attn-source
ARG GPU_ARCHS=8.9
ARG PYPI_INDEX=https://pypi.org/simple
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,from=tools,source=/opt/dyno/venv/bin/uv,target=/uv \
    --mount=type=bind,from=wheels,source=/opt/venv,target=/opt/venv \
    --mount=type=bind,source=requirements/build.lock,target=/lock/build.lock \
    --mount=type=bind,source=requirements/flash-attn.lock,target=/lock/flash-attn.lock \
    --mount=type=bind,source=image/nvcc_archs.py,target=/nvcc_archs.py \
    --mount=type=cache,target=/var/cache/uv,sharing=locked \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    --mount=type=secret,id=jobs,target=/run/secrets/jobs \
    /step <<'EOF'
uv() { /uv "$@" --cache-dir /var/cache/uv --no-config --default-index "$PYPI_INDEX"; }
uv pip install --target /build --no-deps --require-hashes --only-binary :all: --python /opt/venv/bin/python --requirement /lock/build.lock
# The job count follows the memory that is free today. As a secret it stays out of the cache key, and so does not
# compile everything again tomorrow.
export MAX_JOBS="$(cat /run/secrets/jobs 2>/dev/null || echo 1)" NVCC_THREADS=1
# torch and the toolkit are there, so isolation is off; the archs are said, since no GPU is visible here.
export PYTHONPATH=/build PATH="/build/bin:$PATH" FLASH_ATTENTION_FORCE_BUILD=TRUE
export FLASH_ATTN_CUDA_ARCHS="$(python3 /nvcc_archs.py "$GPU_ARCHS")"
/opt/venv/bin/python -m pip wheel --verbose --no-build-isolation --no-deps --no-binary flash-attn --require-hashes \
    --no-cache-dir --index-url "$PYPI_INDEX" --wheel-dir /wheels --requirement /lock/flash-attn.lock
rm -rf /build
EOF

FROM base AS flash-attn-wheelhouse
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,from=wheelhouse,target=/wheelhouse \
    --mount=type=bind,from=wheels,source=/opt/venv,target=/opt/venv \
    --mount=type=bind,source=requirements/flash-attn.lock,target=/lock/flash-attn.lock \
    /step <<'EOF'
wanted="$(grep -o '^flash-attn==[^ ]*' /lock/flash-attn.lock)"
/opt/venv/bin/python -m pip download --quiet --no-index --no-deps --only-binary :all: --find-links /wheelhouse --dest /wheels "$wanted"
EOF

FROM base AS flash-attn-none
RUN install -d /wheels

FROM flash-attn-${FLASH_ATTN} AS flash-attn

# ---------------------------------------------------------------------------------------------------------------
FROM wheels AS stack
ARG FLASH_ATTN
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,from=tools,source=/opt/dyno/venv/bin/uv,target=/uv \
    --mount=type=bind,from=flash-attn,source=/wheels,target=/wheels \
    --mount=type=bind,source=image/shim.py,target=/shim.py \
    --mount=type=bind,source=requirements/stack.lock,target=/lock/stack.lock \
    /step <<'EOF'
shopt -s nullglob
wheels=(/wheels/*.whl)
if [ "$FLASH_ATTN" != none ]; then
    /uv pip install --python /opt/venv/bin/python --no-cache --no-config --offline --no-index --no-deps "${wheels[@]}"
    /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode checked-hash /opt/venv/lib/python3*/site-packages/flash_attn
fi
/opt/venv/bin/python /shim.py /opt/venv opencv-python opencv-python-headless
chmod -R g=u "$(echo /opt/venv/lib/python3*/site-packages)"/{flash_attn,opencv_python}*
# Asserted after the last install: any of them might have replaced torch.
locked="$(grep -o '^torch==[^ ]*' /lock/stack.lock)"
installed="torch==$(/opt/venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))')"
[ "$installed" = "$locked" ] || { echo "the stack holds $installed, the lock says $locked" >&2; exit 1; }
EOF
# What both images are to an engine. Here, since it costs no layer.
ARG DRIVER_FLOOR=550
ENV NVIDIA_REQUIRE_DRIVER="driver>=$DRIVER_FLOOR"
VOLUME /workspace/.cache
HEALTHCHECK --interval=60s --timeout=10s --start-period=200s --retries=3 \
    CMD ["/opt/dyno/venv/bin/python", "-I", "-m", "healthcheck.probe"]
ENTRYPOINT ["/usr/bin/tini", "-s", "-g", "--", "/usr/local/bin/dyno-entrypoint"]
CMD ["bash"]

# ---------------------------------------------------------------------------------------------------------------
# The small files that both images share. Last to change the image, so that editing one rebuilds nothing else.
FROM base AS payload
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=image/rootfs,target=/rootfs \
    --mount=type=bind,source=healthcheck,target=/healthcheck \
    /step <<'EOF'
mkdir -p /payload/opt/dyno/lib
cp -r --no-preserve=ownership,timestamps /rootfs/. /payload/
cp -r --no-preserve=ownership,timestamps /healthcheck /payload/opt/dyno/lib/healthcheck
chmod -R u=rwX,go=rX /payload
find /payload/usr/local/bin -type f -exec chmod 755 {} +
python3 -m compileall -q -s /payload --invalidation-mode checked-hash /payload/opt/dyno/lib
EOF

# ---------------------------------------------------------------------------------------------------------------
FROM stack AS runtime
COPY --link --from=tools /opt/dyno /opt/dyno
ARG PYTHON_VERSION=3.13 CUDA_TOOLKIT=12.4.131 DRIVER_TESTED=550.90.07 GPU_ARCHS=8.9
ARG BASE_IDENTITY BUILD_ID LOCK_DIGEST
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=image/manifest.py,target=/manifest.py \
    --mount=type=bind,source=requirements,target=/requirements \
    /step <<'EOF'
python3 /manifest.py runtime
EOF
COPY --link --from=payload /payload/ /
LABEL org.opencontainers.image.title="Dyno" \
      org.opencontainers.image.description="PyTorch 2.8 and CUDA 12.4, with a self-test that proves itself on your GPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      dyno.target="runtime" dyno.gpu-archs="$GPU_ARCHS" dyno.flash-attn="$FLASH_ATTN" \
      dyno.build-id="$BUILD_ID" dyno.lock="$LOCK_DIGEST" dyno.cuda-toolkit="$CUDA_TOOLKIT" dyno.driver-floor="$DRIVER_FLOOR"
USER 1000:0

# ---------------------------------------------------------------------------------------------------------------
FROM stack AS devel
ARG CUDA_TOOLKIT=12.4.131
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=image/apt,target=/apt \
    --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    --mount=type=tmpfs,target=/run --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    /step < /apt/install-toolkit
ENV CUDA_HOME=/usr NVCC_PREPEND_FLAGS="-ccbin /usr/bin/g++-13"
COPY --link --from=tools /opt/dyno /opt/dyno
ARG PYTHON_VERSION=3.13 DRIVER_TESTED=550.90.07 GPU_ARCHS=8.9
ARG BASE_IDENTITY BUILD_ID LOCK_DIGEST
RUN --mount=type=bind,source=image/step,target=/step \
    --mount=type=bind,source=image/manifest.py,target=/manifest.py \
    --mount=type=bind,source=requirements,target=/requirements \
    /step <<'EOF'
python3 /manifest.py devel
EOF
COPY --link --from=payload /payload/ /
LABEL org.opencontainers.image.title="Dyno devel" \
      org.opencontainers.image.description="Dyno with nvcc 12.4 for compiling CUDA extensions" \
      org.opencontainers.image.licenses="Apache-2.0" \
      dyno.target="devel" dyno.gpu-archs="$GPU_ARCHS" dyno.flash-attn="$FLASH_ATTN" \
      dyno.build-id="$BUILD_ID" dyno.lock="$LOCK_DIGEST" dyno.cuda-toolkit="$CUDA_TOOLKIT" dyno.driver-floor="$DRIVER_FLOOR"
ENV TORCH_CUDA_ARCH_LIST="$GPU_ARCHS"
USER 1000:0
