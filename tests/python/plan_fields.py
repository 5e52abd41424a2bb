"""A gate's plan by field, with the names that the library gives them: tests look inside."""

from enum import IntEnum

from slimgrad.compression.gate import GradientGate

_NAMES = GradientGate().fields()

Plan = IntEnum("Plan", {name.upper(): index for index, name in enumerate(_NAMES)})
SCHEDULE = slice(Plan.SCHEDULE_CALL_0, Plan.SCHEDULE_SPARSITY_7 + 1)


def seed_of(gate):
    fields = gate.fields()
    return fields["seed_low"], fields["seed_high"]


def layer_report(plan, stats):
    gate = GradientGate()
    gate.plan, gate.stats = plan, stats
    return gate.report()
