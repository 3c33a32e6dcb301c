"""How many tokens a picture, film or sound in a prompt is worth, by estimate: parameters and arithmetic.

The estimate need not be right for any one model; it must be the same for the same content, and of the right size.
"""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from epp.inference.request import Media, MediaKind
from epp.plugins._video_hints import VideoHints
from epp.scheduling.plugin import Parameters

MAX_TOKENS_PER_MEDIA = 65_536
"""Above the most that common vision models make of one picture (16,384) or film; a declared size is only a claim."""

AUDIO_TOKENS = 250
"""For every sound, since its length is not known: 10 s at the 25 tokens per second of common audio encoders."""


class Resolution(Parameters):
    width: int = Field(640, gt=0, description="Pixels.")
    height: int = Field(360, gt=0, description="Pixels.")


class DynamicTokens(Parameters):
    factor: float = Field(1024, gt=0, description="Pixels that make one token.")

    def tokens(self, pixels: float) -> int:
        return max(1, int(pixels / self.factor))


class StaticImageTokens(Parameters):
    static_token: int = Field(0, ge=0, description="Tokens of every picture.")


class ImageEstimate(Parameters):
    mode: Literal["dynamic", "static"] = Field("dynamic", description="By pixels, or one number for all pictures.")
    default_resolution: Resolution = Field(default_factory=Resolution, description="When the data does not say.")
    dynamic: DynamicTokens = Field(default_factory=DynamicTokens)
    static: StaticImageTokens = Field(default_factory=StaticImageTokens)

    @model_validator(mode="after")
    def _static_has_a_number(self) -> Self:
        if self.mode == "static" and self.static.static_token == 0:
            raise ValueError("image mode static needs static.staticToken above 0")
        return self

    def tokens(self, width: int | None, height: int | None) -> int:
        if self.mode == "static":
            return self.static.static_token
        default = self.default_resolution
        return self.dynamic.tokens((width or default.width) * (height or default.height))


class StaticFrameTokens(Parameters):
    num_tokens_per_frame: int = Field(0, ge=0, description="Tokens of every frame.")


class FrameTokens(Parameters):
    mode: Literal["dynamic", "static"] = Field("dynamic", description="By pixels, or one number for all frames.")
    static: StaticFrameTokens = Field(default_factory=StaticFrameTokens)
    dynamic: DynamicTokens = Field(default_factory=DynamicTokens)

    @model_validator(mode="after")
    def _static_has_a_number(self) -> Self:
        if self.mode == "static" and self.static.num_tokens_per_frame == 0:
            raise ValueError("tokensPerFrame mode static needs static.numTokensPerFrame above 0")
        return self


class SampledFrames(Parameters):
    sample_fps: float = Field(2, gt=0, alias="sampleFPS", description="Frames looked at per second.")
    temporal_patch_size: int = Field(1, gt=0, description="Frames that are merged into one.")


class StridedFrames(Parameters):
    default_source_fps: float = Field(
        24,
        gt=0,
        alias="defaultSourceFPS",
        description="Frames per second, when x-llm-d-video-fps is absent.",
    )
    frame_stride: int = Field(1, gt=0, description="Every how many-th frame is looked at.")


class Frames(Parameters):
    mode: Literal["sampled", "strided"] = Field("sampled", description="By time, or by counting the film's frames.")
    min_frames: int = Field(0, ge=0)
    max_frames: int = Field(0, ge=0, description="0: no limit.")
    sampled: SampledFrames = Field(default_factory=SampledFrames)
    strided: StridedFrames = Field(default_factory=StridedFrames)

    def count(self, duration_s: float, source_fps: float | None) -> int:
        if self.mode == "sampled":
            frames = math.ceil(duration_s * self.sampled.sample_fps)
        else:
            source_fps = source_fps or self.strided.default_source_fps
            frames = math.ceil(duration_s * source_fps / self.strided.frame_stride)
        frames = max(frames, self.min_frames, 1)
        if self.max_frames:
            frames = min(frames, self.max_frames)
        return math.ceil(frames / self.sampled.temporal_patch_size) if self.mode == "sampled" else frames


class VideoEstimate(Parameters):
    default_resolution: Resolution = Field(
        default_factory=Resolution, description="Of a frame, when x-llm-d-video-resolution (WIDTHxHEIGHT) is absent."
    )
    default_duration: float = Field(
        10, gt=0, description="Seconds, when x-llm-d-video-duration-seconds is absent: nobody looks into a film here."
    )
    tokens_per_frame: FrameTokens = Field(default_factory=FrameTokens)
    frames: Frames = Field(default_factory=Frames)
    max_video_tokens: int = Field(0, ge=0, description="Most that one film counts; 0: no limit of its own.")

    def tokens(self, hints: VideoHints) -> int:
        per_frame = self.tokens_per_frame
        if per_frame.mode == "static":
            frame_tokens = per_frame.static.num_tokens_per_frame
        else:
            default = self.default_resolution
            frame_tokens = per_frame.dynamic.tokens(hints.pixels or default.width * default.height)
        tokens = frame_tokens * self.frames.count(hints.duration_s or self.default_duration, hints.fps)
        return min(tokens, self.max_video_tokens) if self.max_video_tokens else tokens


class Estimate(Parameters):
    """With the defaults a picture of unknown size is 640 · 360 / 1024 = 225 tokens, a film 20 frames of that: 4500."""

    image: ImageEstimate = Field(default_factory=ImageEstimate)
    video: VideoEstimate = Field(default_factory=VideoEstimate)

    def tokens(self, media: Media, hints: VideoHints) -> int:
        match media.kind:
            case MediaKind.IMAGE:
                tokens = self.image.tokens(media.width, media.height)
            case MediaKind.VIDEO:
                tokens = self.video.tokens(hints)
            case MediaKind.AUDIO:
                tokens = AUDIO_TOKENS
        return min(tokens, MAX_TOKENS_PER_MEDIA)
