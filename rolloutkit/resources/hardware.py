"""What a GPU can do, by its data sheet; what of it kernels reach is `timing`'s business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from rolloutkit.errors import ConfigError

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU. Rates are dense peaks of the data sheet, without sparsity."""

    name: str
    memory_bytes: Positive  # as the driver reports it
    bytes_per_second: Positive  # of its memory
    flops: Positive  # matrix products in 16 bits
    fp8_flops: Positive | None = None  # None: the GPU has none, and works in 16 bits
    link_bytes_per_second: Positive = 450e9  # to the other GPUs, one direction
    host_bytes_per_second: Positive = 50e9  # what copies to host memory reach (PCIe 5)


_GIB = 2**30
_MIB = 2**20

# NVIDIA's data sheets; memory as `nvidia-smi` shows it.
_GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="A100",
            memory_bytes=81_920 * _MIB,
            bytes_per_second=2.039e12,
            flops=312e12,
            link_bytes_per_second=300e9,
            host_bytes_per_second=25e9,  # PCIe 4
        ),
        Gpu(
            name="H100",
            memory_bytes=81_559 * _MIB,
            bytes_per_second=3.35e12,
            flops=989e12,
            fp8_flops=1979e12,
        ),
        Gpu(
            name="H200",
            memory_bytes=143_771 * _MIB,
            bytes_per_second=4.8e12,
            flops=989e12,
            fp8_flops=1979e12,
        ),
        Gpu(
            name="H20",
            memory_bytes=97_871 * _MIB,
            bytes_per_second=4.0e12,
            flops=148e12,
            fp8_flops=296e12,
        ),
        Gpu(
            name="H20-3e",
            memory_bytes=143_771 * _MIB,
            bytes_per_second=4.8e12,
            flops=148e12,
            fp8_flops=296e12,
        ),
        Gpu(
            name="B200",
            memory_bytes=180 * _GIB,
            bytes_per_second=7.7e12,
            flops=2250e12,
            fp8_flops=4500e12,
            link_bytes_per_second=900e9,
        ),
    )
}


def load_gpu(gpu: str | Mapping[str, Any]) -> Gpu:
    """A GPU by name, in either case, or by its figures. Raises ConfigError."""
    if isinstance(gpu, Mapping):
        try:
            return msgspec.convert(gpu, Gpu)
        except msgspec.ValidationError as error:
            raise ConfigError(f"gpu: {error}: see rolloutkit.resources.Gpu") from None
    known = {name.lower(): found for name, found in _GPUS.items()}
    found = known.get(gpu.lower())
    if found is None:
        raise ConfigError(
            f"gpu: unknown: {gpu!r}: choose from {', '.join(_GPUS)}, or give its figures "
            "(gpu.name=... gpu.memory_bytes=... gpu.bytes_per_second=... gpu.flops=...)"
        )
    return found
