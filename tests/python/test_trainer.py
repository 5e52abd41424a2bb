"""The `slimgrad-train` program, run as users run it, at a size that takes seconds."""

from functools import cache
from tempfile import TemporaryDirectory

import pytest
from trainer_runs import TINY, lines_of, run, write_cifar10, write_idx

# Quickest where other tests run beside these.
TINIEST = ["--train-size", "4", "--test-size", "4", "--batch", "2", "--epochs", "1"]
TINIEST += ["--min-accuracy", "0", "--threads", "1"]


def test_compares_plain_and_compressed_training(tmp_path):
    lines, done = lines_of(tmp_path / "out", *TINY, "--seed", "3", "--threads", "1")
    configs = [lines.one("config", run) for run in (1, 2, 3)]
    assert [c["gradients"] for c in configs] == ["none", "fp6", "prune:0.85"]
    for config in configs:
        assert (config["seed"], config["threads"], config["training_samples"]) == (3, 1, 192)
        assert config["commit"] and config["parameters"] == 207714

    assert lines.of("layers", 1) == []
    assert lines.one("end", 1)["bits_per_value"] == 32
    # 640 of some two million values, those behind the last layer, are too few to compress.
    assert 6 < lines.one("end", 2)["bits_per_value"] < 6.02
    fp6 = lines.of("layers", 2)
    assert [layer["layer"] for layer in fp6] == [
        *("conv1", "conv2", "conv3", "conv4", "conv5"),
        "linear6",
    ]
    assert fp6[-1]["compressed_values"] == 0 and fp6[-1]["passes"] == 3
    for layer in fp6[:-1]:
        assert layer["format"].startswith("1-") and layer["scale"] > 0
        assert 0.9 < layer["cosine"] <= 1 and 0 < layer["relative_error"] < 1
        assert 1 < layer["log_std"] < 4
    pruned = lines.one("end", 3)
    assert abs(pruned["sparsity"] - 0.85) < 0.005
    assert 0 < pruned["bits_per_value"] < 6
    for layer in lines.of("layers", 3)[:-1]:
        assert layer["sparsity_wanted"] == 0.85
        assert layer["worst_sparsity_miss"] < 0.02
        assert 0.5 < layer["cosine"] < 1

    # The first step sees the same weights and images, so the runs cannot be far apart.
    epochs = [lines.one("epoch", run) for run in (1, 2, 3)]
    assert all(abs(epoch["loss"] - epochs[0]["loss"]) < 0.5 for epoch in epochs)
    assert epochs[1]["gradient_bytes"] > 5 * epochs[1]["compressed_gradient_bytes"] > 0
    for name in ("gradients", "none", "fp6", "prune:0.85", "32.00"):
        assert name in done.stdout
    # Not a terminal: one line an epoch.
    assert "\r" not in done.stderr
    assert done.stderr.count("ETA") == 3 and "images/s" in done.stderr


def test_trains_with_a_sparse_backward_pass(tmp_path):
    way = ["--sparse-way", "always", "--threads", "1"]
    lines, _ = lines_of(tmp_path / "out", *TINY, "--gradients", "none", "sparse:0.9:0.5", *way)
    plain, sparse = lines.one("epoch", 1), lines.one("epoch", 2)
    # The same weights and images; pruned weight gradients are noisier, not different on average.
    assert abs(sparse["loss"] - plain["loss"]) < 0.5
    products = {layer["layer"]: layer for layer in lines.of("layers", 2)}
    assert abs(products["conv2.weight"]["sparsity"] - 0.9) < 0.02
    assert abs(products["conv2.input"]["sparsity"] - 0.5) < 0.02
    assert len(products) == 11  # nobody needs the gradient of the images


def test_a_run_can_be_repeated(tmp_path):
    command = [*TINY, "--gradients", "prune:0.9+fp4", "--threads", "1"]
    first, second = (lines_of(tmp_path / "out", *command)[0].untimed() for _ in range(2))
    assert first == second
    other = lines_of(tmp_path / "out", *command, "--seed", "9")[0]
    assert other.one("end")["weights"] != first[-1]["weights"]


def test_a_linear_model_fails_where_the_network_learns(tmp_path):
    size = ["--images", "1600", "--test-images", "500", "--batch", "32", "--min-accuracy", "0"]
    size += ["--threads", "1"]
    linear = ["--model", "linear", "--epochs", "3"]
    lines, _ = lines_of(tmp_path / "out", *size, *linear, "--gradients", "none")
    assert lines.one("end")["test_accuracy"] < 0.45
    lines, _ = lines_of(tmp_path / "out", *size, "--epochs", "4", "--gradients", "prune:0.85")
    assert lines.one("end")["test_accuracy"] > 0.7


