"""Names of stored tensors: which one carries a weight's values, and which stand beside a quantised one. No torch: headers are read by it too.

A checkpoint's stored names become *logical* names, those that the model asks for: `q_proj.weight_packed`, `q_proj.weight_scale` and
`q_proj.weight_shape` are together the logical `q_proj.weight`.
"""

from __future__ import annotations

from collections.abc import Collection

COMPANIONS = (
    "_scale_inv",
    "_scale",
    "_scale_2",
    "_shape",
    "_zero_point",
    "_g_idx",
    "_global_scale",
    ".absmax",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
)
"""What stands beside a quantised `<name>.weight`, after its name."""
ACTIVATION_SCALES = (".input_scale", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale", ".activation_scale")


def logical_names(stored: Collection[str]) -> dict[str, str]:
    """{logical name: the stored name that carries its values}; scales, shapes and zero points are left out."""
    names = set(stored)
    carriers = (name for name in stored if not name.endswith(ACTIVATION_SCALES) and not _is_companion(name, names))
    return {_logical(name, names): name for name in carriers}


def _is_companion(name: str, stored: set[str]) -> bool:
    if name.endswith("_scales") and name.removesuffix("_scales") + "_blocks" in stored:
        return True
    if name.endswith((".qzeros", ".scales", ".g_idx")) and name.rpartition(".")[0] + ".qweight" in stored:
        return True
    owners = (name.removesuffix(ending) for ending in COMPANIONS if name.endswith(ending))
    return any(owner in stored or owner + "_packed" in stored for owner in owners)


def _logical(name: str, stored: set[str]) -> str:
    if name.endswith(".weight_packed"):
        return name.removesuffix("_packed")
    if name.endswith("_blocks") and name.removesuffix("_blocks") + "_scales" in stored:
        return name.removesuffix("_blocks")
    if name.endswith(".qweight"):
        return name.removesuffix("qweight") + "weight"
    return name
