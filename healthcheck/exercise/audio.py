"""Sound and film: torchaudio, soundfile, torchcodec and the ffmpeg program."""

from __future__ import annotations

import array
import importlib.metadata
import importlib.util
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from healthcheck import manifest
from healthcheck.exercise.base import ABSENT, Finding, Skip, Wrong, check
from healthcheck.measure.compare import EPS_FLOAT32, bound, generator
from healthcheck.measure.seed import fresh_seed

Op = Callable[..., Any]
_RATE = 16_000
_STEP = 1 / 32_768  # of 16-bit samples
_PROGRAM_LIMIT = 60.0  # seconds


@dataclass(frozen=True)
class Clip:
    """A test film: ffmpeg's test picture with a sine tone of `tone` Hz."""

    width: int = 160
    height: int = 120
    rate: int = 25
    frames: int = 25
    tone: int = 440

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def torchaudio(device: str, op: Op | None = None) -> Finding:
    """A spectrogram against its definition, and a file written and read. `op` stands in for the transform."""
    import torch
    import torchaudio as library

    seed, n = fresh_seed(), 400
    wave = torch.rand(1, 4 * n, generator=generator(device, seed), device=device) - 0.5
    transform = library.transforms.Spectrogram(n_fft=n, hop_length=n, center=False, power=2.0).to(device)
    windowed = wave.double().reshape(-1, n) * torch.hann_window(n, dtype=torch.float64, device=device)
    ref = torch.fft.rfft(windowed).abs().square().T[None]
    error = check("torchaudio's Spectrogram", (op or transform)(wave), ref, bound(EPS_FLOAT32, n))
    return Finding(
        f"spectrogram, relative error {error:.1g}; {_torchaudio_file(wave.cpu())}",
        {"seed": seed, "error": error},
    )


def _torchaudio_file(wave: Any) -> str:
    """Write and read a file; return what was done, in words for the report."""
    import torchaudio as library

    if _release("torchaudio") >= (2, 9) and importlib.util.find_spec("torchcodec") is None:
        return f"files not tried, they need torchcodec: {ABSENT}"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "wave.wav"
        library.save(str(path), wave, _RATE, encoding="PCM_S", bits_per_sample=16)
        back, rate = library.load(str(path))
    if rate != _RATE or back.shape != wave.shape:
        raise Wrong(
            f"torchaudio reads back {tuple(back.shape)} at {rate} Hz, not {tuple(wave.shape)} at {_RATE} Hz"
        )
    difference = float((back - wave).abs().max())
    if not difference <= 2 * _STEP:
        raise Wrong(f"torchaudio reads back other samples, off by up to {difference:.2g}")
    return "a WAV file comes back"


