"""One step of the paper's Algorithm 1: predictions, targets, loss, gradient, optimizer, moving average.

Nothing here waits for a GPU. Whether a step's numbers are finite is decided where they are, and the step is left out
there if they are not; the host hears of it later, by the step's `Outcome`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from byol.errors import Diverged
from byol.method import Engine, Method
from byol.parallel import collectives
from byol.run.machine import Machine


class Step(NamedTuple):
    """What one optimizer step measured, averaged over its passes and processes."""

    loss: float
    grad_norm: float
    probe_loss: float | None = None
    probe_accuracy: float | None = None


class Pass(NamedTuple):
    """The two views of one forward pass of this process, and labels when there are any."""

    view1: Tensor
    view2: Tensor
    labels: Tensor | None


class Outcome:
    """What a step has measured, soon on its way to the host: loss, gradient's norm, the classifier's two numbers."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers
        self.event: torch.cuda.Event | None = None  # after which those of a GPU are here

    @property
    def sent(self) -> bool:
        return self.event is not None or self.numbers.device.type != "cuda"

    @property
    def arrived(self) -> bool:
        """Whether reading would not wait."""
        return self.sent and (self.event is None or self.event.query())

    @property
    def finite(self) -> bool:
        """Whether the step was taken; waited for where the numbers have not arrived."""
        return all(map(math.isfinite, self.values()[:2]))

    def values(self) -> list[float]:
        """The numbers whatever they are, waited for where they have not arrived."""
        if self.event is not None:
            self.event.synchronize()
        values: list[float] = self.numbers.tolist()
        return values

    def read(self) -> Step:
        """The numbers, waited for where they have not arrived; `Diverged` if they are not finite."""
        loss, grad_norm, *probe = self.values()
        if not self.finite:
            raise Diverged(f"the loss is {loss} and the gradient's norm {grad_norm}")
        return Step(loss, grad_norm, *probe)


def send(outcomes: Sequence[Outcome]) -> None:
    """Sends the numbers of some steps from a GPU to the host, all at once, and waits for nothing."""
    if waiting := [outcome for outcome in outcomes if not outcome.sent]:
        numbers = torch.stack([outcome.numbers for outcome in waiting])
        there = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        there.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        for outcome, row in zip(waiting, there, strict=True):
            outcome.numbers, outcome.event = row, event


class Late:
    """Steps whose numbers have not been read yet, in their order, each with the values of its schedules.

    Those of a GPU are sent once in `every` steps.
    """

    def __init__(self, every: int = 1) -> None:
        self.every, self.steps = every, deque[tuple[int, Outcome, dict[str, float]]]()

    def add(self, k: int, outcome: Outcome, **values: float) -> None:
        self.steps.append((k, outcome, values))
        if (k + 1) % self.every == 0:
            self.send()

    def send(self) -> None:
        send([outcome for _, outcome, _ in self.steps])

    def good(self) -> Iterator[tuple[int, Outcome, dict[str, float]]]:
        """Those whose numbers have arrived, up to one that is not finite.

        Numbers that were sent before the last step are waited for if need be: the device has that one to work on.
        """
        while self.steps and self._due() and self.steps[0][1].finite:
            yield self.steps.popleft()

    def _due(self) -> bool:
        first, last = self.steps[0][1], self.steps[-1][1]
        return first.arrived or (first.sent and first is not last and first.event is not last.event)

    @property
    def wrong(self) -> bool:
        """Whether the next step to be read has arrived and is not finite."""
        return bool(self.steps) and self.steps[0][1].arrived and not self.steps[0][1].finite

    def all(self) -> Iterator[tuple[int, Outcome, dict[str, float]]]:
        """All of them, waited for."""
        self.send()
        while self.steps:
            yield self.steps.popleft()


