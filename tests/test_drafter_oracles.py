"""Our drafter and replay against the trainers' own code on the same weights: speculators 0.9.0 and SpecForge 0.2.0, run here.

Their packages are in a folder of their own beside this environment's (`make test` puts them there), and one process with it on its path
runs every case of tests/oracles/cases.py: checkpoints as those projects write them, inputs, and what their code returned. Float32 on both
sides. The logits agree to 1e-5 of the widest one (measured: 2e-6), and any flag turned round moves them by a third of it.
"""

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from oracles.cases import SPECFORGE, SPECULATORS, VD, H, V
from safetensors.torch import load_file
from trainer_rates import specforge_acc, speculators_acc

from eaglelab.drafter.audit import audit_folder, read_headers
from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.checkpoint import load_drafter, own_embedding
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Flags, Rotary
from eaglelab.dumps import Sample
from eaglelab.replay import Judge, TargetHead, Variant, replay
from eaglelab.replay.trainers import every_row
from eaglelab.target.norms import FinalNorm

PACKAGES = Path(sys.prefix, "oracles")
TOLERANCE = 1e-5  # of the widest logit
ALL = [*SPECULATORS, *SPECFORGE]
pytestmark = pytest.mark.skipif(
    not all(Path(PACKAGES, name).is_dir() for name in ("speculators", "specforge")),
    reason=f"needs the trainers' packages in {PACKAGES}, where `make test` installs them",
)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Where one run of the trainers' code has written every case."""
    out = tmp_path_factory.mktemp("oracles")
    script = Path(__file__).parent / "oracles" / "run_trainers.py"
    run = subprocess.run([sys.executable, script, out], env=os.environ | {"PYTHONPATH": str(PACKAGES)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def oracle(folders):
    """Name -> drafter, embedding rows, samples, their logits [K, rows, Vd] a sample, the target's head and the returned metrics."""
    return cache(lambda name: read_case(folders / name))


def read_case(folder):
    golden, metrics = load_file(folder / "golden.safetensors"), json.loads((folder / "golden.json").read_text())
    drafter, audit = load_drafter(folder, device="cpu", dtype="float32")
    samples, logits = [], []
    for i in range(len(metrics["samples"])):
        part = {k.split(".")[1]: v for k, v in golden.items() if k.startswith(f"sample{i}.")}
        names = tuple(f"hidden_states[{s}]" for s in range(len(part["aux"]) + 1))
        samples.append(Sample(f"s{i}", part["token_ids"], (*part["aux"], part["last"]), part["loss_mask"], names))
        logits.append(part["logits"])
    every = torch.arange(drafter.config.vocab_size)
    return SimpleNamespace(
        folder=folder,
        drafter=drafter,
        audit=audit,
        embed=own_embedding(folder, every) or EmbeddingRows(every, golden["embedding"], "the oracle's table"),
        samples=samples,
        logits=logits,
        metrics=metrics,
        head=golden["target.lm_head"],
        norm=golden.get("target.norm"),
        feed=Variant(tuple(range(drafter.config.num_slots))),
    )


def our_logits(o, flags=None, steps=4):
    """Logits [K][sample][T-1, Vd] of chains from every row, both samples packed."""
    packed, skip = Packed.of([s.token_ids for s in o.samples]), flags is not None and flags.skip_fc_norms
    states = [torch.cat([s.slots[i] for s in o.samples]) for i in o.feed.feed]
    fused = o.drafter.fuse([o.drafter.slot_product(p, x, skip_norms=skip) for p, x in enumerate(states)], states, skip_norms=skip)
    rows = torch.cat([torch.arange(len(s.token_ids) - 1) + start for s, start in zip(o.samples, packed.starts, strict=False)])
    sizes = [len(s.token_ids) - 1 for s in o.samples]
    with torch.no_grad():
        return [out.logits.split(sizes) for out in draft_chains(o.drafter, packed, fused, o.embed, rows, steps, flags=flags)]


def largest_difference(o, ours):
    """Largest difference over the widest golden logit, over all rows whose tokens lie in the sample (both projects pad what lies beyond),
    and the number of rows compared."""
    worst, compared, widest = 0.0, 0, max(float(x.abs().max()) for x in o.logits)
    for k, by_sample in enumerate(ours):
        for mine, theirs, sample in zip(by_sample, o.logits, o.samples, strict=True):
            rows = len(sample.token_ids) - 1 - k  # row t takes token t + 1 + k
            worst = max(worst, float((mine[:rows] - theirs[k, :rows]).abs().max()))
            compared += rows
    return worst / widest, compared


@pytest.mark.parametrize("name", ALL)
def test_logits_of_every_step_are_those_of_the_trainer(oracle, name):
    o = oracle(name)
    worst, compared = largest_difference(o, our_logits(o))
    assert compared == sum(len(s.token_ids) - 1 - k for s in o.samples for k in range(4))
    assert worst < TOLERANCE
    assert min(float(x[:, :10].std(-1).min()) for x in o.logits) > 0.1  # not all alike: the comparison says something


@pytest.mark.parametrize("name", ALL)
def test_the_flags_read_from_the_config_are_the_only_ones_that_fit(oracle, name):
    """Each flag the other way round moves the logits by far more than the tolerance, from the step at which it can."""
    o = oracle(name)
    config, right = o.drafter.config, Flags.of(o.drafter.config)
    parts = {
        "skip_fc_norms": config.norm_before_fc or config.fc_norm,
        "skip_qk_norm": config.layer_type == "qwen3",
        "skip_attention_bias": config.attention_bias,
    }
    for flag in ("norm_before_residual", "post_norm_recurrence", "skip_final_norm", *(f for f, there in parts.items() if there)):
        value = getattr(right, flag)
        other = our_logits(o, flags=Flags(**(vars(right) | {flag: not value})))
        assert largest_difference(o, other)[0] > 1e4 * TOLERANCE, flag


@pytest.mark.parametrize("name", ["specforge-llama3-rope", "specforge-yarn-rope"])
def test_the_rope_type_matters_here(oracle, name):
    """The same weights with the default rope are far off, so the agreement above is about the rope type too."""
    o = oracle(name)
    other = copy.copy(o)
    other.drafter = copy.deepcopy(o.drafter)
    other.drafter.rotary = Rotary(replace(o.drafter.config, rope={"rope_theta": 10000.0}))
    assert largest_difference(o, our_logits(other))[0] > 1000 * TOLERANCE


@pytest.mark.parametrize("name", ALL)
def test_the_layout_is_the_projects_own_and_whole(oracle, name):
    o = oracle(name)
    (header, _), config, layer = read_headers(o.folder), o.drafter.config, "layers.0." if name in SPECULATORS else "midlayer."
    audit = audit_folder(o.folder, config)
    assert (audit.whole, audit.unexpected) == (True, ())
    assert o.audit.whole
    assert o.audit.unexpected == ()
    assert any(key.startswith(layer) for key in header)
    assert ("embed_tokens.weight" in header) == (name in SPECULATORS or config.target_hidden_size != H)
    assert header["lm_head.weight"][0] == (V if "whole" in name else VD, H)
    assert config.family == ("speculators" if name in SPECULATORS else "specforge")
    assert config.layer_type == SPECULATORS.get(name, {}).get("layer", "llama")
    assert config.num_layers == SPECULATORS.get(name, {}).get("num_layers", 1)
    t2d = load_file(o.folder / "model.safetensors").get("t2d", torch.ones(V))
    assert torch.equal(o.drafter.target_ids, t2d.nonzero()[:, 0])  # d2t as offsets gives back t2d's choice


@pytest.mark.parametrize("name", SPECFORGE)
def test_specforge_accuracies_come_out_of_the_replay(oracle, name):
    o = oracle(name)
    judge = Judge(3, TargetHead(o.head))
    result = replay(o.drafter, every_row(o.samples), o.embed, [o.feed], judge=judge, steps=4, probabilities=True)[0]
    for outcome, sample, said in zip(result.outcomes, o.samples, o.metrics["samples"], strict=True):
        counts = specforge_acc([outcome], [sample.loss_mask])
        assert list(counts.right) == said["correct"]
        assert list(counts.counted) == said["denom"]
        assert [r / n for r, n in zip(counts.right, counts.counted, strict=True)] == pytest.approx(said["acc"], rel=1e-6)
        for k in range(4):  # their acceptance rate: our overlap, over rows whose target is in the draft vocabulary
            at = (torch.as_tensor(outcome.rows) + k).clamp(max=len(sample.loss_mask) - 1)
            counted = outcome.counted[k] & (sample.loss_mask[at] == 1).numpy() & ~outcome.outside[k]
            assert outcome.overlap[k][counted].mean() == pytest.approx(said["acceptance_rate"][k], abs=1e-5)


def test_our_own_rule_is_another_number(oracle):
    """l[t+1+k] instead of l[t+k]: the same total here would mean that the rule is not tested."""
    o = oracle("specforge-plain")
    ours = replay(o.drafter, o.samples, o.embed, [o.feed], judge=Judge(3, TargetHead(o.head)), steps=4)[0].counts
    theirs = [sum(s["denom"][k] for s in o.metrics["samples"]) for k in range(4)]
    assert list(ours.counted) == [19, 19, 19, 19]
    assert theirs == [17, 17, 17, 17]


@pytest.mark.parametrize("name", SPECULATORS)
def test_speculators_accuracies_come_out_of_the_replay(oracle, name):
    o = oracle(name)
    # Their target speaks the draft vocabulary only: its rows of lm_head, and draft ids on both sides.
    judge = Judge(len(o.feed.feed), TargetHead(o.head[o.drafter.target_ids], FinalNorm(o.norm, eps=o.drafter.config.rms_norm_eps)))
    judge.norm_last = True  # their dumps hold the last layer's output before the final norm
    variant = replace(o.feed, vocabulary="identity")
    result = replay(o.drafter, every_row(o.samples), o.embed, [variant], judge=judge, steps=4)[0]
    masks = [s.loss_mask for s in o.samples]
    for outcome, mask, said in zip(result.outcomes, masks, o.metrics["samples"], strict=True):
        full, cond = speculators_acc([outcome], [mask])
        assert list(full.right) == said["full_acc_sum"]
        assert list(full.counted) == said["full_acc_total"]
        assert list(cond.right) == said["cond_acc_sum"]
        assert list(cond.counted) == said["cond_acc_total"]
    full, _ = speculators_acc(result.outcomes, masks)
    assert list(full.right) == o.metrics["packed"]["full_acc_sum"]
    assert list(full.counted) == o.metrics["packed"]["full_acc_total"]


def test_full_acc_is_our_joint_where_answers_are_apart(oracle):
    """On rows that count at all steps both are the same thing: right at steps 0..k. The second sample has one answer."""
    o = oracle("speculators-llama-1")
    judge = Judge(3, TargetHead(o.head[o.drafter.target_ids], FinalNorm(o.norm, eps=o.drafter.config.rms_norm_eps)))
    judge.norm_last = True
    variant = Variant((0, 1, 2), vocabulary="identity")
    ours = replay(o.drafter, o.samples[1:], o.embed, [variant], judge=judge, steps=1)[0].counts
    said = o.metrics["samples"][1]
    assert (ours.joint[0], ours.complete) == (said["full_acc_sum"][0], said["full_acc_total"][0])
