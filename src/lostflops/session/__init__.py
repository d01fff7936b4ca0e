"""Runs recipes on a trace: what several need is computed once, and answers are kept beside the run."""

from .asking import GAINS as GAINS
from .asking import SMALL as SMALL
from .asking import Answer as Answer
from .asking import Session as Session
from .asking import Skipped as Skipped
from .asking import is_small as is_small
from .batches import Fold as Fold
