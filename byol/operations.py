"""Operations of views that the paper does not have: turns, for images without an up; changes of single channels, for
channels that are not colours; noise. Off unless asked for, so this module is loaded by the first view that needs one.

Images are (B, C, S, S) in [0, 1] for any C. An operation that needs more random numbers than one an image draws a key
for the image, from which `spread` makes as many as there are channels or pixels: the same ones on every device, for
every slice of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from byol.crops import PerImage, sent

WORD = 2**32 - 1


def flip_vertical(images: Tensor) -> Tensor:
    """Top to bottom."""
    return images.flip(-2)


def quarter_turn(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn image i counter-clockwise by quarters[i], whole numbers 0 to 3, on the CPU."""
    turned = torch.empty_like(images)
    for quarter in range(4):
        chosen = sent((quarters == quarter).nonzero()[:, 0], images.device)
        turned.index_copy_(0, chosen, images.index_select(0, chosen).rot90(quarter, (2, 3)))
    return turned


def rotate(images: Tensor, degrees: PerImage) -> Tensor:
    """Rotate counter-clockwise about the centre, bilinearly; what lies outside is the image mirrored at its edge."""
    turn = sent(torch.as_tensor(degrees, dtype=images.dtype), images.device).reshape(-1) * (math.pi / 180)
    turn = turn.expand(len(images))
    height, width = images.shape[2:]
    # grid_sample counts both sides from -1 to 1, so a side that is longer needs a shorter step.
    cos, sin, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    matrix = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def channel_jitter(images: Tensor, keys: Tensor, brightness: PerImage, contrast: PerImage) -> Tensor:
    """Scale every channel's distance to its mean by 1 ± contrast, then add ± brightness; each its own share of both."""
    shares = spread(sent(keys, images.device), 2 * images.shape[1]).to(images.dtype).mul_(2).sub_(1)
    added, scaled = shares[..., None, None].chunk(2, 1)  # (B, C, 1, 1) each
    added, factor = added * _per_image(brightness, images), 1 + scaled * _per_image(contrast, images)
    mean = images.mean((2, 3), keepdim=True)
    return (images * factor).add_(mean * (1 - factor) + added)


def channel_drop(images: Tensor, keys: Tensor, shares: PerImage) -> Tensor:
    """Blacken a share of the channels, at least one, and leave at least one: a single channel stays."""
    channels = images.shape[1]
    count = (torch.as_tensor(shares).reshape(-1, 1) * channels).floor().clamp(min=1).clamp(max=channels - 1)
    place = spread(keys, channels).argsort(1).argsort(1)  # each channel's place in an order of its image's own
    return images * sent((place >= count).to(images.dtype), images.device)[..., None, None]


def add_noise(images: Tensor, keys: Tensor, deviation: PerImage) -> Tensor:
    """Add Gaussian noise, independent for every channel of every pixel (Box and Muller, 1958)."""
    count = images.shape[1:].numel()
    one, other = spread(sent(keys, images.device), count + count % 2).chunk(2, 1)
    radius, angle = one.log().mul_(-2).sqrt_(), other.mul_(2 * math.pi)
    noise = torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count].view_as(images)
    return images + noise.to(images.dtype) * _per_image(deviation, images)


def spread(keys: Tensor, count: int) -> Tensor:
    """`count` uniform numbers in (0, 1) for each key (B,), float32 (B, count): a hash of the key and the place."""
    place = torch.arange(count, device=keys.device)
    bits = _mixed(_mixed(keys.long()[:, None] + 1) + place)
    return (bits >> 8).float().add_(0.5).mul_(2.0**-24)


def _mixed(word: Tensor) -> Tensor:
    """A hash of 32-bit words held in int64, by two multiplications (Wellons' lowbias32)."""
    word = word & WORD
    word = (word ^ (word >> 16)) * 0x7FEB352D & WORD
    word = (word ^ (word >> 15)) * 0x846CA68B & WORD
    return word ^ (word >> 16)


def _per_image(value: PerImage, images: Tensor) -> Tensor:
    return sent(torch.as_tensor(value, dtype=images.dtype), images.device).reshape(-1, 1, 1, 1)


Choices = Callable[[str], Tensor]
APPLY: dict[str, Callable[[Tensor, Choices], Tensor]] = {
    "flip_vertical": lambda images, choices: flip_vertical(images),
    "quarter_turn": lambda images, choices: quarter_turn(images, choices("quarters").long() % 4),
    "rotate": lambda images, choices: rotate(images, choices("rotation")),
    "channel_jitter": lambda images, choices: channel_jitter(
        images, choices("channel_key"), choices("brightened"), choices("contrasted")
    ),
    "channel_drop": lambda images, choices: channel_drop(images, choices("drop_key"), choices("dropped")),
    "noise": lambda images, choices: add_noise(images, choices("noise_key"), choices("noise_deviation")),
}
