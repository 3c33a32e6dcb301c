"""`epp lab` from flags to files, and the arithmetic of sweeps and comparisons."""

import json
import re
from dataclasses import replace
from html import escape

import pytest

from epp import __version__
from epp.cli import main
from epp.lab.comparison import compare, rows_of, specs_of
from epp.lab.experiment import Dies, Fails, Joins, LabServer, Leaves, Recovers, Restarts, Slows
from epp.lab.fault_spec import parse_faults
from epp.lab.html_report import Origin, html_page
from epp.lab.knee import knee_rps
from epp.lab.policies.catalogue import POLICIES
from epp.lab.pools import BLOCK_TOKENS, ENGINES, parse_pool, shape_text
from epp.lab.runs import policy_of, run_spec
from epp.lab.spec import RunSpec
from epp.lab.sweep import GRID, MOST_STEPS, highest_load
from epp.lab.table import pairs_on
from epp.lab.text_report import goodput_cells, share_format, text_table
from epp.lab.workloads.catalogue import HELD_OUT, WORKLOADS
from epp.lab.workloads.traces import read_trace

SPEC = RunSpec("azure-conv", "h100x2", "lmetric", rate_rps=20.0, duration_s=6.0)


def test_the_same_spec_gives_the_same_bytes_and_any_number_of_processes_too(tmp_path) -> None:
    files = [tmp_path / f"{i}.json" for i in range(3)]
    flags = ["lab", "run", "--pool", "h100x2", "--policies", "ours,lmetric", "--rate", "20", "--duration", "6s"]
    for file, extra in zip(files, (["--jobs", "1"], ["--jobs", "2"], ["--jobs", "1", "--seeds", "2"]), strict=True):
        assert main([*flags, *extra, "--json", str(file)]) == 0
    one, two, seeds = (file.read_bytes() for file in files)
    assert one == two != seeds
    (ours, _) = json.loads(one)
    assert ours["spec"]["policy"] == "ours"
    assert ours["figures"]["requests"] > 60
    assert ours["targets"] == {"ttft_ms": 200.0, "tpot_ms": 25.0}
    assert sum(server["share"] for server in ours["servers"].values()) == pytest.approx(1.0)
    assert ours["curves"]["ttft_ms"][49] == ours["figures"]["ttft_p50_ms"]


