"""torchvision, OpenCV and Pillow: compiled operators and codecs."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

from healthcheck.exercise.base import Finding, Wrong
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]
_SIZE = (48, 64)  # height, width
_LOSSY = 6.0  # mean difference of 8-bit values that JPEG may cause on a smooth picture

# Boxes (x1, y1, x2, y2) with scores, and what suppression at IoU 0.5 keeps, worked out by hand:
# B overlaps A by 81/119 = 0.68 and goes; C overlaps A by 25/175 = 0.14 and stays; E equals D and goes.
_BOXES = (
    ("A", (0.0, 0.0, 10.0, 10.0), 0.9),
    ("B", (1.0, 1.0, 11.0, 11.0), 0.8),
    ("C", (5.0, 5.0, 15.0, 15.0), 0.7),
    ("D", (20.0, 20.0, 30.0, 30.0), 0.6),
    ("E", (20.0, 20.0, 30.0, 30.0), 0.5),
)
_KEPT = ["A", "C", "D"]


def nms(device: str, op: Op | None = None) -> Finding:
    """Non-maximum suppression, torchvision's compiled operator, in random order of the boxes."""
    import torch
    import torchvision

    seed = fresh_seed()
    boxes = random.Random(seed).sample(_BOXES, len(_BOXES))
    kept = (op or torchvision.ops.nms)(
        torch.tensor([box for _, box, _ in boxes], device=device),
        torch.tensor([score for _, _, score in boxes], device=device),
        0.5,
    )
    names = [boxes[i][0] for i in kept.tolist()]
    if names != _KEPT:
        raise Wrong(f"torchvision nms keeps boxes {names}; right is {_KEPT}")
    return Finding("nms keeps the right boxes", {"seed": seed})


def opencv(device: str, op: Op | None = None) -> Finding:
    """PNG must come back exactly, JPEG nearly. `op` stands in for cv2.imdecode."""
    import cv2
    import numpy

    picture, seed = _picture()
    decode = op or cv2.imdecode
    for extension, lossless in ((".png", True), (".jpg", False)):
        encoded, data = cv2.imencode(extension, picture)
        if not encoded:
            raise Wrong(f"OpenCV cannot encode {extension}")
        _same(numpy, f"OpenCV's {extension}", decode(data, cv2.IMREAD_COLOR), picture, lossless)
    return Finding("PNG and JPEG come back", {"seed": seed, "version": cv2.__version__})


def pillow(device: str, op: Op | None = None) -> Finding:
    """PNG must come back exactly, JPEG nearly. `op` stands in for PIL.Image.open."""
    import numpy
    from PIL import Image

    picture, seed = _picture()
    for name, lossless in (("PNG", True), ("JPEG", False)):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, name)
        buffer.seek(0)
        _same(numpy, f"Pillow's {name}", numpy.asarray((op or Image.open)(buffer)), picture, lossless)
    return Finding("PNG and JPEG come back", {"seed": seed})


def _picture() -> tuple[Any, int]:
    """A smooth picture (height, width, 3), 8 bits, with random slopes, which JPEG keeps."""
    import numpy

    seed = fresh_seed()
    draw = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0 : _SIZE[0], 0 : _SIZE[1]]
    planes = [
        a * y / _SIZE[0] + b * x / _SIZE[1] + c
        for a, b, c in zip(
            draw.uniform(30, 90, 3), draw.uniform(30, 90, 3), draw.uniform(10, 60, 3), strict=True
        )
    ]
    return numpy.stack(planes, -1).astype("uint8"), seed


def _same(numpy: Any, what: str, got: Any, picture: Any, lossless: bool) -> None:
    if got is None or got.shape != picture.shape:
        raise Wrong(f"{what} picture comes back as {getattr(got, 'shape', None)}, not {picture.shape}")
    difference = float(numpy.abs(got.astype("int32") - picture.astype("int32")).mean())
    if difference > (0.0 if lossless else _LOSSY):
        raise Wrong(f"{what} picture comes back changed by {difference:.1f} of 255 on average")
