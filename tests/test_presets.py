"""The presets against the tables of the paper and the reference code; `auto` over many data sets and machines."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace

import pytest

from byol import presets
from byol.auto import ENOUGH_STEPS, auto
from byol.config import Config, Data, Network, Objective, Optim, apply, flatten, resolve
from byol.errors import UsageError
from byol.presets import PRESETS, Facts, compose

# FACTS 1.11: name: epochs, batch, base lr, weight decay, tau, peak lr at that batch.
PAPER = {
    "paper-40": (40, 4096, 0.45, 1e-6, 0.97, 7.2),
    "paper-100": (100, 4096, 0.45, 1e-6, 0.99, 7.2),
    "paper-300": (300, 4096, 0.3, 1e-6, 0.99, 4.8),
    "paper-1000": (1000, 4096, 0.2, 1.5e-6, 0.996, 3.2),
    "paper-512": (1000, 512, 0.4, 1.5e-6, 0.9995, 0.8),
}


def seconds(config: Config) -> float:
    """A machine on which an image of 64 px takes 1 ms at a quarter of the width, and all else as its operations do."""
    side = config.data.resolution * (4 if config.network.small_images else 1)
    deep = 8 if config.network.encoder == "resnet50" else 1
    return 1e-3 * (side / 64) ** 2 * (config.network.width / 0.25) * deep


LAPTOP = {"cores": 2, "memory": 8.0, "accelerator": False, "seconds": seconds}
GPU = {"cores": 16, "memory": 24.0, "accelerator": True, "seconds": lambda config: seconds(config) / 100}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_composes(name: str) -> None:
    """Breaks for a new preset with a value outside its range, or without a docstring that says its source or cost."""
    config, reasons = compose(name, {}, {})
    assert config == PRESETS[name]()
    assert reasons == []
    assert apply(Config(), flatten(config)) == config
    assert len(PRESETS[name].__doc__ or "") > 30
    assert resolve(config, 50_000).steps > 0


@pytest.mark.parametrize("name", PAPER)
def test_numbers_of_the_paper(name: str) -> None:
    """Breaks if a number of the paper's or the reference code's presets changes."""
    config = PRESETS[name]()
    optim = config.optim
    peak = resolve(config, 1_281_167).peak_lr
    assert (optim.epochs, optim.batch, optim.lr, optim.weight_decay, optim.tau) == PAPER[name][:5]
    assert peak == pytest.approx(PAPER[name][5])
    assert (optim.warmup_epochs, optim.optimizer, optim.tau_schedule) == (10, "lars", "cosine")


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_change_nothing_else(name: str) -> None:
    """Breaks if a paper preset departs from the paper's views or network, or holds training images out."""
    config = PRESETS[name]()
    default = Config()
    assert (config.views, config.network, config.run) == (default.views, default.network, default.run)
    assert config.objective == default.objective
    assert config.data == Data(holdout=0.0)
    assert config.network == Network()


def test_simclr_is_the_original() -> None:
    """Breaks if a number of SimCLR's code changes (FACTS 1.4, 1.14), or the BYOL paper's factor of 2α comes back."""
    config, base = PRESETS["simclr"](), PRESETS["paper-300"]()
    assert config.views.t == config.views.t_prime
    view = config.views.t
    assert (view.brightness, view.contrast, view.saturation, view.hue) == (0.8, 0.8, 0.8, 0.2)
    assert (view.jitter, view.grayscale, view.blur, view.solarize, view.flip) == (0.8, 0.2, 0.5, 0, 0.5)
    assert (view.area_min, view.area_max) == (0.08, 1)
    network, objective = config.network, config.objective
    assert (network.projector_hidden, network.projection, network.projector_depth) == (2048, 128, 2)
    assert network.projection_norm
    assert (network.predictor, network.target) == ("none", "online")
    assert (objective.name, objective.temperature, objective.beta) == ("info-nce", 0.1, 1)
    assert objective.scale * 2 * objective.temperature == pytest.approx(1, rel=1e-15)
    assert (config.optim, config.data, config.run) == (base.optim, base.data, base.run)


def test_imagenette_is_the_readmes() -> None:
    """Breaks if the reference README's recipe changes (FACTS 1.16)."""
    config = PRESETS["imagenette"]()
    assert (config.data.resolution, config.network.encoder, config.network.small_images) == (128, "resnet18", False)
    assert config.optim == Optim(epochs=1000, lr=2.0, weight_decay=1e-6, tau=0.996, batch=256)


