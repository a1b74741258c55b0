"""What SGLang's own code makes of speculative flags: its resolution, cut out of a published wheel and run on a stand-in for ServerArgs.

Nothing else of the wheel runs: what it imports from sglang is a stand-in too, but for the few modules of `REAL`. The stand-in has the
defaults that the wheel declares, `page_size` 1 and `device` cuda, as they are when that code is reached.
"""

import __future__

import ast
import builtins
import json
import logging
import os
import shlex
import types
from functools import lru_cache
from pathlib import Path

from engine_wheels import published
from sglang_options import add_arguments, fields, options

from eaglelab.engines.source.archive import open_source

REAL = ("srt/speculative/adaptive_spec_params.py", "srt/speculative/spec_info.py")
KEPT = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens", "max_running_requests", "overlap_schedule", "mixed_chunk", "adaptive")
SWITCHES = (
    "enable_mixed_chunk",
    "disable_overlap_schedule",
    "enable_dp_attention",
    "speculative_adaptive",
    "speculative_use_rejection_sampling",
)


def resolved(version: str, line: str, architecture: str, folder: Path) -> dict:
    """`KEPT` after the resolution, or {"stops": name of the exception}. `line`: variables, then flags."""
    given, variables = _words(line)
    if not {name.replace("_", "-") for name in given} <= options(version) or given.get("speculative_algorithm") not in _algorithms(version):
        return {"stops": "SystemExit"}
    args = Args(_defaults(version) | given, architecture, folder)
    try:
        _run(version, args, variables)
    except (ValueError, AssertionError, TypeError, NotImplementedError) as error:
        return {"stops": type(error).__name__}
    values = vars(args)
    return {
        "algorithm": values["speculative_algorithm"],
        "num_steps": values["speculative_num_steps"],
        "eagle_topk": values["speculative_eagle_topk"],
        "num_draft_tokens": values["speculative_num_draft_tokens"],
        "max_running_requests": values["max_running_requests"],
        "overlap_schedule": not values["disable_overlap_schedule"],
        "mixed_chunk": values["enable_mixed_chunk"],
        "adaptive": values.get("speculative_adaptive", False),
    }


@lru_cache
def _algorithms(version: str):
    """The choices of --speculative-algorithm, None with them; everything where the parser has none."""
    for node in add_arguments(open_source("sglang", published(version)).tree("srt/server_args.py")):
        if any(getattr(a, "value", None) == "--speculative-algorithm" for a in node.args):
            choices = [k.value for k in node.keywords if k.arg == "choices"]
            if choices:
                return [*ast.literal_eval(choices[0]), None]
    return Everything()


class Everything:
    def __contains__(self, item) -> bool:
        return True


def _words(line: str) -> tuple[dict, dict[str, str]]:
    given, variables, words = {}, {}, shlex.split(line)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            name, _, value = word.partition("=")
            variables[name] = value
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        value = True if name in SWITCHES else value if equals else words.pop(0)
        given[name] = int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value
        if name.startswith("speculative_accept_threshold"):
            given[name] = float(value)
    return given, variables


class Args(types.SimpleNamespace):
    """A stand-in for ServerArgs: plain attributes, and the target's config behind the few methods that are asked for it."""

    def __init__(self, values: dict, architecture: str, folder: Path) -> None:
        super().__init__(**values)
        (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        self.model_path = str(folder)
        self.__dict__["_config"] = types.SimpleNamespace(architectures=[architecture])

    def get_hf_config(self):
        return self._config

    def get_model_config(self):
        return types.SimpleNamespace(hf_config=self._config)


@lru_cache
def _defaults(version: str) -> dict:
    """Literal defaults of the fields of ServerArgs, wherever the version keeps them; None for the others."""
    source = open_source("sglang", published(version))
    found: dict = {}
    for path in ("srt/server_args.py", *source.paths("srt/arg_groups/fields/")):
        for field in fields(source.tree(path)):
            if isinstance(field.target, ast.Name):
                try:
                    found[field.target.id] = ast.literal_eval(field.value) if field.value else None
                except ValueError:
                    found[field.target.id] = None
    # What the engine has resolved before it comes to speculation.
    return found | {"page_size": 1, "device": "cuda", "attn_dp_size": 1, "decrypted_config_file": None, "json_model_override_args": "{}"}


def _run(version: str, args: Args, variables: dict[str, str]) -> None:
    source = open_source("sglang", published(version))
    world = World(source, args, variables)
    hook = "srt/arg_groups/speculative_hook.py"
    if source.has(hook):
        world.module(hook)["handle_speculative_decoding"](args)
        return
    names = world.names()
    exec(_handler(source), names)
    names["_handle_speculative_decoding"](args)


@lru_cache
def _handler(source):
    """The code of the resolution, where it is a part of ServerArgs."""
    tree = source.tree("srt/server_args.py")
    methods = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ServerArgs").body
    handler = next((n for n in methods if getattr(n, "name", None) == "_handle_speculative_decoding"), None)
    if handler is None:  # 0.4: a part of one long method
        whole = next(n for n in methods if getattr(n, "name", None) == "__post_init__")
        part = [n for n in whole.body if isinstance(n, ast.If) and "speculative_algorithm" in ast.unparse(n.test)]
        handler = ast.parse("def _handle_speculative_decoding(self): pass").body[0]
        handler.body = part
    return _cut_out([*_functions(tree), handler])


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    wanted = ("auto_choose_speculative_params", "_resolve_speculative_algorithm_alias")
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]


