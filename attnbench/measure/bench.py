"""From a workload to something that can be called: the module, seeded inputs, and one call of the asked mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from attnbench.backbone import Stack
from attnbench.contract import Unsupported
from attnbench.measure.workload import Workload, check_device, refusals
from attnbench.registry import create_variant, variant_info

__all__ = ["DECODE_TOKENS", "Bench", "attention_inputs", "build"]

_OF_LAYERS = {"kv_heads": "kv_heads", "dropout": "attention_dropout"}  # a variant's common options, as layers call them
DECODE_TOKENS = 8  # new tokens in one call of mode "decode": the time of one is a share of them


@dataclass(frozen=True)
class Bench:
    """What is measured. `call` does the workload once; `tokens` is how many results one call gives (decode: new
    tokens).

    `module` holds the parameters; `state` is the decoding state after the prompt, in mode "decode" alone;
    `at(length)` is the same with the same module at another length.
    """

    call: Callable[[], Any]
    module: nn.Module
    at: Callable[[int], Bench]
    tokens: int = 1
    state: Any = None


def build(
    workload: Workload,
    *,
    seed: int = 0,
    max_len: int | None = None,
    wrap: Callable[[nn.Module], Any] = lambda module: module,
) -> Bench:
    """The module and the inputs of a workload, drawn from `seed`, and its call.

    Inputs are laid out as a projection leaves them: (batch, n, heads, width) in memory, seen as (batch, heads, n,
    width). Where a variant asks the backbone for global tokens, it gets as many tokens more, as it does inside the
    backbone.

    Args:
        max_len: the longest length to be met; by default the workload's own.
        wrap: applied to the module that is called, such as torch.compile.

    Raises:
        Unsupported: the variant does not declare what the workload needs; all reasons are given.
        UserError: the variant, an option or the device does not exist.
    """
    reasons = refusals(workload)
    if reasons:
        raise Unsupported(reasons)
    device = check_device(workload.device)
    longest = (max_len or workload.length) + (DECODE_TOKENS if workload.mode == "decode" else 0)
    own = dict(workload.options)
    longest = max(longest, own.pop("max_len", 0))  # a longest length of the user's own
    workload = replace(workload, options=own)
    with _seeded(device, seed):
        make = _attention if workload.scope == "attention" else _model
        module, draw = make(workload, longest)
        module.to(device, getattr(torch, workload.dtype)).train(workload.mode in ("backward", "train_step"))
    wrapped = wrap(module)

    def at(length: int) -> Bench:
        with _seeded(device, seed):
            inputs = draw(length, True)
            if workload.mode == "decode":
                return _decode(at, module, inputs, [draw(1, False) for _ in range(DECODE_TOKENS)])
            return _MODES[workload.mode](at, module, wrapped, inputs)

    return at(workload.length)


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Draws from `seed`, and leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def attention_inputs(workload: Workload, *, seed: int = 0) -> tuple[Any, tuple[Any, ...], dict[str, Tensor]]:
    """A workload's attention module with its q, k, v (None where it does not read one) and its streams, drawn from `seed`."""
    reasons = refusals(workload)
    if reasons:
        raise Unsupported(reasons)
    with _seeded(check_device(workload.device), seed):
        module, draw = _attention(workload, workload.length)
        args, streams = draw(workload.length, True)
    return module, args, streams


# -- the two scopes: a module, and a function that draws the inputs for a number of tokens
# ---------------------------------

Inputs = tuple[tuple[Tensor | None, ...], dict[str, Tensor]]
Draw = Callable[[int, bool], Inputs]
At = Callable[[int], Bench]