def test_cifar10_suits_its_images() -> None:
    """Breaks if CIFAR-10 gets the ImageNet stem or blur, or the CPU preset other views or the slow recipe."""
    gpu, cpu = PRESETS["cifar10"](), PRESETS["cifar10-cpu"]()
    for config in (gpu, cpu):
        assert config.network.small_images
        assert (config.views.t.blur, config.views.t_prime.blur) == (0, 0)
        assert (config.views.t.solarize, config.views.t_prime.solarize) == (0, 0.2)
    assert (gpu.data.resolution, gpu.network.width, gpu.optim.optimizer) == (32, 1, "lars")
    assert (cpu.data.resolution, cpu.network.width, cpu.optim.optimizer) == (16, 0.5, "adamw")
    changed = {name for name, value in flatten(gpu).items() if flatten(cpu)[name] != value}
    sizes = {"data.resolution", "network.width", "network.projector_hidden", "network.predictor_hidden"}
    recipe = {"network.zero_init_last", "objective.name", "objective.fade"}
    assert sizes | recipe <= changed
    assert all(name.startswith("optim.") for name in changed - sizes - recipe)
    assert cpu == presets.fast(cpu)


def test_flags_win_over_the_file_and_the_file_over_the_preset() -> None:
    """Breaks if the order of precedence changes, or a layer resets what it does not name."""
    file = {"optim.lr": 0.7, "optim.tau": 0.5}
    config, _ = compose("paper-300", {"optim.lr": 0.9}, file, "my.yaml")
    assert (config.optim.lr, config.optim.tau, config.optim.epochs) == (0.9, 0.5, 300)
    config, _ = compose("paper-300", {}, file, "my.yaml")
    assert (config.optim.lr, config.optim.weight_decay) == (0.7, 1e-6)


def test_file_and_flags_win_over_auto() -> None:
    """Breaks if what was chosen by itself cannot be overruled."""
    facts = Facts(images=50_000, side=64, **LAPTOP)
    chosen, reasons = compose("auto", {}, {}, facts=facts)
    config, again = compose("auto", {"optim.batch": 64}, {"network.encoder": "resnet34"}, "my.yaml", facts)
    assert (config.optim.batch, config.network.encoder) == (64, "resnet34")
    assert config.data == chosen.data
    assert reasons == auto(facts)[1]
    left = [reason.field for reason in reasons if reason.field not in ("optim.batch", "network.encoder")]
    assert [reason.field for reason in again] == left
    assert [reason.value for reason in again] == [flatten(config)[name] for name in left]


def test_auto_chooses_around_what_is_asked_for() -> None:
    """Breaks if the rest is chosen for a resolution or a length that the run does not have."""
    facts = Facts(images=1000, side=300, **LAPTOP)
    plain, _ = compose("auto", {}, {}, facts=facts)
    small, reasons = compose("auto", {"data.resolution": "32"}, {}, facts=facts)
    assert not plain.network.small_images
    assert (small.network.small_images, small.views, small.data.shrink) == (False, presets.small_views(), 64)
    assert not any(reason.field == "data.resolution" for reason in reasons)
    short, reasons = compose("auto", {}, {"optim.epochs": 4}, "my.yaml", facts)
    assert (short.optim.epochs, short.optim.warmup_epochs) == (4, 0.2)
    long, _ = compose("auto", {"optim.epochs": 1000, "optim.batch": 50}, {}, facts=facts)
    assert (long.optim.tau, long.optim.warmup_epochs) == (0.995, 50)
    assert not any(reason.field == "optim.epochs" for reason in reasons)
    plain, reasons = compose("auto", {"objective.name": "byol"}, {}, facts=facts)
    assert plain.objective == Objective()
    assert not any(reason.field == "objective.fade" for reason in reasons)
    plain, _ = compose("auto", {"objective.normalization": "layer", "optim.optimizer": "lars"}, {}, facts=facts)
    assert plain.objective == Objective(normalization="layer")
    assert (plain.optim.lr, plain.optim.trust_coefficient) == (0.4, 0.005)  # that of adamw would hardly move a weight


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("20", 20)])
def test_times(text: str, expected: float) -> None:
    """Breaks if a unit is another one."""
    assert presets.seconds_of(text) == expected


@pytest.mark.parametrize("text", ["m", "1d", "-5m", "0s", "nanm", "1e999s", "5 min"])
def test_a_time_that_is_none(text: str) -> None:
    """Breaks if what is no time, or none at all, plans an empty run or one without end."""
    with pytest.raises(UsageError, match=r"run\.budget should be a time"):
        compose("auto", {"run.budget": text}, {})


def test_a_budget_is_for_auto() -> None:
    """Breaks if a preset of fixed length takes a budget and pays no heed to it."""
    with pytest.raises(UsageError, match=r"run\.budget is for the preset auto; the length of cifar10 is optim\.epochs"):
        compose("cifar10", {"run.budget": "15m"}, {})


