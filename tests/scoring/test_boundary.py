"""BACON's calibration: the vectors of section 10.8 of the specification, and its invariants."""

from __future__ import annotations

import pytest
import torch

from kvcomp_eval import make_method
from kvcomp_eval.methods.base import LayerPrefill
from kvcomp_eval.scoring.boundary import BoundaryCalibration
from kvcomp_eval.selection import top_positions

B = torch.tensor([[0.200, 0.021, 0.022, 0.100, 0.023, 0.024, 0.080, 0.025, 0.060, 0.026]])
Q = torch.tensor([[0.100, 0.021, 0.022, 0.100, 0.023, 0.184, 0.200, 0.145, 0.060, 0.226]])
TRACE = [
    torch.tensor([[0, 0, 0, 0, 0, 0.10, 0.12, 0.06, 0, 0]]),
    torch.tensor([[0, 0, 0, 0, 0.02, 0.08, 0.10, 0.08, 0, 0]]),
]
GATED = B.clone()
GATED[0, 9] += 0.004
# fmt: off
CODE_TRACE = [.2, .021, .022, .108727, .041, .113998, .164544, .109544, .084, .097999]
PAPER_TRACE = [.206631, .030947, .034434, .111052, .040408, .101091, .153775, .090901, .081316, .100604]
# fmt: on


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("calibration", "last", "trace", "scores", "kept"),
    [
        (BoundaryCalibration(), Q, TRACE, CODE_TRACE, [0, 5, 6]),
        (BoundaryCalibration(), Q, [], None, [0, 6, 9]),
        (BoundaryCalibration(variant="paper", kernel=11), Q, TRACE, PAPER_TRACE, [0, 3, 6]),
        (BoundaryCalibration(variant="paper", kernel=11), Q, [], None, [0, 6, 9]),
        (BoundaryCalibration(), GATED, [], None, [0, 3, 6]),
        (BoundaryCalibration(gate=False), GATED, [], None, [0, 3, 9]),
        (BoundaryCalibration(variant="paper", kernel=11), GATED, [], None, [0, 3, 9]),
        (BoundaryCalibration(gamma=0), Q, TRACE, B[0].tolist(), [0, 3, 6]),
    ],
    ids=["A", "B", "C", "D", "G code", "G no gate", "G paper", "gamma 0"],
)
def test_vectors(calibration, last, trace, scores, kept):
    calibrated, _ = calibration(B, last, trace, selected=3)
    if scores is not None:
        close(calibrated[0], scores)
    assert top_positions(calibrated[0], 3).tolist() == kept


def test_single_values_of_the_vectors():
    calibrated, evidence = BoundaryCalibration()(B, Q, [], 3)
    close(evidence[0], [0, 0, 0, 0, 0, 0.16, 0.12, 0.12, 0, 0.20])
    close(calibrated[0, [9, 6]], [0.123787, 0.154081])
    gate, _ = BoundaryCalibration()(B, GATED, [], 3)
    free, _ = BoundaryCalibration(gate=False)(B, GATED, [], 3)
    ratio = (gate - B)[0, 9] / (free - B)[0, 9]
    assert ratio.item() == pytest.approx(0.013035, rel=1e-3)


def test_group_reduction_and_pooling_end_to_end():
    """Vector H: two query heads of one KV head, window 2, kernel 3."""
    rows = torch.tensor(
        [
            [[0.1, 0.2, 0.3, 0.1, 0.3, 0], [0.05, 0.05, 0.1, 0.5, 0.1, 0.2]],
            [[0.4, 0.1, 0.1, 0.1, 0.3, 0], [0.1, 0.1, 0.1, 0.4, 0.1, 0.2]],
        ]
    )
    # Keys are unit vectors, so that a query is its row of logits.
    layer = LayerPrefill(
        layer=0,
        num_layers=2,
        queries=torch.cat([torch.zeros(2, 4, 6), rows.clamp(min=1e-30).log()], dim=1),
        keys=torch.eye(6)[None],
        values=torch.zeros(1, 6, 6),
        visual=torch.zeros(6, dtype=torch.bool),
        scaling=1.0,
    )
    method = make_method("bacon", window=2, kernel=3, coherence=3, budget_entries=3)
    base, last = method._window_and_last(layer, 2)
    close(base[0], [0.091667, 0.141667, 0.179167, 0.141667])
    close(last[0], [0.05, 0.083333, 0.208333, 0.183333])
    scores, _ = BoundaryCalibration(kernel=3)(base, last, [], 1)
    close(scores[0], [0.091667, 0.147033, 0.208297, 0.177697])
    assert method.observe(layer)[0].kept.tolist() == [2, 4, 5]
    wider = make_method("bacon", window=2, kernel=3, coherence=3, budget_entries=4)
    scores, _ = BoundaryCalibration(kernel=3)(base, last, [], 2)
    close(scores[0], [0.091667, 0.142927, 0.186008, 0.150128])
    assert wider.observe(layer)[0].kept.tolist() == [2, 3, 4, 5]


def test_scores_only_rise_scale_with_attention_and_stay_finite():
    calibration = BoundaryCalibration()
    scores, _ = calibration(B, Q, TRACE, 3)
    assert (scores >= B).all()
    scaled, _ = calibration(3 * B, 3 * Q, [3 * e for e in TRACE], 3)
    torch.testing.assert_close(scaled, 3 * scores, rtol=1e-5, atol=1e-7)
    unchanged, _ = calibration(B, B, [], 3)
    torch.testing.assert_close(unchanged, B)
    flat, _ = calibration(torch.full_like(B, 0.1), Q, TRACE, 3)
    assert torch.equal(flat, torch.full_like(B, 0.1))


def test_paper_strength_is_gamma_deviations_of_the_base():
    scores, _ = BoundaryCalibration(variant="paper", gamma=0.7)(B, Q, TRACE, 3)
    region = B[0].topk(6).indices
    added = (scores - B)[0, region].std(correction=0)
    assert added.item() == pytest.approx(0.7 * B[0, region].std(correction=0).item(), rel=1e-5)
