"""Draft trees against a slow one that grows node by node, against chains, and against SGLang's own choice of nodes."""

import ast
import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from case_builder import build_case, make_world
from tiny_drafters import FLAG_SETS, VD, H, tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.cli import main
from eaglelab.drafter.embedding import EmbeddingError, EmbeddingRows
from eaglelab.dumps import Sample
from eaglelab.replay import EMBEDDING, Judge, TargetHead, Variant, replay
from eaglelab.replay.sequential import SequentialDrafter
from eaglelab.replay.tree import tree_replay
from eaglelab.replay.tree_choice import Candidates
from eaglelab.served import Recording, Request
from eaglelab.served.predict import from_dump, predict
from eaglelab.served.recording import Session
from eaglelab.wiring import FINAL

FEED = Variant((0, 1, 2))
PROMPT = 4
SHAPES = [(3, 4, 8), (4, 2, 5), (2, 3, 13), (5, 3, 20), (1, 4, 3)]
"""Steps, topk, nodes."""


@dataclass
class Node:
    token: int
    score: float
    parent: "Node | None"
    depth: int
    state: torch.Tensor | None = None
    logits: torch.Tensor | None = None


class SlowTree:
    """One tree from the last row fed to a sequential drafter: one node at a time, in plain Python."""

    def __init__(self, drafting: SequentialDrafter, steps: int, topk: int) -> None:
        self.drafting, self.topk, self.row = drafting, topk, drafting.filled - 1
        state, logits = drafting.last
        self.nodes = lanes = self.children(None, state, logits)
        kept = [[] for _ in lanes]  # each lane's own keys and values, layer by layer, whatever branch it was on
        for step in range(1, steps):
            for lane, node in enumerate(lanes):
                self.feed(node, step, kept[lane])
            born = [child for node in lanes for child in self.children(node, node.state, node.logits)]
            self.nodes = self.nodes + born
            lanes = sorted(born, key=lambda n: -n.score)[:topk]
            for lane in lanes:
                lane.state = lane.parent.state
        drafting.filled = self.row + 1

    def children(self, parent, state, logits) -> list[Node]:
        p = torch.softmax(logits, dim=0)
        best = sorted(range(len(p)), key=lambda i: -float(p[i]))[: self.topk]
        score, depth = (parent.score, parent.depth + 1) if parent else (1.0, 1)
        return [Node(self.drafting.vocabulary[i], score * float(p[i]), parent, depth, state) for i in best]

    def feed(self, node: Node, step: int, kept: list) -> None:
        drafting = self.drafting
        for place, row in enumerate(kept):
            for (keys, values), (key, value) in zip(drafting.cache, row, strict=True):
                keys[self.row + 1 + place], values[self.row + 1 + place] = key, value
        drafting.filled = self.row + step
        node.state, node.logits = drafting._row(node.state, node.token)
        kept.append([(keys[self.row + step].clone(), values[self.row + step].clone()) for keys, values in drafting.cache])

    def chosen(self, nodes: int) -> list[Node]:
        return sorted(self.nodes, key=lambda n: -n.score)[: nodes - 1]

    def accepted(self, nodes: int, text: list[int]) -> int:
        at, chosen = None, self.chosen(nodes)
        for n, token in enumerate(text):
            at = next((c for c in chosen if c.parent is at and c.token == token), None)
            if at is None:
                return n
        return len(text)


def slow_walk(
    drafter, sample: Sample, steps: int, topk: int, nodes: int, *, write: int | None = None, flags=None
) -> tuple[list[int], list]:
    """Accepted tokens of each verify step while the whole draft lies inside the text. write: a seed, to write the text on the way: it follows
    a random path of the tree and then leaves it."""
    tokens, drafting = sample.token_ids.tolist(), SequentialDrafter(drafter, tiny_embedding(), flags=flags)
    draw = torch.Generator().manual_seed(write or 0)
    accepted, fed, t = [], 0, PROMPT - 1
    while t + 1 + steps < len(tokens):
        while fed <= t:
            drafting.extend([s[fed] for s in sample.slots[:3]], tokens[fed + 1])
            fed += 1
        tree = SlowTree(drafting, steps, topk)
        if write is not None:
            chosen = tree.chosen(nodes)
            depth = min(int(torch.randint(0, steps + 1, (1,), generator=draw)), max(c.depth for c in chosen))
            there = [c for c in chosen if c.depth == depth]
            node = there[int(torch.randint(0, len(there), (1,), generator=draw))] if depth else None
            path = []
            while node is not None:
                path.insert(0, node.token)
                node = node.parent
            tokens[t + 2 : t + 2 + len(path)] = path
        n = tree.accepted(nodes, tokens[t + 2 : t + 2 + steps])
        accepted.append(n)
        t += n + 1
    return accepted, tokens


