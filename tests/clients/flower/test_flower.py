"""Updates of Flower's clients in few bits: what arrives, what is fed back, and what is refused.

Runs in .venv-flower (make test-clients), which has Flower; elsewhere it is skipped."""

import copy
import logging
import os
import random
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from bench.local_grid import LocalGrid  # noqa: E402
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum  # noqa: E402

import slimgrad as sg  # noqa: E402
from slimgrad.integrations.flower import DecodeUpdates, EncodeUpdates  # noqa: E402

SHAPE, SMALL = (40, 30), (7,)
INITIAL = {
    "w": torch.linspace(-1, 1, 1200).reshape(SHAPE),
    "b": torch.zeros(SMALL),
    "steps": torch.tensor(5),
}


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def update(partition: int, server_round: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * server_round + partition)
    return {
        "w": 0.01 * torch.randn(SHAPE, generator=generator),
        "b": torch.randn(SMALL, generator=generator),
    }


def client(*mods, change=update):
    """Adds what ``change`` says to the weights that it was sent."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        state = message.content["arrays"].to_torch_state_dict()
        partition = int(context.node_config["partition-id"])
        for name, value in change(partition, message.content["config"]["server-round"]).items():
            state[name] = state[name] + value
        metrics = MetricRecord({"num-examples": 1})
        return Message(
            RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message
        )

    return app


def average(clients):
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)


def train(clients, rounds=3, strategy=None, on_the_way=None, **options):
    """The weights at the end, and the strategy around the plain one."""
    random.seed(0)  # by which strategies choose clients, and the order of sums
    plain = strategy or average(len(clients))
    coded = DecodeUpdates(plain, **options)
    result = coded.start(LocalGrid(clients, on_the_way), ArrayRecord(INITIAL), num_rounds=rounds)
    arrays = result.arrays.to_torch_state_dict() if result.arrays else None
    return arrays, coded


def mod(codec, **settings):
    return EncodeUpdates(codec, min_elements=100, **settings)


def test_lossless_updates_are_the_plain_ones_to_the_bit():
    plain, _ = train([client()] * 3)
    coded, strategy = train([client(mod("lossless"))] * 3)
    assert all(torch.equal(plain[name], coded[name]) for name in plain)
    assert not strategy.rejected
    assert strategy.received[0].bytes < strategy.received[0].plain_bytes


@pytest.mark.parametrize("codec", ["uniform8", "fp8", "pruned", "uniform4", "packed5"])
def test_what_arrives_is_what_was_sent_plus_the_decoded_difference(codec):
    """One client, one round, replayed by hand."""
    seen = []

    class Watched(EncodeUpdates):
        def encode(self, x, seed):
            seen.append((x, super().encode(x, seed)))
            return seen[-1][1]

    settings = {"sparsity": 0.5} if codec == "pruned" else {}
    arrays, strategy = train([client(Watched(codec, min_elements=100, **settings))], 1)
    ((x, payload),) = seen
    difference = update(0, 1)["w"]
    assert torch.equal(x, (INITIAL["w"] + difference) - INITIAL["w"])
    assert torch.equal(arrays["w"], INITIAL["w"] + sg.decode(payload))
    assert torch.equal(arrays["b"], INITIAL["b"] + update(0, 1)["b"])  # small: as it is
    assert arrays["steps"].item() == 5
    error = (sg.decode(payload) - x).abs()
    assert 0 < error.max() <= 0.06
    assert strategy.received[0].bytes < strategy.received[0].plain_bytes


def test_a_rate_is_what_travels():
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(1))
    info = sg.inspect(EncodeUpdates("rate2").encode(x, 1))
    assert info["rate_asked"] == 2 and info["rate_reached"]
    with pytest.raises(ValueError, match="expected any codec but topk"):
        EncodeUpdates("topk")


@pytest.mark.parametrize("codec", ["uniform2", "uniform4", "fp4"])
def test_error_feedback_loses_nothing_for_good(codec):
    """After n rounds the server is behind the sum of all updates by what the clients still hold:
    the mean of their last residuals. Sums of float32 differ in the last digits."""
    grid_clients = [client(mod(codec, error_feedback=True))] * 2
    strategy = DecodeUpdates(average(2))
    grid = LocalGrid(grid_clients)
    rounds = 5
    result = strategy.start(grid, ArrayRecord(INITIAL), num_rounds=rounds)
    wanted = INITIAL["w"] + sum(
        (update(0, r)["w"] + update(1, r)["w"]) / 2 for r in range(1, rounds + 1)
    )
    residuals = [
        torch.from_numpy(context.state["slimgrad.feedback"]["arrays/w"].numpy())
        for context in grid._contexts.values()
    ]
    arrays = result.arrays.to_torch_state_dict()
    behind = wanted - arrays["w"]
    torch.testing.assert_close(behind, sum(residuals) / 2, atol=1e-6, rtol=0)
    assert behind.abs().max() > 1e-3


def test_updates_without_feedback_are_unbiased():
    """The same update at 2 bits in 400 rounds: the mean of what arrived is within five standard
    errors of it; a rounded value lies in a step of the largest magnitude."""
    constant = torch.linspace(-0.01, 0.01, 1200).reshape(SHAPE)
    app = client(mod("uniform2"), change=lambda *_: {"w": constant})
    rounds = 400
    arrays, _ = train([app], rounds)
    mean = (arrays["w"] - INITIAL["w"]) / rounds
    error = 5 * 0.5 * 0.01 / rounds**0.5
    assert (mean - constant).abs().max() < error
    assert (mean - constant).abs().max() > error / 50  # It did draw.


def test_the_same_seed_gives_the_same_bits_and_clients_draw_differently():
    apps = [client(mod("uniform3", seed=4), change=lambda *_: {"w": update(0, 1)["w"]})] * 2
    one, other = (train(apps)[0]["w"] for _ in range(2))
    assert torch.equal(one, other)
    replies = []
    train(
        apps, 1, on_the_way=lambda reply: replies.append(reply.content["arrays"]["w"].data) or reply
    )
    assert replies[0] != replies[1]


@pytest.mark.parametrize("clients", [2, 4, 8])
def test_errors_of_replies_are_independent(clients):
    """The variance of the mean over clients and 8 rounds, times their number, over that of one: 1,
    and more where a reply draws as another one."""
    errors = []

    class Watched(EncodeUpdates):
        def encode(self, x, seed):
            payload = super().encode(constant, seed)
            errors.append((sg.decode(payload) - constant).double())
            return payload

    constant = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    train([client(Watched("uniform3", min_elements=1000))] * clients, 8)
    assert len(errors) == 8 * clients
    stacked = torch.stack(errors).flatten(1)
    means = stacked.mean(0).square() * len(stacked) / stacked.square().mean()
    error = float(means.std()) / means.numel() ** 0.5
    assert abs(float(means.mean()) - 1) < 5 * error < 0.3


@pytest.mark.parametrize(
    "strategy",
    [
        FedMedian(fraction_evaluate=0.0),
        FedAdam(fraction_evaluate=0.0),
        Krum(fraction_evaluate=0.0, num_malicious_nodes=0),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_any_strategy(strategy):
    plain, _ = train([client()] * 4, strategy=copy.deepcopy(strategy))
    coded, wrapped = train([client(mod("lossless"))] * 4, strategy=copy.deepcopy(strategy))
    assert all(torch.equal(plain[name], coded[name]) for name in plain)
    assert not wrapped.rejected


def test_apps_that_send_updates_themselves():
    """difference=False codes what the app sends; arrays that were not sent go as they are, and pass
    only where a server wants them."""
    sent = []

    def watch(reply):
        sent.append(reply.content["arrays"])
        return reply

    app = ClientApp(mods=[mod("uniform8", difference=False)])

    @app.train()
    def answer(message, context):
        state = {**INITIAL, "w": update(0, 1)["w"], "other": torch.ones(200)}
        content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    arrays, strategy = train([app], 1, on_the_way=watch, strict=False)
    assert (sent[0]["w"].stype, sent[0]["other"].stype) == ("slimgrad.values", PLAIN)
    step = update(0, 1)["w"].abs().max() / 127
    assert (arrays["w"] - update(0, 1)["w"]).abs().max() <= step
    assert torch.equal(arrays["other"], torch.ones(200)) and not strategy.rejected
    _, strategy = train([app], 1)
    assert "['other'] besides" in strategy.rejected[0].reason


def test_a_client_without_the_mod_and_one_that_joins_late():
    """Three clients, of which one sends plain arrays; from round 2 on a fourth."""
    apps = [client(mod("uniform8", error_feedback=True)), client(), client(mod("uniform6"))]
    grid = LocalGrid(apps)
    strategy = DecodeUpdates(average(3))
    first = strategy.start(grid, ArrayRecord(INITIAL), num_rounds=1)
    grid.clients = [*apps, client(mod("uniform4", error_feedback=True))]
    strategy.start(grid, first.arrays, num_rounds=2)
    assert [row.replies for row in strategy.received] == [3, 4, 4]
    assert not strategy.rejected


# ---- strangers ------------------------------------------------------------------------------


def _npy_of(shape):
    buffer = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + bytes(64)


def _with(name="w", **changes):
    def spoil(record):
        array = record[name]
        fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
        fields["data"] = array.data
        for key, value in changes.items():
            fields[key] = value(fields[key]) if callable(value) else value
        record[name] = Array(**fields)

    return spoil


def _flipped(data):
    return data[:30] + bytes([data[30] ^ 8]) + data[31:]


PLAIN, CODED = "numpy.ndarray", "slimgrad.difference"
SPOILED = {
    "a flipped bit": (_with(data=_flipped), "the checksum is wrong"),
    "cut off": (_with(data=lambda data: data[: len(data) // 2]), "PayloadError"),
    "nothing": (_with(data=b""), "PayloadError"),
    "text": (_with(data=b"hello" * 50), "PayloadError"),
    "64 MiB in few bytes": (
        _with(data=sg.encode(torch.zeros(1 << 24)).numpy().tobytes()),
        "expected w to be float32 of shape [40, 30], got torch.float32 of shape [16777216]",
    ),
    "another shape": (
        _with(data=sg.encode(torch.zeros(30, 40)).numpy().tobytes()),
        "got torch.float32 of shape [30, 40]",
    ),
    "another type": (
        _with(data=sg.encode(torch.zeros(SHAPE).half()).numpy().tobytes()),
        "got torch.float16 of shape [40, 30]",
    ),
    "a type that NumPy has not": (
        _with(data=sg.encode(torch.zeros(SHAPE).bfloat16()).numpy().tobytes()),
        "got torch.bfloat16",
    ),
    "terabytes of NumPy": (
        _with(stype=PLAIN, data=_npy_of((1 << 45,))),
        "expected w to be float32 of shape [40, 30], got float32 of shape [35184372088832]",
    ),
    "a pickle": (
        _with(stype=PLAIN, data=lambda _: _object_array()),
        "got object of shape [1]",
    ),
    "too few bytes of NumPy": (
        _with(stype=PLAIN, data=_npy_of(SHAPE)),
        "expected 4800 bytes of w, got 64",
    ),
    "another serialization": (_with(stype="pickle"), "got 'pickle'"),
    "an array that was not sent": (
        lambda record: record.__setitem__("x", record["w"]),
        "got none for [] and ['x'] besides",
    ),
    "an array too few": (
        lambda record: record.__delitem__("b"),
        "got none for ['b'] and [] besides",
    ),
}


def _object_array():
    buffer = BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("name", SPOILED)
def test_a_strangers_bytes_are_refused_with_a_reason_and_the_round_goes_on(name):
    spoil, says = SPOILED[name]

    def on_the_way(reply):
        if reply.metadata.src_node_id == 2:
            spoil(reply.content["arrays"])
        return reply

    apps = [client(mod("uniform8"))] * 3
    arrays, strategy = train(apps, 2, on_the_way=on_the_way)
    assert [(row.server_round, row.node_id) for row in strategy.rejected] == [(1, 2), (2, 2)]
    assert all(says in row.reason for row in strategy.rejected), strategy.rejected

    # What the others sent is what two clients alone would have: of nodes 1 and 3.
    def others(partition, server_round):
        return update([0, 2][partition], server_round)

    wanted, _ = train([client(change=others)] * 2, 2)
    torch.testing.assert_close(arrays["w"], wanted["w"], atol=2e-3, rtol=0)


def test_a_round_of_strangers_only_leaves_the_weights_alone():
    def on_the_way(reply):
        SPOILED["text"][0](reply.content["arrays"])
        return reply

    arrays, strategy = train([client(mod("uniform8"))] * 2, 2, on_the_way=on_the_way)
    assert arrays is None or all(torch.equal(arrays[name], INITIAL[name]) for name in INITIAL)
    assert len(strategy.rejected) == 4


def test_not_a_strategy():
    with pytest.raises(TypeError, match="expected a strategy of Flower, got str"):
        DecodeUpdates("FedAvg")


def test_nan_and_inf_arrive():
    bad = torch.zeros(SHAPE)
    bad[0, 0], bad[1, 1] = float("nan"), float("inf")
    app = client(mod("uniform4", error_feedback=True), change=lambda *_: {"w": bad})
    arrays, _ = train([app], 1)
    assert arrays["w"][0, 0].isnan() and arrays["w"][1, 1].isinf()
    assert torch.equal(arrays["w"][2:], INITIAL["w"][2:])


def simulated(folder, *command):
    """The lines about rounds and updates of a program that runs in Flower's simulation."""
    # By default Ray's workers give way to everybody: on a busy machine they would hardly run.
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("round", "updates"))]


def test_the_example_in_flowers_simulation(tmp_path):
    example = ROOT / "examples" / "flower_federated.py"
    options = ["--rounds", 2, "--images", 50, "--codec", "uniform4", "--error-feedback"]
    lines = simulated(tmp_path, example, "--clients", 2, *options)
    assert [line.split(":")[0] for line in lines] == ["round 0", "round 1", "round 2", "updates"]
    assert float(lines[-1].split()[-3]) > 6


def test_the_notebook_in_flowers_simulation(tmp_path):
    text = (ROOT / "examples" / "notebooks" / "federated.py").read_text()
    as_it_is = "CLIENTS, ROUNDS, SAMPLES = 4, 5, 400"
    assert as_it_is in text
    script = tmp_path / "federated.py"
    script.write_text(text.replace(as_it_is, "CLIENTS, ROUNDS, SAMPLES = 2, 2, 100"))
    lines = simulated(tmp_path, script)
    assert [line.split(":")[0] for line in lines] == ["round 0", "round 1", "round 2", "updates"]
    assert float(lines[-1].split()[-3]) > 4
