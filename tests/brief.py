"""Imported before anything is timed: in the tests, nobody waits for the time that a plan tells."""

from byol.run import cost

cost.TIMED_STEPS, cost.TIMED_SECONDS = (1, 1), 0.0
