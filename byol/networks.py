"""Encoders and heads: the ResNet family at any depth and width, any timm model, and the MLP of BYOL.

Parameter names are torchvision's, so that an encoder of ours loads there and in timm as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from byol import collectives
from byol.config import Network
from byol.errors import UsageError, nearest

Padding = Literal["symmetric", "same"]
# The gradient of a strided 1×1 convolution of fewer channels, in channels_last and from about 48 px on, writes beyond
# its memory in torch 2.15 on CPUs with AVX-512, and ends the process.
FEW_CHANNELS = 16


def same_padding(images: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME: as little padding as gives ceil(n / stride) outputs, the odd pixel at the bottom and right."""
    pads: list[int] = []
    for size in (images.shape[-1], images.shape[-2]):
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(images, pads) if any(pads) else images


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow and JAX do; for weights that come from there."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(same_padding(input, self.kernel_size[0], self.stride[0]))


class SameMaxPool2d(nn.MaxPool2d):
    """Zeros may stand outside the image because every input has passed a ReLU."""

    def forward(self, input: Tensor) -> Tensor:
        return F.max_pool2d(same_padding(input, 3, 2), 3, 2)


class SubsampledConv2d(nn.Conv2d):
    """A 1×1 convolution with a stride, computed as one without of every so manyth place."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input[..., :: self.stride[0], :: self.stride[1]], self.weight)


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: Padding = "symmetric") -> nn.Conv2d:
    if kernel == 1 and stride > 1 and inputs < FEW_CHANNELS:
        return SubsampledConv2d(inputs, outputs, 1, stride, bias=False)
    if padding == "same" and stride > 1 and kernel > 1:
        return SameConv2d(inputs, outputs, kernel, stride, bias=False)
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


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
    """Inside, running statistics do not move: they have seen this batch already."""
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
    """The block's output, of which nothing is kept for the gradient but its input."""
    result: Tensor = checkpoint(
        block,
        x,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), _statistics_kept(block)),
    )
    return result


class ResNet(nn.Module):
    """Images (B, 3, H, W) → representation (B, num_features), the mean over the last feature map."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        channels: Sequence[int],
        stem: int,
        small_images: bool = False,
        padding: Padding = "symmetric",
    ) -> None:
        """`channels` are the outputs of the four groups, `stem` those of the first convolution."""
        super().__init__()
        self.num_features = channels[-1]
        self.recompute = False
        self.conv1 = conv(3, stem, 3) if small_images else conv(3, stem, 7, 2, padding)
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
    """The reference code's: weights normal with deviation 1/√fan_in cut at ±2 of it and not rescaled, biases 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            deviation = part.weight[0].numel() ** -0.5
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@torch.no_grad()
def scale_weights(module: nn.Module, variance: float) -> None:
    """Multiplies the variance of the weights that `initialize`, or timm, has drawn."""
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
) -> ResNet:
    """ResNet of the paper: `width` multiplies every channel count, the stem's too (0.25 for small machines)."""
    if depth not in RESNETS:
        raise UsageError(f"There is no ResNet of depth {depth}: choose from {', '.join(map(str, RESNETS))}.")
    block, blocks = RESNETS[depth]
    inner = [max(1, round(64 * width * 2**group)) for group in range(4)]
    channels = [c * block.expansion for c in inner]
    network = ResNet(block, blocks, channels, inner[0], small_images, padding)
    if zero_init_last:
        for part in network.modules():
            if isinstance(part, BasicBlock | Bottleneck):
                nn.init.zeros_(part.bn3.weight if isinstance(part, Bottleneck) else part.bn2.weight)
    return network


