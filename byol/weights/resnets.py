"""ResNets of torchvision and timm in any width and with either stem: the models that exports are compared with.

`byol export` prints the text of these functions for users to paste, so each must run with `import torch` alone.
"""

from __future__ import annotations

import inspect

import torch

from byol import networks
from byol.config import Network


def torchvision_resnet(
    kind: str, blocks: list[int], width: float, small_images: bool, inputs: int = 3
) -> torch.nn.Module:
    """torchvision's ResNet without its classifier; it has no option for the width, so its groups are made anew."""
    from torchvision.models import resnet

    stem = max(1, round(64 * width))
    model = resnet.ResNet(getattr(resnet, kind), blocks)
    model.inplanes = stem
    for group, count in enumerate(blocks):
        channels, stride = round(64 * width * 2**group), min(group + 1, 2)
        setattr(model, f"layer{group + 1}", model._make_layer(getattr(resnet, kind), channels, count, stride))
    model.conv1, model.bn1 = torch.nn.Conv2d(inputs, stem, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(stem)
    if small_images:
        model.conv1, model.maxpool = torch.nn.Conv2d(inputs, stem, 3, padding=1, bias=False), torch.nn.Identity()
    encoder: torch.nn.Module = model
    encoder.fc = torch.nn.Identity()
    return encoder


def timm_resnet(kind: str, blocks: list[int], width: float, small_images: bool, inputs: int = 3) -> torch.nn.Module:
    """timm's ResNet without its classifier; its stem always has 64 channels, so stem and first block are made anew."""
    from timm.models import resnet

    stem, channels = max(1, round(64 * width)), tuple(round(64 * width * 2**group) for group in range(4))
    model = resnet.ResNet(getattr(resnet, kind), blocks, num_classes=0, channels=channels)
    model.conv1, model.bn1 = torch.nn.Conv2d(inputs, stem, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(stem)
    if small_images:
        model.conv1, model.maxpool = torch.nn.Conv2d(inputs, stem, 3, padding=1, bias=False), torch.nn.Identity()
    first = model.layer1[0]
    if kind == "Bottleneck":
        first.conv1 = torch.nn.Conv2d(stem, channels[0], 1, bias=False)
        first.downsample[0] = torch.nn.Conv2d(stem, 4 * channels[0], 1, bias=False)
    else:
        first.conv1, first.downsample = torch.nn.Conv2d(stem, channels[0], 3, padding=1, bias=False), None
    encoder: torch.nn.Module = model
    return encoder


def resnet(library: str, network: Network) -> tuple[torch.nn.Module, list[str]]:
    """The network as torchvision or timm builds it, and the lines of text that build it as `model`."""
    depth = int(network.encoder.removeprefix("resnet"))
    block, blocks = networks.RESNETS[depth]
    kind = "Bottleneck" if block is networks.Bottleneck else "BasicBlock"
    build = torchvision_resnet if library == "torchvision" else timm_resnet
    more = [network.channels] if network.channels != 3 else []
    model = build(kind, list(blocks), network.width, network.small_images, *more)
    if network.width == 1 and not network.small_images and not more:
        return model, BY_NAME[library](network.encoder)
    told = ", ".join(map(str, [repr(kind), list(blocks), f"{network.width:g}", network.small_images, *more]))
    call = f"model = {build.__name__}({told})"
    return model, ["import torch", *inspect.getsource(build).splitlines(), call]


BY_NAME = {
    "torchvision": lambda name: [
        "import torch, torchvision",
        f"model = torchvision.models.{name}()",
        "model.fc = torch.nn.Identity()",
    ],
    "timm": lambda name: ["import timm, torch", f'model = timm.create_model("{name}", num_classes=0)'],
}
