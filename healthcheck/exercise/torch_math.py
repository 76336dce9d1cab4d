"""Dense algebra, and each of the CUDA maths libraries that torch calls, against float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

from healthcheck.exercise.base import Finding, Wrong, check
from healthcheck.measure.compare import EPS_FLOAT32, EPS_TF32, bound, eps_of, generator, poison
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]
_DFT_LENGTHS = (256, 1000, 1009)  # a power of two, a product of small primes, a prime: three algorithms
_CURAND_PHILOX = 161  # CURAND_RNG_PSEUDO_PHILOX4_32_10


def numpy_product(device: str, op: Op | None = None) -> Finding:
    """NumPy's matrix product against exact integer arithmetic in plain Python."""
    import numpy

    seed, n = fresh_seed(), 24
    draw = numpy.random.default_rng(seed)
    a, b = (draw.integers(-9, 10, (n, n)) for _ in range(2))
    rows, columns = a.tolist(), list(zip(*b.tolist(), strict=True))
    exact = [[sum(x * y for x, y in zip(r, c, strict=True)) for c in columns] for r in rows]
    got = (op or numpy.matmul)(a.astype("float64"), b.astype("float64")).tolist()
    if got != exact:
        raise Wrong("numpy.matmul gives a wrong result on small whole numbers, where it must be exact")
    return Finding(f"{n}x{n} product is exact", {"seed": seed})


def matmul(device: str, op: Op | None = None) -> Finding:
    """float32 matrix product into a buffer of NaN, so that a value which is not written cannot pass."""
    import torch

    seed, (m, k, n) = fresh_seed(), (192, 320, 256)
    draw = generator(device, seed)
    a = torch.randn(m, k, generator=draw, device=device)
    b = torch.randn(k, n, generator=draw, device=device)
    out = torch.full((m, n), math.nan, device=device)
    (op or torch.matmul)(a, b, out=out)
    error = check("matmul", out, a.double() @ b.double(), bound(_matmul_eps(), k, _matmul_eps()))
    return Finding(f"{m}x{k}x{n} in float32, relative error {error:.1g}", {"seed": seed, "error": error})


def cublas(device: str, op: Op | None = None) -> Finding:
    """A batched product (cuBLAS) and a linear layer with bias (cuBLASLt) in half precision."""
    import torch

    seed, size = fresh_seed(), 256
    draw = generator(device, seed)
    errors = {}
    for dtype in _half_dtypes():
        a, b = (
            torch.randn(4, size, size, generator=draw, device=device, dtype=torch.float32).to(dtype)
            for _ in range(2)
        )
        bias = torch.randn(size, generator=draw, device=device).to(dtype)
        tolerance = bound(eps_of(dtype), size)
        poison(device, a)
        ref = a.double() @ b.double()
        errors[f"bmm {dtype}"] = check(f"cuBLAS bmm in {dtype}", (op or torch.bmm)(a, b), ref, tolerance)
        linear = torch.nn.functional.linear(a[0], b[0].T, bias)
        errors[f"linear {dtype}"] = check(
            f"cuBLASLt linear in {dtype}", linear, ref[0] + bias.double(), tolerance
        )
    return _finding(seed, errors)


def cudnn(device: str, op: Op | None = None) -> Finding:
    """A 3x3 convolution in half precision and in float32 against the same in float64 on the CPU."""
    import torch

    library: Any = torch.backends.cudnn
    if not library.is_available():
        raise Wrong("torch was built with cuDNN, but cuDNN is not available to it")
    conv = op or torch.nn.functional.conv2d
    seed, channels = fresh_seed(), 32
    draw = generator(device, seed)
    errors = {}
    for dtype in (*_half_dtypes(), torch.float32):
        x = torch.randn(2, channels, 28, 28, generator=draw, device=device).to(dtype)
        w = torch.randn(64, channels, 3, 3, generator=draw, device=device).to(dtype)
        poison(device, torch.empty(2, 64, 28, 28, dtype=dtype))
        ref = torch.nn.functional.conv2d(x.cpu().double(), w.cpu().double(), padding=1)
        # float32 convolutions use TF32 unless a program forbids it.
        eps = EPS_TF32 if dtype is torch.float32 else eps_of(dtype)
        errors[f"conv2d {dtype}"] = check(
            f"cuDNN conv2d in {dtype}", conv(x, w, padding=1), ref, bound(eps, channels * 9)
        )
    return _finding(seed, errors, cudnn=library.version())


def cufft(device: str, op: Op | None = None) -> Finding:
    """Transforms of three kinds of length against the definition: a product with the DFT matrix."""
    import torch

    seed = fresh_seed()
    draw = generator(device, seed)
    errors = {}
    for n in _DFT_LENGTHS:
        x = torch.randn(8, n, generator=draw, device=device, dtype=torch.complex64)
        k = torch.arange(n, dtype=torch.float64)
        angle = -2 * math.pi / n * ((k[:, None] * k[None, :]) % n)
        dft = torch.complex(torch.cos(angle), torch.sin(angle))
        poison(device, x)
        out = (op or torch.fft.fft)(x)
        errors[f"fft {n}"] = check(
            f"cuFFT of length {n}", out, x.cpu().to(torch.complex128) @ dft, bound(EPS_FLOAT32, 64)
        )
    return _finding(seed, errors)


