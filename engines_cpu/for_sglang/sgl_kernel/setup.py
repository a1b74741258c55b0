"""Set-up of a process, and names that SGLang looks up on import and a text-only Llama never calls."""

from sgl_kernel.operators import LIBRARY, operator, unsupported

for _name in ("apply_rotary_pos_emb_cpu", "flash_attn_varlen_func", "conv3d_embed_cpu"):
    LIBRARY.define(_name + "() -> ()")


@operator("init_cpu_threads_env(str cpu_ids) -> str")
def init_cpu_threads_env(cpu_ids: str) -> str:
    return cpu_ids


@operator("initialize(int size, int rank) -> ()")
def initialize(size: int, rank: int) -> None:
    if size != 1:
        raise unsupported(f"tensor parallelism (asked for {size} ranks)")
