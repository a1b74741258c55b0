"""What columns and settings are called: by people, by SGLang, vLLM and SpecForge."""

from __future__ import annotations

import re

from eaglelab.timing.setting import Setting

COLUMNS = {
    "batch": "batch bs batch_size batchsize concurrency max_concurrency parallel running running_req running_reqs running_requests num_running_reqs",
    "steps": "steps num_steps spec_steps draft_steps speculative_num_steps num_speculative_tokens num_spec_tokens spec_tokens k draft_len draft_length",
    "topk": "topk top_k eagle_topk speculative_eagle_topk",
    "draft_tokens": "draft_tokens num_draft num_drafts ndt num_draft_tokens speculative_num_draft_tokens nodes",
    "tok_s": "tok_s toks_s tokens_s token_s tps tok_per_s tok_per_sec tokens_per_s tokens_per_sec tokens_per_second throughput throughput_tok_s "
    "output_throughput output_throughput_tok_s output_tok_s output_token_throughput output_token_throughput_tok_s gen_throughput "
    "generation_throughput decode_throughput decode_tok_s",
    "tok_s_each": "tok_s_user tok_s_req tok_s_request tok_s_per_user tok_s_per_req tok_s_per_request tps_per_user tps_user tps_per_request throughput_per_user",
    "accept_length": "accept_length accept_len acceptance_length acceptance_len acc_length acc_len al tau τ mean_acceptance_length mean_accept_length "
    "mean_accept_len avg_accept_length avg_accept_len average_accept_length spec_accept_length avg_spec_accept_length accepted_length",
    "accepted": "accepted_per_pass accepted_per_step mean_accepted mean_accepted_tokens avg_accepted_tokens accepted_draft_tokens",
    "mode": "mode kind setting config method spec speculation speculative algorithm speculative_algorithm run",
    "model": "model model_path model_id target target_model",
    "draft": "draft drafter draft_model draft_path speculative_draft_model_path",
    "hw": "hw hardware gpu gpus machine device",
    "tp": "tp tp_size tensor_parallel_size",
    "dataset": "dataset dataset_name benchmark task bench",
    "input_len": "input_len isl prompt_len context context_len random_input_len",
    "output_len": "output_len osl random_output_len",
}
KNOWN = {name: ours for ours, names in COLUMNS.items() for name in names.split()}
"""A column's name, normalised -> ours. What is not here is kept as it is, in `Measured.extra`."""

OFF = frozenset(
    ("baseline", "base", "off", "none", "no", "false", "0", "disabled", "without", "vanilla", "ar", "autoregressive", "plain", "decode")
) | {"nospec", "no_spec", "non_spec", "no_speculation", "without_speculation", "target", "target_only"}
EMPTY = frozenset(("", "-", "\u2013", "\u2014", "n/a", "na", "none", "null", "nil", "?"))
TRIPLE = re.compile(r"(?:[a-z0-9]*[:_ ])?(\d{1,4})[-/,x](\d{1,4})[-/,x](\d{1,4})")
CHAIN = re.compile(r"(?:static|chain|steps?|k|num_steps|len(?:gth)?)[ _=:-]?(\d{1,3})")


def column(header: str) -> str:
    """`Output Throughput (tok/s)`, `--speculative-num-steps`, `#running-req` -> our name; another column's name as it stands there."""
    text = header.strip().strip("*`\"'").lower()
    text = re.sub(r"\s*[(\[].*?[)\]]\s*", " ", text)
    text = re.sub(r"[^\wτ]+", "_", text.lstrip("-#")).strip("_")
    return KNOWN.get(text, header.strip())


def is_off(text: str) -> bool:
    return re.sub(r"[\s-]+", "_", text.strip().lower()) in OFF


def setting_in(text: str) -> Setting | None:
    """`3-1-4`, `eagle3 3-1-4`, `static3`, `k=3`: the setting that a name tells; None where it tells none (`eagle3` is no number of steps).

    Raises ValueError for one that cannot be.
    """
    text = text.strip().lower()
    if is_off(text):
        return Setting(0)
    if match := TRIPLE.fullmatch(text):
        steps, topk, nodes = map(int, match.groups())
        return Setting(0) if steps == 0 else Setting(steps, topk, nodes)
    if match := CHAIN.fullmatch(text):
        return Setting(int(match[1]))
    return None
