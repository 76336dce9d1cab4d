"""Turn GPU_ARCHS into the list that flash-attn's build takes: "8.0 8.9 9.0" -> "80;90".

flash-attn has one set of kernels for Ampere and Ada, compiled for sm_80, and the same compiled for sm_90;
sm_80 code runs on every 8.x GPU.
"""

import sys


def flash_attn_archs(gpu_archs: str) -> str:
    """Return flash-attn's semicolon-separated architectures for space-separated compute capabilities."""
    majors = sorted({int(arch.split(".")[0]) for arch in gpu_archs.split()})
    return ";".join(f"{major}0" for major in majors)


if __name__ == "__main__":
    print(flash_attn_archs(sys.argv[1]))