# ---- models and data ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, parameters, last",
    [
        ("resnet20", 269722, "linear"),  # He et al. have 0.27 M
        ("resnet18", 11173962, "linear"),
        ("vgg11", 9228362, "linear9"),
        ("densenet", 176122, "linear"),  # Huang et al. have 0.18 M
        ("mlp", 1841162, "linear3"),
    ],
)
def test_trains_every_model_on_images(model, parameters, last, tmp_path):
    data = write_cifar10(tmp_path / "data")
    lines, _ = lines_of(
        *(tmp_path / "out", *TINIEST, "--model", model, "--data", data),
        *("--gradients", "prune:0.8+fp6", "--min-elements", "1"),
    )
    config = lines.one("config")
    assert config["parameters"] == parameters
    assert (config["data"], config["augment"]) == ("cifar10", True)
    assert str(tmp_path) not in str(config)
    layers = lines.of("layers")
    assert layers[-1]["layer"] == last
    for layer in layers:  # every convolution and linear layer has its gate
        assert layer["compressed_values"] == layer["values"] > 0


def test_trains_a_transformer_on_text(tmp_path):
    text = tmp_path / "text"
    text.write_bytes(bytes(i * i % 251 for i in range(8000)))
    command = [*TINIEST, "--model", "gpt", "--gradients", "fp6", "--activations", "3"]
    lines, done = lines_of(tmp_path / "out", *command, "--data", f"text:{text}")
    assert lines.one("config")["sample"] == "window" and "windows/s" in done.stderr
    assert len(lines.of("layers")) == 13
    assert all(layer["format"] for layer in lines.of("layers"))
    lines, _ = lines_of(tmp_path / "out", *command)  # the generated grammar
    assert lines.one("config")["data"] == "grammar"
    assert abs(lines.one("epoch")["loss"] - 5.5) < 0.5  # ln 256 at first


@pytest.mark.parametrize("model", ["cnn", "vgg11", "densenet"])
def test_input_sizes_follow_the_data(model, tmp_path):
    data = write_idx(tmp_path / "data")
    lines, _ = lines_of(
        *(tmp_path / "out", *TINIEST, "--model", model, "--data", data, "--gradients", "none")
    )
    assert (lines.one("config")["data"], lines.one("config")["augment"]) == ("idx", False)


# Each channel has a bias instead of a scale and a shift.
@pytest.mark.parametrize("model, parameters", [("cnn", 207354), ("densenet", 172246)])
def test_trains_without_normalisation(model, parameters, tmp_path):
    args = [*TINIEST, "--model", model, "--gradients", "none", "--norm", "none"]
    lines, _ = lines_of(tmp_path / "out", *args)
    assert lines.one("config")["norm"] == "none"
    assert lines.one("config")["parameters"] == parameters


def test_activations_keep_what_they_are_told_to(tmp_path):
    args = [*TINIEST, "--gradients", "none", "--nonlinearity", "silu", "--activations"]
    weights = {}
    for kept in ("torch", "1", "4", "exact"):
        lines, _ = lines_of(tmp_path / "out", *args, kept)
        weights[kept] = lines.one("end")["weights"]
        assert lines.one("epoch")["activation_values"] == 2 * 30720
    assert len(set(weights.values())) == 4  # each has its own rounding
    args[args.index("silu")] = "relu"  # exact with one bit
    torchs, ours = (lines_of(tmp_path / "out", *args, kept)[0] for kept in ("torch", "exact"))
    assert torchs.one("end")["weights"] == ours.one("end")["weights"]


def test_autograd_keeps_what_it_is_told_to(tmp_path):
    args = [*TINIEST, "--gradients", "none", "--saved"]
    weights, bytes_kept = {}, {}
    for kept in ("torch", "exact", "8", "4", "2"):
        lines, _ = lines_of(tmp_path / "out", *args, kept)
        assert lines.one("config")["saved"] == kept
        weights[kept] = lines.one("end")["weights"]
        epoch = lines.one("epoch")
        assert ("saved_bytes" in epoch) == (kept != "torch")
        bytes_kept[kept] = epoch.get("saved_bytes")
        saved = epoch.get("plain_saved_bytes")
    assert weights["exact"] == weights["torch"]
    assert len(set(weights.values())) == 4
    assert saved > bytes_kept["exact"] > bytes_kept["8"] > bytes_kept["4"] > bytes_kept["2"] > 0
    assert bytes_kept["4"] < saved / 4  # images and norms' statistics stay as they are
    lines, _ = lines_of(tmp_path / "out", *args, "4")
    assert lines.one("end")["weights"] == weights["4"]


# ---- what gradients are told --------------------------------------------------------------------


ALWAYS = ["--sparse-way", "always"]


