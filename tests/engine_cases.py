"""Random workloads and limits for the token-budget schedulers, for the tests of two modules."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from lib.scheduling import (
    DecodeFirstScheduler,
    PrefillFirstScheduler,
    QueueBackScheduler,
    TokenBudgetScheduler,
)

POLICIES = {
    "admission": TokenBudgetScheduler,
    "decode first": DecodeFirstScheduler,
    "prefill first": PrefillFirstScheduler,
    "queue back": QueueBackScheduler,
}
"""The library's class for each policy that `plain_engine.plain_step` knows by name."""


class EndlessError(BaseException):
    """A loop that does not end. No Exception: hypothesis would repeat it to find a shorter case."""


def until(done: Callable[[], bool], turns: int = 2_000) -> Iterator[int]:
    """Turns of a loop until `done()`; after so many, twice what any test needs, it never ends."""
    for turn in range(turns):
        if done():
            return
        yield turn
    raise EndlessError(f"not done after {turns} turns")


@dataclass
class Case:
    """Requests with small whole arrivals, limits under which each can be served, and a policy."""

    arrival: list[int]
    prompts: list[int]
    answers: list[int]
    limits: dict[str, object]
    policy: str

    def scheduler(self):
        return POLICIES[self.policy](**self.limits)

    def emitted(self):
        """Tokens that each request emits before it ends or reaches the longest length."""
        longest = self.limits["max_model_len"]
        return [min(n, longest - m) for m, n in zip(self.prompts, self.answers, strict=True)]


@st.composite
def cases(draw, ample=False):
    """A `Case`; KV blocks are often scarce, unless `ample`."""
    n = draw(st.integers(1, 12))
    policy = draw(st.sampled_from(list(POLICIES)))
    block = draw(st.sampled_from([1, 4, 16]))
    longest = draw(st.integers(20, 150))
    chunked = policy != "prefill first" and draw(st.integers(0, 4)) > 0
    budget = draw(st.integers(1, 60)) if chunked else draw(st.integers(longest, 200))
    some = {"min_size": n, "max_size": n}
    arrival = draw(st.lists(st.integers(0, 40), **some))
    prompts = draw(st.lists(st.integers(1, longest - 1), **some))
    answers = draw(st.lists(st.integers(1, 200), **some))
    ends = [min(m + a, longest) for m, a in zip(prompts, answers, strict=True)]
    needed = [-(-(end - 1) // block) for end in ends]
    spare = [sum(needed)] if ample else [0, 1, 3, 10, 1000]
    limits = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw(st.integers(1, 10)),
        "num_kv_blocks": max(needed) + draw(st.sampled_from(spare)),
        "block_size": block,
        "max_model_len": longest,
        "enable_chunked_prefill": chunked,
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.2])),
    }
    if policy != "prefill first":
        limits["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 3, 17]))
    return Case(arrival, prompts, answers, limits, policy)
