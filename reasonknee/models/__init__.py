"""Ask and train: views of a volume, local models and servers, the journal of a run, its predictions."""

from reasonknee.models.coordinates import FORMS, Grid
from reasonknee.models.requests import Parameters, Reply
from reasonknee.models.views import Showing, View

__all__ = ["FORMS", "Grid", "Parameters", "Reply", "Showing", "View"]
