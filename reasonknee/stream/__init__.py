"""Quintuples into a training loop: in an order that a seed fixes, shared out without overlap, resumed exactly. See `streams`."""

from reasonknee.stream.streams import MapView, Stream, explode, pairs, quintuples, volumes

__all__ = ["MapView", "Stream", "explode", "pairs", "quintuples", "volumes"]
