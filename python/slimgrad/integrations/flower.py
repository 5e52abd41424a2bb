"""Flower: the updates that clients send, in fewer bytes.

    app = ClientApp(mods=[EncodeUpdates("uniform4")])     # in the client's program
    strategy = DecodeUpdates(FedAvg())                    # in the server's, around any strategy

A client sends the difference of its weights to those that it was sent, coded array by array, and
the server adds it to what it sent ("lossless" codes the weights themselves). What a client sends
are bytes from a stranger: a reply that is damaged, or not about the arrays that were sent, or
announces more than they hold, becomes an error reply with its reason, which strategies leave out,
and the round goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.lib import format as npy

from .._support import derive_seed
from ..distributed.codec import Codec
from ..tensors.coding import PayloadError, decode, encode, inspect
from ..tensors.pruning import threshold
from ..tensors.quantization import prune
from ..tensors.stats import measure

_PLAIN = "numpy.ndarray"  # how Flower calls an array that is not ours
_DIFFERENCE, _VALUES = _OURS = ("slimgrad.difference", "slimgrad.values")
_FEEDBACK, _DRAWS = "slimgrad.feedback", "slimgrad.draws"  # in a client's state
_REJECTED = 400  # the code of the error in place of a reply
_log = logging.getLogger("slimgrad")

Records = Mapping[str, Mapping[str, Array]]


def _base_of(sent: Records, key: str) -> Mapping[str, Array]:
    """What a record of a reply is compared with: the record of its name, or the only one."""
    if key in sent:
        return sent[key]
    return next(iter(sent.values())) if len(sent) == 1 else {}


def _is_training(message: Message) -> bool:
    return message.metadata.message_type.partition(".")[0] == MessageType.TRAIN


# ---- the client -----------------------------------------------------------------------------


def encode_array(x: torch.Tensor, codec: Codec, seed: int) -> torch.Tensor:
    """A payload of one array under a codec; without loss what has no code there: NaN and Inf, other
    types."""
    lossy = x.dtype in (torch.float32, torch.float16) and codec.kind != "lossless"
    if not lossy or not torch.isfinite(x).all():
        return encode(x)
    options: dict[str, Any] = {"coder": codec.coder, "rounding": codec.rounding, "seed": seed}
    if codec.kind == "uniform":
        options |= {"bits": codec.bits, "rate": codec.rate or None, "model": codec.model}
        return encode(x, "uniform", **options)
    if codec.kind == "float":
        return encode(x, "float", format=codec.format, **options)
    alpha = threshold(measure(x), codec.sparsity)
    pruned = prune(x, alpha, seed) if alpha > 0 else x
    return encode(
        pruned,
        "pruned",
        threshold=alpha or None,
        survivors=codec.survivors,
        format=codec.format,
        **options,
    )


class EncodeUpdates:
    """A mod of a ClientApp: codes the arrays in its replies to training messages.

    codec: a name such as "uniform4" or "rate2", with settings= of a slimgrad.distributed.Codec, or
        a Codec, of any kind but "topk".
        ``error_feedback`` adds what rounding lost to the next update; it is kept in the state of
        the client's Context, one array for each that is coded.
    difference: False codes the arrays themselves, for apps whose replies are updates already.

    Arrays of fewer than the codec's ``min_elements``, those of whole numbers, and those that the
    server did not send in this shape and type, go as they are.
    The draws are those of the client's partition (or node) and of how often it has replied.
    """

    def __init__(self, codec: Codec | str = "uniform8", *, difference: bool = True, **settings):
        self.codec = (
            codec.replace(**settings)
            if isinstance(codec, Codec)
            else Codec.parse(codec, **settings)
        )
        if self.codec.kind == "topk":
            raise ValueError("[EncodeUpdates] expected any codec but topk, got topk")
        self.difference = difference

    def __call__(self, message: Message, context: Context, call_next) -> Message:
        if not _is_training(message) or not message.has_content():
            return call_next(message, context)
        sent = {key: dict(record) for key, record in message.content.array_records.items()}
        reply = call_next(message, context)
        if not reply.has_content():
            return reply
        seed = self._seed(context)
        before = context.state.array_records.get(_FEEDBACK, ArrayRecord())
        lost = ArrayRecord()
        for key, record in list(reply.content.array_records.items()):
            base = _base_of(sent, key)
            coded = ArrayRecord()
            for name, array in record.items():
                place = f"{key}/{name}"
                coded[name], rest = self._coded(
                    array, base.get(name), before.get(place), derive_seed(seed, place)
                )
                if rest is not None:
                    lost[place] = rest
            reply.content[key] = coded
        if self.codec.error_feedback:
            context.state[_FEEDBACK] = lost
        return reply

    def encode(self, x: torch.Tensor, seed: int) -> torch.Tensor:
        """The payload of one array."""
        return encode_array(x, self.codec, seed)

    def _seed(self, context: Context) -> int:
        """Another one for each client and each of its replies."""
        draws = int(context.state.config_records.get(_DRAWS, {}).get("count", 0))
        context.state[_DRAWS] = ConfigRecord({"count": draws + 1})
        client = int(context.node_config.get("partition-id", context.node_id))
        return derive_seed(self.codec.seed, "flower", client, draws)

    def _coded(
        self, array: Array, base: Array | None, before: Array | None, seed: int
    ) -> tuple[Array, Array | None]:
        """What is sent in place of an array, and what that lost."""
        known = base is not None and (base.shape, base.dtype) == (array.shape, array.dtype)
        is_ours = array.stype == _PLAIN and array.dtype in ("float16", "float32", "float64")
        if not known or not is_ours or math.prod(array.shape) < self.codec.min_elements:
            return array, None
        x = torch.from_numpy(array.numpy()).contiguous()
        # A difference that is added again is rounded: what is to be exact is sent itself.
        kind = _DIFFERENCE if self.difference and not self.codec.is_exact else _VALUES
        if kind == _DIFFERENCE and base is not None:
            x = x - torch.from_numpy(base.numpy())
        feeds_back = self.codec.error_feedback
        if feeds_back and before is not None and before.shape == array.shape:
            x = x + torch.from_numpy(before.numpy())
        payload = self.encode(x, seed)
        coded = Array(array.dtype, tuple(array.shape), kind, payload.numpy().tobytes())
        if not feeds_back:
            return coded, None
        return coded, Array(torch.nan_to_num(x - decode(payload), 0.0, 0.0, 0.0).numpy())


# ---- the server -----------------------------------------------------------------------------


class Rejection(NamedTuple):
    """A reply that was left out, and why."""

    server_round: int
    node_id: int
    reason: str


class Received(NamedTuple):
    """The arrays of one round's replies: bytes that came, and what the same are plainly."""

    server_round: int
    replies: int
    bytes: int
    plain_bytes: int