def soundfile(device: str, op: Op | None = None) -> Finding:
    """FLAC is lossless, so 16-bit samples come back exactly. `op` stands in for soundfile.read."""
    import numpy
    import soundfile as library

    seed = fresh_seed()
    samples = numpy.random.default_rng(seed).integers(-30_000, 30_000, _RATE // 4).astype("int16")
    buffer = io.BytesIO()
    library.write(buffer, samples, _RATE, format="FLAC", subtype="PCM_16")
    buffer.seek(0)
    back, rate = (op or library.read)(buffer, dtype="int16")
    if rate != _RATE or not numpy.array_equal(back, samples):
        raise Wrong("soundfile reads back other samples from a FLAC file than were written")
    return Finding("FLAC comes back exactly", {"seed": seed, "libsndfile": library.__libsndfile_version__})


def torchcodec(device: str, op: Op | None = None) -> Finding:
    """Decode a film made by ffmpeg and compare with ffmpeg's decoding. `op` stands in for VideoDecoder."""
    import torch
    from torchcodec.decoders import AudioDecoder, VideoDecoder

    program, clip = _program(), _random_clip()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        _encode(program, clip, path)
        frames = (op or VideoDecoder)(str(path))[:]
        sound = AudioDecoder(str(path)).get_all_samples()
        raw = _run([program, *_QUIET, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"])
    expected = (clip.frames, 3, clip.height, clip.width)
    if tuple(frames.shape) != expected:
        raise Wrong(
            f"torchcodec decodes {tuple(frames.shape)} (frames, colours, height, width), not {expected}"
        )
    ours = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(
        clip.frames, clip.height, clip.width, 3
    )
    difference = float((frames.permute(0, 2, 3, 1).float() - ours.float()).abs().mean())
    if not difference <= 6:  # the two convert colours with different rounding and chroma filters
        raise Wrong(f"torchcodec's frames differ from ffmpeg's by {difference:.1f} of 255 on average")
    heard = _tone(sound.data[0].tolist(), sound.sample_rate)
    _right_tone("torchcodec", heard, clip)
    return Finding(
        f"{clip.frames} frames and a {clip.tone} Hz tone decoded",
        {"difference": difference, "tone_hz": heard},
    )


def ffmpeg(device: str, program: str | None = None) -> Finding:
    """Encode a film (H.264, AAC) and decode it: every frame, the picture and the tone have to come back."""
    program, clip = program or _program(), _random_clip()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        _encode(program, clip, path)
        film = _run([program, *_QUIET, "-i", str(path), "-f", "rawvideo", "-pix_fmt", "gray", "-"])
        sound = _run([program, *_QUIET, "-i", str(path), "-f", "s16le", "-ac", "1", "-ar", str(_RATE), "-"])
    source = _run([program, *_QUIET, *_picture(clip), "-f", "rawvideo", "-pix_fmt", "gray", "-"])
    size = clip.frames * clip.width * clip.height
    if len(film) != size or len(source) != size:
        raise Wrong(
            f"ffmpeg decodes {len(film) / (clip.width * clip.height):g} frames of "
            f"{clip.width}x{clip.height}, not {clip.frames}"
        )
    sample = range(0, size, 89)
    difference = sum(abs(film[i] - source[i]) for i in sample) / len(sample)
    if difference > 8:
        raise Wrong(f"ffmpeg decodes another picture, off by {difference:.1f} of 255 on average")
    samples = array.array("h", sound[: len(sound) // 2 * 2])
    heard = _tone(list(samples), _RATE)
    _right_tone("ffmpeg", heard, clip)
    return Finding(
        f"{_version(program)}: {clip.frames} frames (H.264) and a {clip.tone} Hz tone (AAC) come back",
        {"difference": difference, "tone_hz": heard, "program": program},
    )


_QUIET = ("-v", "error", "-nostdin")


def _program() -> str:
    """The path of ffmpeg. Its absence is a fault where the image was built with it, else a reason to skip."""
    found = shutil.which("ffmpeg")
    if found:
        return found
    if _promised():
        raise Wrong("the image was built with ffmpeg, but none is on PATH", "apt-get install ffmpeg")
    raise Skip(f"ffmpeg is {ABSENT}")


def _promised() -> bool:
    path = Path(os.environ.get("DYNO_MANIFEST", manifest.PATH))
    try:
        return "ffmpeg" in json.loads(path.read_text())["debian"]["packages"]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no manifest to promise anything; a damaged one is another check's finding


def _random_clip() -> Clip:
    return Clip(tone=random.Random(fresh_seed()).randrange(300, 1_000))


def _picture(clip: Clip) -> list[str]:
    size = f"{clip.width}x{clip.height}"
    return ["-f", "lavfi", "-i", f"testsrc=size={size}:rate={clip.rate}:duration={clip.seconds}"]


def _encode(program: str, clip: Clip, path: Path) -> None:
    tone = ["-f", "lavfi", "-i", f"sine=frequency={clip.tone}:sample_rate={_RATE}:duration={clip.seconds}"]
    codecs = ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-c:a", "aac"]
    _run([program, *_QUIET, *_picture(clip), *tone, *codecs, "-y", str(path)])
    if not path.exists() or path.stat().st_size == 0:
        raise Wrong("ffmpeg says it succeeded, but wrote no file", "apt-get install --reinstall ffmpeg")


def _run(command: list[str]) -> bytes:
    remedy = "apt-get install --reinstall ffmpeg"
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROGRAM_LIMIT, check=False)
    except OSError as error:
        raise Wrong(f"{command[0]} does not start: {error.strerror or error}", remedy) from error
    except subprocess.TimeoutExpired as error:
        raise Wrong(f"{command[0]} did not finish within {_PROGRAM_LIMIT:.0f} s", remedy) from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise Wrong(f"ffmpeg ended with exit code {done.returncode}: {words[-1][:200]}", remedy)
    return done.stdout


def _tone(samples: list[float], rate: int) -> float:
    """The frequency, in Hz, of the tone in the middle of `samples`, from its upward zero crossings."""
    middle = samples[len(samples) // 5 : -len(samples) // 5]
    ups = [
        i + a / (a - b)
        for i, (a, b) in enumerate(itertools.pairwise(middle))
        if a < 0 <= b  # linear between the two samples
    ]
    return (len(ups) - 1) * rate / (ups[-1] - ups[0]) if len(ups) > 1 else math.nan


def _right_tone(what: str, heard: float, clip: Clip) -> None:
    if not abs(heard - clip.tone) <= 0.02 * clip.tone:
        raise Wrong(f"{what} decodes a tone of {heard:.0f} Hz; {clip.tone} Hz was encoded")


def _version(program: str) -> str:
    said = _run([program, "-version"]).decode(errors="replace")
    found = re.search(r"ffmpeg version (\S+)", said)
    return f"ffmpeg {found.group(1)}" if found else "ffmpeg"


def _release(distribution: str) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)", importlib.metadata.version(distribution))
    return tuple(int(n) for n in numbers.groups()) if numbers else (0, 0)
