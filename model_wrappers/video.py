"""Video decoding: decord where it is installed, PyAV elsewhere, and the frame choice of lmms-eval's wrappers.

qwen_vl_utils decodes too, but prefers torchcodec as soon as that package is found (working or not), falls back to a
torchvision function that no longer exists, and refuses videos shorter than the asked number of frames.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from qwen_vl_utils.vision_process import (
    FRAME_FACTOR,
    MODEL_SEQ_LEN,
    SPATIAL_MERGE_SIZE,
    VIDEO_MAX_TOKEN_NUM,
    VIDEO_MIN_TOKEN_NUM,
    calculate_video_frame_range,
    fetch_video,
    round_by_factor,
    smart_nframes,
    smart_resize,
)
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize


class VideoReader(Protocol):
    """A video file whose frames are read by index."""

    backend: str
    fps: float

    def __len__(self) -> int: ...

    def frames(self, indices: list[int]) -> np.ndarray:
        """Decode the frames at ascending indices: uint8 [T, H, W, 3]."""


class DecordReader:
    """Reader on decord."""

    backend = "decord"

    def __init__(self, path: str) -> None:
        import decord

        self._reader = decord.VideoReader(path)
        self.fps = float(self._reader.get_avg_fps())

    def __len__(self) -> int:
        return len(self._reader)

    def frames(self, indices: list[int]) -> np.ndarray:
        return self._reader.get_batch(indices).asnumpy()


class PyAVReader:
    """Reader on PyAV: counts packets first, then decodes in order and keeps what was asked for."""

    backend = "pyav"

    def __init__(self, path: str) -> None:
        import av

        self._path = path
        with av.open(path) as container:
            stream = container.streams.video[0]
            rate = stream.average_rate or stream.guessed_rate
            if rate is None:
                raise ValueError("it states no frame rate")
            self.fps = float(rate)
            self._count = sum(1 for packet in container.demux(stream) if packet.size)

    def __len__(self) -> int:
        return self._count

    def frames(self, indices: list[int]) -> np.ndarray:
        import av

        wanted, kept, last = set(indices), {}, None
        with av.open(self._path) as container:
            container.streams.video[0].thread_type = "AUTO"
            for index, frame in enumerate(container.decode(video=0)):
                if index in wanted:
                    last = kept[index] = frame.to_ndarray(format="rgb24")
                if index >= max(wanted):
                    break
        if last is None:
            raise ValueError("no frame could be decoded")
        return np.stack([kept.get(index, last) for index in indices])


def open_video(path: str) -> VideoReader:
    """Open a video with decord if it is importable, else with PyAV."""
    path = path.removeprefix("file://")
    errors = []
    for reader in (DecordReader, PyAVReader):
        try:
            return reader(path)
        except ImportError as error:
            errors.append(str(error))
        except Exception as error:
            raise ValueError(f"Video {path!r} cannot be read: {error}") from error
    raise ImportError(f"Reading videos needs decord or av; install one of them ({'; '.join(errors)}).")


def qwen_video(element: dict[str, Any], patch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """Read, sample and resize one video as ``qwen_vl_utils.fetch_video`` does, with short videos allowed.

    Parameters
    ----------
    element : dict
        ``video`` (path, or list of frames), and any of ``nframes``, ``fps``, ``min_frames``, ``max_frames``,
        ``min_pixels``, ``max_pixels``, ``total_pixels``, ``video_start``, ``video_end``.
    patch_size : int
        Patch of the vision tower.

    Returns
    -------
    frames : Tensor [T, 3, H, W], float
    metadata : dict
        ``fps``, ``frames_indices``, ``total_num_frames``, ``video_backend``.
    """
    if not isinstance(element["video"], str):
        return fetch_video(element, image_patch_size=patch_size, return_video_metadata=True)
    reader = open_video(element["video"])
    start, end, count = calculate_video_frame_range(element, len(reader), reader.fps)
    indices = qwen_frame_indices(element, start, end, count, reader.fps)
    frames = torch.from_numpy(_decode(reader, element["video"], indices)).permute(0, 3, 1, 2)
    metadata = {
        "fps": reader.fps,
        "frames_indices": indices,
        "total_num_frames": count,
        "video_backend": reader.backend,
    }
    height, width = _qwen_frame_size(element, tuple(frames.shape), patch_size * SPATIAL_MERGE_SIZE)
    return resize(frames, [height, width], InterpolationMode.BICUBIC, antialias=True).float(), metadata


def qwen_frame_indices(element: dict[str, Any], start: int, end: int, count: int, fps: float) -> list[int]:
    """Choose evenly spaced frames: an even number, at most as many as there are; a single frame is taken twice."""
    if count < FRAME_FACTOR:
        return [start] * FRAME_FACTOR
    if "nframes" in element:
        wanted = max(FRAME_FACTOR, round_by_factor(element["nframes"], FRAME_FACTOR))
        number = min(wanted, count // FRAME_FACTOR * FRAME_FACTOR)
    else:
        number = smart_nframes(element, total_frames=count, video_fps=fps)
    return torch.linspace(start, end, number).round().long().tolist()


def llava_video(
    url: Any, max_frames: int, start_time: float | None = None, end_time: float | None = None
) -> np.ndarray:
    """Read ``max_frames`` evenly spaced frames, uint8 [T, H, W, 3]; a shorter video repeats frames."""
    if not isinstance(url, str):
        frames = np.stack([np.asarray(frame) for frame in url])
        return frames[np.linspace(0, len(frames) - 1, max_frames, dtype=int)]
    reader = open_video(url)
    limits = {"video_start": start_time, "video_end": end_time}
    start, end, _ = calculate_video_frame_range(limits, len(reader), reader.fps)
    return _decode(reader, url, np.linspace(start, end, max_frames, dtype=int).tolist())


def _decode(reader: VideoReader, path: str, indices: list[int]) -> np.ndarray:
    """Read frames; the decoders' own errors name neither the file nor what to do."""
    try:
        return reader.frames(indices)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"Video {path!r} is damaged, its frames cannot be decoded; fetch it again ({reason})."
        ) from error


def _qwen_frame_size(element: dict[str, Any], shape: tuple[int, ...], factor: int) -> tuple[int, int]:
    """Height and width of the frames under the pixel limits, as in ``qwen_vl_utils.fetch_video``."""
    number, _, height, width = shape
    lowest = element.get("min_pixels", VIDEO_MIN_TOKEN_NUM * factor**2)
    total = element.get("total_pixels", MODEL_SEQ_LEN * factor**2 * 0.9)
    highest = max(min(VIDEO_MAX_TOKEN_NUM * factor**2, total / number * FRAME_FACTOR), int(lowest * 1.05))
    highest = min(element.get("max_pixels", highest), highest)
    return smart_resize(height, width, factor=factor, min_pixels=lowest, max_pixels=highest)