def mlp(in_features: int, hidden: int, out_features: int, depth: int = 2, bias: bool = False) -> nn.Sequential:
    """Linear, batch norm, ReLU, …, Linear; `bias` is that of the last layer (none in the reference code)."""
    layers: list[nn.Module] = []
    for _ in range(depth - 1):
        layers += [nn.Linear(in_features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
        in_features = hidden
    head = nn.Sequential(*layers, nn.Linear(in_features, out_features, bias=bias))
    initialize(head)
    return head


def norm_without_offset(features: int) -> nn.BatchNorm1d:
    """What the original SimCLR's projector ends with."""
    norm = nn.BatchNorm1d(features)
    norm.bias = None  # type: ignore[assignment]
    return norm


class OptimalLinear(nn.Module):
    """The predictor Q* = argmin ‖Z·Q − Z'‖² of a batch in closed form (paper, appendix I); it has nothing to train.

    The batch is that of all processes. The gradient flows through its input Z alone, as it does
    through a predictor that is optimal already (appendix H).
    """

    def __init__(self, ridge: float) -> None:
        super().__init__()
        self.ridge = ridge

    def forward(self, projection: Tensor, target: Tensor) -> Tensor:
        """Projections and targets (B, F) → predictions (B, F); outside autocast, whose products are too coarse."""
        with torch.autocast(projection.device.type, enabled=False):
            projection = projection.to(torch.promote_types(projection.dtype, torch.float32))
            return projection @ self.solve(projection, target).to(projection.dtype)

    @torch.no_grad()
    def solve(self, projection: Tensor, target: Tensor) -> Tensor:
        """Q*, (F, F), with ridge·(mean eigenvalue of Z^T·Z) on the diagonal, for features that vanish or repeat."""
        wide = torch.float32 if projection.device.type == "mps" else torch.float64  # mps has no float64
        z, wanted = projection.to(wide), target.to(wide)
        moments, correlations = collectives.all_reduce(z.T @ z), collectives.all_reduce(z.T @ wanted)
        moments.diagonal().add_((self.ridge * moments.diagonal().mean()).clamp(min=torch.finfo(wide).tiny))
        # NaN is no error here: the loss shows it.
        solution: Tensor = torch.linalg.solve_ex(moments, correlations).result
        return solution


def _timm(name: str) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise UsageError(f"network.encoder timm:{name} needs timm: pip install 'byol[timm]'.") from None
    if not timm.is_model(name):
        raise UsageError(f"timm has no model '{name}'. {nearest(name, timm.list_models())}")
    model: nn.Module = timm.create_model(name, num_classes=0)
    return model


def timm_model(name: str) -> nn.Module:
    """Any timm model without its classifier, at timm's own initialization."""
    model = _timm(name)
    with torch.no_grad():  # num_features is not what the pooled output has for every timm model
        size = model.default_cfg.get("input_size", (3, 224, 224))  # type: ignore[union-attr,operator]
        model.num_features = model.eval()(torch.zeros(1, *size)).shape[-1]
    return model.train()


def use_recompute(encoder: nn.Module) -> None:
    """Trades time for memory in every block."""
    if not isinstance(encoder, ResNet):
        raise UsageError("run.recompute is for the ResNets of byol; other encoders have blocks it does not know.")
    encoder.recompute = True


def use_compile(encoder: nn.Module, backend: str = "inductor") -> None:
    """torch.compile in place, so that names of weights stay; what processes exchange is left out."""
    for module in encoder.modules():
        if hasattr(module, "exchanges"):
            module.forward = torch.compiler.disable(module.forward)
    encoder.compile(backend=backend)


def check_encoder(name: str) -> None:
    """A wrong name is said before anything is loaded or built."""
    if not name.startswith("timm:") and name not in BACKBONES:
        raise UsageError(f"There is no encoder '{name}'. {nearest(name, [*BACKBONES, 'timm:NAME'])}")


def encoder(config: Network) -> nn.Module:
    """The encoder that a config names; has `.num_features`."""
    check_encoder(config.encoder)
    if config.encoder.startswith("timm:"):
        return timm_model(config.encoder.removeprefix("timm:"))
    return BACKBONES[config.encoder](config)


def shapes(config: Network) -> dict[str, tuple[int, ...]]:
    """Of every tensor of an encoder's state, without the memory for it; none for a network that cannot be."""
    try:
        with torch.device("meta"):
            timm = config.encoder.startswith("timm:")
            module = _timm(config.encoder.removeprefix("timm:")) if timm else encoder(config)
    except (RuntimeError, OverflowError, ValueError, TypeError):  # numbers that no shape can have
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
        return resnet(depth, c.width, c.small_images, zero_init_last=c.zero_init_last, padding=c.padding)

    return build


BACKBONES: dict[str, Callable[[Network], nn.Module]] = {f"resnet{depth}": _resnet_of(depth) for depth in RESNETS}
