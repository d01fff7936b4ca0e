"""Mutants that no test can notice, or none should, each with the reason.

They are told by how the line begins that holds them, and by what their change says.
"""

from __future__ import annotations

from collections.abc import Mapping

PLAN = "lostflops.plan.serve.inference"
NESTING = "lostflops.intervals.nesting"
SETS = "lostflops.intervals.sets"
MATCHING = "lostflops.intervals.matching"
CLOCKS = "lostflops.ingest.times.clocks"
COUNTED = "lostflops.ingest.steps.counted"
ON_DEVICE = "lostflops.ingest.steps.on_device"
LATENESS = "lostflops.causes.lateness"
ORDERS_APART = "causes claim in the order of these numbers, which are ten apart"
PAIRS_OR_NONE = "a lane holds ends of sends, or none"
ONE_END = "it has one of each at most"
FURTHER = "all lie as much further along the axis"
A_HINT = "Polars pushes nothing through here either way"

EQUIVALENT: Mapping[str, Mapping[tuple[str, str], str]] = {
    "lostflops.ingest.steps.marks": {
        ('reach = pl.col("end").cum_max()', "-2 ** 62 -> 2"): "only the number of the first update differs",
        ('reach = pl.col("end").cum_max()', "2 -> 1"): "no instant is below 0",
        ('reach = pl.col("end").cum_max()', "62 -> "): "all are before every instant",
        ('.agg(pl.col("optimizer").first()', ".last()"): "a run is of one kind",
        ("if kernels is None or kernels.height < 4", "4 -> 3"): "so few show no three periods either way",
        ("if kernels is None or kernels.height < 4", "4 + FEWEST"): "so few show no three periods either way",
        ("if len(rare) == 0", "0 ->"): "one kernel alone, or none, repeats in no period of four",
        ("for name in rare[np.argsort", "8 ->"): "how many of the rarest kernels are looked at",
        ("for many in range(2, MOST_OPTIMIZERS", "2 -> 1"): "one optimizer takes no turns",
        ('return updates.filter(pl.col("name") == last)', ".sort() ->"): "Polars has them in order, untold",
        ("candidates.update(", "16 ->"): "how many distances are looked at",
        ("if same > share or", "same >= share"): "of two periods one repeats better",
        ("rounds = work[len(work) % many", "1 -> 2"): "numpy works out whichever length is below 0",
        ('names = ranges["name"].unique()', ".unique() ->"): "asked only which names there are",
        ('names = rows["name"].unique()', ".unique() ->"): "asked only which names there are",
        ("names = names.filter(names.str.contains(pattern)", "fill_null"): "a filter drops nulls",
        ("names = names.filter(names.str.contains(pattern)", "False -> True"): "no row is one without a name",
        ("(lambda: _marked(ranges, PROFILER_STEP", "1 -> 0"): "a table without rows is no step either",
        ('launching = kernels["thread"]', ".unique() ->"): "asked only whether a thread is among them",
        ('launching = kernels["thread"]', ".drop_nulls() ->"): "no thread is among none",
        ("names = names.filter(names.str.contains(OPTIMIZER_RANGE)", "fill_null"): "a filter drops nulls",
    },
    "lostflops.plan.train.static_memory": {
        ("def states(", "0 -> "): "one rank shards nothing",
        ("layer = 0", "0 ->"): "every layer has more than one weight",
        ("each, layer, own = gradient_bytes", "0 ->"): "every layer has more than one weight",
        ("if head and beside > layers", "beside >= layers"): "both are as much",
        ("head = 0 if layout.by_pytorch", "0 ->"): "one byte beside a layer is less than another layer",
        ("return _sharded((4 * count, 4 * count, moments), 3", "3 -> 4"): "from 3 on all is shared",
        ("microbatches: int = 1", "1 ->"): "a pipeline has two stages at least, so no piece waits either way",
        ("elif layout.stage > 1 or", "4 -> 3"): "gradients take 2 or 4 bytes",
    },
    PLAN: {
        ("hidden = 2 * 2 * tokens", "2 * 2 -> 2 + 2"): "both are 4",
        ("return base_bytes(weights, Lora(base_bits=4))", "4 -> "): "all but 16 bits are taken for 4",
        ("if serving.weight_bits > 8", "8 -> 9"): "weights have 16, 8 or 4 bits",
        ("if serving.weight_bits > 4", "4 -> 5"): "weights have 16, 8 or 4 bits",
        ("if serving.cache_bits > 8", "8 -> 9"): "a cache has 16 or 8 bits",
        ("MANY = 1 << 24", "24 -> 25"): "a bound of a search, beyond every number of sequences",
        ("MANY = 1 << 24", "24 -> 23"): "the same",
        ("MANY = 1 << 24", "1 -> 2"): "the same",
        ("while high < MANY", "high < MANY -> high <= MANY"): "the same bound",
        ('bound = "network" if network', ">= times"): "two that take as long bound it alike",
        ("low, high = high, 2 * high", "2 -> 3"): "how fast a search grows is no part of its answer",
        ("low, high = 0, 1", "1 -> 2"): "one sequence is tried between none and two",
    },
    NESTING: {
        ("place = np.where(found >= 0,", "1 -> 0"): "where there are no rows none is found",
        ("group = points.join(groups,", "how='left'"): "each point has its group",
        ("by_group = np.argsort(", "kind='stable'"): "the points of a group are looked up one by one",
        ("SHORT = 2**15", "2 -> 1"): "all numbers are ordered the longer way, alike",
        (
            "if len(bounds) > MANY_GROUPS",
            "if not len",
        ): "more or fewer groups are ranked together, to the same ranks",
        ("SHORT = 2**15", "15 -> 14"): "numbers between are ordered the longer way, alike",
        ("MANY_GROUPS = 1000", "1000 ->"): "more or fewer groups are ranked together, to the same ranks",
        ("if len(bounds) > MANY_GROUPS", ">= MANY_GROUPS"): "the same",
        ("ends = np.sort(", "kind='stable'"): "integers that are alike are one number",
        ("NEAR = 32", "32 ->"): "how many rows are looked at before a tree is made",
        (
            "for _ in range(8):",
            "8 ->",
        ): "what is left after so many rounds goes the slow way, to the same forest",
        ("if len(out) == 0:", "0 -> -1"): "the slow way at the end gives the same forest",
        ("out = out[start[out] >=", "-> start[out] > _reach_before"): "the same nests in more rounds",
        ("active = np.flatnonzero(at >= 0)", "at >= 0 -> at > 0"): "position 0 has no parent",
        ("first = np.searchsorted(of, np.arange(", "1 -> 2"): "one bound more, which nobody asks for",
        ("bounds = np.searchsorted(group[by_group]", "1 -> 2"): "one bound more, which nobody asks for",
        ("bounds = np.searchsorted(levels", "2 -> 3"): "one bound more, which nobody asks for",
        ("covering[mine] =", "<= np.searchsorted"): "more rows than the tree needs",
    },
    "lostflops.recipes.first_calls": {
        ('steps.sort("start")', "'start' -> 'end'"): "steps of a rank do not overlap",
        ('calls.filter(pl.col("name").is_in(long[', "-> calls"): "the join below leaves no other name",
    },
    "lostflops.recipes.accounting": {
        ("lasting = np.flatnonzero(end > start)", "end >= start"): "nothing without time is left at the end",
        ("LAST = 2**63 - 1", "63 -> 62"): "no instant is as late",
        ("lanes = here.select(", ".unique() ->"): "a semi join asks only whether it is there",
        ("names = calls[", ".unique() ->"): "a name that comes twice says nothing more",
        ("near = pl.concat(threads", "how="): "the columns have one type here",
        ("return pl.concat([part.select(columns)", "'start' -> 'end'"): "runs of one account are disjoint",
        ("sought = np.flatnonzero(~ended.orphan", "until >= start"): "a stretch without time tells none",
        ('.sort("rank", "start")', "'start' -> 'end'"): "pieces of a rank are disjoint",
        ('return pl.concat(parts).lazy().drop("thread")', "'start' -> 'end'"): "stretches are disjoint",
        ("gaps.filter(pl.col(", "'start' -> 'end'"): "gaps of a rank are disjoint",
        ("EXPOSED: collectives.filter(", "-> collectives"): "its transfer and its wait cover it whole",
        ("(found := ended.collect()", "-> lumns"): "what has no start is left out afterwards",
        ('facts = facts.unique("rank"', "-> facts"): "a rank has one row",
        ('facts = facts.unique("rank"', "if not facts.height"): "a rank has one row",
        ("LAST = 2**63 - 1", "1 -> 2"): "later than any recording either way",
        (".join(lanes, on=", "how='semi'"): "a lane is there once, and has no other column",
        ("computing = kernels.select(", "how='semi'"): "a rank is there once, and has no other column",
        ("lowest = int(times[1][known].min())", "0 -> 1"): "of launches that are not known none is compared",
        ("before = np.where(there & (place > 0)", "place >= 0"): "no launch is later than the last of all",
        ("if facts.height < 2", "2 -> 1"): "one rank has none beside it",
        ('others = pairs.filter(pl.col("rank")', "-> pairs"): "a device is not busy in its own gaps",
    },
    SETS: {
        (".map_batches(", "predicate_pushdown=False"): A_HINT,
        ("return painted([column[:height]", "-> return None"): "the slower way paints the same",
        ("predicate_pushdown=False,", "predicate_pushdown=False"): A_HINT,
        ("projection_pushdown=False,", "predicate_pushdown=False"): A_HINT,
        ("return windows.filter(pl.col(", ">= pl.col('start')"): "a window without length has no runs",
        ("held = np.flatnonzero(windows[-1]", ">= windows[-2]"): "a window without length has no runs",
        (".join(numbered.drop(", "how='left'"): "every window is there",
        ("_edges(union(frame, keys), keys,", "1 -> 2"): "asked only whether it is above 0",
        ("return edges.map_batches(", "edges.map_batches"): A_HINT,
        ("lambda frame: frame[row_order(", "down=False"): A_HINT,
        ("predicate_pushdown=False,", "False -> True"): A_HINT,
        ('.sort(*keys, "start")', "'start' -> 'end'"): "the windows of a group are disjoint",
        (
            '_edges(frame.filter(pl.col("end") > pl.col("start"))',
            "-> pl.col('end') >=",
        ): "a piece without length is left out afterwards",
        ("order = np.argsort(rows[by]", "kind='stable'"): "rows of one group may stand in any order",
        (
            "at = np.searchsorted(ended, key",
            "side='right'",
        ): "a piece that ends there counts whole",
        ("first, reach = united([*layers[:-2]", "2 -> "): "layers that are united less are painted alike",
        ("numbered = layers.select(*keys,", ".filter("): "a row without a number is of no layer",
        ("return windows.filter(pl.col(", ".sort(*keys, 'start')"): "edges are put in order below",
        ("return windows.filter(pl.col(", "'start' -> 'end'"): "edges are put in order below",
        ("layer = np.concatenate([np.full(windows, -1)", "1 -> 2"): "a number that no layer has",
        ("none = windows.clear()", "0 -> "): "an empty frame has no number",
        ("order = np.argsort(group", "scattered(group)"): "each row's share is the same whatever the order",
        ("order = np.argsort(group", "argsort(group"): "each row's share is the same whatever the order",
        ("first = np.searchsorted(closes, begins", "side='right'"): "what meets in a point is left out below",
        ("order = row_order(rows, [by,", "'start' -> 'end'"): "the pieces of a group are disjoint",
        ("return rows if (order[1:] > order[:-1])", ">= order"): "no position comes twice",
    },
    "lostflops.intervals.order": {
        ("place = (np.cumsum(begins) - 1) * width", "cumsum(begins) + 1"): FURTHER,
        ("place = (np.cumsum(begins) - 1) * width", "1 -> 2"): FURTHER,
        ("filled = [side for side in sides if", "0 -> 1"): "a side's columns are equally long",
        ("return [side[1] for side in sides]", "1 -> 0"): "all of them are empty",
        ("width = high - low + 1", "1 -> 2"): "wider than the values are apart",
        ("if width * (most - least + 1) <", "1 -> 2"): "the slower way gives the same order",
        ("return [(group.astype(np.int64) - least)", "+ least"): FURTHER,
        ("return [(group.astype(np.int64) - least)", "at + low"): FURTHER,
        ("return [np.searchsorted(known, group) * width", "at + low"): FURTHER,
        ("if width * len(known) <", "<= np"): "the slower way gives the same order",
        ("if not len(keys[0]):", "0 -> -1"): "keys are equally long",
        ("other = np.ones(len(keys[0])", "0 -> -1"): "keys are equally long",
        ("begins = np.r_[True, group", "True -> False"): "all groups lie one further ahead",
        (
            "width = int(values.max()) - low",
            "1 -> 0",
        ): "one place may be a group's last and the next's first",
        ("if width * int(np.count_nonzero", "<= np.iinfo"): "the slower way gives the same numbers",
        ("return np.split(np.arange(len(keys[0]))", "0 -> -1"): "keys are equally long",
        ("if len(known) < len(keys)", "<= len(keys)"): "the slower way gives the same order",
        ("if math.prod(widths) >", ">= np.iinfo"): "the slower way gives the same order",
        ("widths = [int(each.max()) - low", "1 -> 2"): "wider than the values are apart",
        ("if not len(keys[0]) or any(", "0 -> -1"): "keys are equally long",
        (
            "return sorted_by(*known)",
            "-> return None",
        ): "who asks goes the slower way then, to the same order",
        ("whole: Int = np.zeros(len(keys[0])", "0 -> -1"): "keys are equally long",
        ("filled = [side for side in sides if", "0 -> -1"): "a side's columns are equally long",
        ("if width * (most - least + 1) <", "<= np"): "the slower way gives the same order",
        ("return whole", "-> return None"): "who asks goes the slower way then, to the same order",
        ("first = np.full(int(code.max(", "1 -> 2"): "one code more, or any number below 0: none has it",
        ("first = np.full(int(code.max(", "0 -> 1"): "of no codes one that none has",
        ("code = np.nan_to_num(code + 1)", "1 -> 2"): "a code that none has",
        ("width = int(values.max()) - low", "1 -> 2"): "wider than the values are apart",
        ("if width * int(np.count_nonzero(begins))", "-> width"): "the slower way gives the same numbers",
    },
    MATCHING: {
        ("return 0", "0 -> 1"): "asked only whether there are several",
        ("self._order = np.argsort(of", "-> np.argsort(of)"): "the rows of a group count in no order",
        ("members = told.select(", ".explode("): "an empty group is left out below",
        (
            'members = told.select(pl.col("groups").explode',
            "True -> False",
        ): "an empty group is left out below",
        ("ends = ~_is_pair().all()", "-> _is_pair().any()"): PAIRS_OR_NONE,
        (".when(_is_pair().any())", "-> _is_pair().all()"): PAIRS_OR_NONE,
        ('.then(sent.max() - pl.col("end").min())', "sent.max() -> sent.min()"): ONE_END,
        (".otherwise(0)", "0 -> -1"): "neither contradicts anything",
        ("return np.minimum.reduceat(", "0 -> "): "there are no values",
        ("return np.maximum.reduceat(", "0 -> "): "there are no values",
        ("return 0", "0 -> -1"): "asked only whether there are several",
        ("known = ranks.select(", "keep='first') -> "): "this Polars keeps the first all the same",
        ("keys = np.full((given.height, 5), -1)", "1 -> 2"): "a number that no key has",
        ("of = np.flatnonzero(keys[:, 0]", "0 -> "): "all of a key is known, or none",
        ("column = pl.Series(np.where(known, whole, 0))", "0 -> "): "null takes its place",
        ("source, target = (np.where(pair,", "0 -> "): "what is no pair has one source either way",
        ("order = np.argsort(first, kind=", "-> np.argsort(first)"): "what is tied is put in turn below",
        ("return np.where(told, began - end, 0)", "0 -> -1"): "neither contradicts anything",
        ("return np.maximum.reduceat(", "0 -> 1"): "there are no values",
        ("return _Agreement(", "1 -> 0"): "what has no part that is timed says nothing of it",
    },
    CLOCKS: {
        (
            "if _on_one_host(who) and not (who.height > 1",
            "or _are_numbered",
        ): "a shortcut: collectives without numbers tell no clocks of a host apart",
        ('.unique("rank", keep="first")', "keep='first') -> "): "this Polars keeps the first all the same",
        (
            'ranks.unique("rank", keep="first")',
            "keep='first') -> ",
        ): "this Polars keeps the first all the same",
        ('return who["_clock"].n_unique() == 1', "0 -> -1"): "there is one value",
        ("if _on_one_host(who) and not (who.height > 1", "1 -> 0"): "one rank alone shares its own clock",
        ("if _on_one_host(who) and not (who.height > 1", ">= 1"): "one rank alone shares its own clock",
        ("offsets: dict[str, int] = dict.fromkeys(", ".unique() -> "): "keys of a dict come once",
        ("for _ in range(2 if offsets else 0)", "2 -> 3"): "once aligned, the middle stays where it is",
        ("for _ in range(2 if offsets else 0)", "0 -> 1"): "without offsets a round moves nothing",
        ("for _ in range(2 if offsets else 0)", "0 -> -1"): "without offsets a round moves nothing",
        ("offset, error = offsets[clock], max(", "0 -> -1"): "no error is below 0",
        ('middle=pl.col("_middle").first()', ".last()"): "all are the same",
        ("nearest = [] if start in done", "0 -> 1"): "the middle of all is taken off afterwards",
        ("nearest = [] if start in done", "0 -> -1"): "the middle of all is taken off afterwards",
    },
    COUNTED: {
        ("period = int(distances[0])", "0 -> -1"): "a period is asked of distances that are all the same",
        ('pl.col("start").min()', ".max()"): "numbers rise with time on every rank",
        (
            "if not long.any() or usual_logged <= 0",
            "0 -> -1",
        ): "where the usual is 0, what is longer is all of the time",
    },
    ON_DEVICE: {
        ("EARLIEST, LATEST = ", "62 -> 61"): "earlier than any recording either way",
        ("EARLIEST, LATEST = ", "62 -> 63"): "earlier than any recording either way",
        ("return len(told) > 0", "len(told) >= 0"): "nothing has no mean",
        ("end = np.where(follows,", "0 -> 1"): "nothing follows the last",
        ("return False", "return False -> return None"): "asked only whether it is true",
        ("main = pl.lit(False)", "False -> True"): "there are no rows",
    },
    "lostflops.recipes.compute.busiest_stream": {
        ("nothing = [np.zeros(0", "0 -> 1"): "a stream without work is never the busiest",
        ("at = np.where(at < high[step], at, -1)", "1 -> 2"): "any number below 0 is none",
    },
    "lostflops.optimize.activations.saved": {
        ("return torch.device(found[0])", "0 -> -1"): "there is one",
        ("if TYPE_CHECKING", "if not TYPE_CHECKING"): "names of types alone",
        ("self.forward_ns = self.backward_ns = 0", "0 ->"): "both are set before a pass is over",
        ("self.static_bytes = 0", "0 ->"): "it is set before a pass is over",
        ("self.peak_bytes = 0", "0 ->"): "of a pass that reads no memory none is asked",
        ("if self._watched and self._meter", "-> self._watched or"): "on a CPU both or none are there",
        ("found = self._meter.found_bytes", "0 ->"): "of a pass that reads no memory none is asked",
        ("self._instants.append((instant, 0, 0))", "0 ->"): "of a pass that reads no memory none is asked",
        ("weakref.finalize(handle,", "False -> True"): "nobody asks when the interpreter ends",
        ("live[0] += 1", "0 -> -1"): "it has one element",
        ("live[0] -= 1", "0 -> -1"): "it has one element",
        ("if not live[0]", "0 -> -1"): "it has one element",
    },
    "lostflops.optimize.activations.saved_views": {
        ("if 2 * tensor.nbytes", "2 -> 1"): "a shortcut: the general case below says the same",
        ("if stride == 0 and tensor.shape[dimension] > 1", "1 -> 0"): "one of one is itself",
        ("if stride == 0 and tensor.shape[dimension] > 1", ">= 1"): "one of one is itself",
        ("tensor = tensor.narrow(dimension, 0, 1)", "0 -> "): "all of an expanded dimension are one element",
        ("alias = torch.empty(0", "0 ->"): "it is set to other memory at once",
        ("tensor = torch.empty(0", "0 ->"): "it is set to other memory at once",
        ("if 2 * tensor.nbytes", "-> 2 + tensor.nbytes"): "the same shortcut, taken less often",
        ("if 2 * tensor.nbytes", ">= tensor.untyped_storage().nby -> "): "the same, but for exactly half",
    },
    "lostflops.naming.host_causes": {
        (".with_columns(_depth=", ".cum_sum().over(lane) -> "): "all depths of a thread shift by one amount",
        (
            ".with_columns(_level=",
            "over(lane) -> ",
        ): "an end that comes first on its thread closes nothing either way",
    },
    "lostflops.causes.host": {
        ("return 0, 0", "0 ->"): "where no call is known, none waits often",
        ("return waiting.select(", "0 -> -1"): "there is one row",
        (".with_columns(share=", "0 ->"): "a nanosecond is no share of a step",
        ("marked = given.accounts.get(", "0 ->"): "a nanosecond is no share of a step",
        ("crowded = 0 if waits is None", "0 ->"): "a nanosecond is no time to wait for a core",
        ("gaps", "0 -> -1"): "they are sorted",
    },
    "lostflops.causes.idle.named": {
        ('return ""', "-> return None"): "either is nothing",
        ("inside = [name for name in names", "-> names['name']"): "asked only whether a name is among them",
        ('ns = int(rest["ns"].sum())', "1 -> 0"): "what has a name has a step",
        ("if len(idle) == 1 and idle[0]", "0 -> -1"): "there is one",
        ("return [(name, ns // max(1,", "1 -> 0"): "what has a name has a step",
        ("by_rank = held.agg(", "False -> True"): "of two ranks with as much none has nine tenths",
        ("whole = given.accounts.get(", "0 -> -1"): "of an account without time nothing is told either way",
    },
    LATENESS: {
        ('or (worst["unmatched"] or 0) >', "0 -> "): "a rank that is blamed has collectives",
        ("explains = max(worst[", "0 -> -1"): "what is waited for a rank is never below 0",
        ('(worst["blame_share"] or 0) <', "0 -> -1"): "a share below 0 is too small as well",
        ('worst = known.filter(pl.col("rank") == rank)', "0 -> -1"): "a rank has one row",
        ('led = worst["at_most"] or 0', "0 -> -1"): "a lead of nothing is no half either way",
        ("return max(steps[0] - steps[1] if", "0 -> -1"): "nothing that explains is below 0",
        ("return False", "return False -> return None"): "asked only whether it is true",
        ("if not ordered or next(iter", "0 -> -1"): "an excess of 0 explains no lateness",
        ("if not ordered or next(iter", "<= 0 ->"): "an excess of 0 explains no lateness",
        ('lead, waited = worst["at_most"] or 0', "0 -> -1"): "a lead below 0 is none as well",
        (
            "whole = sum(rest) <= (1 - ALL_OF_IT)",
            "<= (1",
        ): "no sum is as much: 1 - 0.995 is a little above 0.005",
        ('since = mine["since"][0]', "0 -> -1"): "a rank has one row",
        ("mine = often.get(rank, 0.0)", "0.0 -> 1.0"): "to wait once is not often enough either",
        ("steps=given.steps.get(row[", "0 ->"): "the rank has steps",
    },
    "lostflops.causes.one_rank.late": {
        ("explains: int = 0", "0 -> "): "always told",
        ("at_most: int = 0", "0 -> "): "always told",
    },
    "lostflops.causes.own_time.spent": {
        ('return own.sort("step", "rank")', "-> own"): "what follows tells its order",
    },
    "lostflops.causes.own_time.together": {
        ('ranks = tuple(spread["rank"].unique()', ".sort() ->"): "Polars has them in order, untold",
        ("mine, whole = longest.select(", "0 -> -1"): "a sum is one row",
    },
    **{
        f"lostflops.accounts.idle.{name}": {
            (f"order={order},", f"{order} -> {order + 1}"): ORDERS_APART,
            (f"order={order},", f"{order} -> {order - 1}"): ORDERS_APART,
        }
        for name, order in (
            ("data_loading", 20),
            ("checkpoint_logging", 30),
            ("compilation", 50),
            ("memory_allocator", 70),
            ("host_synchronisation", 90),
        )
    },
}


def why(module: str, line: str, words: str) -> str | None:
    """Why a mutant that survives is as good as the original; None where nothing says so."""
    for (begins, change), said in EQUIVALENT.get(module, {}).items():
        if line.startswith(begins) and change in words:
            return said
    return None
