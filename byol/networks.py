"""Encoders and heads: the ResNet family at any depth and width, any timm model, and BYOL's MLP.

Parameters have torchvision's names, so that torchvision and timm load a ResNet of byol as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from byol.config import Network
from byol.convolutions import Padding, SameMaxPool2d, conv
from byol.errors import UsageError, nearest

PLUGIN = "What a plug-in defines needs --plugin FILE."


class BasicBlock(nn.Module):
    """Two 3×3 convolutions (ResNet-18 and -34)."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int, padding: Padding) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride, padding)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.bn2(self.conv2(x))
        return F.relu(x.add_(residual), inplace=True)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with the stride on the 3×3 ("v1.5", which is what the reference code has)."""

    expansion = 4

    def __init__(self, inputs: int, outputs: int, stride: int, padding: Padding) -> None:
        super().__init__()
        inner = outputs // self.expansion
        self.conv1 = conv(inputs, inner, 1)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = conv(inner, inner, 3, stride, padding)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = conv(inner, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        x = self.bn3(self.conv3(x))
        return F.relu(x.add_(residual), inplace=True)


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """While the block's forward pass is run a second time, keep its running statistics: they have seen the batch."""
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.num_batches_tracked is not None]
    before = [(norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]  # type: ignore[union-attr]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (norm.momentum, count) in zip(norms, before, strict=True):
            norm.num_batches_tracked.copy_(count)  # type: ignore[union-attr]


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    """The block's output; only its input is kept for the backward pass, which runs the block again."""
    result: Tensor = checkpoint(
        block,
        x,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), _statistics_kept(block)),
    )
    return result


