"""Faster R-CNN on an encoder of ours: conv1 to conv4 are the feature map, conv5 with its mean is the box head ("C4").

Proposals, pooling, matching, sampling, losses and box coding are torchvision's. Strides and anchors follow the encoder:
conv4 has a place every 16 pixels, with a small-image stem every 4, and the anchors are multiples of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol.data.parts import Boxes
from byol.evals.dense.backbone import channels, feature_maps, strides
from byol.evals.spec import Detection
from byol.networks import ResNet

CONV4 = 4
# The usual ones, of Faster R-CNN and of Detectron, on which the paper is silent.
ANCHORS_SAMPLED, ANCHORS_POSITIVE, ROIS_POSITIVE = 256, 0.5, 0.25
BEFORE_SUPPRESSION = 6  # proposals are this many times more before overlapping ones are suppressed
LOWEST_SCORE, DETECTIONS = 0.05, 100


class Pixels(NamedTuple):
    """Normalized images (B, 3, H, W), padded with zeros at the bottom and right, and their own (height, width)."""

    images: Tensor
    sizes: list[tuple[int, int]]


class FasterRCNN(nn.Module):
    """Losses of a batch in training mode, detections in evaluation mode; class 0 is the background inside of it."""

    def __init__(self, network: ResNet, classes: int, spec: Detection) -> None:
        super().__init__()
        self.network, self.stride = network, strides(network)[CONV4 - 1]
        freeze(network, spec.frozen)
        self.proposals = _proposals(channels(network)[CONV4 - 1], self.stride, spec)
        self.heads = _heads(network, self.stride, classes, spec)

    def train(self, mode: bool = True) -> FasterRCNN:
        """The encoder's batch statistics are never updated, and are what its features are normalized by."""
        super().train(mode)
        self.network.eval()
        return self

    def pixels(self, images: Sequence[Tensor]) -> Pixels:
        """One batch of normalized images of any size; its sides are multiples of the stride, as anchors need it."""
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        height, width = (-(-max(sides) // self.stride) * self.stride for sides in zip(*sizes, strict=True))
        padded = [F.pad(image, (0, width - w, 0, height - h)) for image, (h, w) in zip(images, sizes, strict=True)]
        return Pixels(torch.stack(padded), sizes)

    def features(self, images: Tensor) -> Tensor:
        """conv4 (B, C, H / stride, W / stride)."""
        return feature_maps(self.network, images, CONV4)[-1].to(images.dtype)

    def losses(self, pixels: Pixels, objects: Sequence[Boxes]) -> Tensor:
        """The sum of the four: whether an anchor and what a region is, and where each of them should be."""
        kind = pixels.images.dtype
        targets = [{"boxes": each.boxes.to(kind), "labels": each.labels + 1} for each in objects]
        maps = {"0": self.features(pixels.images)}
        regions, first = self.proposals(_image_list(pixels), maps, targets)
        _, second = self.heads(maps, regions, pixels.sizes, targets)
        return torch.stack([*first.values(), *second.values()]).sum()

    def detect(self, pixels: Pixels) -> list[dict[str, Tensor]]:
        """boxes, labels from 0 and scores of each image, best first."""
        maps = {"0": self.features(pixels.images)}
        regions, _ = self.proposals(_image_list(pixels), maps)
        found, _ = self.heads(maps, regions, pixels.sizes)
        return [{**each, "labels": each["labels"] - 1} for each in found]


class Conv5(nn.Module):
    """Features of regions (R, C, S, S) → (R, num_features), as the encoder makes its representation."""

    def __init__(self, network: ResNet) -> None:
        super().__init__()
        self.layer4 = network.layer4

    def forward(self, regions: Tensor) -> Tensor:
        mean: Tensor = self.layer4(regions).to(regions.dtype).mean((2, 3))
        return mean


class Exact(nn.Module):
    """Outside of autocast: in bf16 many scores would be equal, and boxes coarse."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return self.module(x.to(next(self.module.parameters()).dtype))


def freeze(network: ResNet, frozen: str) -> None:
    """Normalization always (Detectron's convention); "backbone": conv1 to conv4 as well; "encoder": all of it."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) or frozen == "encoder":
            module.requires_grad_(False)
    if frozen == "backbone":
        for name, parameter in network.named_parameters():
            if not name.startswith("layer4."):
                parameter.requires_grad_(False)


def _proposals(inputs: int, stride: int, spec: Detection) -> nn.Module:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

    sizes = tuple(stride * multiple for multiple in spec.anchors)
    anchors = AnchorGenerator((sizes,), (spec.ratios,))
    head = RPNHead(inputs, anchors.num_anchors_per_location()[0])
    head.cls_logits, head.bbox_pred = Exact(head.cls_logits), Exact(head.bbox_pred)
    kept = dict(zip(("training", "testing"), spec.proposals, strict=True))
    made: nn.Module = RegionProposalNetwork(
        anchors,
        head,
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=ANCHORS_SAMPLED,
        positive_fraction=ANCHORS_POSITIVE,
        pre_nms_top_n={mode: count * BEFORE_SUPPRESSION for mode, count in kept.items()},
        post_nms_top_n=kept,
        nms_thresh=0.7,
    )
    return made


def _heads(network: ResNet, stride: int, classes: int, spec: Detection) -> nn.Module:
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
    from torchvision.models.detection.roi_heads import RoIHeads
    from torchvision.ops import MultiScaleRoIAlign
    from torchvision.ops.poolers import initLevelMapper

    pool = MultiScaleRoIAlign(["0"], spec.roi_size, sampling_ratio=2)
    # Given, since torchvision would guess it from the size of the first images, and be wrong for very small ones.
    pool.scales, pool.map_levels = [1 / stride], initLevelMapper(0, 0)
    predictor = FastRCNNPredictor(network.num_features, classes + 1)
    nn.init.normal_(predictor.cls_score.weight, std=0.01)
    nn.init.normal_(predictor.bbox_pred.weight, std=0.001)
    nn.init.zeros_(predictor.cls_score.bias)
    nn.init.zeros_(predictor.bbox_pred.bias)
    made: nn.Module = RoIHeads(
        pool,
        Conv5(network),
        Exact(predictor),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=spec.rois,
        positive_fraction=ROIS_POSITIVE,
        bbox_reg_weights=None,
        score_thresh=LOWEST_SCORE,
        nms_thresh=0.5,
        detections_per_img=DETECTIONS,
    )
    return made


def _image_list(pixels: Pixels) -> Any:
    from torchvision.models.detection.image_list import ImageList

    return ImageList(pixels.images, pixels.sizes)