def written(drafter, seed: int, shape, length: int = 34) -> Sample:
    sample = tiny_sample(f"s{seed}", length, PROMPT, seed)
    return replace(sample, token_ids=torch.tensor(slow_walk(drafter, sample, *shape, write=seed)[1]))


def trees(drafter, samples, shape, variant=FEED, **options):
    steps, topk, nodes = shape
    return tree_replay(drafter, samples, tiny_embedding(), variant, steps=steps, topk=topk, num_draft_tokens=nodes, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_trees_are_what_a_slow_one_grows(shape):
    drafter = tiny_drafter(5)
    samples = [written(drafter, seed, shape) for seed in (1, 2, 3)]
    result = trees(drafter, samples, shape)
    slow = [slow_walk(drafter, s, *shape)[0] for s in samples]
    assert [list(o.accepted) for o in result.outcomes] == slow
    flat = [n for accepted in slow for n in accepted]
    assert set(flat) >= set(range(min(shape[0], 3) + 1))
    assert result.histogram == tuple(flat.count(i) for i in range(shape[0] + 1))
    assert (result.walk.verify_steps, result.walk.accepted) == (len(flat), sum(flat))
    assert result.accept_length == pytest.approx(1 + sum(flat) / len(flat))


@pytest.mark.parametrize("name", FLAG_SETS)
def test_every_kind_of_drafter(name):
    drafter, shape = tiny_drafter(6, **FLAG_SETS[name]), (3, 3, 8)
    samples = [written(drafter, seed, shape, 24) for seed in (1, 2)]
    accepted = [list(o.accepted) for o in trees(drafter, samples, shape).outcomes]
    assert accepted == [slow_walk(drafter, s, *shape)[0] for s in samples]
    assert max(n for a in accepted for n in a) >= 2


def test_flags_of_the_variant():
    from eaglelab.drafter.model import Flags

    drafter, shape, flags = tiny_drafter(7), (3, 3, 8), Flags(post_norm_recurrence=True, norm_before_residual=True)
    sample = written(drafter, 3, shape)
    other = trees(drafter, [sample], shape, replace(FEED, flags=flags)).outcomes[0].accepted
    assert list(other) == slow_walk(drafter, sample, *shape, flags=flags)[0]
    assert other != trees(drafter, [sample], shape).outcomes[0].accepted


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("name", ["plain", "two layers", "mla", "norm_output"])
def test_one_token_a_step_is_a_chain(steps, name):
    drafter = tiny_drafter(8, **FLAG_SETS[name])
    samples = [written(drafter, seed, (steps, 1, steps + 1), 40) for seed in range(4)]
    result = tree_replay(drafter, samples, tiny_embedding(), FEED, steps=steps, topk=1, num_draft_tokens=16)
    chain = replay(drafter, samples, tiny_embedding(), [FEED], steps=steps)[0]
    assert result.num_draft_tokens == steps + 1  # as SGLang overrides it
    assert [o.accepted for o in result.outcomes] == [o.walk for o in chain.outcomes]
    assert result.walk == chain.walk
    assert len(set(chain.accepted)) == steps + 1


def test_walks_are_the_same_alone_and_side_by_side(monkeypatch):
    import eaglelab.replay.tree as tree

    drafter, shape = tiny_drafter(9), (3, 4, 8)
    samples = [written(drafter, seed, shape, length) for seed, length in ((1, 20), (2, 50), (3, 33))]
    together = trees(drafter, samples, shape).outcomes
    assert together == tuple(trees(drafter, [s], shape).outcomes[0] for s in samples)
    monkeypatch.setattr(tree, "BATCH_ROWS", 40)
    assert together == trees(drafter, samples, shape).outcomes


def test_every_answer_of_a_sample_is_walked_through():
    drafter, shape = tiny_drafter(10), (3, 4, 8)
    sample = written(drafter, 4, shape, 60)
    mask = torch.zeros(60, dtype=torch.int64)
    mask[PROMPT:20], mask[30:50] = 1, 1
    outcome = trees(drafter, [replace(sample, loss_mask=mask)], shape).outcomes[0]
    alone = []
    for first, end in ((PROMPT, 20), (30, 50)):
        only = (torch.arange(end) >= first).long()
        cut = replace(sample, token_ids=sample.token_ids[:end], slots=tuple(s[:end] for s in sample.slots), loss_mask=only)
        alone += trees(drafter, [cut], shape).outcomes[0].walks
    assert outcome.walks == tuple(alone)
    assert all(len(w.accepted) > 3 for w in alone)


def test_without_a_mask_there_is_no_walk():
    drafter = tiny_drafter(10)
    result = trees(drafter, [replace(tiny_sample("a", 20, PROMPT, 1), loss_mask=None)], (3, 4, 8))
    assert (result.walk, result.histogram, result.accept_length) == (None, None, None)
    nothing = trees(drafter, [replace(tiny_sample("a", 20, PROMPT, 1), loss_mask=torch.zeros(20, dtype=torch.int64))], (3, 4, 8))
    assert (nothing.walk.verify_steps, nothing.histogram, nothing.accept_length) == (0, (0, 0, 0, 0), None)


def test_the_targets_argmax_may_judge():
    """A head that says the text's next token everywhere judges as the text does; one that never does accepts nothing."""
    drafter, shape = tiny_drafter(11), (3, 4, 8)
    sample = written(drafter, 5, shape)
    said = torch.zeros(34, 64)
    said[torch.arange(33), sample.token_ids[1:]] = 1.0
    judged = replace(sample, slots=(*(torch.nn.functional.pad(s, (0, 40)) for s in sample.slots[:3]), said))
    wide = tiny_drafter(11, target_hidden_size=64)
    wide.load_state_dict(
        {**drafter.state_dict(), "fc.weight": torch.nn.functional.pad(drafter.fc.weight.unflatten(1, (3, H)), (0, 40)).flatten(1)}
    )
    judge = Judge(3, TargetHead(torch.eye(64)), norm_last=False)
    result = trees(wide, [judged], shape, judge=judge)
    assert (result.judged_by, result.outcomes[0].accepted) == ("the target's argmax", trees(drafter, [sample], shape).outcomes[0].accepted)
    other = Judge(3, TargetHead(torch.eye(64).roll(1, 0)), norm_last=False)
    assert trees(wide, [judged], shape, judge=other).walk.accepted < result.walk.accepted / 2


@pytest.mark.parametrize(
    ("steps", "topk", "nodes", "text"),
    [
        (3, 4, 38, "num_draft_tokens is 38, expected 2 to 37: 3 steps of topk 4 score .* = 36 candidates"),
        (1, 4, 6, "num_draft_tokens is 6, expected 2 to 5"),
        (3, 4, 1, "num_draft_tokens is 1, expected 2 to 37"),
        (3, 4, None, "a tree of topk 4 needs num_draft_tokens: the nodes of a verify pass, the root included"),
        (0, 4, 8, "steps 0 and topk 4"),
        (3, 0, 8, "steps 3 and topk 0"),
    ],
)
def test_trees_that_cannot_be(steps, topk, nodes, text):
    with pytest.raises(ValueError, match=text):
        tree_replay(tiny_drafter(), [tiny_sample("a", 20, 4, 1)], tiny_embedding(), FEED, steps=steps, topk=topk, num_draft_tokens=nodes)


def test_what_a_tree_cannot_be_fed():
    drafter, samples = tiny_drafter(), [tiny_sample("a", 20, 4, 1)]
    with pytest.raises(ValueError, match="topk is 41, more than the 40 tokens of the draft vocabulary"):
        trees(drafter, samples, (3, VD + 1, 8))
    with pytest.raises(ValueError, match="token shifted by -1: a tree is fed its own tokens, which cannot be shifted"):
        trees(drafter, samples, (3, 4, 8), replace(FEED, token_shift=-1))
    with pytest.raises(ValueError, match="feeds 2 slots"):
        trees(drafter, samples, (3, 4, 8), Variant((0, 1)))
    few = samples[0].token_ids.unique()
    embed = EmbeddingRows(few, tiny_embedding()(few), "the file")
    with pytest.raises(EmbeddingError, match=r"a tree is fed the tokens that it drafts: the file holds no .* whole draft vocabulary"):
        tree_replay(drafter, samples, embed, FEED, steps=3, topk=4, num_draft_tokens=8)
    assert trees(drafter, samples, (3, 4, 8), Variant((EMBEDDING, 0, 1))).walk.verify_steps > 3


def test_near_ties_are_counted():
    """Every token of the draft vocabulary is as likely as any other: all choices of all steps hang on ties."""
    drafter = tiny_drafter()
    drafter.lm_head.weight.zero_()
    result = trees(drafter, [tiny_sample("a", 30, 4, 1)], (3, 4, 8))
    assert result.near_ties == sum(len(w.accepted) + w.cut for w in result.outcomes[0].walks)
    assert trees(tiny_drafter(5), [tiny_sample("a", 30, 4, 1)], (3, 4, 8)).near_ties <= 1


# -- recordings and cases --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran():
    """A text that goes on beyond every answer, and the engine's counts over it: the session says what it drafted."""
    drafter, shape = tiny_drafter(12), (3, 4, 8)
    sample = written(drafter, 6, shape, 50)
    return drafter, sample, slow_walk(drafter, sample, *shape)[0], Session(num_steps=3, eagle_topk=4, num_draft_tokens=8)


@pytest.mark.parametrize("answer", range(2, 40, 3))
def test_a_recorded_tree_run_is_predicted_to_its_end(ran, answer):
    drafter, sample, accepted, session = ran
    tokens, counts = sample.token_ids.tolist(), []
    while 1 + sum(n + 1 for n in counts) < answer:
        counts.append(accepted[len(counts)])
    histogram = tuple(counts.count(i) for i in range(max(counts) + 1))
    request = Request(0, tuple(tokens[:PROMPT]), tuple(tokens[PROMPT : PROMPT + answer]), histogram=histogram)
    recording = Recording(None, session, (request,))
    found = predict(recording, drafter, from_dump(recording, [sample]), tiny_embedding(), FEED)
    assert (found.topk, found.num_draft_tokens, found.equal) == (4, 8, True)
    other = replace(recording, requests=(replace(request, histogram=(histogram[0] + 2, *histogram[1:])),))
    assert predict(other, drafter, from_dump(other, [sample]), tiny_embedding(), FEED).equal is False
    if answer > 15:
        chain = predict(recording, drafter, from_dump(recording, [sample]), tiny_embedding(), FEED, topk=1)
        assert chain.equal is False


LINE = "python -m sglang.launch_server --speculative-num-steps 2 --speculative-eagle-topk {} --speculative-num-draft-tokens {}"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3)


