"""What the trainers' code is run with: every combination of flags of speculators, SpecForge's flags and ropes. Plain data."""

from itertools import product

H, V, VD, STEPS = 32, 96, 48, 4

NORMS = {"": {}, "norm_before_fc": {"norm_before_fc": True}, "fc_norm": {"fc_norm": True}}
SPECULATORS = {
    "-".join(filter(None, ["speculators", layer, str(layers), norm, "residual" * before, "output" * output])): {
        "layer": layer,
        "num_layers": layers,
        "flags": {**NORMS[norm], "norm_before_residual": before, "norm_output": output},
    }
    for layer, layers, norm, before, output in product(("llama", "qwen3"), (1, 2), NORMS, (False, True), (False, True))
} | {
    "speculators-biases": {"inner": {"attention_bias": True, "mlp_bias": True}},
    "speculators-gelu": {"inner": {"hidden_act": "gelu_pytorch_tanh"}},
    "speculators-five-slots": {"slots": 5, "flags": {"norm_before_fc": True}},
    "speculators-whole-vocabulary": {"draft_vocab": V},
    "speculators-three-layers": {"layer": "qwen3", "num_layers": 3},
}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5}
SPECFORGE = {
    "specforge-plain": {},
    "specforge-fc_norm": {"fc_norm": True},
    "specforge-no-final-norm": {"norm_output": False},
    "specforge-fc_norm-no-final-norm": {"fc_norm": True, "norm_output": False},
    "specforge-llama3-rope": {"rope_parameters": LLAMA3 | {"rope_theta": 10000.0}},
    "specforge-yarn-rope": {"rope_parameters": YARN | {"rope_theta": 10000.0, "original_max_position_embeddings": 16}},
    "specforge-relu": {"hidden_act": "relu"},
    "specforge-says-biases": {"attention_bias": True, "mlp_bias": True},
    "specforge-wider-target": {"target_hidden_size": 40, "fc_norm": True},
}