@pytest.mark.parametrize("budget", ["2m", "15m", "1h", "8h"])
def test_the_budget_is_the_time_that_the_machine_takes(budget: str) -> None:
    """Breaks if the epochs are those of another shape than the one that was chosen, or another time than asked for."""
    facts = Facts(images=20_000, side=375, **LAPTOP)
    config, _ = compose("auto", {"run.budget": budget}, {}, facts=facts)
    assert _taken(config, facts) == pytest.approx(presets.seconds_of(budget), rel=0.01)
    assert config.run.budget == budget
    late = replace(facts, began=time.monotonic() - presets.seconds_of(budget) / 2)  # half of it is spent already
    config, _ = compose("auto", {"run.budget": budget}, {}, facts=late)
    assert _taken(config, facts) == pytest.approx(presets.seconds_of(budget) / 2, rel=0.05)


def _taken(config: Config, facts: Facts) -> float:
    """Seconds of training and of the monitor's looks, which take no less than 3,200 images do."""
    trained = config.optim.epochs * facts.images
    return max(trained / 0.94, trained + 3200) * seconds(config)


def test_more_time_makes_more_detail() -> None:
    """Breaks if a long run is as coarse as a short one, or detail leaves too few steps where less had enough."""
    found = []
    for budget in ("1m", "15m", "2h", "24h"):
        facts = Facts(images=100_000, side=375, **LAPTOP)
        config, _ = compose("auto", {"run.budget": budget}, {}, facts=facts)
        steps = config.optim.epochs * facts.images / config.optim.batch
        found.append(seconds(config))
        assert steps >= ENOUGH_STEPS or seconds(config) == 1e-3  # the quickest
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_the_faster_precision() -> None:
    """Breaks if auto believes the processor's flags: bf16 may be the slower one."""
    for factor, expected in ((0.5, "float32"), (2.0, "auto")):

        def timed(config: Config, factor: float = factor) -> float:
            return seconds(config) * (factor if config.run.precision == "float32" else 1)

        facts = Facts(50_000, 64, 2, 8.0, False, timed, bf16=True)
        config, reasons = auto(facts)
        assert config.run.precision == expected
        assert any(reason.field == "run.precision" for reason in reasons) == (expected == "float32")
        assert auto(facts, {"run.precision": "bf16"})[0].run.precision == "bf16"


def test_layers_are_checked_together() -> None:
    """Breaks if a file is refused for what the flags then put right."""
    config, _ = compose("paper-300", {"optim.batch": 300}, {"optim.accumulate": 3}, "my.yaml")
    assert (config.optim.batch, config.optim.accumulate) == (300, 3)


def test_mistakes_name_their_layer() -> None:
    """Breaks if a mistake in the file is blamed on the flags, or the other way round."""
    with pytest.raises(UsageError, match=r"^my\.yaml: optim\.tau must be"):
        compose("paper-300", {"optim.tau": 0.5}, {"optim.tau": 2}, "my.yaml")
    with pytest.raises(UsageError, match=r"^settings: .*'optim\.tua'.*optim\.tau"):
        compose("auto", {"optim.tua": 0.5}, {})


@pytest.mark.parametrize(("name", "offered"), [("paper-3000", "paper-300"), ("cifar", "cifar10"), ("Auto", "auto")])
def test_unknown_preset_offers_the_nearest(name: str, offered: str) -> None:
    """Breaks if a typo falls back to a default, or the nearest names are not offered."""
    with pytest.raises(UsageError, match=rf"no preset '{name}'.*\b{offered}\b"):
        compose(name, {}, {})


def grid() -> list[Facts]:
    """From a handful of images to ImageNet, thumbnails to photographs, an old laptop to a large GPU."""
    machines = (
        LAPTOP,
        {"cores": 64, "memory": 256.0, "accelerator": False, "seconds": lambda config: seconds(config) / 30},
        {"cores": 1, "memory": 0.5, "accelerator": False, "seconds": lambda config: seconds(config) * 5},
        GPU,
        {"cores": 8, "memory": 80.0, "accelerator": True, "seconds": lambda config: seconds(config) / 1000},
        {"cores": 4, "memory": 2.0, "accelerator": True, "seconds": lambda config: seconds(config) / 10},
    )
    counts, sides = (8, 20, 300, 5000, 50_000, 1_281_167), (16, 28, 32, 48, 64, 96, 100, 160, 375, 2000)
    return [Facts(n, side, **machine) for n, side, machine in itertools.product(counts, sides, machines)]