def _attention(workload: Workload, longest: int) -> tuple[nn.Module, Draw]:
    info = variant_info(workload.variant, **{**workload.options, "causal": workload.causal, "max_len": longest})
    extra = info.options[info.supports.global_tokens] if info.supports.global_tokens else 0
    module = create_variant(
        workload.variant,
        heads=workload.heads,
        head_dim=workload.head_dim,
        max_len=longest + extra,
        causal=workload.causal,
        **workload.options,
    )
    kv_heads = workload.options.get("kv_heads") or workload.heads

    def draw(n: int, prompt: bool) -> Inputs:
        n += extra if prompt else 0
        wanted = module.supports.reads
        q, k, v = (
            _heads(workload, n, heads, workload.head_dim) if name in wanted or name == "v" else None
            for name, heads in (("q", workload.heads), ("k", kv_heads), ("v", kv_heads))
        )
        streams = {
            stream.name: _heads(workload, n, workload.heads, stream.width or workload.head_dim)
            for stream in module.supports.streams
        }
        return (q, k, v), streams

    return module, draw


def _model(workload: Workload, longest: int) -> tuple[nn.Module, Draw]:
    own = {name: value for name, value in workload.options.items() if name not in _OF_LAYERS}
    shared = {_OF_LAYERS[name]: value for name, value in workload.options.items() if name in _OF_LAYERS}
    stack = Stack(
        workload.dim,
        workload.heads,
        workload.depth,
        variant=workload.variant,
        options=own,
        max_len=longest,
        causal=workload.causal,
        **shared,
    )

    def draw(n: int, prompt: bool) -> Inputs:
        return (_normal(workload, workload.batch, n, workload.dim),), {}

    return stack, draw


def _normal(workload: Workload, *shape: int) -> Tensor:
    return torch.randn(*shape).to(workload.device, getattr(torch, workload.dtype))


def _heads(workload: Workload, n: int, heads: int, width: int) -> Tensor:
    return rearrange(_normal(workload, workload.batch, n, heads, width), "batch n heads width -> batch heads n width")


# -- the four modes
# --------------------------------------------------------------------------------------------------------


def _forward(at: At, module: nn.Module, wrapped: Any, inputs: Inputs) -> Bench:
    args, streams = inputs

    @torch.no_grad()
    def call() -> Tensor:
        return wrapped(*args, **streams)

    return Bench(call, module, at)


def _leaves(module: nn.Module, inputs: Inputs) -> list[Tensor]:
    """All that has a gradient: the inputs, since a layer below would ask for theirs, and the parameters."""
    args, streams = inputs
    drawn = [tensor.requires_grad_() for tensor in (*args, *streams.values()) if tensor is not None]
    return drawn + [parameter for parameter in module.parameters() if parameter.requires_grad]


def _backward(at: At, module: nn.Module, wrapped: Any, inputs: Inputs) -> Bench:
    args, streams = inputs
    leaves = _leaves(module, inputs)
    out = wrapped(*args, **streams)
    gradient = torch.randn_like(out)

    def call() -> Any:
        return torch.autograd.grad(out, leaves, gradient, retain_graph=True, allow_unused=True)

    return Bench(call, module, at)


def _train_step(at: At, module: nn.Module, wrapped: Any, inputs: Inputs) -> Bench:
    args, streams = inputs
    leaves = _leaves(module, inputs)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4) if parameters else None
    gradient = torch.randn_like(wrapped(*args, **streams).detach())

    def call() -> None:
        wrapped(*args, **streams).backward(gradient)
        if optimizer is not None:
            optimizer.step()
        for leaf in leaves:  # at the end, so that gradients count as this step's memory and not as the resting state's
            leaf.grad = None

    return Bench(call, module, at)


_MODES: dict[str, Callable[[At, nn.Module, Any, Inputs], Bench]] = {
    "forward": _forward,
    "backward": _backward,
    "train_step": _train_step,
}


def _decode(at: At, module: Any, prompt: Inputs, tokens: list[Inputs]) -> Bench:
    """Every call decodes the same new tokens from the state after the prompt, which a step leaves as it was."""
    args, streams = prompt
    with torch.no_grad():
        _, state = module.prefill(*args, **streams)

    @torch.no_grad()
    def call() -> Tensor:
        current = state
        for token, token_streams in tokens:
            out, current = module.step(*token, current, **token_streams)
        return out

    return Bench(call, module, at, len(tokens), state)
