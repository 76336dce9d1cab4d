"""Every library of the stack, run once and its numbers compared. Importable without torch.

`python -m healthcheck.exercise --device cpu|cuda [NAME...]` runs them in the stack's Python. A code belongs
to its exercise for good: new exercises take new numbers.
"""

from __future__ import annotations

from healthcheck.exercise import attention, audio, compile, gpu, models, quantized, torch_math, vision
from healthcheck.exercise.base import ABSENT, Exercise, Finding, Skip, Wrong

__all__ = ["ABSENT", "EXERCISES", "Exercise", "Finding", "Skip", "Wrong"]

EXERCISES: tuple[Exercise, ...] = (
    Exercise("numpy", "DYN-LIB-001", "NumPy", "numpy", False, torch_math.numpy_product, "numpy"),
    Exercise("matmul", "DYN-LIB-002", "matrix product", "torch", False, torch_math.matmul, "torch"),
    Exercise("sdpa", "DYN-LIB-003", "scaled dot-product attention", "torch", False, attention.sdpa, "torch"),
    Exercise("cublas", "DYN-LIB-004", "cuBLAS", "torch", True, torch_math.cublas, "torch"),
    Exercise("cudnn", "DYN-LIB-005", "cuDNN", "torch", True, torch_math.cudnn, "torch"),
    Exercise("cufft", "DYN-LIB-006", "cuFFT", "torch", True, torch_math.cufft, "torch"),
    Exercise("cusolver", "DYN-LIB-007", "cuSOLVER", "torch", True, torch_math.cusolver, "torch"),
    Exercise("cusparse", "DYN-LIB-008", "cuSPARSE", "torch", True, torch_math.cusparse, "torch"),
    Exercise("curand", "DYN-LIB-009", "cuRAND", "torch", True, torch_math.curand, "torch"),
    Exercise("triton", "DYN-LIB-010", "Triton kernel", "triton", True, compile.triton_add, "triton"),
    Exercise("torch-compile", "DYN-LIB-011", "torch.compile", "torch", False, compile.torch_compile, "torch"),
    Exercise(
        "flash-attn", "DYN-LIB-012", "flash-attn", "flash-attn", True, attention.flash_attn, "flash_attn"
    ),
    Exercise(
        "xformers", "DYN-LIB-013", "xFormers attention", "xformers", True, attention.xformers, "xformers"
    ),
    Exercise(
        "xformers-flash",
        "DYN-LIB-014",
        "xFormers' flash backend",
        "xformers",
        False,
        attention.xformers_flash,
        "xformers",
    ),
    Exercise("torchvision", "DYN-LIB-015", "torchvision", "torchvision", False, vision.nms, "torchvision"),
    Exercise("opencv", "DYN-LIB-016", "OpenCV", "opencv-python-headless", False, vision.opencv, "cv2"),
    Exercise("pillow", "DYN-LIB-017", "Pillow", "pillow", False, vision.pillow, "PIL"),
    Exercise("torchaudio", "DYN-LIB-018", "torchaudio", "torchaudio", False, audio.torchaudio, "torchaudio"),
    Exercise("soundfile", "DYN-LIB-019", "soundfile", "soundfile", False, audio.soundfile, "soundfile"),
    Exercise("torchcodec", "DYN-LIB-020", "torchcodec", "torchcodec", False, audio.torchcodec, "torchcodec"),
    Exercise("ffmpeg", "DYN-LIB-021", "FFmpeg", "", False, audio.ffmpeg),
    Exercise(
        "transformers",
        "DYN-LIB-022",
        "Transformers",
        "transformers",
        False,
        models.transformers,
        "transformers",
    ),
    Exercise("diffusers", "DYN-LIB-023", "Diffusers", "diffusers", False, models.diffusers, "diffusers"),
    Exercise("accelerate", "DYN-LIB-024", "Accelerate", "accelerate", False, models.accelerate, "accelerate"),
    Exercise(
        "safetensors", "DYN-LIB-025", "safetensors", "safetensors", False, models.safetensors, "safetensors"
    ),
    Exercise(
        "sentencepiece",
        "DYN-LIB-026",
        "SentencePiece",
        "sentencepiece",
        False,
        models.sentencepiece,
        "sentencepiece",
    ),
    Exercise("einops", "DYN-LIB-027", "einops", "einops", False, models.einops, "einops"),
    Exercise(
        "bitsandbytes",
        "DYN-LIB-028",
        "bitsandbytes",
        "bitsandbytes",
        False,
        quantized.bitsandbytes,
        "bitsandbytes",
    ),
    Exercise("torchao", "DYN-LIB-029", "torchao", "torchao", False, quantized.torchao, "torchao"),
    Exercise("gpu", "DYN-LIB-030", "GPU by itself", "torch", True, gpu.product_copy_and_memory, "torch"),
)
