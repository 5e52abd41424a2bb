"""Federated learning with Flower in which clients send few-bit updates.

Clients hold images of generated glyphs, each mostly of a few classes, and train the network of
`make demo`, at a quarter of its image size. What they send is coded: two lines, marked below.

    python examples/flower_federated.py --codec uniform4 --error-feedback

It runs in Flower's simulation (pip install "flwr[simulation]"), which takes some seconds to start.
"""

import argparse

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional

from slimgrad.integrations.flower import DecodeUpdates, EncodeUpdates

SIDE, CLASSES = 16, 10

# Strokes in a square from -1 to 1: ring, cross, triangle, square, T, L, Z, E, arrow, H.
_RING = [(1, 0), (0.7, 0.7), (0, 1), (-0.7, 0.7), (-1, 0), (-0.7, -0.7), (0, -1), (0.7, -0.7)]
_LINES = [
    [*zip(_RING, _RING[1:] + _RING[:1], strict=True)],
    [((-1, 0), (1, 0)), ((0, -1), (0, 1))],
    [((0, -1), (1, 0.8)), ((1, 0.8), (-1, 0.8)), ((-1, 0.8), (0, -1))],
    [
        ((-0.9, -0.9), (0.9, -0.9)),
        ((0.9, -0.9), (0.9, 0.9)),
        ((0.9, 0.9), (-0.9, 0.9)),
        ((-0.9, 0.9), (-0.9, -0.9)),
    ],
    [((-1, -1), (1, -1)), ((0, -1), (0, 1))],
    [((-0.7, -1), (-0.7, 1)), ((-0.7, 1), (0.8, 1))],
    [((-0.9, -1), (0.9, -1)), ((0.9, -1), (-0.9, 1)), ((-0.9, 1), (0.9, 1))],
    [
        ((-0.7, -1), (-0.7, 1)),
        ((-0.7, -1), (0.8, -1)),
        ((-0.7, 0), (0.6, 0)),
        ((-0.7, 1), (0.8, 1)),
    ],
    [((0, 1), (0, -1)), ((0, -1), (-0.8, -0.1)), ((0, -1), (0.8, -0.1))],
    [((-0.8, -1), (-0.8, 1)), ((0.8, -1), (0.8, 1)), ((-0.8, 0), (0.8, 0))],
]


def glyphs(labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """An image for each label: moved, turned, stretched, in some ink on some paper, noisy."""
    most = max(map(len, _LINES))
    lines = torch.tensor([(glyph * most)[:most] for glyph in _LINES])[labels]  # n, strokes, 2, 2
    n = len(labels)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(n, *shape, generator=generator)

    angle, size, stretch = uniform(-0.2, 0.2), uniform(4, 5), uniform(0.9, 1.1)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 1, 2, 2)
    lines = lines * (size[:, None] * torch.stack([stretch, 1 / stretch], 1)).view(n, 1, 1, 2)
    lines = lines @ turn + uniform(SIDE / 2 - 1.5, SIDE / 2 + 1.5, 1, 1, 2)
    rows, columns = torch.meshgrid(
        torch.arange(SIDE) + 0.5, torch.arange(SIDE) + 0.5, indexing="ij"
    )
    pixels = torch.stack([columns, rows], -1).view(1, 1, -1, 2)
    begin, along = lines[:, :, :1], lines[:, :, 1:] - lines[:, :, :1]
    share = ((pixels - begin) * along).sum(-1) / (along * along).sum(-1)
    nearest = (pixels - begin - share.clamp(0, 1)[..., None] * along).norm(dim=-1).amin(1)
    pen = (1.3 - nearest).clamp(0, 1).view(n, 1, SIDE, SIDE)
    ink, paper = uniform(0.4, 1, 1, 1, 1), uniform(-0.2, 0.2, 1, 1, 1)
    noise = 0.15 * torch.randn(n, 1, SIDE, SIDE, generator=generator)
    return paper + pen * ink + noise


def client_data(partition: int, images: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of a client's images are of three classes, the others of any."""
    generator = torch.Generator().manual_seed(1000 + partition)
    own = (partition * 3 + torch.randint(3, (images // 2,), generator=generator)) % CLASSES
    labels = torch.cat([own, torch.randint(CLASSES, (images - images // 2,), generator=generator)])
    labels = labels[torch.randperm(images, generator=generator)]
    return glyphs(labels, generator), labels


def test_data(images: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(images) % CLASSES
    return glyphs(labels, torch.Generator().manual_seed(1)), labels


def network(seed: int = 0) -> nn.Module:
    """That of the demo: five convolutions and a mean."""
    torch.manual_seed(seed)
    widths = [(1, 24, 5, 2), (24, 48, 3, 1), (48, 64, 3, 2), (64, 96, 3, 1), (96, 128, 3, 2)]
    layers = []
    for before, after, side, stride in widths:
        layers += [nn.Conv2d(before, after, side, stride, side // 2), nn.ReLU()]
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def fit(model: nn.Module, data, seed: int, epochs: int = 1, rate: float = 0.1) -> float:
    """One client's part of a round. The same seed gives the same order."""
    images, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels), generator=generator).split(25):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(arrays: ArrayRecord) -> float:
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    images, labels = test_data()
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def client_app(mod: EncodeUpdates | None, images: int = 200) -> ClientApp:
    app = ClientApp(mods=[mod] if mod else [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        partition = int(context.node_config["partition-id"])
        round_number = int(message.content["config"]["server-round"])
        data = client_data(partition, images)
        loss = fit(model, data, seed=1000 * round_number + partition)
        metrics = MetricRecord({"loss": loss, "num-examples": len(data[1])})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def run_server(grid: Grid, rounds: int, clients: int) -> dict:
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy = DecodeUpdates(plain)  # the second line
    accuracies: list[float] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        accuracies.append(accuracy(arrays))
        return MetricRecord({"accuracy": accuracies[-1]})

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=rounds,
        evaluate_fn=evaluate,
    )
    return {"accuracy": accuracies, "received": strategy.received, "rejected": strategy.rejected}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", default="uniform4", help="lossless, fp8, uniform8 ... uniform2")
    parser.add_argument("--error-feedback", action="store_true")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=200, help="of each client")
    options = parser.parse_args()

    from flwr.simulation import run_simulation

    server, outcome = ServerApp(), {}

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        outcome.update(run_server(grid, options.rounds, options.clients))

    mod = EncodeUpdates(options.codec, error_feedback=options.error_feedback)  # the first line
    run_simulation(
        server_app=server,
        client_app=client_app(mod, options.images),
        num_supernodes=options.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    for number, value in enumerate(outcome["accuracy"]):
        print(f"round {number}: accuracy {value:.3f}")
    came = sum(row.bytes for row in outcome["received"])
    plain = sum(row.plain_bytes for row in outcome["received"])
    print(f"updates: {came} bytes instead of {plain}, {np.divide(plain, came):.1f} times fewer")


if __name__ == "__main__":
    main()