class DecodeUpdates(Strategy):
    """Any strategy, for clients with EncodeUpdates and for others.

    strategy: sees replies as if clients had sent plain arrays.
    strict: every reply must have the arrays that were sent, of their shapes and types, and no
        others. False lets other plain arrays pass unseen, for strategies that want them.

    ``rejected`` and ``received`` say what was left out and how much came.
    """

    def __init__(self, strategy: Strategy, *, strict: bool = True):
        if not isinstance(strategy, Strategy):
            raise TypeError(
                f"[DecodeUpdates] expected a strategy of Flower, got {type(strategy).__name__}"
            )
        self.strategy = strategy
        self.strict = strict
        self.rejected: list[Rejection] = []
        self.received: list[Received] = []
        self._sent: dict[int, Message] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._sent = {message.metadata.dst_node_id: message for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        came = plain = 0
        decoded = []
        for reply in replies:
            if reply.has_content():
                came += sum(len(array.data) for array in _arrays(reply.content))
                reply = self._decoded(server_round, reply)
            if reply is not None:
                decoded.append(reply)
                if reply.has_content():
                    plain += sum(len(array.data) for array in _arrays(reply.content))
        self.received.append(Received(server_round, len(decoded), came, plain))
        self._sent = {}
        return self.strategy.aggregate_train(server_round, decoded)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def _decoded(self, server_round: int, reply: Message) -> Message | None:
        """The reply with plain arrays, or with an error; None if there was no request."""
        node = reply.metadata.src_node_id
        question = self._sent.get(node)
        try:
            if question is None:
                raise PayloadError("this node was not asked")
            sent = {key: dict(record) for key, record in question.content.array_records.items()}
            content = RecordDict(dict(reply.content.items()))
            for key, record in reply.content.array_records.items():
                content[key] = self._plain_record(record, _base_of(sent, key))
            reply.content = content
            return reply
        except Exception as error:  # whatever a stranger's bytes bring about
            reason = f"{type(error).__name__}: {error}"
            self.rejected.append(Rejection(server_round, node, reason))
            _log.warning("[DecodeUpdates] left out the reply of node %d: %s", node, reason)
            if question is None:
                return None
            return Message(Error(_REJECTED, f"[DecodeUpdates] {reason}"), reply_to=question)

    def _plain_record(self, record: ArrayRecord, base: Mapping[str, Array]) -> ArrayRecord:
        if self.strict and base and record.keys() != base.keys():
            missing = sorted(base.keys() - record.keys())
            others = sorted(record.keys() - base.keys())
            raise PayloadError(
                f"expected the arrays that were sent, got none for {missing[:4]} and "
                f"{others[:4]} besides"
            )
        return ArrayRecord(
            {name: self._plain_array(name, array, base.get(name)) for name, array in record.items()}
        )

    def _plain_array(self, name: str, array: Array, base: Array | None) -> Array:
        if array.stype not in _OURS:
            if base is not None:
                _check_plain(name, array, base)
            elif self.strict:
                raise PayloadError(f"expected an array that was sent, got {name!r}")
            return array
        if base is None:
            raise PayloadError(f"expected an array that was sent, got {name!r}")
        before = base.numpy()
        info = inspect(array.data)
        if tuple(info["shape"]) != before.shape or _numpy_type(info["dtype"]) != before.dtype:
            raise PayloadError(
                f"expected {name} to be {before.dtype} of shape {list(before.shape)}, got "
                f"{info['dtype']} of shape {list(info['shape'])}"
            )
        values = decode(array.data, max_bytes=before.nbytes).numpy()
        return Array(before + values if array.stype == _DIFFERENCE else values)


def _arrays(content: RecordDict) -> Iterable[Array]:
    return (array for record in content.array_records.values() for array in record.values())


def _numpy_type(dtype: torch.dtype) -> np.dtype | None:
    """None for types that NumPy does not have."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _check_plain(name: str, array: Array, base: Array) -> None:
    """Checks that a plain array is the one sent, by the header in its bytes, which NumPy reads."""
    if array.stype != _PLAIN:
        raise PayloadError(f"expected {name} as {_PLAIN} or coded, got {array.stype!r}")
    data = BytesIO(array.data)
    version = npy.read_magic(data)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(data)
    expected = base.numpy()
    if (shape, dtype) != (expected.shape, expected.dtype):
        raise PayloadError(
            f"expected {name} to be {expected.dtype} of shape {list(expected.shape)}, got {dtype} "
            f"of shape {list(shape)}"
        )
    if len(array.data) - data.tell() != expected.nbytes:
        raise PayloadError(
            f"expected {expected.nbytes} bytes of {name}, got {len(array.data) - data.tell()}"
        )
