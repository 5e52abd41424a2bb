"""torch's attention with its projections as steps of their own. nn.MultiheadAttention uses its
weights without calling a layer, so nothing can be put behind them from outside."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._support import records_plain_model, refuse_transforms

PROJECTIONS = ("q", "k", "v", "out_proj")


class ProjectedAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention with a forward in Python where a gradient is needed; its results equal
    torch's to the last bit. Subclasses override _project_in() and _project_out(). Where no gradient
    is needed it calls torch's forward, with its fast path.

    Tensors inside are (length, batch, embedding), as in torch.
    """

    _holder: str  # the submodule with the state of the projections

    def _project_in(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """q, k and v."""
        if not self._qkv_same_embed_dim:
            return self._project_apart(query, key, value)
        return self._project_packed(query, key, value)

    def _project_out(self, x: Tensor) -> Tensor:
        """The result, of a matrix."""
        return F.linear(x, self.out_proj.weight, self.out_proj.bias)

    def _in_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Those of q, k and v; parts of the packed one where there is one."""
        if self._qkv_same_embed_dim:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _in_biases(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)

    def _project_apart(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        each = zip(inputs, self._in_weights(), self._in_biases(), strict=True)
        return tuple(F.linear(x, weight, bias) for x, weight, bias in each)

    def _project_packed(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """One product for what has one input: other products round otherwise."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if key is not value:
            return self._project_apart(query, key, value)
        if query is key:
            return _split(F.linear(query, weight, bias), 3)
        sizes = [self.embed_dim, 2 * self.embed_dim]
        of_q, of_kv = weight.split(sizes)
        bias_q, bias_kv = (None, None) if bias is None else bias.split(sizes)
        return F.linear(query, of_q, bias_q), *_split(F.linear(key, of_kv, bias_kv), 2)

    def _is_plain_pass(self, *inputs: Tensor) -> bool:
        """Whether no gradient will flow back that the projections' steps could see."""
        if records_plain_model():
            return True
        if self._has_gradients(*inputs):
            return False
        if self._holder in self._modules:
            self._modules[self._holder].enter()
        return True

    def _has_gradients(self, *inputs: Tensor) -> bool:
        if not torch.is_grad_enabled():
            return False
        refuse_transforms()
        # torch takes its fast path for nested tensors, without gradients, or refuses them.
        if any(x.is_nested for x in inputs):
            return False
        # Not by attribute: a parametrization would compute them, and may draw random numbers.
        return any(x.requires_grad for x in (*inputs, *self.parameters()))

    def _in_parameters(self) -> tuple[Tensor | None, ...]:
        if self._qkv_same_embed_dim:
            return self.in_proj_weight, self.in_proj_bias
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, self.in_proj_bias

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As torch's."""
        # A bound method that was kept may be called after the class was changed back.
        if not isinstance(self, ProjectedAttention) or self._is_plain_pass(query, key, value):
            return nn.MultiheadAttention.forward(
                self,
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        masks = _Masks.of(query, key_padding_mask, attn_mask, is_causal, need_weights)
        batched = F._mha_shape_check(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        if not batched:
            # Three tensors even if they are one: torch packs no projection here.
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            masks = masks.batched()
        elif self.batch_first:
            query, key, value = once_each(lambda x: x.transpose(1, 0), query, key, value)
        length, batch, _ = query.shape
        _check_inputs(key, value, batch, packed=self._qkv_same_embed_dim)
        masks.check(batch, self.num_heads, length, key.shape[0])
        q, k, v, masks = self._heads(*self._project_in(query, key, value), masks)
        mask = masks.merged(batch, self.num_heads)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            y, weights = _weighted(q, k, v, mask, dropout)
            y = y.transpose(0, 1)
            weights = weights.view(batch, self.num_heads, length, -1)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            y = _attend(q, k, v, mask, dropout, masks.is_causal, batch)
            weights = None
        y = self._project_out(y.reshape(length * batch, self.embed_dim)).view(length, batch, -1)
        if not batched:
            return y.squeeze(1), None if weights is None else weights.squeeze(0)
        return y.transpose(1, 0) if self.batch_first else y, weights

    def _heads(self, q: Tensor, k: Tensor, v: Tensor, masks: _Masks):
        """As (batch * heads, length, size of a head), with the keys that were asked for besides."""
        batch = q.shape[1]
        if self.bias_k is not None:
            k = torch.cat([k, self.bias_k.repeat(1, batch, 1)])
            v = torch.cat([v, self.bias_v.repeat(1, batch, 1)])
            masks = masks.with_a_key()
        q, k, v = (
            x.view(x.shape[0], batch * self.num_heads, self.head_dim).transpose(0, 1)
            for x in (q, k, v)
        )
        if self.add_zero_attn:
            k, v = (torch.cat([x, x.new_zeros(x.shape[0], 1, x.shape[2])], dim=1) for x in (k, v))
            masks = masks.with_a_key()
        return q, k, v, masks


def _split(y: Tensor, parts: int) -> tuple[Tensor, ...]:
    """The parts of a packed projection, each without gaps. Its backward is one copy."""
    return y.unflatten(-1, (parts, -1)).movedim(-2, 0).contiguous().unbind(0)


def once_each(change, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One result for what is one tensor: projections are packed by that."""
    q = change(query)
    k = q if key is query else change(key)
    return q, k, k if value is key else change(value)


def _has_shape(x: Tensor, shape: tuple[int, ...]) -> bool:
    """Number by number. In a graph some may be symbols, and ``x.shape in shapes`` would take a 3
    for another number than a symbol that stands for 3."""
    return x.dim() == len(shape) and all(a == b for a, b in zip(x.shape, shape, strict=True))


def _check_inputs(key: Tensor, value: Tensor, batch: int, *, packed: bool) -> None:
    dims = 3 if packed else 2
    if key.shape[:dims] != value.shape[:dims] or key.shape[1] != batch:
        raise ValueError(
            f"[MultiheadAttention] expected key and value of one shape and a batch of {batch}, got "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )


class _Masks(NamedTuple):
    """What is added to the scores, as numbers. is_causal: attn_mask is left to the product."""

    padding: Tensor | None
    attention: Tensor | None
    is_causal: bool

    @classmethod
    def of(cls, query: Tensor, padding, attention, is_causal: bool, need_weights: bool) -> _Masks:
        if is_causal and attention is None:
            raise RuntimeError(
                "[MultiheadAttention] expected attn_mask with is_causal=True, got None"
            )
        padding = F._canonical_mask(
            padding, "key_padding_mask", F._none_or_dtype(attention), "attn_mask", query.dtype
        )
        attention = F._canonical_mask(
            attention, "attn_mask", None, "", query.dtype, check_other=False
        )
        if is_causal and padding is None and not need_weights:
            return cls(None, None, True)
        # The mask itself is used; is_causal would be redundant.
        return cls(padding, attention, False)

    def batched(self) -> _Masks:
        return self._replace(padding=None if self.padding is None else self.padding.unsqueeze(0))

    def check(self, batch: int, heads: int, length: int, keys: int) -> None:
        for name, mask, shapes in (
            ("key_padding_mask", self.padding, [(batch, keys)]),
            ("attn_mask", self.attention, [(length, keys), (batch * heads, length, keys)]),
        ):
            if mask is not None and not any(_has_shape(mask, shape) for shape in shapes):
                raise ValueError(
                    f"[MultiheadAttention] expected {name} of shape "
                    f"{' or '.join(map(str, shapes))}, got {tuple(mask.shape)}"
                )

    def with_a_key(self) -> _Masks:
        """For one key more, which all may attend to."""
        padded = (None if mask is None else F.pad(mask, (0, 1)) for mask in self[:2])
        return _Masks(*padded, self.is_causal)

    def merged(self, batch: int, heads: int) -> Tensor | None:
        """For (batch * heads, length, keys), broadcast."""
        mask = self.attention
        if mask is not None and mask.dim() == 2:
            mask = mask.unsqueeze(0)
        if self.padding is None:
            return mask
        padding = self.padding.view(batch, 1, 1, -1).expand(-1, heads, -1, -1)
        padding = padding.reshape(batch * heads, 1, -1)
        return padding if mask is None else mask + padding


def _weighted(q, k, v, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """The result and the weights that it was summed with."""
    q = q * math.sqrt(1.0 / q.shape[-1])
    keys = k.transpose(-2, -1)
    scores = torch.bmm(q, keys) if mask is None else torch.baddbmm(mask, q, keys)
    weights = F.softmax(scores, dim=-1)
    if dropout > 0:
        weights = F.dropout(weights, p=dropout)
    return torch.bmm(weights, v), weights


def _attend(q, k, v, mask: Tensor | None, dropout: float, is_causal: bool, batch: int) -> Tensor:
    """The result as (length, batch, heads, size), with strides that may be any."""
    q, k, v = (x.unflatten(0, (batch, -1)) for x in (q, k, v))
    if mask is not None:
        mask = mask.unsqueeze(0) if mask.shape[0] == 1 else mask.unflatten(0, (batch, -1))
    y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
    return y.permute(2, 0, 1, 3)
