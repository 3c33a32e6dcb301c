"""What a request's headers say of the films in its prompts, which nobody here looks into."""

from collections.abc import Mapping
from typing import NamedTuple

from epp.plugins._numbers import positive_number
from epp.wire.names import VIDEO_DURATION, VIDEO_FPS, VIDEO_RESOLUTION

MAX_DURATION_S = 24 * 3600.0
MAX_PIXELS = 65_536.0  # of a side
MAX_FPS = 1000.0


class VideoHints(NamedTuple):
    """They speak of every film of the request. `None`: not said, or not in a way that makes sense.

    Attributes:
        pixels: of a frame.
        fps: frames per second of the film itself.
    """

    duration_s: float | None = None
    pixels: float | None = None
    fps: float | None = None


def video_hints_of(headers: Mapping[str, str]) -> VideoHints:
    width, _, height = headers.get(VIDEO_RESOLUTION, "").lower().partition("x")
    sides = positive_number(width, MAX_PIXELS), positive_number(height, MAX_PIXELS)
    return VideoHints(
        duration_s=positive_number(headers.get(VIDEO_DURATION, ""), MAX_DURATION_S),
        pixels=None if sides[0] is None or sides[1] is None else sides[0] * sides[1],
        fps=positive_number(headers.get(VIDEO_FPS, ""), MAX_FPS),
    )
