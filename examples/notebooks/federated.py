# %% [markdown]
# # Federated with Flower
#
# Clients of a federation send their weights after every round. Two lines make that few bits a
# value: a mod of the client, and a strategy around any other. This runs in Flower's simulation:
# `pip install "flwr[simulation]"`.

# %%
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from slimgrad.integrations.flower import DecodeUpdates, EncodeUpdates

CLIENTS, ROUNDS, SAMPLES = 4, 5, 400


# %% [markdown]
# Every client has samples of its own; the network is to learn which of ten patterns is in the
# noise.


# %%
def data(partition):
    patterns = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + partition)
    labels = torch.randint(10, (SAMPLES,), generator=generator)
    return patterns[labels] + 1.5 * torch.randn(SAMPLES, 64, generator=generator), labels


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


# %% [markdown]
# The client, as Flower has it. The first line is `mods=[EncodeUpdates(...)]`: what the app
# returns is sent as a coded difference to what came.

# %%
client = ClientApp(mods=[EncodeUpdates("uniform4", error_feedback=True)])  # the first line


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for chosen in torch.arange(SAMPLES).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": SAMPLES}),
    }
    return Message(RecordDict(content), reply_to=message)


# %% [markdown]
# The server. The second line is `DecodeUpdates(...)` around the strategy, which gets plain
# arrays.

# %%
server, outcome = ServerApp(), {}


def accuracy(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = data(10_000)
    share = (model(x).argmax(1) == y).float().mean().item()
    print(f"round {server_round}: accuracy {share:.3f}")
    return MetricRecord({"accuracy": share})


@server.main()
def main(grid: Grid, context: Context) -> None:
    plain = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy = DecodeUpdates(plain)  # the second line
    weights = ArrayRecord(network().state_dict())
    strategy.start(grid=grid, initial_arrays=weights, num_rounds=ROUNDS, evaluate_fn=accuracy)
    outcome["received"] = strategy.received


# %%
resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
came = sum(row.bytes for row in outcome["received"])
plain = sum(row.plain_bytes for row in outcome["received"])
print(f"updates: {came} bytes instead of {plain}, {plain / came:.1f} times fewer")
