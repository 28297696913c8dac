"""ReasonKnee-Bench: predictions in, numbers out, with what is needed to trust them. See `bench`."""

from reasonknee.scoring.bench import Options, Scored, score, score_arrays
from reasonknee.scoring.rewards import BOX_REWARDS, WEIGHTS, compute_score, reward, reward_with
from reasonknee.scoring.several import compare

__all__ = [
    "BOX_REWARDS",
    "WEIGHTS",
    "Options",
    "Scored",
    "compare",
    "compute_score",
    "reward",
    "reward_with",
    "score",
    "score_arrays",
]
