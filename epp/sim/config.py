"""How big and how fast a simulated server is."""

from dataclasses import dataclass, field

from epp.sim.timing import API_OVERHEAD_MS, HARDWARE, STEP_NOISE_SIGMA, Hardware


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine's size and speed.

    Attributes:
        max_batched_tokens: token budget of one step (vLLM: 2,048–8,192).
        max_waiting: how many requests the engine takes beyond `max_sequences`; `submit` refuses more.
        max_model_tokens: longest prompt and output together.
        max_adapters: LoRA adapters that one batch may mix.
        overhead_ms: bounds of the uniform delay between a request's arrival and its being ready to be scheduled.
    """

    hardware: Hardware = HARDWARE["8b-h100"]
    max_sequences: int = 128
    max_batched_tokens: int = 8192
    max_waiting: int = 512
    kv_blocks: int = 8192
    block_tokens: int = 16
    prefix_caching: bool = True
    max_model_tokens: int = 131_072
    max_adapters: int = 4
    overhead_ms: tuple[float, float] = API_OVERHEAD_MS
    noise_sigma: float = STEP_NOISE_SIGMA

    @property
    def longest_tokens(self) -> int:
        """The longest prompt and output together that the engine takes."""
        return min(self.max_model_tokens, self.kv_blocks * self.block_tokens)


@dataclass(frozen=True, slots=True)
class SimConfig:
    """One simulated server.

    Attributes:
        port: 0 takes a free one.
        speed: how many simulated seconds pass in a real one.
        metrics_interval_ms: bounds of the real time between two updates of the metrics page; each server draws its own.
        default_output_tokens: length of an answer when the client sets no limit; it then ends with `stop`.
        show_cached_tokens: report cached prompt tokens in the usage (vLLM: `--enable-prompt-tokens-details`).
    """

    name: str = "sim-0"
    host: str = "127.0.0.1"
    port: int = 0
    model: str = "llama-3.1-8b"
    adapters: tuple[str, ...] = ()
    engine: EngineConfig = field(default_factory=EngineConfig)
    speed: float = 1.0
    seed: int = 0
    metrics_interval_ms: tuple[float, float] = (50.0, 100.0)
    default_output_tokens: int = 64
    show_cached_tokens: bool = True
