"""What `make demo` runs: the format table, then the gradients of a small random network, measured
and fitted, with the format, scale and pruning threshold that follow. Needs no data."""

import math

import torch

import slimgrad as sg


def gradients() -> dict[str, torch.Tensor]:
    """Neural gradients (loss with respect to each layer's output) of a random CNN on noise."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    )
    found = {}

    def keep(name):
        def hook(_module, _inputs, output):
            output.register_hook(lambda gradient: found.__setitem__(name, gradient.detach()))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(keep(f"{name} {type(module).__name__}"))
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    return found


def main() -> None:
    print("Best low-bit formats (sign-exponent-mantissa) for gradients with a spread of log2|x|:\n")
    print(f"  {'spread':10}" + "".join(f"{f'{bits} bits':>9}" for bits in range(4, 9)))
    for spread in [(2.5, 4.5), (3.0, 5.5)]:
        row = [str(sg.best_format(bits, spread)) for bits in range(4, 9)]
        print(f"  {f'{spread[0]}-{spread[1]}':10}" + "".join(f"{cell:>9}" for cell in row))

    print("\nNeural gradients of a small random network (KS distance: smaller fits better):\n")
    head = f"  {'layer':12}{'values':>9}{'log2 std':>10}"
    print(
        head
        + f"{'lognormal':>11}{'normal':>9}{'gennorm':>9}{'FP6':>7}{'scale':>11}{'alpha(0.85)':>13}"
    )
    for name, gradient in gradients().items():
        stats = sg.measure(gradient)
        log2_std = stats.log_std / math.log(2)
        ks = [
            sg.fit(gradient, family).ks(gradient) for family in ("lognormal", "normal", "gennorm")
        ]
        format = sg.best_format(6, log2_std)
        scale, alpha = sg.gradient_scale(stats, format), sg.threshold(stats, 0.85)
        print(
            f"  {name:12}{stats.count:9d}{log2_std:10.2f}{ks[0]:11.3f}{ks[1]:9.3f}{ks[2]:9.3f}"
            f"{format!s:>7}{scale:11.2e}{alpha:13.2e}"
        )


if __name__ == "__main__":
    main()
