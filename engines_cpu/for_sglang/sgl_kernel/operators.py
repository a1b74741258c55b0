"""Operators in torch's `sgl_kernel` namespace, under the names and schemas by which SGLang calls them."""

import torch

LIBRARY = torch.library.Library("sgl_kernel", "DEF")


class Unsupported(NotImplementedError):
    """A feature that the stand-in lacks; the message names it."""


def unsupported(what: str) -> Unsupported:
    return Unsupported(
        f"the stand-in for sgl_kernel has no {what}: it runs a Llama-type target with an EAGLE-3 drafter on one CPU process "
        "(engines_cpu/README.md); use a GPU, or Intel's own build of SGLang for the CPU"
    )


def operator(schema: str):
    """Register the decorated function under the name in `schema`."""

    def register(function):
        LIBRARY.define(schema)
        LIBRARY.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
        return function

    return register