def test_auto_is_valid_everywhere() -> None:
    """Breaks if some data set and machine get a value out of range, no step, too large a batch or enlarged images."""
    for facts in grid():
        config, _ = auto(facts)
        assert apply(Config(), flatten(config)) == config, facts
        assert resolve(config, facts.images).steps >= 10, facts
        assert config.optim.batch <= facts.images, facts
        assert 8 <= config.optim.batch <= 256, facts
        assert config.data.resolution <= max(32 if facts.accelerator else 64, facts.side * 1.1), facts
        assert config.optim.warmup_epochs <= config.optim.epochs / 10, facts
        assert config.network.small_images == (facts.accelerator and config.data.resolution < 64), facts
        assert config.data.shrink in (0, 2 * config.data.resolution), facts
        assert 0.97 <= config.optim.tau <= 0.996, facts


@pytest.mark.parametrize("images", [2, 5])
def test_auto_batch_of_a_handful(images: int) -> None:
    """Breaks if fewer than eight images get a batch larger than all of them."""
    assert auto(Facts(images=images, side=32, **LAPTOP))[0].optim.batch <= images


def test_auto_says_how_much_work_it_chose() -> None:
    """Breaks if the steps or the time of a step that are stated are not those of the config."""
    for images, machine in ((1_281_167, LAPTOP), (50_000, GPU)):
        facts = Facts(images=images, side=375, **machine)
        config, reasons = auto(facts)
        (epochs,) = [reason.why for reason in reasons if reason.field == "optim.epochs"]
        stated = re.search(r"about ([\d,]+) steps of ([\d.e+]+) ms, as timed here", epochs)
        assert stated
        assert int(stated[1].replace(",", "")) == pytest.approx(resolve(config, images).steps, rel=0.01)
        assert float(stated[2]) == pytest.approx(1000 * facts.seconds(config) * config.optim.batch, rel=0.01)


def test_auto_says_each_choice() -> None:
    """Breaks if a reason is missing or states another value than the config has."""
    for facts in grid():
        config, reasons = auto(facts)
        stated = {reason.field: reason for reason in reasons}
        names = ["data.resolution", "data.shrink", "network.small_images", "network.encoder", "network.width"]
        names += ["optim.batch", "optim.epochs", "optim.tau", "objective.fade"]
        assert list(stated) == [name for name in names if name != "data.shrink" or config.data.shrink]
        assert {name: reason.value for name, reason in stated.items()} == {
            name: flatten(config)[name] for name in stated
        }
        assert str(facts.side) in stated["data.resolution"].why
        assert str(facts.images) in stated["network.encoder"].why
        assert str(stated["optim.tau"]).startswith(f"optim.tau {config.optim.tau:g}: ")


def test_auto_by_hand() -> None:
    """Breaks if the choices for CIFAR-10 on two cores or photographs on one GPU change without intent."""
    cpu, _ = auto(Facts(images=50_000, side=32, **LAPTOP))
    assert (cpu.data.resolution, cpu.network.encoder, cpu.network.width) == (64, "resnet18", 0.5)
    assert (cpu.optim.batch, cpu.optim.epochs) == (128, 16.9)  # half an hour at 2 ms are 900 000 images; looks take 6 %
    assert cpu.views == presets.small_views()
    assert cpu.network.projector_hidden == 1024
    for budget, width in (("10m", 0.5), ("2m", 0.25)):  # 5,000 steps in ten minutes: at 32 px
        short, _ = auto(Facts(images=50_000, side=32, **LAPTOP), {"run.budget": budget})
        assert (short.data.resolution, short.network.small_images, short.network.width) == (32, False, width)
    gpu, _ = auto(Facts(images=100_000, side=375, **GPU))
    assert (gpu.data.resolution, gpu.network.encoder, gpu.network.width) == (224, "resnet50", 1)
    assert (gpu.optim.batch, gpu.optim.epochs, gpu.network.projector_hidden) == (128, 34.5, 4096)
    assert gpu.views == Config().views
    for config in (cpu, gpu):
        assert config.objective == Objective(name="simclr-to-byol", fade=0.7)
        assert config.network.zero_init_last


def test_auto_fits_the_memory() -> None:
    """Breaks if the batch ignores the device: 60 MB an image at 224 px in half of 2 GB are 17."""
    config, _ = auto(Facts(images=100_000, side=375, cores=4, memory=2.0, accelerator=True, seconds=seconds))
    assert (config.data.resolution, config.optim.batch) == (224, 16)


def test_auto_waits_for_its_facts() -> None:
    """Breaks if `auto` before the images are known is not a valid config, or already gives reasons."""
    config, reasons = compose("auto", {"optim.lr": 0.5}, {})
    assert config.optim.lr == 0.5
    assert reasons == []
