"""The paper's theorems as functions to evaluate, and strongly convex problems on which to check them.

docs/theory.md states them, with the slips we mend.
"""

from efl.theory.constants import Constants
from efl.theory.corollary1 import Verdict, rough_threshold, whether_to_abandon
from efl.theory.participation import Participation
from efl.theory.theorem1 import Theorem1, learning_rate

__all__ = [
    "Constants",
    "Participation",
    "Theorem1",
    "Verdict",
    "learning_rate",
    "rough_threshold",
    "whether_to_abandon",
]
