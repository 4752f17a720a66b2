"""The command line, of which process 1 kills itself in the middle of its first try; run under torchrun."""

import os
import signal
from typing import Any

from byol import networks, pretraining
from byol.cli import main
from tests.chaos.several import small

real, left = pretraining.update, [6]


def update(*arguments: Any, **named: Any) -> Any:
    left[0] -= 1
    if left[0] == 0 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **named)


networks.BACKBONES["small"] = lambda config: small()
pretraining.update = update
main()
