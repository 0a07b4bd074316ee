# The part of this compiled, unannotated library that rolloutkit uses.

class CommonParamsModel:
    path: str

class CpuParams:
    n_threads: int

class CommonParams:
    model: CommonParamsModel
    hostnames: list[str]
    port: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_parallel: int
    n_gpu_layers: int
    kv_unified: bool
    cache_prompt: bool
    cache_ram_mib: int
    cont_batching: bool
    cpuparams: CpuParams
    cpuparams_batch: CpuParams
    endpoint_metrics: bool
    endpoint_slots: bool
    verbosity: int
    warmup: bool

class Server:
    def __init__(self, params: CommonParams) -> None: ...
    @property
    def listening_address(self) -> str: ...
