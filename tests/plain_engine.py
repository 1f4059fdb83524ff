"""The scheduler's rule and the simulator's clock once more, step by step and token by token.

A peer of `lib.scheduling` and `lib.simulator` for their tests and the bench. It is written from
the rule in words, with plain lists, and shares no code with them: every step walks through every
request, and the clock is a running sum.
"""

from dataclasses import dataclass


@dataclass
class Job:
    id: int
    prompt: int
    answer: int
    computed: int = 0
    emitted: int = 0
    held: int = 0
    decoding: bool = False

    @property
    def known(self):
        return self.prompt + self.emitted


def plain_step(running, waiting, limits, policy="admission"):
    """One step of the token-budget rule on two lists: what it did, and the free blocks left."""
    budget = limits["max_num_batched_tokens"]
    block = limits["block_size"]
    longest = limits["max_model_len"]
    threshold = limits.get("long_prefill_token_threshold", 0)
    chunked = limits.get("enable_chunked_prefill", True)
    reserve = limits.get("scheduler_reserve_full_isl", True)
    watermark = int(limits.get("watermark", 0.0) * (limits["num_kv_blocks"] + 1))
    free = limits["num_kv_blocks"] - sum(job.held for job in running)
    if len(running) + len(waiting) <= 1:
        threshold = 0
    granted, preempted, started = [], [], []

    def wants(job):
        tokens = job.known - job.computed
        return min(tokens, threshold) if threshold else tokens

    def blocks(tokens):
        return -(-tokens // block)

    def serve_running():
        nonlocal budget, free
        queue = list(running)
        if policy == "decode first":
            queue = [j for j in queue if j.decoding] + [j for j in queue if not j.decoding]
        position = 0
        while position < len(queue) and budget > 0:
            job = queue[position]
            tokens = min(wants(job), budget, longest - job.computed - 1)
            while blocks(job.computed + tokens) - job.held > free:
                victim = queue.pop()
                running.remove(victim)
                free += victim.held
                victim.held = victim.computed = 0
                victim.decoding = False
                if policy == "queue back":
                    waiting.append(victim)
                else:
                    waiting.insert(0, victim)
                preempted.append(victim)
                if victim is job:
                    return
            free -= blocks(job.computed + tokens) - job.held
            job.held = blocks(job.computed + tokens)
            budget -= tokens
            granted.append((job, tokens))
            position += 1

    def admit():
        nonlocal budget, free
        while waiting and budget > 0 and len(running) < limits["max_num_seqs"]:
            job = waiting[0]
            if not chunked and wants(job) > budget:
                return
            tokens = min(wants(job), budget)
            margin = watermark if running else 0
            if reserve and blocks(job.known) + margin > free:
                return
            if blocks(tokens) + margin > free:
                return
            running.append(waiting.pop(0))
            free -= blocks(tokens)
            job.held = blocks(tokens)
            budget -= tokens
            granted.append((job, tokens))
            started.append(job)

    if policy == "prefill first":
        chunked = False
        admit()
        if not granted:
            serve_running()
    else:
        serve_running()
        if not preempted:
            admit()
    return granted, preempted, started, free


def plain_simulate(arrival, prompts, answers, limits, lines, policy="admission"):
    """Serve a workload step by step: stamps by request, and one row a step."""
    count = len(arrival)
    coming = sorted(range(count), key=lambda i: arrival[i])
    stamps = {name: [None] * count for name in ("scheduled", "first_token", "last_token")}
    preemptions = [0] * count
    running, waiting, steps = [], [], []
    now = 0.0
    while coming or running or waiting:
        if not running and not waiting:
            now = max(now, arrival[coming[0]])
        while coming and arrival[coming[0]] <= now + 1e-9:
            i = coming.pop(0)
            waiting.append(Job(i, prompts[i], answers[i]))
            now = max(now, arrival[i])
        granted, preempted, started, free = plain_step(running, waiting, limits, policy)
        row = {
            "start": now,
            "scheduled": [(job.id, tokens) for job, tokens in granted],
            "preempted": [job.id for job in preempted],
            "running": [job.id for job in running],
            "waiting": [job.id for job in waiting],
            "free_blocks": free,
            "prefill_tokens": sum(tokens for job, tokens in granted if not job.decoding),
            "decode_seqs": sum(1 for job, _ in granted if job.decoding),
            "context_tokens": sum(job.computed + tokens for job, tokens in granted),
            "pairs": sum(
                sum(range(job.computed + 1, job.computed + tokens + 1)) for job, tokens in granted
            ),
        }
        length = 0.0
        if granted:
            length = max(
                a
                + b * row["prefill_tokens"]
                + c * row["decode_seqs"]
                + d * row["context_tokens"]
                + e * row["pairs"]
                for a, b, c, d, e in lines
            )
        for job in started:
            if stamps["scheduled"][job.id] is None:
                stamps["scheduled"][job.id] = now
        for job in preempted:
            preemptions[job.id] += 1
        now += length
        row["end"] = now
        steps.append(row)
        for job, tokens in granted:
            job.computed += tokens
            if job.computed < job.known:
                continue
            job.emitted += 1
            job.decoding = True
            if job.emitted == 1:
                stamps["first_token"][job.id] = now
            if job.emitted == job.answer or job.known == limits["max_model_len"]:
                stamps["last_token"][job.id] = now
                running.remove(job)
    return stamps, preemptions, steps
