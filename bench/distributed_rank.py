"""One rank of bench/distributed.py, which starts it where it belongs and talks to it by lines.

It warms up, says "ready", and waits for a line before it measures: so the link can be slow only
while it is measured. Rank 0 then says what it found, as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.distributed as dist

from bench.distributed_codecs import exchanges
from bench.distributed_gradients import PresetModel, gradients
from bench.links import Place

WARM_STEPS = 4  # DDP rebuilds its buckets after the first, PowerSGD begins with the third


def step(model: torch.nn.Module, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(x).backward()


def total(numbers: list[float], op: dist.ReduceOp) -> list[float]:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def measure(models: dict, place: Place, rounds: int, seconds: float) -> dict:
    """Every exchange in turns, for `rounds` rounds or until a round would end after `seconds`:
    at least one. A step has ended when its slowest rank has."""
    x = torch.zeros(1, requires_grad=True)
    times = {name: [] for name in models}
    sent = {name: [] for name in models}
    cpu = {name: [] for name in models}  # of this process, all its threads
    start, longest = time.perf_counter(), 0.0
    for _ in range(rounds):
        begun = time.perf_counter()
        for name, model in models.items():
            model.zero_grad(set_to_none=True)
            dist.barrier()
            bytes_before, cpu_before = place.sent_bytes(), time.process_time()
            before = time.perf_counter()
            step(model, x)
            took = time.perf_counter() - before
            dist.barrier()  # then all have sent what they had to
            bytes_sent = place.sent_bytes() - bytes_before
            worked = time.process_time() - cpu_before
            times[name] += total([took], dist.ReduceOp.MAX)
            sent[name] += total([bytes_sent], dist.ReduceOp.SUM)
            cpu[name] += total([worked / dist.get_world_size()], dist.ReduceOp.SUM)
        longest = max(longest, time.perf_counter() - begun)
        [spent] = total([time.perf_counter() - start + longest], dist.ReduceOp.MAX)
        if spent > seconds:
            break
    # Loopback has one interface for all, so that every rank saw the bytes of all ranks.
    parts = dist.get_world_size() ** (2 if place.interface == "lo" else 1)
    return {
        name: {
            "seconds": times[name],
            "cpu_seconds": cpu[name],
            "bytes": [round(b / parts) for b in sent[name]],
        }
        for name in models
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--interface", required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--names", nargs="+", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"tcp://{arguments.meet}", rank=arguments.rank, world_size=arguments.ranks
    )
    grads = gradients(1 + arguments.rank, arguments.scale)
    values = torch.zeros(sum(g.numel() for g in grads.values()))
    made = exchanges()
    models = {name: made[name](PresetModel(grads, values)) for name in arguments.names}
    x = torch.zeros(1, requires_grad=True)
    for model in models.values():
        for _ in range(WARM_STEPS):
            step(model, x)
    dist.barrier()
    print("ready", flush=True)
    sys.stdin.readline()
    place = Place("", arguments.interface)
    found = measure(models, place, arguments.rounds, arguments.seconds)
    if arguments.rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
