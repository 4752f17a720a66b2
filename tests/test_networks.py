"""The networks against published parameter counts, torchvision, timm and hand-computed padding."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import timm
import torch
import torchvision.models.resnet as tv
from timm.layers import Conv2dSame
from timm.layers.pool2d_same import MaxPool2dSame
from torch import Tensor, nn

import byol
from byol import convolutions, networks
from byol.checkpoint import save_encoder
from byol.config import Config, Network, apply
from byol.errors import UsageError

# FACTS 3: encoder only, exact integers (the paper's table rounds them to millions).
COUNTS = {
    (50, 1): 23_508_032,
    (101, 1): 42_500_160,
    (152, 1): 58_143_808,
    (200, 1): 62_624_832,
    (50, 2): 93_907_072,
    (101, 2): 169_771_136,
    (50, 3): 211_197_120,
    (152, 2): 232_253_568,
    (200, 2): 250_128_512,
    (50, 4): 375_378_176,
    (101, 3): 381_812_928,
    (152, 3): 522_329_280,
}
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BLOCKS[200] = (3, 24, 36, 3)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on_meta(depth: int, width: float = 1, **options: bool) -> networks.ResNet:
    with torch.device("meta"):
        return networks.resnet(depth, width, **options)


def torchvision_resnet(depth: int) -> tv.ResNet:
    """torchvision's, on the meta device and without its classifier; it has no depth 200, but its class builds one."""
    with torch.device("meta"):
        network = tv.ResNet(tv.BasicBlock if depth < 50 else tv.Bottleneck, list(BLOCKS[depth]))
    network.fc = nn.Identity()
    return network


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in module.state_dict().items()}


