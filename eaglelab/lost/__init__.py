"""Where a drafter's acceptance is lost: by class of token, by position, by confidence and step, and at which tokens. Out of one replay's outcomes."""

from eaglelab.lost.case import LostCase
from eaglelab.lost.classes import TokenClass, token_classes
from eaglelab.lost.confidence import reliability, thresholds
from eaglelab.lost.context import Fall, by_position, fall
from eaglelab.lost.cost import class_costs
from eaglelab.lost.costly import costly_tokens
from eaglelab.lost.rows import Rows

__all__ = [
    "Fall",
    "LostCase",
    "Rows",
    "TokenClass",
    "by_position",
    "class_costs",
    "costly_tokens",
    "fall",
    "reliability",
    "thresholds",
    "token_classes",
]