def cusolver(device: str, op: Op | None = None) -> Finding:
    """A linear system, a Cholesky factor and the eigenvectors of a symmetric matrix, put back together."""
    import torch

    seed, n = fresh_seed(), 96
    draw = generator(device, seed)
    a = torch.randn(n, n, generator=draw, device=device, dtype=torch.float64)
    spd = a @ a.T / n + torch.eye(n, device=device, dtype=torch.float64)
    x = torch.randn(n, 3, generator=draw, device=device, dtype=torch.float64)
    tolerance = 1e-11  # float64, condition number below 10, 96 terms
    poison(device, x)
    errors = {"solve": check("solve", (op or torch.linalg.solve)(spd, spd @ x), x, tolerance)}
    factor = torch.linalg.cholesky(spd)
    errors["cholesky"] = check("cholesky", factor @ factor.T, spd, tolerance)
    values, vectors = torch.linalg.eigh(spd)
    errors["eigh"] = check("eigh", (vectors * values) @ vectors.T, spd, tolerance)
    eye = torch.eye(n, device=device, dtype=torch.float64)
    errors["eigh orthogonality"] = check("eigh's eigenvectors", vectors.T @ vectors, eye, tolerance)
    return _finding(seed, errors)


def cusparse(device: str, op: Op | None = None) -> Finding:
    """A sparse matrix times a dense one against the dense product in float64."""
    import torch

    seed, n = fresh_seed(), 256
    draw = generator(device, seed)
    dense = torch.randn(n, n, generator=draw, device=device)
    dense[torch.rand(n, n, generator=draw, device=device) > 0.1] = 0
    x = torch.randn(n, 64, generator=draw, device=device)
    poison(device, x)
    out = (op or torch.sparse.mm)(dense.to_sparse(), x)
    error = check("cuSPARSE spmm", out, dense.double() @ x.double(), bound(EPS_FLOAT32, n))
    return _finding(seed, {"spmm": error})


def curand(device: str, op: Op | None = None) -> Finding:
    """The library's own uniform generator and torch's normal one: moments within 6 standard errors."""
    import torch

    seed, n = fresh_seed(), 1_000_000
    uniform = torch.full((n,), math.nan, device=device)
    (op or _curand_uniform)(uniform, seed)
    normal = torch.randn(n, generator=generator(device, seed), device=device)
    moments = {
        "uniform mean": _moment(uniform, 1, 0.5, math.sqrt(1 / 12)),
        "uniform mean square": _moment(uniform, 2, 1 / 3, math.sqrt(4 / 45)),
        "normal mean": _moment(normal, 1, 0.0, 1.0),
        "normal mean square": _moment(normal, 2, 1.0, math.sqrt(2)),
    }
    if float(uniform.min()) < 0 or float(uniform.max()) > 1:
        raise Wrong("cuRAND's uniform numbers leave the range from 0 to 1")
    wrong = [name for name, z in moments.items() if not abs(z) <= 6]
    if wrong:
        raise Wrong(f"random numbers have a wrong {', '.join(wrong)} (more than 6 standard errors off)")
    return Finding(f"moments of {n} numbers are right", {"seed": seed, "standard_errors": moments})


def _moment(x: Any, power: int, expected: float, deviation: float) -> float:
    """How many standard errors the mean of x**power is from what it should be; NaN when x holds one."""
    mean = float((x.double() ** power).mean())
    return (mean - expected) / (deviation / math.sqrt(x.numel()))


def _curand_uniform(out: Any, seed: int) -> None:
    """Fill float32 `out` on the GPU through the library itself: torch's generators only use its headers."""
    import torch

    library = ctypes.CDLL("libcurand.so.10")  # loaded by torch, so the name alone finds it
    handle = ctypes.c_void_p()
    torch.cuda.synchronize()
    calls = (
        ("curandCreateGenerator", (ctypes.byref(handle), ctypes.c_int(_CURAND_PHILOX))),
        ("curandSetPseudoRandomGeneratorSeed", (handle, ctypes.c_ulonglong(seed))),
        ("curandGenerateUniform", (handle, ctypes.c_void_p(out.data_ptr()), ctypes.c_size_t(out.numel()))),
    )
    for name, arguments in calls:
        status = getattr(library, name)(*arguments)
        if status:
            raise Wrong(f"{name} ended with cuRAND status {status}")
    torch.cuda.synchronize()
    library.curandDestroyGenerator(handle)


def _matmul_eps() -> float:
    """The spacing that float32 products have here: the environment can turn TF32 on for every program."""
    import torch

    exact = torch.get_float32_matmul_precision() == "highest"
    return EPS_FLOAT32 if exact else EPS_TF32


def _half_dtypes() -> tuple[Any, ...]:
    import torch

    ampere = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    return (torch.float16, torch.bfloat16) if ampere else (torch.float16,)


def _finding(seed: int, errors: dict[str, float], **more: Any) -> Finding:
    worst = max(errors.values())
    return Finding(
        f"{', '.join(errors)}: relative error up to {worst:.1g}", {"seed": seed, "errors": errors, **more}
    )
