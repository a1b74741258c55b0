"""A small real tokenizer with a chat template, and dumps of conversations that it renders."""

import torch
from case_builder import write_case
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>")
TALKS = [
    (f"Tell me {i} things of {t}.", f"{t.title()} {'no' * i} yes.") for i, t in enumerate(("tea", "rain", "boats", "ants", "maps", "ink"))
]


def make_tokenizer(template=TEMPLATE):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), ByteLevel()
    raw.add_special_tokens([AddedToken(s, special=True) for s in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def conversation(tokenizer, ask, answer, end="<|im_end|>"):
    """(token ids, mask) of one question and answer; the mask is 1 on the answer and on what ends it."""
    header = encode(tokenizer, f"<s><|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n")
    told = encode(tokenizer, answer + end)
    return header + told, [0] * len(header) + [1] * len(told)


def moved(mask, places):
    """A mask moved along the text; zeros come in from the side."""
    zeros = [0] * abs(places)
    return (zeros + mask)[: len(mask)] if places >= 0 else mask[-places:] + zeros


def write_talks(folder, samples):
    """A dump of (token ids, mask or None) in the list-of-four layout; the states are numbers without meaning."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (ids, mask) in enumerate(samples):
        states = [torch.randn(len(ids), 8, generator=torch.Generator().manual_seed(9 * i + s)) for s in range(4)]
        sample = {"input_ids": torch.tensor(ids), "hidden_states": states}
        torch.save(sample if mask is None else sample | {"loss_mask": torch.tensor(mask)}, folder / f"data_{i}.pt")
    return folder


def talk_case(root, samples, tokenizer=None, **sections):
    write_talks(root / "dump", samples)
    parts = {"dump": {"path": "dump"}} | sections
    if tokenizer is not None:
        tokenizer.save_pretrained(root / "tok")
        parts["target"] = {"tokenizer": "tok"}
    return write_case(root, parts)
