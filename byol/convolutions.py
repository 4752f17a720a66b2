"""Convolutions of byol's encoders: paddings of other frameworks, and those that a CPU computes faster as a product."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Padding = Literal["symmetric", "same"]
# With fewer input channels, the gradient of a strided 1×1 convolution (channels_last, from about 48 px on) crashes the
# process in torch 2.15 on CPUs with AVX-512: it writes beyond its memory.
FEW_CHANNELS = 16


def same_padding(images: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME: as little padding as gives ceil(n / stride) outputs, the odd pixel at the bottom and right."""
    pads: list[int] = []
    for size in (images.shape[-1], images.shape[-2]):
        total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(images, pads) if any(pads) else images


class SameConv2d(nn.Conv2d):
    """A convolution padded as in TensorFlow and JAX, for weights that were trained there."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(same_padding(input, self.kernel_size[0], self.stride[0]))


class SameMaxPool2d(nn.MaxPool2d):
    """A 3×3 max pool with stride 2, padded as in TensorFlow; zeros never win, because its input has passed a ReLU."""

    def forward(self, input: Tensor) -> Tensor:
        return F.max_pool2d(same_padding(input, 3, 2), 3, 2)


class SubsampledConv2d(nn.Conv2d):
    """A strided 1×1 convolution, computed by taking every stride-th pixel and convolving those without a stride."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input[..., :: self.stride[0], :: self.stride[1]], self.weight)


class ProductConv2d(nn.Conv2d):
    """A convolution without bias that is one matrix product where that is the faster way: in training, on a CPU, where
    the feature map has few places. Equal up to rounding.

    The kernels of CPUs share their work by places. Of a map of 2×2 they make so little of it that the gradient of 512
    channels takes ten times as long as the product (bf16, one thread, `benchmarks/maps.py`).
    """

    def forward(self, input: Tensor) -> Tensor:
        # What exports and compiles a network knows convolutions better than products.
        if self.training and input.device.type == "cpu" and not torch.compiler.is_compiling() and self.few(input):
            weight = self.weight
            if torch.is_autocast_enabled("cpu"):
                kind = torch.get_autocast_dtype("cpu")
                input, weight = input.to(kind), weight.to(kind)
            result: Tensor = Product.apply(input, weight, self.stride[0], self.padding[0])
            return result
        return super().forward(input)

    def few(self, input: Tensor) -> bool:
        """Whether the output has so few places, for its channels, that the product is the faster way."""
        if self.dilation != (1, 1):
            return False
        kernel, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in input.shape[-2:])
        short = torch.is_autocast_enabled("cpu") or input.dtype == torch.bfloat16
        most = 16 if self.in_channels >= 256 else 4 if short and self.in_channels >= 64 else 1
        return 0 < height * width <= most


class Window(NamedTuple):
    """The places of one axis of a map that a place of the output is computed from."""

    size: int
    out: int
    kernel: int
    stride: int
    padding: int

    @property
    def taps(self) -> range:
        """The places of the kernel that ever meet the map: around a map of one place there is only padding."""
        places = range(0, self.out * self.stride, self.stride)
        met = [tap for tap in range(self.kernel) if any(0 <= at + tap - self.padding < self.size for at in places)]
        return range(met[0], met[-1] + 1)

    @property
    def whole(self) -> bool:
        """Whether there is one window, and it is the map."""
        return self.out == 1 and len(self.taps) == self.size

    def of(self, tap: int) -> slice:
        """Where this place of the kernel lies, in the padded map, for all places of the output."""
        return slice(tap, tap + self.stride * (self.out - 1) + 1, self.stride)


class Product(torch.autograd.Function):
    """Maps (B, C, H, W), weight (F, C, k, k) → (B, F, h, w): each place's window as a row, times the weights."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        kernel = weight.shape[-1]
        down, across = (
            Window(size, (size + 2 * padding - kernel) // stride + 1, kernel, stride, padding)
            for size in images.shape[-2:]
        )
        x = images.permute(0, 2, 3, 1)
        if down.whole and across.whole:
            rows = x.flatten(1)
        else:
            if padding:
                x = F.pad(x, (0, 0, padding, padding, padding, padding))
            windows = [x[:, down.of(i), across.of(j)] for i in down.taps for j in across.taps]
            rows = torch.cat(windows, -1).flatten(0, 2)  # (B·h·w, taps·C)
        matrix = met(weight, down, across).permute(0, 2, 3, 1).flatten(1)  # (F, taps·C)
        ctx.save_for_backward(rows, matrix)
        ctx.down, ctx.across, ctx.shape = down, across, weight.shape
        return (rows @ matrix.T).view(len(x), down.out, across.out, -1).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, matrix = ctx.saved_tensors
        down, across = ctx.down, ctx.across
        features, channels = ctx.shape[:2]
        g = gradient.permute(0, 2, 3, 1).reshape(-1, features)
        of_matrix = (g.T @ rows).view(features, len(down.taps), len(across.taps), channels).permute(0, 3, 1, 2)
        of_weight = of_matrix
        if of_matrix.shape != ctx.shape:
            of_weight = matrix.new_zeros(ctx.shape)
            met(of_weight, down, across).copy_(of_matrix)
        if down.whole and across.whole:
            return (g @ matrix).view(-1, down.size, across.size, channels).permute(0, 3, 1, 2), of_weight, None, None
        windows = (g @ matrix).view(len(gradient), down.out, across.out, -1, channels)
        padding = down.padding
        x = windows.new_zeros(len(gradient), down.size + 2 * padding, across.size + 2 * padding, channels)
        for at, (i, j) in enumerate((i, j) for i in down.taps for j in across.taps):
            x[:, down.of(i), across.of(j)] += windows[:, :, :, at]
        x = x[:, padding : padding + down.size, padding : padding + across.size]
        return x.permute(0, 3, 1, 2), of_weight, None, None


def met(weight: Tensor, down: Window, across: Window) -> Tensor:
    """The part of a weight that meets the map."""
    return weight[..., down.taps.start : down.taps.stop, across.taps.start : across.taps.stop]


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: Padding = "symmetric") -> nn.Conv2d:
    if kernel == 1 and stride > 1 and inputs < FEW_CHANNELS:
        return SubsampledConv2d(inputs, outputs, 1, stride, bias=False)
    if padding == "same" and stride > 1 and kernel > 1:
        return SameConv2d(inputs, outputs, kernel, stride, bias=False)
    return ProductConv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
