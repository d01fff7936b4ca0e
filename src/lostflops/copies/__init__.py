"""How long copies between host and device take, and what that predicts: one link, one simulator, pure Python.

The planner and the remedies of `lostflops.optimize` share it, so that what is planned is what is run. `link`
and `link_card` say how fast a link is, `simulation` plays a step whose saved storages travel; the others
predict from a link alone.
"""
