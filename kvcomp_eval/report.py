"""What one compressed ``generate`` call held, read and took."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

#: Byte and entry counts that are sums over the samples of a call's batch.
SUMMED_FIGURES = (
    "device_bytes",
    "host_bytes",
    "index_bytes",
    "pool_bytes",
    "full_bytes",
    "generated_bytes",
    "kept_entries",
)


@dataclass(frozen=True)
class CacheReport:
    """Realised size and time of one call, summed over the samples of its batch.

    All bytes are measured on the tensors' storages after prefill and decoding, not computed from a plan.

    Parameters
    ----------
    method, parameters
        Name and hyper-parameters.
    prompt_tokens, visual_tokens : tuple of int
        Per sample.
    generated_tokens : int
        Decode steps: tokens per sample that entered the cache after the prompt.
    kept_entries, full_entries : int
        Prompt entries resident on the device over all layers and KV heads, and those of a full cache.
    prompt_bytes : int
        Resident prompt keys and values.
    index_bytes : int
        On the device, what finds entries or rebuilds them.
    overhead_bytes : int
        Validity masks of padded heads.
    pool_bytes : int
        Retrieval pools that stay on the device.
    host_bytes : int
        Retrieval pools in host memory (on a CPU run: memory that a GPU run would keep on the host).
    generated_bytes : int
        Memory allocated for generated tokens (used or reserved).
    full_bytes : int
        Prompt keys and values of an uncompressed cache.
    reads_per_step : float
        Key and value vectors taken from the pools at a decode step; the mean where it varies.
    prefill_seconds, decode_seconds : float
        Wall time until the packed cache was ready, and after it.
    details : dict
        Facts of the method, such as head classes and scores.
    """

    method: str
    parameters: dict[str, Any]
    prompt_tokens: tuple[int, ...]
    visual_tokens: tuple[int, ...]
    generated_tokens: int
    kept_entries: int
    full_entries: int
    prompt_bytes: int
    index_bytes: int
    overhead_bytes: int
    pool_bytes: int
    host_bytes: int
    generated_bytes: int
    full_bytes: int
    reads_per_step: float
    prefill_seconds: float
    decode_seconds: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device that stand for the prompt: entries, index, overhead and pools."""
        return self.prompt_bytes + self.index_bytes + self.overhead_bytes + self.pool_bytes

    @property
    def realised_ratio(self) -> float:
        """Device bytes over the bytes of an uncompressed prompt cache."""
        return self.device_bytes / self.full_bytes

    @property
    def decode_seconds_per_token(self) -> float:
        return self.decode_seconds / max(1, self.generated_tokens)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dictionary, derived figures included."""
        derived = ("device_bytes", "realised_ratio", "decode_seconds_per_token")
        return asdict(self) | {name: getattr(self, name) for name in derived}
