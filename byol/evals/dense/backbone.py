"""The encoder as a backbone of dense tasks: its feature maps conv1 … conv5, and conv5 at a finer stride by dilation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from byol.errors import UsageError
from byol.evals.encoder import Encoder
from byol.networks import BasicBlock, Bottleneck, ResNet


def backbone(encoder: Encoder) -> ResNet:
    """A copy of the encoder's ResNet, of any depth, width, stem and padding."""
    module = encoder.trainable()
    if not isinstance(module, ResNet):
        name = encoder.config.network.encoder
        raise UsageError(f"Segmentation, detection and depth need the feature maps of a ResNet of ours, not {name}.")
    return module


def groups(network: ResNet) -> list[nn.Module]:
    """conv2 … conv5 of the paper."""
    return [network.layer1, network.layer2, network.layer3, network.layer4]


def feature_maps(network: ResNet, images: Tensor, last: int = 5) -> list[Tensor]:
    """[conv1, …, conv`last`] (B, C, h, w) of images of any size; conv1 is before the pooling."""
    # Not in place: conv1 itself is handed out, and max pooling keeps a view of its input for the gradient.
    maps = [F.relu(network.bn1(network.conv1(images)))]
    x = network.maxpool(maps[0])
    for group in groups(network)[: last - 1]:
        x = group(x)
        maps.append(x)
    return maps


def channels(network: ResNet) -> list[int]:
    """Of conv1 … conv5."""
    outputs = [_last_norm(group).num_features for group in groups(network)]
    return [network.bn1.num_features, *outputs]


def _last_norm(group: nn.Module) -> nn.BatchNorm2d:
    block = list(group.children())[-1]
    return block.bn3 if isinstance(block, Bottleneck) else block.bn2  # type: ignore[return-value]


def strides(network: ResNet) -> list[int]:
    """Pixels of the image from one place of conv1 … conv5 to the next: 2 4 8 16 32, and 1 1 2 4 8 with a small stem."""
    found = [network.conv1.stride[0]]
    stride = found[0] * (1 if isinstance(network.maxpool, nn.Identity) else 2)
    for group in groups(network):
        for module in group.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                stride *= module.stride[0]
        found.append(stride)
    return found


def dilate(network: ResNet) -> None:
    """Every 3×3 convolution of conv5 gets dilation 2 and stride 1, its shortcut too: the stride of conv4 (16) remains.

    A small-image stem has a quarter of every stride, so conv5 then has a place every 4 pixels: the encoder has learned
    its features at that scale, and images are not enlarged to make up for it.
    """
    for block in network.layer4.children():
        assert isinstance(block, BasicBlock | Bottleneck)
        for name, module in list(block.named_children()):
            if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                setattr(block, name, _dilated(module))
        if block.downsample is not None:
            shortcut = block.downsample.get_submodule("0")
            assert isinstance(shortcut, nn.Conv2d)
            shortcut.stride = (1, 1)


def _dilated(conv: nn.Conv2d) -> nn.Conv2d:
    """Without a stride both kinds of padding are the same 2 pixels on every side."""
    made = nn.Conv2d(conv.in_channels, conv.out_channels, 3, padding=2, dilation=2, bias=False)
    made.weight = conv.weight
    return made
