"""What the names of kernels mean: patterns with the family they prove, their source and an example.

Tried in order; the first that recognises a name classifies it, so what is special stands before what is
general. `classification.py` says what the families mean and reads these tables.
"""

from __future__ import annotations

from lostflops.naming.kernel_patterns.accelerators import ACCELERATORS
from lostflops.naming.kernel_patterns.communication import COMMUNICATION
from lostflops.naming.kernel_patterns.copies import COPIES_FIRST, COPY
from lostflops.naming.kernel_patterns.elements.elementwise import FUSED_ELEMENTWISE, LOOPS
from lostflops.naming.kernel_patterns.elements.embedding import EMBEDDING
from lostflops.naming.kernel_patterns.elements.norm import NORM
from lostflops.naming.kernel_patterns.elements.optimizer import OPTIMIZER
from lostflops.naming.kernel_patterns.elements.reduction import REDUCTION
from lostflops.naming.kernel_patterns.inductor import INDUCTOR
from lostflops.naming.kernel_patterns.matrix.attention import ATTENTION
from lostflops.naming.kernel_patterns.matrix.convolution import CONVOLUTION
from lostflops.naming.kernel_patterns.matrix.gemm import GEMM
from lostflops.naming.kernel_patterns.matrix.quantize import QUANTIZE
from lostflops.naming.kernel_patterns.other import OTHER
from lostflops.naming.kernel_patterns.pattern import KernelPattern

KERNEL_PATTERNS: tuple[KernelPattern, ...] = (
    *INDUCTOR,
    *COMMUNICATION,
    *COPIES_FIRST,
    *ATTENTION,
    *CONVOLUTION,
    *NORM,
    *FUSED_ELEMENTWISE,
    *QUANTIZE,
    *OPTIMIZER,
    *EMBEDDING,
    *REDUCTION,
    *GEMM,
    *COPY,
    *OTHER,
    *LOOPS,
    *ACCELERATORS,
)
