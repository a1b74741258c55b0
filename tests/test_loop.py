"""The speculative loop against what it has to be: plain greedy decoding's text, the walk's verify passes, the drafts of a drafter written
otherwise, and a real engine's counts."""

import gzip
import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from case_builder import build_case, make_world
from tiny_drafters import FLAG_SETS, tiny_config
from tiny_models import make_deepseek_v3, make_gemma2, make_gemma3, make_llama, make_model, make_qwen3
from transformers import AutoModelForCausalLM

from eaglelab.cli import main
from eaglelab.drafter.embedding import EmbeddingError, EmbeddingRows
from eaglelab.drafter.model import Drafter, Flags
from eaglelab.dumps import Sample
from eaglelab.investigation import Investigation
from eaglelab.live.prompts import Prompt
from eaglelab.loop.result import Difference, LoopRequest, LoopResult, Plain, Speculated, VerifyPass
from eaglelab.loop.run import Loop, open_loop, run_loop
from eaglelab.loop.speculate import decode, speculate
from eaglelab.loop.target import CachedTarget
from eaglelab.opened import NotGiven
from eaglelab.replay import Variant
from eaglelab.replay.sequential import SequentialDrafter
from eaglelab.served import Recording, Request
from eaglelab.served.predict import predict
from eaglelab.served.recording import Session
from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import Phase
from eaglelab.timing.setting import Setting
from eaglelab.wiring import FINAL

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
needs_target = pytest.mark.skipif(not (EXAMPLE / "target").is_dir(), reason="the example's target is not fetched (`make target`)")

V, WIDTH, K, LENGTH = 4, 24, 3, 16
"""So few tokens that a random drafter is right often enough for every count from 0 to K."""
RIGHT, OTHER = (1, 2, 4), (0, 3, FINAL)
PROMPT = (1, 3, 0, 0)


def target_of(folder: Path, make=make_llama, **config) -> Path:
    sizes = {"vocab_size": V, "hidden_size": WIDTH, "head_dim": 6, "intermediate_size": 48, "initializer_range": 0.3}
    sizes |= {"seed": 1, "tie_word_embeddings": False, "eos_token_id": None, **config}
    return make(folder, **{k: v for k, v in sizes.items() if (k, v) != ("head_dim", None)})


def random_drafter(seed: int = 0, **changes) -> Drafter:
    """Large random weights, norms included; it says the tokens 0, 1 and 3."""
    torch.manual_seed(seed)
    drafter = Drafter(tiny_config(**{"vocab_size": V, "draft_vocab_size": 3, **changes}))
    for name, weight in drafter.named_parameters():
        torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.3)
        weight.requires_grad_(False)
    drafter.d2t.copy_(torch.tensor([0, 0, 1]))
    return drafter.eval()