def case_with(world, folder, topk, nodes, embed=True):
    path = build_case(folder, world, slots=[1, 3, 5, FINAL], ids=[-1, 0, 2]) / "case.toml"
    text = path.read_text().replace("[engine]", f'[engine]\nlaunch = "{LINE.format(topk, nodes)}"')
    lines = [line for line in text.splitlines() if embed or not line.startswith("embed")]
    path.write_text("\n".join(lines) + "\n")
    return path


def replayed(capsys, *arguments):
    code = main(["replay", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("embed", [True, False])
def test_the_launch_lines_trees_are_drafted(world, tmp_path, capsys, embed):
    """With a file of embedding rows, and with those of the target's checkpoint, of the samples' tokens and of what is drafted."""
    path = case_with(world, tmp_path, 3, 6, embed)
    code, data = replayed(capsys, path)
    assert code == 0
    trees = {t["variant"]: t for t in data["trees"]}
    chains = {r["variant"]: r for r in data["replays"]}
    assert set(trees) == {"the dump's feed", "the engine's feed"}
    for name, tree in trees.items():
        assert (tree["steps"], tree["topk"], tree["num_draft_tokens"], tree["judged_by"]) == (2, 3, 6, "the target's argmax")
        assert sum(tree["histogram"]) == tree["walk"]["verify_steps"]
        assert tree["walk"]["accept_length"] >= chains[name]["walk"]["accept_length"]
    assert trees["the engine's feed"]["walk"]["accept_length"] < trees["the dump's feed"]["walk"]["accept_length"]
    main(["replay", str(path)])
    length = trees["the dump's feed"]["walk"]["accept_length"]
    line = next(line for line in capsys.readouterr().out.splitlines() if "the dump's feed tree of 2 steps, top-k 3, 6 nodes" in line)
    assert f" {length:.3f} " in line


def test_what_is_asked_for_goes_before_the_launch_line(world, tmp_path, capsys):
    path = case_with(world, tmp_path, 1, 3)
    assert "trees" not in replayed(capsys, path)[1]
    code, data = replayed(capsys, path, "--topk", 2, "--draft-tokens", 4)
    assert (code, {(t["topk"], t["num_draft_tokens"]) for t in data["trees"]}) == (0, {(2, 4)})
    code, data = replayed(capsys, path, "--topk", 2)
    assert (code, data["error"][:46]) == (2, "a tree of topk 2 needs num_draft_tokens: the n")


def test_a_launch_line_with_an_impossible_tree_is_told(world, tmp_path, capsys):
    path = case_with(world, tmp_path, 2, 16)
    code, data = replayed(capsys, path)
    assert code == 0
    assert data["no_trees"].startswith("the launch line's cannot be replayed: num_draft_tokens is 16, expected 2 to 7")
    assert main(["replay", str(path)]) == 0
    assert "no trees: the launch line's cannot be replayed" in capsys.readouterr().out
    assert replayed(capsys, path, "--topk", 2, "--draft-tokens", 16)[0] == 2


# -- SGLang's own functions ------------------------------------------------------------------------------------------------

WANTED = ("_select_top_k_tokens_first", "_select_top_k_tokens_later", "select_top_k_tokens", "organize_draft_results")
ROOT = Path(__file__).parents[1]


def sglang_sources() -> list[str]:
    """spec_utils.py and eagle_utils.py of the installed SGLang: in this environment or the live one."""
    files = ("sglang/srt/speculative/spec_utils.py", "sglang/srt/speculative/eagle_utils.py")
    spec = importlib.util.find_spec("sglang")
    folders = [Path(p).parent for p in (spec.submodule_search_locations or ())] if spec else []
    for folder in (*folders, *ROOT.glob(".live/sglang/lib/python3*/site-packages")):
        if all((folder / f).is_file() for f in files):
            return [(folder / f).read_text() for f in files]
    pytest.skip("SGLang's source is not at hand (`make live` installs it into .live/sglang)")


@pytest.fixture(scope="module")
def sglang() -> dict:
    """The four functions that choose nodes, out of SGLang's files and run as they are, without compiling and out-of-bounds probes."""
    found: dict = {
        "torch": torch,
        "Optional": object,
        "List": list,
        "fast_topk": torch.topk,
        "maybe_detect_oob": lambda *a: None,
    }
    for source in sglang_sources():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name in WANTED:
                node.decorator_list, node.returns = [], None
                for argument in node.args.args:
                    argument.annotation = None
                exec(compile(ast.Module([node], []), "sglang", "exec"), found)
    assert set(WANTED) <= set(found)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_nodes_and_lanes_are_sglangs(sglang, shape):
    """On the same probabilities: the lanes' tokens and origins at every depth, and the tree's tokens and parents at the end."""
    steps, topk, nodes = shape
    draw = torch.Generator().manual_seed(topk)
    mine, width = Candidates(near=1e-6), 6
    scores = hidden = None
    lists = ([], [], [])
    for depth in range(steps):
        lanes = 1 if depth == 0 else topk
        p = torch.randn(width * lanes, 50, generator=draw).mul(3).softmax(-1)
        best = p.topk(topk + 1, dim=-1)
        top_p, top_index = best.values[:, :topk].contiguous(), best.indices[:, :topk].contiguous()
        # a hidden state that names its row, so that the lanes' origins can be read off
        state = torch.arange(width * lanes, dtype=torch.float32)[:, None] if depth else torch.arange(width, dtype=torch.float32)[:, None]
        ids, hidden, scores, info = sglang["select_top_k_tokens"](depth, top_p, top_index, state, scores, topk)
        for kept, part in zip(lists, info, strict=True):
            kept.append(part)
        tokens, parents = mine.grow(best.values.unflatten(0, (width, lanes)), top_index.unflatten(0, (width, lanes)))
        assert tokens.flatten().tolist() == ids.tolist()
        origin = parents + torch.arange(width)[:, None] * lanes
        assert origin.flatten().tolist() == hidden[:, 0].long().tolist()
    parent_list, chosen, tokens = sglang["organize_draft_results"](*lists, nodes)
    tree = mine.tree(nodes)
    place = tree.nonzero()[:, 1].view(width, -1)
    assert place.tolist() == chosen.tolist()
    assert torch.cat(mine.tokens, 1).gather(1, place).tolist() == tokens.tolist()
    # Linked as the kernel links them: entry place // topk of the parents' list, 0 for the root (build_tree_kernel in sgl_kernel's eagle_utils.cu).
    linked = [[-1 if c // topk == 0 else parent_list[w, c // topk].item() for c in line] for w, line in enumerate(chosen.tolist())]
    assert torch.cat(mine.parents, 1).gather(1, place).tolist() == linked
    assert not mine.near_tie.any()


def test_draft_tokens_without_a_tree_are_refused(world, tmp_path, capsys):
    path = case_with(world, tmp_path, 1, 3)
    code, data = replayed(capsys, path, "--draft-tokens", 8)
    assert code == 2
    assert "--draft-tokens 8 is of a tree: give --topk above 1" in data["error"]
