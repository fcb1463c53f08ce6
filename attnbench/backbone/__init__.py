"""The one shared Transformer, out of small parts: attention round any variant, layers, stacks, and heads for the answers."""

from attnbench.backbone.attention import MultiHeadAttention
from attnbench.backbone.layers import Block, Layer, Use
from attnbench.backbone.stack import Stack
from attnbench.backbone.transformer import Transformer

__all__ = ["Block", "Layer", "MultiHeadAttention", "Stack", "Transformer", "Use"]
