"""The workloads by name: the shapes of published traces and benchmarks.

Lengths and gaps are fits to what was published; no trace is part of this project. Traces themselves are read from their
files, see `epp.lab.workloads.traces`. Targets are ours: what a pool at half of its
knee keeps nearly always if it is routed well.

The constants of our own routing were found on these. Others are held out: nothing was tuned on them, and how any
policy does on them was not known when they were written. Their shapes are published ones, too. Their targets follow
from a rule that asks no policy: three times what an idle H100 takes by its law, for the first token of a prompt at the
90th percentile of which nothing is cached, and for each later one after a median prompt, rounded up to 50 and 5 ms. The
batch, for which nobody waits, has the targets that DistServe gave to summaries.
"""

from collections.abc import Mapping
from math import log
from types import MappingProxyType

from epp.lab.workloads.parts import Bursts, Lognormal, of_mean_and_sd
from epp.lab.workloads.popular import Calls, Retrieval
from epp.lab.workloads.sessions import Agents, Chats
from epp.lab.workloads.shared import SharedHeads, spread, strewn
from epp.lab.workloads.single import Single
from epp.lab.workloads.together import Together
from epp.lab.workloads.workload import Targets, Workload
from epp.sim.workload import AZURE_CODE, AZURE_CONV, Lengths

_WORKLOADS: tuple[Workload, ...] = (
    # Azure LLM inference traces of 2023; how well they are fitted: `epp.sim.workload`.
    Single(
        "azure-conv",
        "conversations: 760 tokens in, 150 out (medians), nothing shared",
        Targets(200.0, 25.0),
        run_s=60.0,
        prompt=AZURE_CONV.prompt,
        output=AZURE_CONV.output,
        gap_cv=AZURE_CONV.gap_cv,
    ),
    Single(
        "azure-code",
        "code completion: 1,100 tokens in, 16 out (medians), in bursts",
        Targets(3_000.0, 250.0),
        run_s=60.0,
        prompt=AZURE_CODE.prompt,
        output=AZURE_CODE.output,
        # Gaps with a coefficient of variation of 13, and counts over windows of 0.1 to 300 s, as in the trace.
        bursts=Bursts(90, Lognormal(log(0.07), 0.9), Lognormal(log(13.9), 1.12)),
    ),
    # The conversation trace of Mooncake (Apache-2.0), fitted by us: a request in 2.6 goes on with a conversation,
    # after 2 minutes (median), and all come in steps of 3 s.
    Chats(
        "mooncake-conversation",
        "long conversations: 7,700 tokens in, 350 out (medians), 39 % of the tokens asked before",
        Targets(5_000.0, 50.0),
        run_s=360.0,
        rate_rps=3.40,
        head_tokens=400,
        first=Lengths(8.6, 1.2, 120_000),
        new=Lengths(6.3, 1.9, 60_000),
        output=Lengths(5.86, 0.42, 2_000),
        chatty_ratio=0.32,
        stay_ratio=0.62,
        pause_mu=4.8,
        pause_sigma=0.9,
        step_s=3.0,
    ),
    # 150 tenants with a system prompt each: a benchmark on which published predictors lost to plain affinity.
    SharedHeads(
        "b2b-saas",
        "150 tenants with 6,000 shared tokens each, 1,200 new ones, 1,000 out: nothing but affinity",
        Targets(250.0, 20.0),
        run_s=240.0,
        heads=(6_000,) * 150,
        question_tokens=1_200,
        output=Lengths.exactly(1_000),
    ),
    # Published: in, mean 729, standard deviation 13,550, some 94 % asked again and again; out, mean 300, 2,213. Of 400
    # quantiles, cut at 114,688, with a question each, are left: in, mean 640, 3,500, 97 % shared; out, cut at 8,192,
    # mean 258, 810.
    SharedHeads(
        "production-shaped",
        "400 texts of 1 to 58,623 tokens, asked again and again: 97 % of the tokens are shared",
        Targets(200.0, 15.0),
        run_s=40.0,
        heads=spread(of_mean_and_sd(729.0, 13_550.0, 131_072 - 16_384), 400),
        question_tokens=8,
        question_ratio=0.02,
        output=of_mean_and_sd(300.0, 2_213.0, 8_192),
    ),
    Agents(
        "code-gen",
        "agents: projects of 3,000 to 100,000 tokens, 6 turns of 1,500 in and 800 out",
        Targets(1_000.0, 25.0),
        run_s=600.0,
        projects=24,
        least_head_tokens=3_000,
        most_head_tokens=100_000,
        turns=6,
        new_tokens=1_500,
        output_tokens=800,
        pause_s=25.0,
    ),
)

