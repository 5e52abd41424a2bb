"""A small network with a sparse backward pass, and its training."""

import controller_samples

import slimgrad as sg

ALWAYS = sg.Prune(weight=0.9, input=0.5, sparse_backward="always")


def make(gradients=ALWAYS, **options):
    return controller_samples.make(gradients, **options)


def batch(step, size=64):
    return controller_samples.batch(step, size)


def train(model, steps, optimizer=None, **how):
    return controller_samples.train(model, steps, optimizer, size=64, **how)
