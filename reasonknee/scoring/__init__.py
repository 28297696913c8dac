"""ReasonKnee-Bench: predictions in, numbers out, with what is needed to trust them. See `bench`."""

from reasonknee.scoring.bench import WEIGHTS, Scored, compare, reward, reward_with, score, score_arrays

__all__ = ["WEIGHTS", "Scored", "compare", "reward", "reward_with", "score", "score_arrays"]