_HELD_OUT: tuple[Workload, ...] = (
    # The tool and agent trace of Mooncake (FAST'25): means of 8,596 tokens in and 182 out, 59 % of the former asked
    # before. Three quarters of its blocks are said to come once, a few thousands of times. How lengths spread is our
    # guess, and so are gaps: Mooncake's first trace has steps of 3 s, which look like the recorder's; here is none.
    Calls(
        "tool-agent",
        "calls by 60 agents, few of them popular: 8,600 tokens in, 180 out (means), 59 % of the tokens asked before",
        Targets(1_200.0, 25.0),
        run_s=120.0,
        heads=strewn(spread(of_mean_and_sd(5_000.0, 2_500.0, 20_000), 60), 13),
        new=Lengths(log(900), 1.65, 100_000),
        output=Lengths(log(100), 1.1, 2_000),
    ),
    # The 3 % of the documents that are most popular are 60 % of those found, as in RAGCache's questions on Wikipedia.
    Retrieval(
        "rag",
        "questions on 4 of 5,000 documents, few of them popular, in any order: 4,300 tokens in, 200 out (means)",
        Targets(500.0, 25.0),
        run_s=120.0,
        instruction_tokens=400,
        documents=strewn(spread(Lengths(log(800), 0.6, 4_000), 5_000), 1_907),
        found=4,
        question=Lengths(log(40), 0.7, 400),
        output=Lengths(log(170), 0.57, 1_000),
    ),
    Together(
        "chat-and-batch",
        "two thirds conversations of some 3 turns; one third long documents, 9,000 tokens in, 300 out (means), with "
        "targets of 15 s and 150 ms",
        run_s=240.0,
        parts=(
            # Messages as long as LMSYS-Chat-1M's (mean 70), beginnings longer.
            (
                Chats(
                    "chat",
                    "conversations",
                    Targets(300.0, 25.0),
                    run_s=240.0,
                    rate_rps=16.0,
                    head_tokens=500,
                    first=Lengths(log(150), 1.3, 16_000),
                    new=Lengths(log(42), 1.0, 4_000),
                    output=Lengths(log(165), 0.73, 2_000),
                    chatty_ratio=0.8,
                    stay_ratio=0.75,
                    pause_mu=log(45),
                    pause_sigma=0.8,
                    step_s=0.0,
                ),
                2 / 3,
            ),
            # Documents as long as LongBench's (mean 6,711 words), in bursts.
            (
                Single(
                    "batch",
                    "long documents",
                    Targets(15_000.0, 150.0),
                    run_s=240.0,
                    prompt=Lengths(log(8_000), 0.5, 64_000),
                    output=Lengths(log(250), 0.6, 2_000),
                    gap_cv=3.0,
                ),
                1 / 3,
            ),
        ),
    ),
)

WORKLOADS: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _WORKLOADS})
HELD_OUT: Mapping[str, Workload] = MappingProxyType({workload.name: workload for workload in _HELD_OUT})
GROUPS: Mapping[str, Mapping[str, Workload]] = MappingProxyType({"all": WORKLOADS, "held-out": HELD_OUT})
"""What a name on the command line may stand for, where several workloads make sense."""


def by_name(name: str) -> Workload | None:
    """One of all that there are."""
    return WORKLOADS.get(name) or HELD_OUT.get(name)
