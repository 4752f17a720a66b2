"""The same encoder trained with labels: what BYOL's representation is measured against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import networks, optim, schedules, views
from byol.config import Config, View, Views, resolve
from byol.crops import crop_resize
from byol.data.loader import batch_positions
from byol.machine import Machine
from byol.progress import bar

PLAIN = View(area_min=0.3, jitter=0.0, grayscale=0.0, blur=0.0)


def train(pixels: Tensor, labels: Tensor, classes: int, config: Config, place: Machine) -> nn.Module:
    """The encoder after cross-entropy on random crops and flips of uint8 images (N, 3, S, S), by SGD."""
    plan = resolve(config, len(pixels))
    crops = Views(t=PLAIN, t_prime=PLAIN, mean=config.views.mean, std=config.views.std)
    torch.manual_seed(config.run.seed)
    encoder = networks.encoder(config.network)
    model = nn.Sequential(encoder, nn.Linear(encoder.num_features, classes)).to(**place.placement(config))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(
        optim.parameter_groups(model, config.optim.weight_decay), lr=0.0, momentum=0.9, nesterov=True
    )
    with bar("Supervised", plan.steps, "images", units_each=plan.batch) as shown:
        for k in range(plan.steps):
            chosen = torch.from_numpy(batch_positions(config.run.seed, k, plan.batch, len(pixels)))
            draw, _ = views.draw(config.run.seed, k, plan.batch, crops)
            images = pixels[chosen].to(place.device)
            box = views.boxes(draw, images.shape[2], images.shape[3], crops)
            view = views.finish(crop_resize(images, box, config.data.resolution), draw, crops)
            with place.autocast():
                logits = model(place.images(view, config))
            loss = F.cross_entropy(logits.float(), labels[chosen].to(place.device))
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = schedules.learning_rate(
                    k, peak=plan.peak_lr, warmup_steps=plan.warmup_steps, total_steps=plan.steps
                )
            optimizer.step()
            shown.advance(text=f"loss {loss.item():.3f}")
    return encoder.eval()