@lru_cache
def _chooser(source, path: str):
    return _cut_out(_functions(source.tree(path)))


def _cut_out(functions: list[ast.FunctionDef]):
    for node in functions:  # annotations name what is not here
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    return compile(ast.fix_missing_locations(ast.Module(functions, [])), "cut out of SGLang", "exec")


@lru_cache
def _code(source, path: str):
    """A module's code; its annotations name what is not here, and are left as text."""
    return compile(source.text(path), path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)


@lru_cache
def _variables(source) -> dict:
    """SGLang's environment variables and the defaults that its environ.py declares."""
    found = {}
    for node in ast.walk(source.tree("srt/environ.py")):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value.args[0]) if node.value.args else None
            except ValueError:
                continue
    return found


class World:
    """The names that the cut-out code finds."""

    def __init__(self, source, args: Args, variables: dict[str, str]) -> None:
        self.source, self.args, self.variables = source, args, variables
        self.modules: dict[str, dict] = {}

    def names(self) -> dict:
        plain = {name: getattr(builtins, name) for name in dir(builtins)} | {"__import__": self.imported}
        return {
            "__builtins__": plain,
            "__name__": "cut_out",
            "logger": logging.getLogger("cut_out"),
            "os": os,
            "json": json,
            "envs": Variables(self),
            "get_model_arch": lambda args: args.get_hf_config().architectures[0],
            "get_config": lambda *_, **__: self.args.get_hf_config(),
        }

    def module(self, path: str) -> dict:
        if path not in self.modules:
            self.modules[path] = names = self.names()
            exec(_code(self.source, path), names)
        return self.modules[path]

    def imported(self, name: str, globals=None, locals=None, fromlist=(), level=0):
        if not name.startswith("sglang"):
            return __import__(name, globals, locals, fromlist, level)
        path = name.removeprefix("sglang.").replace(".", "/") + ".py"
        if path in REAL and self.source.has(path):
            return types.SimpleNamespace(**self.module(path))
        if path == "srt/arg_groups/speculative_hook.py":
            return types.SimpleNamespace(**self.modules[path])
        if "auto_choose_speculative_params" in fromlist:  # 0.5.13
            names = self.names()
            exec(_chooser(self.source, path), names)
            return types.SimpleNamespace(**names)
        return StandInModule(self)


class Variables:
    """SGLang's `envs`: the variable's value, or the default that its environ.py declares."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str):
        world = self._world
        if name not in _variables(world.source):
            raise AttributeError(name)
        default = _variables(world.source)[name]
        value = world.variables.get(name)
        if value is None:
            return types.SimpleNamespace(get=lambda: default)
        return types.SimpleNamespace(get=lambda: value.lower() in ("1", "true", "yes", "y") if isinstance(default, bool) else float(value))


class StandInModule:
    """A module of the engine that is not run: what it gives does nothing, but for the names below."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str):
        world = self._world

        def declare(args, _who, **values):
            vars(args).update(values)

        known = {
            "envs": Variables(world),
            "resolving_view": lambda args: args,
            "resolved_view": lambda args: args,
            "declare_resolution": declare,
            "model_config_of": lambda args: args.get_model_config(),
            "attn_dp_enabled_of": lambda view: view.attn_dp_size > 1,
            "attention_backends_of": lambda v: (
                v.prefill_attention_backend or v.attention_backend,
                v.decode_attention_backend or v.attention_backend,
            ),
            "get_platform": lambda: types.SimpleNamespace(is_hip=False),
            "current_platform": types.SimpleNamespace(is_out_of_tree=lambda: False, get_speculative_worker_cls=lambda *_: None),
            "get_config": lambda *_, **__: types.SimpleNamespace(architectures=["LlamaForCausalLMEagle3"]),
            "CustomSpecAlgo": type("CustomSpecAlgo", (), {}),
        }
        return known.get(name, lambda *_, **__: None)