def test_a_report_is_one_page_with_everything_in_it(tmp_path, capsys) -> None:
    page = tmp_path / "out.html"
    flags = ["--pool", "h100", "--policies", "lmetric,random", "--load", "0.4,0.8", "--duration", "3s", "--jobs", "1"]
    assert main(["lab", "run", *flags, "--report", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "0.4 of the knee" in printed
    assert "lmetric" in printed
    assert "goodput" in printed
    text = page.read_text()
    assert text.count("<svg") == 1 + 2 * 2  # by load, and two rows of plots for each load
    assert "<th>at 99%</th>" in text
    assert "<td>100.0%</td></tr>" in text  # the share of the only server
    assert "<code>epp lab run --pool h100 --policies lmetric,random" in text
    assert f"headroom-epp {__version__}, 20" in text
    assert all(f"<dt>{word}</dt>" in text for word in ("TTFT", "TPOT", "knee", "ours", "oracle"))
    assert "<th>TTFT p90</th><th>TTFT p99</th>" in text
    assert_loads_nothing(text)


def test_a_page_is_the_same_but_for_the_command_version_and_date_that_it_is_given() -> None:
    rows = rows_of(run_spec(replace(SPEC, policy="ours", rate_rps=rate)) for rate in (15.0, 30.0))
    origin = Origin("epp lab run --load <1>", "1.2.3", "some day")
    page = html_page(rows, origin)
    assert page == html_page(rows, origin)
    assert "<code>epp lab run --load &lt;1&gt;</code><br>headroom-epp 1.2.3, some day" in page
    assert page.replace("some day", "") == html_page(rows, origin._replace(date=""))
    usual, folded = page.partition("<details>")[0], re.findall(r"<details>.*?</details>", page)
    assert len(folded) == 2  # a run each
    assert "pinball</th>" not in usual
    assert all("<th>TTFT pinball</th>" in table for table in folded)
    titles = re.findall(r"<text[^>]*>([^<]*)</text>", page)
    assert {"Attained by load", "Requests with TTFT up to x", "Attained over time", "by arrival, simulated s"} <= {
        *titles
    }


def assert_loads_nothing(page: str) -> None:
    assert not any(loads in page for loads in ("<script", "src=", "<link", "@import", "<iframe", "url(http"))
    assert set(re.findall(r'href="([^#"]*)', page)) <= {""}  # within the page only


def test_a_file_may_be_called_anything(tmp_path, capsys, monkeypatch) -> None:
    """Not as a formula, a tag, a hidden line or a column of its own is it shown, but as it is."""
    monkeypatch.chdir(tmp_path)
    names, page = ("_$\\frac{<i>|$.yaml", "_.yaml"), tmp_path / "page.html"
    for name in names:
        (tmp_path / name).write_text(POLICIES["llm-d-default"].config_text)
    flags = ["--pool", "h100", "--rate", "5", "--duration", "2s", "--policies", "random", "--markdown", "--jobs", "1"]
    assert main(["lab", "run", *flags, *(f"--config={name}" for name in names), "--report", str(page)]) == 0
    assert r"| _$\frac{<i>\|$.yaml | " in capsys.readouterr().out
    legends = re.findall(r"<text[^>]*> (_[^<]*)</text>", page.read_text())
    assert legends == [escape(name) for name in names] * 2
    assert_loads_nothing(page.read_text())


def test_a_sweep_is_a_page_too(tmp_path, capsys) -> None:
    page = tmp_path / "sweep.html"
    flags = ["--pool", "h100", "--policies", "lmetric,random", "--duration", "2s", "--jobs", "1"]
    assert main(["lab", "sweep", *flags, "--report", str(page)]) == 0
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "<th>goodput at 90%</th><th>goodput at 99%</th>" in text
    printed = {
        line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines() if " random" in f" {line}"
    }
    assert f"<td>{printed['random']} (" in text
    assert_loads_nothing(text)


def test_predictions_have_a_table_of_those_who_make_any() -> None:
    rows = rows_of(run_spec(replace(SPEC, policy=policy, duration_s=3.0)) for policy in ("ours", "lmetric"))
    _, predictions = text_table(rows, markdown=True).split("\n\n")[1:]
    head, _, *lines = predictions.splitlines()
    assert (
        head
        == "| predictions of | "
        + " | ".join(f"{target} {figure}" for target in ("TTFT", "TPOT") for figure in ("error", "pinball", "covered"))
        + " |"
    )
    (line,) = lines
    assert line.startswith(f"| ours | {rows[0].figures['ttft_mape']:.0%} | {rows[0].figures['ttft_pinball_ms']:.1f} |")


def test_goodput_between_the_loads_that_were_run() -> None:
    (result,) = rows_of([run_spec(replace(SPEC, duration_s=1.0))])
    attained = {
        "falls": (1.0, 0.95, 0.85, 0.2),  # crosses 0.9 half-way between 0.8 and 1.0
        "comes back": (0.8, 0.95, 0.85, 0.2),  # the highest load that keeps it counts
        "never": (0.5, 0.5, 0.5, 0.5),
        "always": (1.0, 1.0, 1.0, 1.0),
    }
    rows = [
        replace(result, policy=policy, load=load, figures={"attainment": value})
        for policy, values in attained.items()
        for load, value in zip((0.5, 0.8, 1.0, 1.2), values, strict=True)
    ]
    assert goodput_cells(rows) == (
        ["policy", "at 90%", "at 99%"],
        [
            ["falls", "0.90", "0.56"],
            ["comes back", "0.90", "< 0.5"],
            ["never", "< 0.5", "< 0.5"],
            ["always", "≥ 1.2", "≥ 1.2"],
        ],
    )
    assert goodput_cells(rows[:1]) is None


def test_a_configuration_of_ones_own_and_a_trace(tmp_path, capsys) -> None:
    config, trace = tmp_path / "mine.yaml", tmp_path / "mine.jsonl"
    config.write_text(POLICIES["least-requests"].config_text)
    rows = ({"timestamp": 40 * i, "input_length": 800, "output_length": 20, "hash_ids": [0, i]} for i in range(200))
    trace.write_text("\n".join(map(json.dumps, rows)))
    flags = ["--trace", str(trace), "--pool", "h100x2", "--policies", "least-requests", "--config", str(config)]
    assert main(["lab", "run", *flags, "--rate", "25", "--duration", "8s", "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    assert f"warning: {trace}: at 25 rps its 200 requests are over in 8 s; in less than 60 s" in printed.err
    assert "record 1,500 or more" in printed.err
    says, *_, theirs, mine = printed.out.rstrip().splitlines()
    assert says == f"{trace}: 200 requests in 7.96 s, 25.1 rps as recorded"
    assert mine.startswith(str(config))
    assert theirs.split()[1:] == mine.split()[1:]  # the same configuration, so the same figures
    assert "64.0%" in mine  # 512 of 800 tokens are the same in all prompts


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--policies", "nobody"], "no policy is called 'nobody'; there are ours"),
        (["--workload", "nothing"], "no workload is called 'nothing'; there are azure-conv"),
        (["--pool", "h200x4"], "no shape is called 'h200'"),
        (["--fault", "flood@3s"], "fault 'flood@3s' is none of kill@T"),
        (["--fault", "kill@soon"], "a time must be a duration"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv: cannot be read"),
        (["--trace", "/nowhere.jsonl.1"], "/nowhere.jsonl.1: cannot be read"),
        (
            ["--trace", "/nowhere.txt"],
            "--trace /nowhere.txt: a trace is told by how its name ends: .csv, .jsonl, .json;",
        ),
        (["--trace", ""], "--trace '': a trace is told by how its name ends"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
        (["--config", "x.txt"], "--config x.txt: a configuration is told by how its name ends: .yaml, .yml, .json;"),
        (["--metrics-interval", "0s"], "must be 1ms or more, or never"),
        (["--metrics-interval", "1ns"], "must be 1ms or more, or never"),
        (["--load", "0"], "not a number above 0"),
        (["--rate", "1e9"], "are more than 5,000,000 requests"),
        (["--pool", "h100x1000000"], "more than 10,000 servers"),
        (["--seeds", "1000000000"], "is more than 1000"),
        (["--streamed", "2"], "not a number from 0 to 1"),
        (["--policies", ","], "names nothing"),
        (["--noise", "-0.1"], "not a number from 0 to 1"),
        (["--noise", "nan"], "not a number from 0 to 1"),
        (["--fault", "kill@-1s"], "a time is below 0"),
        (["--fault", "fail@1s+-2s"], "a time is below 0"),
        (["--fault", "slow0x@1s"], "'0' is not a number above 0"),
        (["--fault", "slow1.2.3x@1s"], "'1.2.3' is not a number above 0"),
        (["--fault", f"slow{'9' * 400}x@1s"], "is not a number above 0, to 1,000"),
        (["--fault", "add@1s+5s"], "write add@1s"),
        (
            ["--fault", "kill@2s", "--fault", "add@70s", "--duration", "1m"],
            "fault 'add@70s' begins at 70 s, and the run ends at 60 s",
        ),
        (["--fault", "kill@60s", "--duration", "1m"], "fault 'kill@60s' begins at 60 s, and the run ends at 60 s"),
        (["--fault", "slow2x@2m", "--rate", "1", "--jobs", "1"], "begins at 120 s, and the run ends at 60 s"),
        (
            ["--fault", "kill@5s", "--fault", "kill@2s+10s"],
            "'kill@2s+10s' and 'kill@5s': h100-0 cannot have both at once",
        ),
        (["--fault", "kill@5s", "--fault", "kill@5s"], "'kill@5s' and 'kill@5s': h100-0 cannot have both at once"),
        (["--fault", "slow2x@1s+4s", "--fault", "slow3x@2s+1s"], "cannot have both at once; the first lasts until 5 s"),
        (["--fault", "fail@1s+4s", "--fault", "fail@2s+9s"], "cannot have both at once; the first lasts until 5 s"),
        (["--fault", "restart@1s+4s", "--fault", "fail@2s"], "cannot have both at once; the first lasts until 5 s"),
        (["--fault", "slow2x@1s", "--fault", "kill@9s"], "cannot have both at once; the first lasts to the end"),
        (["--json", "/nowhere/x.json"], "there is no directory /nowhere"),
        (["--report", "/"], "it is a directory"),
        (["--json", "long" * 100], "File name too long"),
        (["--config", "\udcff.yaml"], "'\\udcff.yaml' is not UTF-8"),
        (["--rate", "3", "--load", "0.5"], "--load: not allowed with argument --rate"),
    ],
    ids=lambda value: ascii(value[1].strip("/")[:40])[1:-1] if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_a_line(flags: list[str], says: str, capsys) -> None:
    assert main(["lab", "run", *flags]) == 2
    assert says in capsys.readouterr().err


def test_faults_are_run_at_a_rate_too(tmp_path, capsys) -> None:
    """Of a trace that is too short for a knee, so that without one is what it is."""
    trace, out = tmp_path / "short.jsonl", tmp_path / "out.json"
    row = '{"timestamp": %d, "input_length": 300, "output_length": 20, "hash_ids": []}\n'
    trace.write_text("".join(row % (100 * i) for i in range(8)))
    flags = ["lab", "faults", "--trace", str(trace), "--pool", "h100x2", "--policies", "random", "--jobs", "1"]
    assert main(flags) == 2
    said = capsys.readouterr().err
    assert f"{trace}: no knee on h100x2: too short to find it; " in said
    assert "--rate of `epp lab run` and `epp lab faults` does without it" in said
    assert main([*flags, "--rate", "2", "--json", str(out)]) == 0
    assert " at 2 rps, 4 s;" in capsys.readouterr().out
    assert {run["spec"]["rate_rps"] for run in json.loads(out.read_bytes())} == {2.0}
    assert main([*flags, "--rate", "2", "--load", "0.5"]) == 2
    assert "--load: not allowed with argument --rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("servers", "fair"), [(1, "100%"), (4, "25%"), (20, "5%"), (64, "1.6%"), (500, "0.20%"), (10_000, "0.010%")]
)
def test_shares_are_as_fine_as_the_pool_is_large(servers: int, fair: str) -> None:
    assert f"{1 / servers:{share_format(servers)}}" == fair


def test_a_table_of_a_pool_of_ones_own_has_every_workload_on_it(capsys) -> None:
    """And so `--workload all` of a sweep; mixed hardware is a pool of its own there."""
    assert pairs_on("a100x2") == tuple((name, "a100x2") for name in WORKLOADS)
    assert pairs_on(None)[-1] == ("azure-conv", "h100x2+a100x2")
    flags = ["--quick", "--pool", "a100", "--policies", "lmetric", "--loads", "0.5", "--jobs", "1"]
    assert main(["lab", "table", *flags, "--workloads", "azure-conv,azure-code"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if ": knee" in line]
    assert [title.split(":")[0] for title in titles] == ["azure-conv on a100", "azure-code on a100"]


def test_what_is_held_out_is_in_a_table_only_if_it_is_named(capsys) -> None:
    assert not {name for name, _ in pairs_on(None)} & set(HELD_OUT)
    assert pairs_on(None, tuple(HELD_OUT)) == tuple((name, "h100x4") for name in HELD_OUT)
    flags = ["--quick", "--pool", "h100", "--policies", "round-robin", "--loads", "0.1", "--jobs", "1"]
    for workloads, names in (("held-out", list(HELD_OUT)), ("rag,azure-conv", ["azure-conv", "rag"])):
        assert main(["lab", "table", *flags, "--workloads", workloads]) == 0
        titles = [line for line in capsys.readouterr().out.splitlines() if ": knee" in line]
        assert [title.split(" on ")[0] for title in titles] == names


def test_targets_are_not_for_a_group_of_workloads(capsys) -> None:
    for group in ("all", "held-out"):
        assert main(["lab", "sweep", "--workload", group, "--policies", "random", "--slo-ttft-ms", "200"]) == 2
        assert "are for one workload, not for several" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["table"],
        ["table", "--workloads", "held-out"],
        ["sweep", "--workload", "all"],
        ["sweep", "--workload", "held-out"],
    ],
)
def test_a_pool_that_is_none_is_told_of(command, capsys) -> None:
    assert main(["lab", *command, "--pool", "x100x2", "--policies", "lmetric", "--jobs", "1"]) == 2
    assert "pool 'x100x2'" in capsys.readouterr().err


def test_a_table_is_of_the_workloads_alone(tmp_path, capsys) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n")
    assert main(["lab", "table", "--quick", "--workloads", f"azure-conv,{trace}"]) == 2
    assert f"{trace}: a trace is for `epp lab run --trace`" in capsys.readouterr().err


def test_what_is_named_twice_is_run_once(capsys) -> None:
    """Twice the same run would count as two seeds that agree."""
    flags = ["--pool", "h100x1", "--duration", "1s", "--policies", "lmetric,lmetric", "--jobs", "1"]
    assert main(["lab", "run", *flags, "--load", "0.9,0.90"]) == 0
    assert "±" not in (out := capsys.readouterr().out)
    assert sum(line.startswith("lmetric ") for line in out.splitlines()) == 1


@pytest.mark.parametrize("command", ["run", "sweep", "faults"])
def test_a_plugin_that_raises_is_told_of(command: str, monkeypatch, capsys) -> None:
    def best(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr("epp.lab.policies.cache.LMetric.best", best)
    flags = ["--pool", "h100", "--policies", "lmetric,random", "--duration", "2s", "--jobs", "1"]
    assert main(["lab", command, *flags]) == 0
    assert capsys.readouterr().out.endswith("\nplugins that raised: lab-lmetric (lmetric)\n")


@pytest.mark.parametrize("command", ["run", "sweep", "table", "faults", "fit", "list"])
def test_help_is_text_for_people(command: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(["lab", command, "--help"])
    assert "%%" not in capsys.readouterr().out


def test_a_quick_table_has_the_two_between_whom_all_others_are(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("epp.lab.table.QUICK_SCALE", 0.05)
    assert main(["lab", "table", "--quick", "--workloads", "azure-conv", "--pool", "h100x2", "--jobs", "1"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert {"oracle", "always-busiest", "ours", "round-robin"} <= set(lines)
    assert "regret at 0.8" in lines["policy"]


def test_a_configuration_that_does_not_load_names_the_policy(tmp_path, capsys) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text(POLICIES["ours"].config_text.replace("latency-cost-scorer", "latency-cost-scorre"))
    flags = ["--policies", str(config), "--pool", "h100", "--rate", "5", "--duration", "2s", "--jobs", "1"]
    assert main(["lab", "run", *flags]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{config}:")  # and the line


def test_a_configuration_that_is_no_text_is_said_in_a_line(tmp_path, capsys) -> None:
    config = tmp_path / "bytes.yaml"
    config.write_bytes(b"\xb8\xff")
    assert main(["lab", "run", "--config", str(config)]) == 2
    assert f"{config}: no configuration: 'utf-8'" in capsys.readouterr().err


def test_a_trace_too_short_for_a_knee_asks_for_a_rate(tmp_path, capsys) -> None:
    trace = tmp_path / "short.jsonl"
    row = '{"timestamp": %d, "input_length": 300, "output_length": 20, "hash_ids": []}\n'
    trace.write_text("".join(row % (100 * i) for i in range(8)))
    flags = ["lab", "run", "--trace", str(trace), "--pool", "h100", "--policies", "random", "--jobs", "1"]
    assert main(flags) == 2
    said = (
        f"{trace}: no knee on h100: too short to find it; --rate of `epp lab run` and `epp lab faults` does without it"
    )
    assert said in capsys.readouterr().err
    assert main([*flags, "--rate", "2"]) == 0
    assert " at 2 rps, 4 s;" in capsys.readouterr().out  # eight requests, and not the two minutes of a long trace
    assert main([*flags, "--rate", "2", "--duration", "1m"]) == 2
    assert "its 8 requests last 4 s at 2 rps" in capsys.readouterr().err
    assert main([*flags, "--rate", "8", "--duration", "100ms"]) == 2
    assert "nothing to measure arrives" in capsys.readouterr().err


def test_a_trace_that_ends_soon_gives_the_knee_of_a_longer_one(tmp_path) -> None:
    trace = tmp_path / "t.jsonl"
    row = '{"timestamp": %d, "input_length": 3000, "output_length": 50, "hash_ids": []}\n'
    knees = []
    for requests in (800, 4000):
        trace.write_text("".join(row % (100 * i) for i in range(requests)))
        knees.append(knee_rps(read_trace(trace), parse_pool("h100")))
    assert knees[0] == pytest.approx(knees[1], rel=0.05)


def test_everything_is_listed(capsys) -> None:
    assert main(["lab", "list"]) == 0
    printed = capsys.readouterr().out
    workloads = (*WORKLOADS, *HELD_OUT)
    assert all(f"  {name} " in printed for name in (*workloads, *POLICIES, "oracle", "70b-h100-tp4", "8b-h100, h100"))
    assert all(name in printed for name in ENGINES)
    assert "TTFT 200 ms, TPOT 25 ms" in printed


def test_every_policy_loads() -> None:
    for name in (*POLICIES, "oracle"):
        assert policy_of(name).name == name
        result = run_spec(RunSpec("azure-conv", "h100x2", name, 10.0, 2.0))
        assert result.figures["requests"] == 15
        assert result.plugin_failures == {}


def test_pools_are_read() -> None:
    names = [server.name for server in parse_pool("h100x2+8b-a100+h100")]
    assert names == ["h100-0", "h100-1", "8b-a100-0", "h100-2"]
    h100, a100 = ENGINES["8b-h100"], ENGINES["8b-a100"]
    assert a100.hardware.attention_pair_ns > h100.hardware.attention_pair_ns > 0
    assert a100.hardware.context_token_ns > h100.hardware.context_token_ns > 0
    assert h100.kv_blocks * h100.block_tokens == pytest.approx(427_000, rel=0.01)  # 56 GB of 128 KB each
    assert all(engine.block_tokens == BLOCK_TOKENS for engine in ENGINES.values())


def test_faults_are_read() -> None:
    servers = parse_pool("h100x2")
    for text, changes in {
        "kill@20s+5s": (Dies(20.0, "h100-0"), Restarts(25.0, "h100-0")),
        "restart@1m": (Leaves(60.0, "h100-0"), Restarts(75.0, "h100-0")),
        "fail@1s+500ms": (Fails(1.0, "h100-0"), Recovers(1.5, "h100-0")),
        "slow2x@3s": (Slows(3.0, "h100-0", 2.0),),
        "slow1.5x@3s+1s": (Slows(3.0, "h100-0", 1.5), Slows(4.0, "h100-0", 1.0)),
        "add@3s": (Joins(3.0, LabServer("added", servers[0].engine)),),
    }.items():
        assert parse_faults([text], servers) == changes


def test_each_server_that_joins_has_a_name_and_a_share_of_its_own() -> None:
    run = run_spec(replace(SPEC, faults=("add@4s", "add@2s")))
    assert [*run.servers] == ["added", "added-2", "h100-0", "h100-1"]
    assert all(server["share"] and server["busy_s"] for server in run.servers.values())
    part_s = SPEC.duration_s / len(run.timeline)
    first_s = {name: next(i for i, n in enumerate(given, 1) if n) * part_s for name, given in run.befallen.items()}
    assert 2.0 < first_s["added"] < 4.0 < first_s["added-2"]  # in the order of time, not in that of the flags


def test_a_server_that_joins_takes_no_name_that_is_there() -> None:
    there = [LabServer("added"), LabServer("added-3")]
    assert [c.server.name for c in parse_faults(["add@1s"] * 3, there)] == ["added-2", "added-4", "added-5"]


@pytest.mark.parametrize(
    ("faults", "times"),
    [
        (["kill@5s+5s", "kill@2s+3s"], [2.0, 5.0, 5.0, 10.0]),  # at 5 s it is back, and dies again
        (["slow2x@2s+3s", "fail@3s+5s"], [2.0, 5.0, 3.0, 8.0]),
        (["slow2x@2s+3s", "add@3s", "kill@9s+1s"], [2.0, 5.0, 3.0, 9.0, 10.0]),
    ],
    ids=["one after the other", "slow and fails", "slow, and another joins"],
)
def test_faults_that_do_not_undo_each_other_are_taken_in_order(faults: list[str], times: list[float]) -> None:
    assert [change.at_s for change in parse_faults(faults, parse_pool("h100x2"))] == times


def test_faults_and_old_metrics_show(capsys) -> None:
    base = run_spec(SPEC).figures
    killed = run_spec(RunSpec("azure-conv", "h100x2", "lmetric", 20.0, 6.0, faults=("kill@3s+1s",))).figures
    assert base["failed"] == 0 < killed["failed"]
    default = RunSpec("azure-conv", "h100x2", "llm-d-default", 20.0, 6.0)
    blind = RunSpec("azure-conv", "h100x2", "llm-d-default", 20.0, 6.0, metrics_interval_ms=None)
    assert run_spec(default).figures != run_spec(blind).figures


def test_noise_is_a_flag_and_without_it_equal_requests_take_equal_steps(tmp_path) -> None:
    trace, out = tmp_path / "alike.jsonl", tmp_path / "out.json"
    row = '{"timestamp": %d, "input_length": 512, "output_length": 50, "hash_ids": []}\n'
    trace.write_text("".join(row % (2000 * i) for i in range(20)))
    flags = ["lab", "run", "--trace", str(trace), "--pool", "h100", "--policies", "random", "--rate", "0.5"]
    ranges_ms = []
    for noise in ("0", "0.05", "0.4"):
        assert main([*flags, "--noise", noise, "--jobs", "1", "--json", str(out)]) == 0
        curve = json.loads(out.read_bytes())[0]["curves"]["tpot_ms"]
        ranges_ms.append(curve[-1] - curve[0])
    none, usual, much = ranges_ms
    assert none < 1e-6 < usual < 1.0 < much


def test_a_knee_is_of_pool_and_workload() -> None:
    workload = WORKLOADS["azure-conv"]
    one, two = (knee_rps(workload, parse_pool(pool)) for pool in ("h100", "h100x2"))
    assert two == pytest.approx(2 * one, rel=0.12)
    old = knee_rps(workload, parse_pool("a100"))
    assert 0.3 * one < old < 0.7 * one
    assert one == knee_rps(workload, parse_pool("h100"))


def test_a_large_pool_s_knee_is_that_of_a_smaller_one_of_the_same_mix() -> None:
    """Of 16 servers at most: that of 500 took an hour."""
    workload = WORKLOADS["azure-conv"]

    def knee_of(pool: str) -> float:
        return knee_rps(workload, parse_pool(pool))

    alike, mixed = knee_of("h100x16"), knee_of("h100x8+a100x8")
    assert knee_of("h100x4000") == pytest.approx(250 * alike)
    assert knee_of("h100x40+a100x40") == pytest.approx(5 * mixed)
    assert knee_of("h100x9+a100x8") == pytest.approx(mixed + alike / 16, rel=0.03)
    assert knee_of("h100x1600+a100") == pytest.approx(100 * alike, rel=0.01)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kv_tokens": 64}, "no request fits: the shortest of its first 400 is of "),
        ({"base_ms": 1e4}, "too slow: half of the requests take "),
    ],
)
def test_why_a_pool_has_no_knee_is_said(tmp_path, change: dict[str, float], says: str, capsys) -> None:
    shape = tmp_path / "mine.json"
    usual = json.loads(shape_text(ENGINES["8b-h100"].hardware, 20.0, ENGINES["8b-h100"]))
    shape.write_text(json.dumps(usual | change))
    assert main(["lab", "run", "--pool", str(shape), "--policies", "random", "--jobs", "1"]) == 2
    assert f"azure-conv: no knee on {shape}: {says}" in capsys.readouterr().err


def test_regret_and_spread_are_over_the_seeds() -> None:
    pair = ("azure-conv", "h100x2")
    like = RunSpec("", "", "", 0.0, 5.0)
    rows = compare(specs_of([pair], ["round-robin", "oracle"], [0.8], 2, {pair: 34.0}, like), {pair: 34.0}, jobs=1)
    blind, oracle = rows
    assert [len(row.results) for row in rows] == [2, 2]
    assert oracle.figures["regret_attainment"] == 0.0
    difference = oracle.figures["attainment"] - blind.figures["attainment"]
    assert blind.figures["regret_attainment"] == pytest.approx(difference)
    one, two = (result.figures["attainment"] for result in blind.results)
    assert one != two
    assert blind.spreads["attainment"] == pytest.approx(abs(one - two) / 2**0.5)
    assert blind.load == pytest.approx(0.8)


@pytest.mark.parametrize("crossing", [0.3, 0.8125, 1.31])
def test_goodput_is_where_attainment_crosses(crossing: float) -> None:
    looked_at = []

    def attainment(step: int) -> float:
        looked_at.append(step)
        return 0.9 + (crossing - step * GRID) / 2

    assert highest_load(attainment, 0.9) == pytest.approx(crossing)
    assert len(set(looked_at)) <= 7


def test_goodput_of_the_hopeless_is_0_and_of_the_perfect_all_that_was_tried() -> None:
    assert highest_load(lambda step: 0.5, 0.9) == 0.0
    assert highest_load(lambda step: 1.0, 0.9) == MOST_STEPS * GRID
