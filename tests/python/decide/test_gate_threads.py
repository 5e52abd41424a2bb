"""Two threads' backward passes through one gate: none is lost, and none draws what another drew."""

import threading

import torch
from torch import nn

import slimgrad as sg

THREADS, PASSES = 2, 20


def test_passes_are_counted_and_draw_by_themselves():
    model = nn.Sequential(nn.Linear(96, 96))
    controller = sg.compress(model, sg.Prune(0.8), seed=1)
    x = torch.randn(96, 96)
    gradient = torch.randn(96, 96)
    results: list[torch.Tensor] = []
    start = threading.Barrier(THREADS)

    def run() -> None:
        start.wait()
        for _ in range(PASSES):
            y = model(x)
            (found,) = torch.autograd.grad(y, model[0].weight, gradient)
            results.append(found)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert controller.report()["0"]["calls"] == THREADS * PASSES
    different = {tuple(result.flatten()[:64].tolist()) for result in results}
    assert len(different) == THREADS * PASSES