def disturb(module: nn.Module, seed: int = 0) -> nn.Module:
    """Batch norms away from 0 and 1, so that two swapped ones would show."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for value in (part.weight.data, part.running_var):
                value.uniform_(0.5, 1.5, generator=generator)
            for value in (part.bias.data, part.running_mean):
                value.normal_(0, 0.1, generator=generator)
    return module.eval()


@pytest.mark.parametrize(("depth", "width"), COUNTS, ids=lambda value: str(value))
def test_parameter_counts_of_the_paper(depth: int, width: int) -> None:
    """Breaks if the width misses the stem, a block count changes or a convolution gets a bias."""
    assert count(on_meta(depth, width)) == COUNTS[depth, width]


@pytest.mark.parametrize(("depth", "expected"), [(18, 11_689_512 - 513_000), (34, 21_797_672 - 513_000)])
def test_parameter_counts_of_torchvision(depth: int, expected: int) -> None:
    """Breaks if the basic block gets another convolution or layer1 a projection (published counts less fc)."""
    assert count(on_meta(depth)) == expected


def test_head_parameter_counts() -> None:
    """Breaks if a head gets a bias in its last layer or loses one in its first (FACTS 3)."""
    with torch.device("meta"):
        assert count(networks.mlp(2048, 4096, 256)) == 9_449_472
        assert count(networks.mlp(256, 4096, 256)) == 2_109_440


@pytest.mark.parametrize("width", [0.25, 0.5, 1.5, 2])
@pytest.mark.parametrize("depth", [18, 50])
def test_width_multiplies_every_channel(depth: int, width: float) -> None:
    """Breaks if the width misses the stem, a group, a shortcut or `num_features`."""
    wide, plain = shapes(on_meta(depth, width)), shapes(on_meta(depth))
    assert wide.keys() == plain.keys()
    for name, shape in plain.items():
        channels = [c if (name, axis) == ("conv1.weight", 1) else c * width for axis, c in enumerate(shape[:2])]
        assert list(wide[name]) == [*channels, *shape[2:]], name
    assert on_meta(depth, width).num_features == (512 if depth == 18 else 2048) * width


@pytest.mark.parametrize("depth", BLOCKS)
def test_names_are_torchvisions(depth: int) -> None:
    """Breaks if a module is renamed, reordered or reshaped: the two would no longer load each other strictly."""
    ours, theirs = on_meta(depth), torchvision_resnet(depth)
    assert list(shapes(ours).items()) == list(shapes(theirs).items())
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)


def test_wide_and_deep_names_are_torchvisions() -> None:
    """Breaks if a width or the depth of 200 changes any name."""
    for depth, width in ((50, 2), (18, 0.25), (200, 2)):
        assert list(shapes(on_meta(depth, width))) == list(shapes(torchvision_resnet(depth)))


@pytest.fixture(scope="module")
def resnet50() -> networks.ResNet:
    torch.manual_seed(0)
    return disturb(networks.resnet(50))


@torch.no_grad()
def test_resnet50_computes_what_torchvision_and_timm_do(resnet50: networks.ResNet) -> None:
    """Breaks if the stride leaves the 3×3, or the order, pooling, padding or a batch norm's epsilon changes."""
    x = images(2, 3, 64, 64)
    expected = resnet50(x)
    with torch.device("meta"):
        from_timm = timm.create_model("resnet50", num_classes=0)
    for theirs in (torchvision_resnet(50), from_timm):
        theirs.load_state_dict(resnet50.state_dict(), strict=True, assign=True)
        torch.testing.assert_close(theirs.eval()(x), expected, rtol=1e-5, atol=1e-5)
        back = on_meta(50)
        back.load_state_dict(theirs.state_dict(), strict=True, assign=True)
        assert torch.equal(back.eval()(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("depth", [18, 34])
def test_basic_blocks_compute_what_torchvisions_do(depth: int) -> None:
    """Breaks if the stride moves to the second 3×3 of a basic block, or a ReLU moves."""
    torch.manual_seed(0)
    with torch.device("cpu"):
        theirs = tv.ResNet(tv.BasicBlock, list(BLOCKS[depth]))
    theirs.fc = nn.Identity()
    disturb(theirs)
    ours = on_meta(depth)
    ours.load_state_dict(theirs.state_dict(), strict=True, assign=True)
    x = images(2, 3, 64, 64)
    torch.testing.assert_close(ours.eval()(x), theirs(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_features_are_averaged(resnet50: networks.ResNet) -> None:
    """Breaks if the representation is pooled otherwise, or if features() stops before layer4."""
    x = images(1, 3, 64, 96)
    last = resnet50.features(x)
    assert last.shape == (1, 2048, 2, 3)
    torch.testing.assert_close(resnet50(x)[0], last[0].flatten(1).sum(1) / 6)


@torch.no_grad()
def test_stem_for_small_images() -> None:
    """Breaks if the small stem strides, pools or is not 3×3."""
    torch.manual_seed(0)
    small = networks.resnet(18, 1 / 16, small_images=True).eval()
    assert (small.conv1.kernel_size, small.conv1.stride, small.conv1.padding) == ((3, 3), (1, 1), (1, 1))
    x = images(1, 3, 32, 32)
    assert small.features(x).shape[-2:] == (4, 4)  # three strides of 2 only
    assert networks.resnet(18, 1 / 16).eval().features(x).shape[-2:] == (1, 1)  # 32/32
    assert torch.equal(small.maxpool(x), x)
    assert list(small.state_dict()) == list(networks.resnet(18, 1 / 16).state_dict())


@torch.no_grad()
@pytest.mark.parametrize("depth", [18, 50])
def test_same_padding_is_symmetric_only_at_one_modulo_32(depth: int) -> None:
    """Breaks if 'same' pads more than it needs to, or does nothing."""
    torch.manual_seed(0)
    symmetric = disturb(networks.resnet(depth, 1 / 16)).double()
    same = networks.resnet(depth, 1 / 16, padding="same").double().eval()
    same.load_state_dict(symmetric.state_dict(), strict=True)
    for size in (33, 97):
        x = images(1, 3, size, size).double()
        torch.testing.assert_close(same(x), symmetric(x), rtol=1e-12, atol=1e-12)
    x = images(1, 3, 64, 64).double()
    assert float((same(x) - symmetric(x)).norm() / symmetric(x).norm()) > 1e-3


def with_timms_padding(network: networks.ResNet) -> networks.ResNet:
    """Every strided 3×3 and 7×7 convolution and the pool replaced by timm's emulations of TensorFlow's."""
    for name, part in list(network.named_modules()):
        replacement: nn.Module
        if isinstance(part, nn.Conv2d) and part.stride == (2, 2) and part.kernel_size > (1, 1):
            replacement = Conv2dSame(part.in_channels, part.out_channels, part.kernel_size, 2, bias=False)
            replacement.weight = part.weight
        elif isinstance(part, nn.MaxPool2d):
            replacement = MaxPool2dSame(3, 2)
        else:
            continue
        owner, _, own = name.rpartition(".")
        setattr(network.get_submodule(owner), own, replacement)
    return network


@torch.no_grad()
@pytest.mark.parametrize("depth", [18, 50])
def test_same_padding_is_timms(depth: int) -> None:
    """Breaks if 'same' misses the stem, the pool or the strided 3×3 of a block."""
    torch.manual_seed(0)
    ours = disturb(networks.resnet(depth, 1 / 16, padding="same")).double()
    theirs = networks.resnet(depth, 1 / 16).double().eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = images(1, 3, 64, 96).double()
    torch.testing.assert_close(ours(x), with_timms_padding(theirs)(x), rtol=1e-12, atol=1e-12)


def check_initialization(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            scaled = part.weight.detach() * math.sqrt(part.weight[0].numel())
            assert float(scaled.abs().max()) < 2 * (1 + 1e-6), name
            # Five deviations of a standard deviation estimated from n values.
            assert float(scaled.std()) == pytest.approx(0.8796, abs=5 * 0.6 / math.sqrt(scaled.numel())), name
            assert part.bias is None or part.bias.eq(0).all()


def test_initialization() -> None:
    """Breaks with Kaiming's gain or fan_out, or a truncated normal that is rescaled or cut elsewhere (FACTS 1.7)."""
    torch.manual_seed(0)
    check_initialization(networks.resnet(50, 0.25))
    check_initialization(networks.resnet(18, 0.25, small_images=True))
    head = networks.mlp(512, 256, 256, bias=True)
    check_initialization(head)
    assert float(head[0].weight.detach().std()) * math.sqrt(512) == pytest.approx(0.8796, abs=0.005)


@pytest.mark.parametrize(("depth", "last"), [(18, "bn2"), (50, "bn3")])
@pytest.mark.parametrize("zero", [False, True])
def test_zero_init_last(depth: int, last: str, zero: bool) -> None:
    """Breaks if the flag's default flips, or if it zeroes another batch norm than the last of each block."""
    options = {"zero_init_last": True} if zero else {}
    network = networks.resnet(depth, 1 / 16, **options)
    seen = 0
    for name, part in network.named_modules():
        if isinstance(part, nn.BatchNorm2d):
            zeroed = zero and name.startswith("layer") and name.endswith("." + last)
            seen += zeroed
            assert part.weight.eq(0 if zeroed else 1).all(), name
            assert part.bias.eq(0).all(), name
    assert seen == (sum(BLOCKS[depth]) if zero else 0)


def test_batch_norm_constants() -> None:
    """Breaks if a batch norm has another epsilon or momentum than 1e-5 and 0.1 (FACTS 1.8)."""
    for module in (networks.resnet(50, 1 / 16), networks.mlp(4, 4, 4)):
        norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        assert norms
        assert {(m.eps, m.momentum, m.affine, m.track_running_stats) for m in norms} == {(1e-5, 0.1, True, True)}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_mlp_layers(depth: int, bias: bool) -> None:
    """Breaks if a hidden layer loses its bias, the last one gains one unasked, or a batch norm or ReLU moves."""
    head = networks.mlp(5, 7, 3, depth, **({"bias": True} if bias else {}))
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU] * (depth - 1)
    assert [type(layer) for layer in head] == [*hidden, nn.Linear]
    linear = [layer for layer in head if isinstance(layer, nn.Linear)]
    sizes = [5, *[7] * (depth - 1), 3]
    assert [(layer.in_features, layer.out_features) for layer in linear] == list(itertools.pairwise(sizes))
    assert [layer.bias is not None for layer in linear] == [True] * (depth - 1) + [bias]


def test_mlp_by_hand() -> None:
    """Breaks if the order is not linear, batch norm, ReLU, linear, or the batch's own statistics are not used."""
    torch.manual_seed(0)
    head = networks.mlp(5, 7, 3).double().train()
    x = images(6, 5).double()
    hidden = x @ head[0].weight.T + head[0].bias
    centred = hidden - hidden.mean(0)
    normal = centred / (centred.square().mean(0) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), normal.clamp(min=0) @ head[3].weight.T)


def test_config_reaches_the_encoder() -> None:
    """Breaks if a field of `Network` is no longer passed on to the ResNet."""
    with torch.device("meta"):
        config = Network(encoder="resnet34", width=0.5, small_images=True, padding="same")
        network = networks.encoder(config)
        assert shapes(network) == shapes(networks.resnet(34, 0.5, True))
        assert isinstance(network.layer2[0].conv1, convolutions.SameConv2d)
        assert isinstance(network.maxpool, nn.Identity)
    zeroed = networks.encoder(Network(encoder="resnet18", width=1 / 16, zero_init_last=True))
    assert zeroed.layer1[0].bn2.weight.eq(0).all()


def test_unknown_depth_offers_the_known() -> None:
    """Breaks if the error stops naming what was asked for or any depth there is."""
    with pytest.raises(UsageError, match=r"depth 51.*18, 34, 50, 101, 152, 200"):
        networks.resnet(51)


def test_unknown_encoder_offers_the_nearest() -> None:
    """Breaks if a typo in network.encoder no longer answers with the nearest names."""
    with pytest.raises(UsageError, match=r"'resnet51'.*Did you mean .*resnet50"):
        networks.encoder(Network(encoder="resnet51"))
    with pytest.raises(UsageError, match=r"'vgg'.*resnet18.*timm:NAME"):
        networks.encoder(Network(encoder="vgg"))


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050"])
def test_timm_encoder(name: str) -> None:
    """Breaks if the classifier stays, or num_features is timm's own (288 for mobilenetv3, which gives 1024)."""
    network = networks.encoder(Network(encoder=f"timm:{name}"))
    assert network.training
    with torch.no_grad():
        out = network.eval()(images(2, 3, 64, 64))
    assert out.shape == (2, {"resnet10t": 512, "mobilenetv3_small_050": 1024}[name])
    assert network.num_features == out.shape[1]
    assert not any(p.shape[0] == 1000 for p in network.parameters())


@pytest.mark.parametrize("side", [32, 64])
def test_a_vit_is_built_for_the_images_side(tmp_path: Path, side: int) -> None:
    """Breaks if timm is not told the side: the ViT takes its own 160 px alone, or a file of it cannot be loaded."""
    config = apply(Config(), {"network.encoder": "timm:test_vit", "data.resolution": side})
    network = networks.encoder(config.network, side).eval()
    assert network.pos_embed.shape[1] == 1 + (side // 16) ** 2  # type: ignore[union-attr,index]
    assert networks.shapes(config.network, side) == shapes(network)
    save_encoder(tmp_path / "encoder.safetensors", network, config, {"step": 1})
    again = byol.load_encoder(tmp_path / "encoder.safetensors")
    inputs = images(2, 3, side, side)
    with torch.no_grad():
        assert torch.equal(again(inputs), network(inputs))


def test_a_side_that_a_vit_cannot_take_is_a_sentence() -> None:
    """Breaks if timm's own assertion comes through, as something that should not happen."""
    with pytest.raises(UsageError, match=r"timm:test_vit cannot take images of 8 px: .* multiple of its patch"):
        networks.encoder(Network(encoder="timm:test_vit"), 8)


def test_unknown_timm_model_offers_the_nearest() -> None:
    """Breaks if timm's own exception comes through, or its names are not offered."""
    with pytest.raises(UsageError, match=r"timm has no model 'resnet10tt'. Did you mean .*resnet10t"):
        networks.encoder(Network(encoder="timm:resnet10tt"))
    with pytest.raises(UsageError, match="timm has no model ''"):
        networks.encoder(Network(encoder="timm:"))
