"""Bytes of a prompt for hashing, four to a token: text as it is, each medium as the tokens that it is thought to take.

A medium starts on a token boundary (zero bytes fill the gap) and is the low 32 bits of its content hash, repeated. So
two prompts that differ in a picture differ from the picture on, and a picture makes a prompt longer by its tokens.
"""

from dataclasses import dataclass
from math import ceil

from epp.inference.request import Media, MediaKind, Prompt

TOKEN_BYTES = 4

# No context window is longer. A claimed size (a PNG header can say 2³¹ × 2³¹ pixels) must not decide how much memory
# a request takes.
_MAX_MEDIA_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class MediaEstimate:
    """How many tokens a medium takes. Defaults are llm-d's.

    Attributes:
        image_pixels_per_token: dynamic estimate: width · height / this.
        image_width, image_height: pixels of an image that does not say its size.
        image_static_tokens: every image takes this many; `None`: the dynamic estimate.
        video_width, video_height: pixels of a video frame.
        video_duration_s: length of a video.
        video_pixels_per_token: dynamic estimate per frame.
        video_frame_static_tokens: every frame takes this many; `None`: the dynamic estimate.
        video_sample_fps: frames sampled per second.
        video_temporal_patch: sampled frames that share one set of tokens.
        video_source_fps, video_frame_stride: with a stride, every so many-th frame of the source is taken instead;
            a stride of `None` means sampling.
        video_min_frames, video_max_frames: bounds of the frames taken.
        video_max_tokens: cap of a whole video.
    """

    image_pixels_per_token: float = 1024
    image_width: int = 640
    image_height: int = 360
    image_static_tokens: int | None = None
    video_width: int = 640
    video_height: int = 360
    video_duration_s: float = 10
    video_pixels_per_token: float = 1024
    video_frame_static_tokens: int | None = None
    video_sample_fps: float = 2
    video_temporal_patch: int = 1
    video_source_fps: float = 24
    video_frame_stride: int | None = None
    video_min_frames: int | None = None
    video_max_frames: int | None = None
    video_max_tokens: int | None = None

    def tokens(self, medium: Media) -> int:
        """Estimated tokens of a medium, at least 1."""
        match medium.kind:
            case MediaKind.IMAGE:
                tokens = self._image(medium)
            case MediaKind.VIDEO:
                tokens = self._video(medium)
            case MediaKind.AUDIO:
                tokens = ceil((medium.data_bytes or 0) / TOKEN_BYTES)
        return max(1, tokens)

    def _image(self, medium: Media) -> int:
        if self.image_static_tokens is not None:
            return self.image_static_tokens
        width = medium.width or self.image_width
        height = medium.height or self.image_height
        return int(width * height / self.image_pixels_per_token)

    def _video(self, medium: Media) -> int:
        if self.video_frame_stride is None:
            frames = int(self.video_duration_s * self.video_sample_fps)
        else:
            frames = int(self.video_duration_s * self.video_source_fps / self.video_frame_stride)
        frames = max(frames, self.video_min_frames or 1)
        if self.video_max_frames is not None:
            frames = min(frames, self.video_max_frames)
        if self.video_frame_stride is None:
            frames = ceil(frames / self.video_temporal_patch)
        per_frame = self.video_frame_static_tokens
        if per_frame is None:
            width = medium.width or self.video_width
            height = medium.height or self.video_height
            per_frame = int(width * height / self.video_pixels_per_token)
        tokens = frames * per_frame
        return tokens if self.video_max_tokens is None else min(tokens, self.video_max_tokens)


def render_prompt(prompt: Prompt, estimate: MediaEstimate) -> bytes:
    """The prompt as bytes; `len / TOKEN_BYTES`, rounded up, is its count of tokens (exact for token ids)."""
    if len(prompt.parts) == 1 and isinstance(prompt.parts[0], bytes):
        return prompt.parts[0]
    pieces: list[bytes] = []
    size = 0
    room = _MAX_MEDIA_TOKENS
    for part in prompt.parts:
        if isinstance(part, bytes):
            pieces.append(part)
            size += len(part)
            continue
        gap = -size % TOKEN_BYTES
        tokens = min(estimate.tokens(part), room)
        room -= tokens
        pieces.append(bytes(gap))
        pieces.append((part.content_hash & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little") * tokens)
        size += gap + tokens * TOKEN_BYTES
    return b"".join(pieces)