class ResNet(nn.Module):
    """Images (B, C, H, W) → representation (B, num_features), the mean over the last feature map."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        channels: Sequence[int],
        stem: int,
        small_images: bool = False,
        padding: Padding = "symmetric",
        inputs: int = 3,
    ) -> None:
        """`channels` are the output channels of the four groups, `stem` those of the first convolution, and `inputs`
        the channels of an image."""
        super().__init__()
        self.num_features = channels[-1]
        self.recompute = False
        self.conv1 = conv(inputs, stem, 3) if small_images else conv(inputs, stem, 7, 2, padding)
        self.bn1 = nn.BatchNorm2d(stem)
        self.maxpool: nn.Module
        if small_images:
            self.maxpool = nn.Identity()
        else:
            self.maxpool = SameMaxPool2d(3, 2) if padding == "same" else nn.MaxPool2d(3, 2, padding=1)
        inputs = stem
        groups = []
        for group, (count, outputs) in enumerate(zip(blocks, channels, strict=True)):
            layers = []
            for index in range(count):
                layers.append(block(inputs, outputs, 2 if group > 0 and index == 0 else 1, padding))
                inputs = outputs
            groups.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images).mean((2, 3))

    def features(self, images: Tensor) -> Tensor:
        """The last feature map, (B, num_features, h, w)."""
        x: Tensor = self.maxpool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        for group in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in group:
                x = recomputed(block, x) if self.recompute and torch.is_grad_enabled() else block(x)
        return x


def initialize(module: nn.Module) -> None:
    """The reference code's initial weights: normal with deviation 1/√fan_in, cut at two deviations without rescaling;
    biases are 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            deviation = part.weight[0].numel() ** -0.5
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@torch.no_grad()
def scale_weights(module: nn.Module, variance: float) -> None:
    """Multiply the variance of the initial weights, drawn by `initialize` or timm."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.weight.mul_(math.sqrt(variance))


def resnet(
    depth: int,
    width: float = 1,
    small_images: bool = False,
    *,
    zero_init_last: bool = False,
    padding: Padding = "symmetric",
    channels: int = 3,
) -> ResNet:
    """The paper's ResNet; `width` multiplies every channel count, the stem's included (0.25 suits small machines), but
    not the `channels` of an image."""
    if depth not in RESNETS:
        raise UsageError(f"There is no ResNet of depth {depth}: choose from {', '.join(map(str, RESNETS))}.")
    block, blocks = RESNETS[depth]
    inner = [max(1, round(64 * width * 2**group)) for group in range(4)]
    network = ResNet(block, blocks, [c * block.expansion for c in inner], inner[0], small_images, padding, channels)
    if zero_init_last:
        for part in network.modules():
            if isinstance(part, BasicBlock | Bottleneck):
                nn.init.zeros_(part.bn3.weight if isinstance(part, Bottleneck) else part.bn2.weight)
    return network


def mlp(in_features: int, hidden: int, out_features: int, depth: int = 2, bias: bool = False) -> nn.Sequential:
    """Linear, batch norm, ReLU, …, Linear; `bias` is the last layer's (the reference code has none)."""
    layers: list[nn.Module] = []
    for _ in range(depth - 1):
        layers += [nn.Linear(in_features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
        in_features = hidden
    head = nn.Sequential(*layers, nn.Linear(in_features, out_features, bias=bias))
    initialize(head)
    return head


def norm_without_offset(features: int) -> nn.BatchNorm1d:
    """A batch norm that scales but does not shift, as at the end of the original SimCLR's projector."""
    norm = nn.BatchNorm1d(features)
    norm.bias = None  # type: ignore[assignment]
    return norm


def check_timm(name: str) -> None:
    """Refuse a model that timm does not have, or timm itself where it is not installed."""
    try:
        import timm
    except ImportError:
        raise UsageError(f"network.encoder timm:{name} needs timm: pip install 'byol[timm]'.") from None
    if not timm.is_model(name):
        raise UsageError(f"timm has no model '{name}'. {nearest(name, timm.list_models())}")


def _timm(name: str, resolution: int, channels: int) -> nn.Module:
    """timm's model, made for images of this side where its weights depend on it, as position embeddings do."""
    check_timm(name)
    import timm

    known = timm.get_pretrained_cfg(name)
    sized = {"img_size": resolution} if resolution and known and known.fixed_input_size else {}
    sized |= {"in_chans": channels} if channels != 3 else {}
    model: nn.Module = timm.create_model(name, num_classes=0, **sized)
    return model


def timm_model(name: str, resolution: int = 0, channels: int = 3) -> nn.Module:
    """Any timm model without its classifier, at timm's own initialization."""
    try:
        model = _timm(name, resolution, channels)
        side = model.default_cfg.get("input_size", (3, 224, 224))[-1]  # type: ignore[union-attr,operator]
        with torch.no_grad():  # measured, because some timm models put out more features than their num_features says
            model.num_features = model.eval()(torch.zeros(1, channels, *[resolution or side] * 2)).shape[-1]
    except TypeError:
        raise UsageError(f"timm:{name} takes 3 channels only: choose another encoder, or data.channels 3.") from None
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UsageError(
            f"timm:{name} cannot take images of {resolution} px: {reason}. For a ViT, data.resolution is a multiple of "
            "its patch, 16 px for one that is named patch16."
        ) from None
    return model.train()


def use_recompute(encoder: nn.Module) -> None:
    """Keep only each block's input for the backward pass, which runs the block again: less memory, more time."""
    if not isinstance(encoder, ResNet):
        raise UsageError("run.recompute is for the ResNets of byol; other encoders have blocks it does not know.")
    encoder.recompute = True


def use_compile(encoder: nn.Module, backend: str = "inductor") -> None:
    """torch.compile in place, which keeps the weights' names; modules that exchange data with other processes are not
    compiled."""
    for module in encoder.modules():
        if hasattr(module, "exchanges"):
            module.forward = torch.compiler.disable(module.forward)
    encoder.compile(backend=backend)


def check_encoder(name: str) -> None:
    """Refuse an unknown name before anything is loaded or built."""
    if not name.startswith("timm:") and name not in BACKBONES:
        raise UsageError(f"There is no encoder '{name}'. {nearest(name, [*BACKBONES, 'timm:NAME'])} {PLUGIN}")


def has_width(name: str) -> bool:
    """Whether network.width, small_images, padding and zero_init_last mean anything for an encoder."""
    return name.removeprefix("resnet") in map(str, RESNETS)


def encoder(config: Network, resolution: int = 0) -> nn.Module:
    """The encoder that a config names, with its number of features as `.num_features`.

    `resolution` is the images' side in pixels, which some encoders of timm are built for; timm's own when left out.
    """
    check_encoder(config.encoder)
    if config.encoder.startswith("timm:"):
        return timm_model(config.encoder.removeprefix("timm:"), resolution, config.channels)
    return BACKBONES[config.encoder](config)


def shapes(config: Network, resolution: int = 0) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in an encoder's state, without allocating it; empty for an impossible network."""
    try:
        with torch.device("meta"):
            timm = config.encoder.startswith("timm:")
            name = config.encoder.removeprefix("timm:")
            module = _timm(name, resolution, config.channels) if timm else encoder(config)
    except (RuntimeError, OverflowError, ValueError, TypeError, AssertionError):  # numbers that no shape can have
        return {}
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


RESNETS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
    200: (Bottleneck, (3, 24, 36, 3)),
}


def _resnet_of(depth: int) -> Callable[[Network], nn.Module]:
    def build(c: Network) -> nn.Module:
        options = {"zero_init_last": c.zero_init_last, "padding": c.padding, "channels": c.channels}
        return resnet(depth, c.width, c.small_images, **options)  # type: ignore[arg-type]

    return build


BACKBONES: dict[str, Callable[[Network], nn.Module]] = {f"resnet{depth}": _resnet_of(depth) for depth in RESNETS}
