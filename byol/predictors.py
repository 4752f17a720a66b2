"""Predictors in closed form: nothing in them is trained, each batch says what they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from byol import objectives
from byol.config import Network
from byol.parallel import collectives


class OptimalLinear(nn.Module):
    """The linear predictor Q* = argmin ‖Z·Q − Z'‖² of a batch, in closed form (paper, appendix I); nothing is trained.

    The batch is that of all processes together. The gradient flows through the input Z alone and not through Q*, as for
    any predictor that is optimal already (appendix H).
    """

    closed = True

    def __init__(self, ridge: float) -> None:
        super().__init__()
        self.ridge = ridge

    def forward(self, projection: Tensor, target: Tensor) -> Tensor:
        """Projections and targets (B, F) → predictions (B, F), without autocast, which is too coarse to solve in."""
        # Tensors without numbers (meta), by which the cost of a step is counted, have no autocast of their own.
        device = "cpu" if projection.is_meta else projection.device.type
        with torch.autocast(device, enabled=False):
            projection = projection.to(torch.promote_types(projection.dtype, torch.float32))
            return projection @ self.solve(projection, target).to(projection.dtype)

    @torch.no_grad()
    def solve(self, projection: Tensor, target: Tensor) -> Tensor:
        """Q*, (F, F); ridge·(mean eigenvalue of Z^T·Z) on the diagonal allows for features that vanish or repeat."""
        wide = torch.float32 if projection.device.type == "mps" else torch.float64  # mps has no float64
        z, wanted = projection.to(wide), target.to(wide)
        moments, correlations = collectives.all_reduce(z.T @ z), collectives.all_reduce(z.T @ wanted)
        moments.diagonal().add_((self.ridge * moments.diagonal().mean()).clamp(min=torch.finfo(wide).tiny))
        # solve_ex does not raise on NaN, which then reaches the loss and is reported as divergence.
        solution: Tensor = torch.linalg.solve_ex(moments, correlations).result
        return solution


class Isotropic(nn.Module):
    """ẑ·C/‖C‖ + ε·ẑ, with the batch's correlation C = Ẑ^T·Ẑ of the normalized projections: directions in which images
    differ less are predicted to be less.

    The gradient passes as if the predictor were the identity. Behind a trained one, a direction is learned at a rate
    that grows with what it has already learned, which is why BYOL is slow at first and loses rank; here all are learned
    alike, and those that are smaller than the prediction says grow (DirectCopy, Wang et al., 2021; IsoLoss, Halvagal et
    al., 2023). The batch is that of all processes together.
    """

    closed = True

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, projection: Tensor, _: Tensor) -> Tensor:
        """Projections (B, F) → predictions (B, F), without autocast."""
        device = "cpu" if projection.is_meta else projection.device.type
        with torch.autocast(device, enabled=False):
            z = objectives.l2(projection)
            return z + (self.predicted(z.detach()) - z.detach())

    def predicted(self, z: Tensor) -> Tensor:
        """Of normalized projections ẑ (B, F)."""
        correlation: Tensor = collectives.all_reduce(z.T @ z)
        length = correlation.norm().clamp(min=torch.finfo(z.dtype).tiny)  # of projections that are all 0
        prediction: Tensor = z @ (correlation / length) + self.floor * z
        return prediction


CLOSED: dict[str, Callable[[Network], nn.Module]] = {
    "optimal-linear": lambda c: OptimalLinear(c.ridge),
    "isotropic": lambda c: Isotropic(c.floor),
}
