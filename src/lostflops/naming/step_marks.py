"""How ranges are called that mark a step, and so hold all that happens in it."""

from __future__ import annotations

import re

# A range that names a step: 'step 3', 'Iteration-12', 'train_step', 'training_batch#7', 'Epoch 1, step 3/90',
# 'trainer.step[3]', and Lightning's around a batch.
STEP_RANGE = (
    r"(?i)^[\[(<#]*(?:rank[ _#:/=-]*\d{1,9}[ _,;:/|-]*)?"
    r"(?:ep(?:och)?[ _#:/=-]*\d{1,9}(?:/\d{1,9})?[ _,;:/|-]*)?(?:\[pl\]\[profile\])?"
    r"(?:(?:trainer|megatron|engine)[ _.:/-]*)?(?:run[ _])?(?:train(?:ing)?|global)?[ _.:/-]*(?:one[ _-])?"
    r"(?:step|iter|iteration|batch)[ _#:/=\[(-]*"
    r"(?:(\d{1,15})(?: ?(?:/|of) ?\d{1,15})?)?[\])>]*$"
)
# One that an engine which serves models puts around a pass: vLLM's 'execute_context_1(512)_generation_8(8)',
# 'execute_new_1_cached_8' and 'execute_model', SGLang's 'step[DECODE bs=32]'.
SERVING_STEP = (
    r"^(?:execute_(?:new_\d+|(?:\d+_)?context_\d+)(?:[_(]\S*)?|(?:[\w.]+[:.] ?)?execute_model"
    r"|step\[(?:DECODE|EXTEND|PREFILL|MIXED|IDLE)\b[^\]]*\])()$"
)
PROFILER_STEP = r"^ProfilerStep[#*](\d{1,15})$"

_RANGE = re.compile(STEP_RANGE)
_SERVING = re.compile(SERVING_STEP)
_BARE = re.compile(r"(?i)^(?:step|iter|iteration|batch)[ _#:/=-]*$")
_PART = re.compile(r"(?i)^micro[ _-]?(?:batch|step)[ _#:/=-]*\d{0,9}(?: ?(?:/|of) ?\d{1,9})?$")
NO_TEXT = "(unnamed range)"
"""What a range is called whose text is not in the recording."""


def is_step_mark(name: str) -> bool:
    """Whether a range counts a step, and says nothing else of what happens in it.

    >>> is_step_mark("ProfilerStep#3"), is_step_mark("iteration 12"), is_step_mark("step")
    (True, True, True)
    >>> is_step_mark("train_step"), is_step_mark("execute_new_2_cached_14")
    (False, True)
    """
    if name.startswith("ProfilerStep") or _SERVING.match(name):
        return True
    found = _RANGE.match(name)
    return found is not None and (found[1] is not None or _BARE.match(name) is not None)


def says_nothing(name: str) -> bool:
    """Whether a range says nothing of what happens in it: it counts a step or a part of one, or has no text.

    >>> says_nothing("microbatch 3"), says_nothing("layer 3")
    (True, False)
    """
    return name == NO_TEXT or is_step_mark(name) or _PART.match(name) is not None