def update(
    method: Method,
    optimizer: Optimizer,
    passes: Iterable[Pass],
    *,
    lr: float,
    tau: float,
    beta: float | None = None,
    machine: Machine,
    clip: float = 0.0,
    engine: Engine | None = None,
) -> Outcome:
    """One step of Algorithm 1: the gradient of the mean loss over all passes, then the optimizer, then the target.

    Processes exchange gradients in the last backward pass of a step, by torch's `engine`; each then takes the same
    step. `beta`, the weight of negative examples, is the config's when left out; the paper's loss has none. A step
    whose loss or gradient is not finite changes nothing: neither weights nor momentum, target or batch statistics.
    """
    engine = engine or Engine(method)
    clear_gradients(optimizer)
    with Statistics(method) as statistics:
        measured = []
        for number, (view1, view2, labels) in enumerate(passes, 1):
            terms, representations = [], []
            last = number == engine.passes
            for orders in method.orders(view1, view2, machine.autocast, engine, last, beta):
                loss = method.loss(orders, beta)
                loss.backward()  # frees this view's activations before the other view's are computed
                terms.append(loss.detach())
                representations.append(orders[0].representation.detach())
            measured.append([torch.stack(terms).sum(), *watch(method, representations[0], labels, machine)])
        means = [torch.stack(values).mean() for values in zip(*measured, strict=True)]
        average_gradients(optimizer, len(measured), means, engine.left)
        numbers, finite = checked(optimizer, means)
        if finite.device.type != "cpu" or finite:  # a CPU's numbers are here already
            shorten(method, clip)
            apply_gradients(optimizer, lr, finite)
            method.update_target(tau, finite)
        statistics.put_back_unless(finite)
    return Outcome(numbers)


def apply_gradients(optimizer: Optimizer, lr: float, finite: Tensor) -> None:
    """A step of the optimizer; on a GPU it is one that changes nothing if the gradient is not finite.

    The sign is the one that torch's own fused optimizers go by, and LARS too.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
    if finite.device.type == "cpu":
        optimizer.step()
        return
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]


class Statistics:
    """The running statistics of the batch norms as they are before a step, for a step that is not taken."""

    def __init__(self, method: Method) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in method.buffers():
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self.buffers = list(kinds.values())

    def __enter__(self) -> Statistics:
        self.before = [_flat(buffers) for buffers in self.buffers]
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:  # images that cannot be read, in the middle of a step
            self.put_back()

    def put_back(self) -> None:
        self._set(self.before)

    def put_back_unless(self, finite: Tensor) -> None:
        if finite.device.type != "cpu":
            after = [_flat(buffers) for buffers in self.buffers]
            self._set([torch.where(finite, *both) for both in zip(after, self.before, strict=True)])
        elif not finite:
            self.put_back()

    def _set(self, values: Sequence[Tensor]) -> None:
        for buffers, flat in zip(self.buffers, values, strict=True):
            parts = flat.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view(b.shape) for b, part in zip(buffers, parts, strict=True)])


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def watch(method: Method, representation: Tensor, labels: Tensor | None, machine: Machine) -> list[Tensor]:
    """The watching classifier's loss and accuracy, its gradient added; nothing without a classifier or labels."""
    if method.classifier is None or labels is None:
        return []
    with machine.autocast():
        logits = method.probe(representation)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    return [loss.detach(), (logits.argmax(1) == labels).to(loss.dtype).mean()]


def gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def clear_gradients(optimizer: Optimizer) -> None:
    """Set every gradient to -0, in the memory it already has.

    Gradients that were freed would be allocated anew between the next step's activations, which then no longer fit into
    the memory of the last step's. The value is -0 because x + -0 is x in every bit, while 0 would turn a gradient of -0
    into +0: the first step after a resume, which has no gradients to add to, would then differ from the same step of an
    uninterrupted run.
    """
    for gradient in gradients(optimizer):
        gradient.fill_(-0.0)


def average_gradients(
    optimizer: Optimizer, passes: int, numbers: Sequence[Tensor] = (), left: Sequence[Tensor] | None = None
) -> None:
    """Turn summed gradients into their mean over passes and processes, and `numbers` into their mean over processes.

    `left` are the parameters whose gradients no engine has exchanged yet; None: all.
    """
    summed = gradients(optimizer)
    if passes > 1:
        torch._foreach_div_(summed, passes)
    own = summed if left is None else [param.grad for param in left if param.grad is not None]
    collectives.average([*own, *numbers])


def shorten(method: Method, clip: float) -> None:
    """Scales the gradients of online network and predictor down together to a norm of at most `clip`; 0: of any.

    Those of the watching classifier do not count: labels must not change what is learned.
    """
    if clip:
        learned = (*method.online.parameters(), *method.predictor.parameters())
        torch.nn.utils.clip_grad_norm_(learned, clip)


def checked(optimizer: Optimizer, means: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The step's numbers with the gradient's norm (2 or 4,), and whether loss and norm are finite (), on the device."""
    loss, *probe = means
    grad_norm = torch.nn.utils.get_total_norm(gradients(optimizer))
    if hasattr(grad_norm, "full_tensor"):  # weights in parts
        grad_norm = grad_norm.full_tensor()
    numbers = torch.stack([loss, *(number.to(loss.dtype) for number in (grad_norm, *probe))])
    return numbers, numbers[:2].isfinite().all()
