"""Nearest neighbours: votes by hand, and a bank that is searched in parts."""

from __future__ import annotations

import math

import pytest
import torch

from byol import neighbours


def test_nearest_neighbours_by_hand() -> None:
    """Breaks if votes are not weighted by exp(cosine / T): one neighbour at cosine 1 outvotes two at 0.6."""
    bank = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]])
    labels = torch.tensor([0, 1, 1])
    query = torch.tensor([[2.0, 0.0]])
    found = neighbours.votes(bank, labels, query, classes=2, k=3, temperature=0.5)
    expected = torch.tensor([[1.0, 2 * math.exp(-0.4 / 0.5)]])
    torch.testing.assert_close(found, expected)
    assert neighbours.votes(bank, labels, query, classes=2, k=3, temperature=0.1).argmax() == 0
    assert neighbours.votes(bank, labels, query, classes=2, k=3, temperature=10.0).argmax() == 1


def test_a_bank_in_parts_is_the_whole_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a neighbour is lost or counted twice where one part of the bank ends and the next begins."""
    torch.manual_seed(0)
    bank, queries, labels = torch.randn(53, 5), torch.randn(11, 5), torch.arange(53) % 4
    whole_bank = neighbours.votes(bank, labels, queries, classes=4, k=7)
    monkeypatch.setattr(neighbours, "BANK", 8 * 5)
    monkeypatch.setattr(neighbours, "ASKED", 2)
    monkeypatch.setattr(neighbours, "VOTERS", 3)
    torch.testing.assert_close(neighbours.votes(bank, labels, queries, classes=4, k=7), whole_bank)