class Oracle:
    """transformers' own generation and states, each computed once: they hang on no drafter."""

    def __init__(self, folder: Path) -> None:
        self.answer, self.states = cache(self._answer), cache(self._states)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.clone()

    def _answer(self, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
        options = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "pad_token_id": 0}
        options["attention_mask"] = torch.ones(1, len(prompt), dtype=torch.int64)  # or token 0 is taken for padding
        return tuple(self.model.generate(torch.tensor([list(prompt)]), **options)[0, len(prompt) :].tolist())

    @torch.no_grad()
    def _states(self, ids: tuple[int, ...]) -> dict:
        """Boundary -> [T, H]."""
        before_norm = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda module, args: before_norm.append(args[0][0]))
        given = [h[0] for h in self.model(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states]
        hook.remove()
        return {**dict(enumerate(given[:-1])), len(given) - 1: before_norm[0], FINAL: given[-1]}

    @property
    def rows(self) -> EmbeddingRows:
        table = self.model.get_input_embeddings().weight.detach()
        return EmbeddingRows(torch.arange(len(table)), table, "transformers' table")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return target_of(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def oracle(folder):
    return Oracle(folder)


@pytest.fixture(scope="module")
def target(folder):
    return CachedTarget(folder, dtype="float32", device="cpu")


# -- what is computed ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "wiring"), [(kind, OTHER if kind in ("mla", "fc_norm", "two layers") else RIGHT) for kind in FLAG_SETS])
def test_text_passes_and_drafts_are_those_of_other_code(kind, wiring, target, oracle):
    """Every kind of drafter, on two wirings: the text is transformers' own; the accepted counts are the walk's, pass by pass, over
    transformers' own states; and each draft is that of the sequential drafter, which shares no attention, cache or rotation."""
    drafter = random_drafter(2, **FLAG_SETS[kind])
    made = speculate(target, Loop(target, drafter, wiring).drafter, wiring, PROMPT, K, LENGTH)
    assert made.token_ids == oracle.answer(PROMPT, LENGTH)

    ids = (*PROMPT, *made.token_ids)
    held = oracle.states(ids)
    sample = Sample("request 0", torch.tensor(ids), tuple(held[b] for b in wiring), (torch.arange(len(ids)) >= 4).long(), ("a", "b", "c"))
    request = Request(0, PROMPT, made.token_ids, accepted=tuple(p.accepted for p in made.passes))
    found = predict(Recording(None, Session(num_steps=K), (request,)), drafter, [sample], oracle.rows, Variant((0, 1, 2)))
    assert (found.equal, found.differing) == (True, 0)
    assert found.compared >= len(made.passes) - 1

    slow, t = SequentialDrafter(drafter, oracle.rows), 3
    for number, one in enumerate(made.passes):
        while slow.filled <= t:
            slow.extend([held[b][slow.filled] for b in wiring], ids[slow.filled + 1])
        assert list(one.drafted) == slow.draft(K).tokens, number
        t += one.accepted + 1
    assert t >= len(ids) - 2
    assert len({p.accepted for p in made.passes}) > 1
    assert kind != "plain" or wiring == OTHER or {p.accepted for p in made.passes} == {0, 1, 2, 3}


TARGETS = {
    "qwen3": (make_qwen3, {}),
    "tied": (make_llama, {"tie_word_embeddings": True}),
    "MLA and experts": (make_deepseek_v3, {"head_dim": None}),
    "sliding": (make_gemma2, {}),
    "sliding, 3": (make_gemma3, {}),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_other_targets_write_their_own_text(kind, tmp_path):
    """Tied heads, latent caches, sliding windows (8 rows, passed after a few tokens): rejected tokens leave nothing behind."""
    make, config = TARGETS[kind]
    path = target_of(tmp_path / "target", make, seed=3, initializer_range=0.5, **config)
    target = CachedTarget(path)
    made = speculate(target, Loop(target, random_drafter(2), RIGHT).drafter, RIGHT, PROMPT, 2, 16)
    assert decode(target, PROMPT, 16).token_ids == made.token_ids == Oracle(path).answer(PROMPT, 16)
    assert {0, 2} <= {p.accepted for p in made.passes}  # everything and nothing was taken back


def test_a_bias_of_the_head_counts(tmp_path):
    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    path = make_model("phi", tmp_path / "phi", **sizes)
    from safetensors.torch import load_file, save_file

    held = load_file(path / "model.safetensors")
    held["lm_head.bias"] = torch.tensor([0.0, 0.0, 50.0, 0.0])
    save_file(held, path / "model.safetensors", {"format": "pt"})
    assert decode(CachedTarget(path), PROMPT, 3).token_ids == (2, 2, 2)


def test_a_target_that_cannot_take_tokens_back_is_refused(tmp_path):
    sizes = {"vocab_size": V, "hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = make_model("lfm2", tmp_path / "lfm2", num_hidden_layers=2, layer_types=["conv", "full_attention"], **sizes)
    with pytest.raises(TimingError, match=r"lfm2: 1 of its 2 layers keep a \w+, expected keys and values of every token: what a rejected"):
        CachedTarget(path)


def test_the_drafter_gets_a_table_of_its_own_and_the_engines_flags(target, oracle):
    """A drafter of another width needs a table; flags other than the config's draft otherwise, as the sequential drafter with them does."""
    rows = torch.randn(V, 16, generator=torch.Generator().manual_seed(5))
    drafter = random_drafter(3, hidden_size=16, fc_norm=True, layer_type="qwen3")
    with pytest.raises(EmbeddingError, match="the embedding table is 24 wide, the drafter's hidden_size is 16: it needs one of its own"):
        Loop(target, drafter, RIGHT)
    flags = Flags(norm_before_residual=True, skip_fc_norms=True, skip_qk_norm=True, post_norm_recurrence=True)
    loop = Loop(target, drafter, RIGHT, table=rows, flags=flags)
    result = loop.run([PROMPT], steps=K, max_new_tokens=LENGTH, stop=(), rounds=1)
    slow = SequentialDrafter(drafter, EmbeddingRows(torch.arange(V), rows, "own"), flags=flags)
    held = oracle.states((*PROMPT, *result.requests[0].speculated[0].token_ids))
    for t in range(4):
        slow.extend([held[b][t] for b in RIGHT], [*PROMPT, *result.requests[0].speculated[0].token_ids][t + 1])
    assert list(result.passes[0].drafted) == slow.draft(K).tokens
    assert loop.walk(result).equal is True


# -- where answers end --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long(target):
    """An answer whose passes accept every count, of the drafter that gives it."""
    loop = Loop(target, random_drafter(2), RIGHT)
    return loop, speculate(target, loop.drafter, RIGHT, PROMPT, K, 20)


def test_an_answer_of_any_length_is_the_first_part_of_a_longer_one(long, target):
    loop, whole = long
    cut = set()
    for length in range(1, 12):
        made = speculate(target, loop.drafter, RIGHT, PROMPT, K, length)
        assert made.token_ids == whole.token_ids[:length]
        assert 1 + sum(p.kept for p in made.passes) == length
        assert [(p.drafted, p.accepted) for p in made.passes] == [(p.drafted, p.accepted) for p in whole.passes[: len(made.passes)]]
        assert not any(p.cut for p in made.passes[:-1])
        cut |= {made.passes[-1].cut} if made.passes else set()
    assert cut == {True, False}
    assert speculate(target, loop.drafter, RIGHT, PROMPT, K, 1).passes == ()


def test_a_stop_token_ends_an_answer_inside_a_draft(long, target, monkeypatch):
    """Each token of the text in turn is made the last one: by its place in the passes it is accepted (a cut) or a bonus token."""
    loop, whole = long
    monkeypatch.setattr(CachedTarget, "stop_tokens", property(lambda self: stop))
    kinds = set()
    for token in sorted(set(whole.token_ids)):
        stop, end = frozenset({token}), whole.token_ids.index(token) + 1
        result = loop.run([PROMPT], steps=K, max_new_tokens=20, rounds=1)
        (request,) = result.requests
        assert request.plain[0].token_ids == request.speculated[0].token_ids == whole.token_ids[:end]
        assert loop.walk(result).equal is True or end == 1
        kinds |= {p.cut for p in request.speculated[0].passes[-1:]}
    assert result.same_text == 1
    assert False in kinds


def test_stop_tokens_come_from_the_targets_files(tmp_path, folder):
    assert CachedTarget(folder).stop_tokens == frozenset()
    path = target_of(tmp_path / "target", eos_token_id=3)
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    target = CachedTarget(path)
    assert target.stop_tokens == {1, 2}
    (path / "generation_config.json").write_text("{ cut")
    assert target.stop_tokens == {3}
    (path / "generation_config.json").unlink()
    assert target.stop_tokens == {3}


# -- what is said of it -------------------------------------------------------------------------------------------------------------------


def test_numbers_of_a_run_made_by_hand():
    """Two prompts, two rounds. Seconds in powers of two, so that every sum is exact."""

    def answer(slow: float) -> Speculated:
        passes = (
            VerifyPass((5, 6), 2, 3, 0.25 * slow, 1.0 * slow, 0.125 * slow, 0.375 * slow, 2.0 * slow),
            VerifyPass((7, 8), 1, 1, 0.25 * slow, 1.5 * slow, 0.125 * slow, 0.125 * slow, 2.0 * slow),  # cut: the answer ended
        )
        return Speculated((1, 5, 6, 9, 7), 0.5 * slow, passes)

    def plain(slow: float) -> Plain:
        return Plain((1, 5, 6, 9, 7), 0.25, (1.0 * slow,) * 4)

    both = [LoopRequest(i, (1, 2), None, (answer(1), answer(2)), (plain(1), plain(4)), None) for i in range(2)]
    result = LoopResult(Setting(2), RIGHT, tuple(both), 5, "cpu", "float32", 1)
    assert (result.counts.verify_steps, result.counts.accepted, result.counts.joint) == (4, 6, (4, 2))
    assert (result.accept_length, result.tokens_per_pass) == (2.5, 2.0)
    assert result.interval == (2.5, 2.5)
    assert result.tok_s == (1.0, 0.5)  # 8 tokens in 8 s, in 16 s
    assert result.plain_tok_s == (1.0, 0.25)
    assert result.speedup == (1.5, 1.0, 2.0)
    assert result.cost_ratio == 2.0 / 1.5
    assert (result.decode_ms, result.prefill_ms) == (2500.0, (750.0, 250.0))
    split = result.split.set_index("phase")
    assert split["total_ms"].to_dict() == {"draft": 3e3, "verify": 15e3, "sampling": 1.5e3, "draft extend": 3e3, "other": 1.5e3}
    assert split["share"].sum() == 1.0
    assert (split.loc["verify", "share"], split.loc["verify", "median_ms"], result.median_ms(Phase.VERIFY)) == (15 / 24, 1750.0, 1750.0)
    off, on = result.measured()
    assert (off.setting.off, off.tok_s, on.setting, on.tok_s, on.accept_length) == (True, 0.625, Setting(2), 0.75, 2.5)
    assert "accept length 2.500 (95 % by prompt: 2.50 to 2.50), 6 of 8 drafted tokens accepted in 4 verify passes" in result.summary
    assert (
        "0.8 tok/s against 0.6 without: 1.50 x (1.00 to 2.00 in 2 rounds); a cycle costs 1.33 plain passes (CPU timings, 1 thread"
        in result.summary
    )
    assert "they say nothing about an engine's" in result.summary
    assert "quiet machine" not in result.summary
    none = replace(both[0], speculated=(Speculated((1, 9, 9), 0.5, (VerifyPass((5, 6), 0, 1, 1, 1, 1, 1, 4),) * 2),))
    full = replace(both[1], speculated=(Speculated((1, 5, 6, 9), 0.5, (VerifyPass((5, 6), 2, 3, 1, 1, 1, 1, 4),) * 2),))
    assert replace(result, requests=(none, full)).interval == (1.0, 3.0), "two prompts that differ tell nothing: all that K = 2 can give"
    fast = tuple(replace(r, speculated=(answer(1),), plain=(plain(4),)) for r in both)
    fast = replace(result, requests=fast)  # a cycle in 2 s, a plain pass in 4
    assert "4.00 x (one round, so nothing tells how sure); a cycle costs 0.50 plain passes" in fast.summary
    assert "take no speedup from this run" in fast.summary
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["times_are"].startswith("milliseconds of this loop")
    assert (data["accept_length"], data["same_text"], data["requests"][1]["accepted"], data["requests"][1]["cut"]) == (
        2.5,
        [2, 2],
        [2, 1],
        True,
    )


def test_answers_of_one_token_have_no_rates():
    request = LoopRequest(0, (1,), None, (Speculated((2,), 0.5, ()),), (Plain((2,), 0.5, ()),), None)
    result = LoopResult(Setting(2), RIGHT, (request,), 1, "cpu", "float32", 1)
    nothing = (result.accept_length, result.interval, result.tokens_per_pass, result.speedup, result.cost_ratio, result.decode_ms)
    assert nothing == (None,) * 6
    assert (result.tok_s, result.measured(), len(result.split)) == ((), (), 0)
    assert result.summary == "2-1-3: 1 answers of one token each: nothing was drafted"
    json.dumps(result.to_json(), allow_nan=False)


def test_a_run_counts_its_rounds_and_its_time_adds_up(target):
    loop = Loop(target, random_drafter(2), RIGHT)
    result = loop.run([PROMPT, Prompt(7, (1, 2, 3), sample="mine")], steps=2, max_new_tokens=12, stop=(), rounds=2)
    assert [(r.index, r.sample, len(r.plain), len(r.speculated)) for r in result.requests] == [(0, None, 2, 2), (7, "mine", 2, 2)]
    assert (result.same_text, result.rounds, len(result.tok_s), result.setting.name) == (2, 2, 2, "2-1-3")
    for request in result.requests:
        first, second = request.speculated
        assert [p.accepted for p in first.passes] == [p.accepted for p in second.passes]
        for one in (*first.passes, *second.passes):
            assert 0 < one.verify < one.wall
            assert 0 <= one.other < one.wall
    assert result.split["total_ms"].sum() == pytest.approx(1e3 * sum(s.seconds for r in result.requests for s in r.speculated))
    assert loop.walk(result).equal is True
    assert result.recording().requests[1].sample == "mine"


def test_where_texts_part_the_gap_is_told(target, monkeypatch):
    """Plain decoding that goes wrong in its third token: where, what and how far the two largest logits are apart there."""
    from eaglelab.loop import run

    def other(target, prompt, most, stop):
        made = decode(target, prompt, most, stop)
        return Plain((*made.token_ids[:2], (made.token_ids[2] + 1) % V, *made.token_ids[3:]), made.prefill, made.passes)

    monkeypatch.setattr(run, "decode", other)
    result = Loop(target, random_drafter(), RIGHT).run([PROMPT], steps=1, max_new_tokens=6, stop=(), rounds=1)
    ids = result.requests[0].speculated[0].token_ids
    target.reset()
    top = target.forward(torch.tensor([*PROMPT, *ids[:2]]))[0][-1].topk(2).values
    gap = pytest.approx(float(top[0] - top[1]), abs=1e-5)
    assert result.requests[0].difference == Difference(2, (ids[2], (ids[2] + 1) % V), gap)
    assert "0 of 1 answers are plain decoding's" in result.summary
    assert result.notes[0].startswith("1 of 1 answers part from plain decoding's: at the latest where its two largest logits are")


# -- the trace ----------------------------------------------------------------------------------------------------------------------------


def test_a_trace_holds_the_spans(target, tmp_path):
    file = tmp_path / "made" / "trace.json.gz"
    loop = Loop(target, random_drafter(2), RIGHT)
    result = loop.run([PROMPT], steps=K, max_new_tokens=5, stop=(), rounds=1, trace=file)
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    spans = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("eaglelab.")]
    named = {name: sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["name"] == f"eaglelab.{name}") for name in NAMES}
    assert {name: len(found) for name, found in named.items()} == {
        "prefill": 2,
        "decode": 4,
        **dict.fromkeys(NAMES[2:], len(result.passes)),
    }
    for i, (begin, end) in enumerate(named["cycle"]):
        inside = [named[name][i] for name in NAMES[3:]]
        edges = [begin, *(edge for span in inside for edge in span), end]
        assert edges == sorted(edges), "draft, verify, sample and draft extend one after the other, inside the cycle"


NAMES = ("prefill", "decode", "cycle", "draft", "verify", "sample", "draft_extend")


# -- what cannot be run -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wiring", "message"),
    [
        ((1, 2), r"the wiring has 2 boundaries \[1, 2\], the drafter's fc takes 3"),
        ((1, 2, None), "place 2 of the drafter's fc is fed nothing that can be told, expected a boundary 0..4 of"),
        ((5, 2, 1), "place 0 of the drafter's fc is fed boundary 5, expected a boundary 0..4"),
        ((1, -1, 2), "place 1 of the drafter's fc is fed boundary -1, expected a boundary 0..4"),
    ],
)
def test_a_wiring_that_cannot_be_fed(wiring, message, target):
    with pytest.raises(TimingError, match=message):
        Loop(target, random_drafter(), wiring)


def test_a_drafter_of_another_target(target):
    with pytest.raises(TimingError, match="has states of 24, the drafter's fc takes 16: is it another target's drafter"):
        Loop(target, random_drafter(target_hidden_size=16), RIGHT)
    other = random_drafter()
    other.d2t.copy_(torch.tensor([0, 0, 7]))
    with pytest.raises(TimingError, match=r"the drafter says token ids up to 9, .* has 4: is it another target's"):
        Loop(target, other, RIGHT)


def test_prompts_that_cannot_be_answered(target):
    loop = Loop(target, random_drafter(), RIGHT)
    run = {"steps": 1, "max_new_tokens": 2, "stop": (), "rounds": 1}
    result = loop.run([[], PROMPT, [1, 4], [-1], [1] * 600], **run)
    assert [r.index for r in result.requests] == [1]
    assert result.notes == (
        "prompt 0 holds no token; it was left out",
        "prompt 2 holds token ids 1 to 4, expected 0..3; it was left out",
        "prompt 3 holds token ids -1 to -1, expected 0..3; it was left out",
        f"prompt 4 has 600 tokens, which leaves no room for 3 more: {target.path.name} has 512 positions; it was left out",
    )
    with pytest.raises(TimingError, match="none of 1 prompts can be answered: prompt 0 holds no token"):
        loop.run([[]], **run)
    with pytest.raises(TimingError, match=r"none of 0 prompts can be answered$"):
        loop.run([], **run)
    for name in ("steps", "max_new_tokens", "rounds"):
        with pytest.raises(TimingError, match="steps, max_new_tokens and rounds are 1 or more, got"):
            loop.run([PROMPT], **{**run, name: 0})


def test_a_target_that_does_not_fit(folder, monkeypatch):
    from eaglelab.loop import target

    monkeypatch.setattr(target, "free_bytes", lambda device: 1000)
    with pytest.raises(
        TimingError, match=r"its weights take 0\.0 GB in float32, 0\.0 GB of cpu are free; this loop holds the whole target"
    ):
        CachedTarget(folder)


# -- cases --------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def case(world, tmp_path_factory):
    """The target's layers 2, 3, 5 in the dump and in the drafter's fc; the config says otherwise, so the engine feeds 0, 2, 3."""
    return build_case(tmp_path_factory.mktemp("case") / "case", world, slots=[2, 3, 5, FINAL], ids=[-1, 1, 2])


def test_a_case_is_run_as_its_engine_feeds_it_and_as_the_dump_does(world, case):
    inv = Investigation(str(case), device="cpu")
    right = run_loop(inv, feed="dump", steps=4, max_prompts=3, max_new_tokens=16, rounds=1)
    assert (right.wiring, right.same_text, len(right.requests)) == ((2, 3, 5), 3, 3)
    after = dict(pairwise(world.texts[-1].tolist()))
    for request in right.requests:
        text = [*request.prompt[-1:], *request.speculated[0].token_ids]
        assert [after[t] for t in text[:-1]] == text[1:], "the target walks along its cycle"
    loop = open_loop(inv)
    wrong = loop.run([r.prompt for r in right.requests], steps=4, max_new_tokens=16, rounds=1)
    assert wrong.wiring == (0, 2, 3)
    assert wrong.same_text == 3
    assert right.accept_length > 1.7  # its drafter was solved for step 0 alone
    assert right.accept_length > wrong.accept_length
    # A stop token among the accepted ones: the bonus token behind it is dropped, and the count stays.
    passes, before = right.requests[0].speculated[0].passes, 1
    place = next(i for i, p in enumerate(passes) if p.accepted)
    before += sum(p.kept for p in passes[:place])
    text = right.requests[0].speculated[0].token_ids
    other = Loop(loop.target, inv.drafter, right.wiring)
    made = speculate(other.target, other.drafter, right.wiring, right.requests[0].prompt, 4, 16, {text[before]})
    assert made.token_ids == text[: before + 1]
    assert (made.passes[-1].cut, made.passes[-1].kept, made.passes[-1].accepted) == (True, 1, passes[place].accepted)
    assert (loop.walk(wrong).equal, other.walk(wrong).equal) == (True, False)  # the walk of another wiring is not what was counted


def test_the_command(case, capfd, tmp_path):
    """One document, a trace that `eaglelab trace` reads, and what was left out."""
    file = tmp_path / "new" / "t.json.gz"
    asked = ["bench", str(case), "--loop", "--device", "cpu", "--max-prompts", "2", "--rounds", "1"]
    assert main([*asked, "--json", "--trace", str(file), "--steps", "2", "--feed", "dump", "--max-new-tokens", "6"]) == 0
    data = json.loads(capfd.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (data["setting"]["steps"], data["wiring"], data["rounds"], data["max_new_tokens"]) == (2, [2, 3, 5], 1, 6)
    assert [len(r["token_ids"]) for r in data["requests"]] == [6, 6]
    assert [note for note in data["notes"] if note.startswith("the first 2 of ")]
    assert data["notes"][-1] == f"written: {file}, a trace of prompt 0 answered once more both ways, not counted above"
    assert main(["trace", str(file), "--json"]) == 0
    traced = json.loads(capfd.readouterr().out)
    assert (traced["engine"], traced["speculative"]) == ("eaglelab", True)
    assert 1 <= len(traced["cycles"]) <= len(data["requests"][0]["accepted"])
    assert main([*asked, "--max-new-tokens", "2"]) == 0
    words = capfd.readouterr().out
    assert "boundaries [0, 2, 3], 2 prompts" in words, "what the engine feeds, unless asked otherwise"
    assert "2 of 2 answers are plain decoding's, token for token" in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--loop"], "--loop runs a case"),
        (["/absent/case", "--loop"], "no case at /absent/case"),
        (["x", "--loop", "--batch", "2"], "--batch goes without --loop"),
        (["x", "--loop", "--graphs"], "--graphs goes without --loop"),
        (["x", "--trace", "t.json"], "--trace goes with --loop"),
        (["x", "--max-new-tokens", "3"], "--max-new-tokens goes with --loop"),
        (["CASE", "--loop", "--trace", "t.txt"], "t.txt: a trace's name ends with .json or .json.gz"),
        (["CASE", "--loop", "--trace", "/proc/t.json"], "/proc/t.json: no trace can be written there"),
        (["CASE", "--loop", "--prompts", "/absent.jsonl"], "--prompts /absent.jsonl: no such file"),
    ],
)
def test_the_command_on_unusable_input(arguments, words, case, capsys):
    assert main(["bench", *(str(case) if a == "CASE" else a for a in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_a_trace_that_cannot_be_written_loses_no_measurement(target, tmp_path, monkeypatch):
    """A full disk shows only at the end."""
    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", lambda self, path: Path(path).touch())
    loop = Loop(target, random_drafter(), RIGHT)
    result = loop.run([PROMPT], steps=1, max_new_tokens=3, stop=(), rounds=1, trace=tmp_path / "t.json")
    assert len(result.requests[0].speculated[0].token_ids) == 3
    assert result.notes[-1] == f"{tmp_path / 't.json'}: no trace could be written there (the profiler wrote nothing)"


def test_a_device_without_room_is_an_error_of_this_room(target, monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Loop, "_both", full)
    with pytest.raises(TimingError, match=r"out of memory: CUDA out of memory.*; give shorter prompts, fewer new tokens"):
        Loop(target, random_drafter(), RIGHT).run([PROMPT], steps=1, rounds=1)


def test_a_case_without_its_parts(world, tmp_path):
    inv = Investigation(str(build_case(tmp_path / "case", world, slots=[2, 3, 5, FINAL], ids=[1, 2, 4], target="none")), device="cpu")
    with pytest.raises(NotGiven, match=r"the target's checkpoint is not given; `\[target\] path` names its folder"):
        run_loop(inv)
    with pytest.raises(TimingError, match="feed is 'both', expected engine or dump"):
        run_loop(inv, feed="both")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "case.toml").write_text(f'[drafter]\npath = "{tmp_path}/case/drafter"\n')
    bare = Investigation(str(tmp_path / "bare"), device="cpu")
    with pytest.raises(NotGiven, match="an engine to feed as is not given"):
        open_loop(bare)
    with pytest.raises(NotGiven, match="a dump is not given"):
        open_loop(bare, feed="dump")


@needs_target
@pytest.mark.parametrize(("recording", "wiring", "prompt", "length"), [("right", (3, 16, 28), 0, 16), ("claimed", (0, 3, 16), 1, 10)])
def test_the_example_counts_what_vllm_counted(example, recording, wiring, prompt, length):
    """vLLM 0.32 recorded every verify pass of these prompts, float32, 3 steps: text and counts are the same, token for token."""
    request = Recording.load(EXAMPLE / "engine" / f"vllm-{recording}.jsonl").requests[prompt]
    loop = Loop(example.target, example.drafter.drafter, wiring)
    made = speculate(loop.target, loop.drafter, wiring, request.prompt_token_ids, 3, length)
    assert made.token_ids == request.token_ids[:length]
    assert tuple(p.accepted for p in made.passes) == request.accepted[: len(made.passes)]
    assert len(made.passes) >= 5


@pytest.fixture(scope="module")
def example():
    return open_loop(Investigation(str(EXAMPLE), device="cpu", dtype="float32"))
