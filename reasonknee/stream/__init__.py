"""Quintuples into a training loop: in an order that a seed fixes, shared out without overlap, resumed
exactly. See `requested` and `streams`."""

from reasonknee.stream.by_index import MapView, explode
from reasonknee.stream.requested import pairs, quintuples, volumes
from reasonknee.stream.streams import Stream

__all__ = ["MapView", "Stream", "explode", "pairs", "quintuples", "volumes"]