@pytest.mark.parametrize(
    "usual, options",
    [
        (["fp6"], ["--split", "normal"]),
        (["1-3-0"], ["--scale", "error"]),
        (["1-3-0", "--refresh", "epoch"], ["--scale", "predicted"]),
        (["1-3-0", "--scale", "static:2^16"], ["--scale", "dynamic:2^16:1"]),
        (["1-3-0"], ["--rounding", "nearest"]),
        (["prune:0.8"], ["--prune", "topk"]),
        (["prune:0.8"], ["--threshold", "normal"]),
        (["prune:0.8"], ["--allocation", "min_cosine"]),
        (["prune:0.8"], ["--refresh", "2"]),
        (["prune:0.8"], ["--warmup", "1"]),
        (["sparse:0.8:0.8", *ALWAYS], ["--threshold", "lognormal"]),
        (["none"], ["--optimizer", "sgd"]),
        (["none"], ["--augment", "yes"]),
        (["none"], ["--nonlinearity", "gelu"]),
        (["none"], ["--fake-int4"]),
    ],
)
def test_every_option_makes_a_difference(usual, options, tmp_path):
    other = [*usual, *options]
    if options[0] in usual:  # given twice, it is refused
        at = usual.index(options[0])
        other = [*usual[:at], *options, *usual[at + 2 :]]
    assert weights_after(*other) != weights_after(*usual)


@cache
def weights_after(*gradients):
    size = ["--images", "24", "--test-images", "4", "--batch", "4", "--epochs", "2"]
    size += ["--min-accuracy", "0", "--threads", "1"]
    with TemporaryDirectory() as folder:
        return lines_of(f"{folder}/out", *size, "--gradients", *gradients)[0].one("end")["weights"]


def test_a_loss_scale_is_one_for_all(tmp_path):
    size = [*TINY, "--batch", "16", "--threads", "1", "--gradients", "1-3-2", "--scale"]
    lines, _ = lines_of(tmp_path / "out", *size, "static:2^13")
    scales = {line["scale"] for line in lines.of("layers") if "scale" in line}
    assert scales == {2.0**-13}
    lines, _ = lines_of(tmp_path / "out", *size, "dynamic:2^40:5")
    scales = {line["scale"] for line in lines.of("layers") if "scale" in line}
    assert len(scales) == 1 and scales.pop() > 2.0**-40  # gradients exceeded the grid


def test_an_allocation_spreads_sparsity(tmp_path):
    size = [*TINY, "--threads", "1", "--gradients", "prune:0.85", "--allocation", "targets"]
    lines, _ = lines_of(tmp_path / "out", *size, "--target", "conv1=0.999", "--cap", "0.95")
    wanted = {line["layer"]: line["sparsity_wanted"] for line in lines.of("layers")[:-1]}
    assert wanted["conv1"] < 0.8 and max(wanted.values()) <= 0.95
    assert len(set(wanted.values())) > 2
    done = run(*size, "--target", "conv9=0.9")
    assert done.returncode == 2 and "expected the name of a layer, one of conv1" in done.stderr


def test_looks_at_gradients(tmp_path):
    size = ["--images", "16", "--test-images", "4", "--batch", "8", "--epochs", "2"]
    size += ["--min-accuracy", "0", "--threads", "1", "--gradients", "none"]
    lines, _ = lines_of(tmp_path / "out", *size, "--probe-at", "2", "3")
    for kind, tensors in (("histogram", 12), ("fit", 12), ("bits", 4 * 6)):
        assert [line["step"] for line in lines.of(kind)] == [2] * tensors + [3] * tensors
    line = lines.of("histogram")[1]
    assert (line["layer"], line["tensor"]) == ("conv2", "neural_gradient")
    assert line["values"] == 8 * 48 * 16 * 16 == line["zeros"] + sum(line["counts"])
    # The largest magnitude is in the last bin.
    last = len(line["counts"]) - 1
    edge = 2.0 ** (line["first_exponent"] + last // 8)
    assert edge * (1 + last % 8 / 8) <= line["max_abs"] < edge * (1 + (last % 8 + 1) / 8)
    families = lines.of("fit")[1]["families"]
    assert set(families) == {
        *("lognormal", "normal", "laplace", "cauchy", "loglaplace", "uniform", "gennorm")
    }
    assert all(0 < family["ks"] < 1 for family in families.values())
    assert families["gennorm"]["shape"] > 0
    of_one_layer = lines.of("bits")[16:20]
    assert [line["quantizer_bits"] for line in of_one_layer] == [8, 6, 4, 2]
    for bits in of_one_layer:
        assert bits["layer"] == "conv5" and bits["tensor"] == "weight_gradient"
        for coder in ("rans", "huffman"):
            assert set(bits[coder]) == {"counted", "normal", "laplace", "gennorm"}
            assert all(bits["entropy"] < size < 8.5 for size in bits[coder].values())
    # Looking changes nothing.
    plain, _ = lines_of(tmp_path / "out", *size)
    assert plain.one("end")["weights"] == lines.one("end")["weights"]
