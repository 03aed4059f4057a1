"""load_job: what it accepts, what it refuses, and that a problem has its line and advice."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from batchgen.errors import SpecError
from batchgen.spec.load import Job, load_job
from batchgen.spec.problems import FOREIGN_NAMES, section_keys

GOOD = """\
model: {path: some/model}
input: {path: in.parquet, prompt: question}
output: {path: out}
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job of this file is `job.yaml` in the current folder, so that messages are short."""
    monkeypatch.chdir(tmp_path)


def load(text: str, *overrides: str) -> Job:
    Path("job.yaml").write_text(text, encoding="utf-8")
    return load_job("job.yaml", overrides)


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text, *overrides)
    return caught.value.problems


def sampling(value: str) -> str:
    """Return a job whose line 5 is `value` in the section sampling."""
    return f"{GOOD}sampling:\n  {value}\n"


def chat(line: str) -> str:
    """Return a job whose line 5 is `line` in the section input."""
    section = f"input:\n  path: in.parquet\n  prompt: question\n  {line}\n"
    return f"model: {{path: some/model}}\n{section}output: {{path: out}}\n"


def test_small_job_has_defaults_and_sources() -> None:
    job = load(GOOD + "engine: {block_size: 32}\n")
    assert (job.spec.engine.block_size, job.spec.engine.order) == (32, "prefix")
    given = ["model.path", "input.path", "input.prompt", "output.path", "engine.block_size"]
    assert job.sources == dict.fromkeys(given, "job")


def test_section_without_keys_has_its_defaults() -> None:
    assert load(GOOD + "engine:\n  # block_size: 32\nsampling:\n").spec.engine.block_size == 16


def test_all_problems_come_together_in_the_order_of_the_lines() -> None:
    text = "sampling:\n  max_new_tokens: 64\n  temprature: 0.2\n  top_p: 0.9\n  top_p: 0.5\n"
    assert problems(text) == [
        "job.yaml:1: model: missing, and it has no default; add it",
        "job.yaml:1: input: missing, and it has no default; add it",
        "job.yaml:1: output: missing, and it has no default; add it",
        "job.yaml:2: sampling.max_new_tokens: unknown key; did you mean max_tokens?",
        "job.yaml:3: sampling.temprature: unknown key; did you mean temperature?",
        "job.yaml:5: sampling.top_p: given twice, on lines 4 and 5; keep one",
    ]


def test_missing_key_is_reported_at_its_section() -> None:
    text = "model:\n  revision: main\ninput:\n  path: a.jsonl\n  prompt: p\noutput:\n"
    assert problems(text) == [
        "job.yaml:1: model.path: missing, and it has no default; add it",
        "job.yaml:6: output.path: missing, and it has no default; add it",
    ]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("temperature: 0", "temperature: unknown key; did you mean sampling.temperature?"),
        ("ouput: {}", "ouput: unknown key; did you mean output?"),
        ("engine: {dtype: auto}", "engine.dtype: unknown key; did you mean model.dtype?"),
        (
            "engine: {gpu_memory_utilization: 1}",
            "engine.gpu_memory_utilization: unknown key; did you mean memory_fraction?",
        ),
        ("engine: {chat_template: x}", "engine.chat_template: unknown key; did you mean input.chat_template?"),
        ("sampling: {chat_template: x}", "sampling.chat_template: unknown key; did you mean input.chat_template?"),
        ("sampling: {do_sample: true}", "sampling.do_sample: unknown key; remove it; temperature 0 is greedy"),
        ("sampling: {best_of: 4}", "sampling.best_of: unknown key; all n samples are written"),
        ("sampling: {use_beam_search: true}", "sampling.use_beam_search: unknown key; beam search is not supported"),
        ("sampling: {num_beams: 4}", "sampling.num_beams: unknown key; beam search is not supported"),
        ("sampling: {enable_thinking: false}", "sampling.enable_thinking: unknown key; write it under input.chat_temp"),
        ("sampling: {guided_json: {}}", "sampling.guided_json: unknown key; did you mean structured.json_schema?"),
        ("sampling: {guided_regex: a}", "sampling.guided_regex: unknown key; did you mean structured.regex?"),
        ("sampling: {response_format: {}}", "sampling.response_format: unknown key; did you mean structured.json_s"),
        ("sampling: {num_return_sequences: 2}", "sampling.num_return_sequences: unknown key; did you mean n?"),
        ("sampling: {stop_words: [a]}", "sampling.stop_words: unknown key; did you mean stop?"),
        ("sampling: {structured: {schema: {}}}", "sampling.structured.schema: unknown key; did you mean json_schema?"),
        ("sampling: {zzz: 1, min_p: 0}", "sampling.zzz: unknown key; known here: temperature, top_p, top_k, min_p,"),
        ("1: 2", "1: unknown key; known here: model, input, sampling, output, engine, on_error, max_errors"),
    ],
)
def test_unknown_key_names_the_nearest_known_one(line: str, advice: str) -> None:
    [problem] = problems(GOOD + line)
    assert problem.startswith(f"job.yaml:4: {advice}")


def test_every_foreign_name_leads_to_a_key_and_is_not_one() -> None:
    keys = {key for section in section_keys() for key in [section, *section_keys(section)]}
    keys |= {f"structured.{key}" for key in section_keys("sampling", "structured")}
    assert set(FOREIGN_NAMES.values()) <= keys
    assert not {"max_new_tokens", "max_length", "temp"} & keys


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('max_tokens: "16"', 'max_tokens: expected a whole number, got "16"'),
        ("max_tokens: true", "max_tokens: expected a whole number, got true"),
        ("max_tokens: 12.5", "max_tokens: expected a whole number, got 12.5"),
        ("max_tokens: 12:30", "max_tokens: expected a whole number, got 12:30"),
        ("max_tokens: 0", "max_tokens: expected at least 1, got 0"),
        ("max_tokens: 1e3", "max_tokens: expected a whole number, got 1e3"),
        ("temperature: -1", "temperature: expected at least 0, got -1"),
        ("top_k: -1", "top_k: expected at least 0, got -1; 0 turns it off"),
        ("seed: -1", "seed: expected at least 0, got -1; null draws one at random"),
        ("max_tokens: -1", "max_tokens: expected at least 1, got -1; null means up to the context limit"),
        ("temperature: .nan", "temperature: expected a finite number, got .nan"),
        ("temperature: true", "temperature: expected a number, got true"),
        ("top_p: 1.5", "top_p: expected at most 1, got 1.5"),
        ("top_p: 0", "top_p: expected more than 0, got 0"),
        ("seed: 9223372036854775808", "seed: expected less than 9223372036854775808, got 9223372036854775808"),
        ("ignore_eos: no", "ignore_eos: expected true or false, got no"),
        ("stop_token_ids: 2", "stop_token_ids: expected a list, got 2"),
        ("stop_token_ids: [1, -1]", "stop_token_ids[1]: expected at least 0, got -1"),
        ("stop: [1]", "stop[0]: expected text, got 1"),
        ('stop: ""', 'stop[0]: expected some text, got ""'),
        ("stop: [a, '']", "stop[1]: expected some text, got ''"),
        ('stop: "\\ud800"', 'stop[0]: expected text that can be written as UTF-8, got "\\ud800"'),
    ],
)
def test_wrong_value_is_quoted_as_written(line: str, problem: str) -> None:
    assert problems(sampling(line)) == [f"job.yaml:5: sampling.{problem}"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("min_tokens: 9\n  max_tokens: 8", "min_tokens: 9 is more than max_tokens, which is 8"),
        (
            "n: 2\n  temperature: 0",
            "n: 2 samples at temperature 0 would all be the same; set a temperature above 0, or n to 1",
        ),
    ],
)
def test_values_that_contradict_each_other_are_named(lines: str, problem: str) -> None:
    assert problems(sampling(lines)) == [f"job.yaml:5: sampling.{problem}"]


@pytest.mark.parametrize(
    "line", ["n: 2", "n: 2\n  temperature: 0.1", "min_tokens: 8\n  max_tokens: 8", "min_tokens: 9"]
)
def test_values_that_can_be_meant_together_are_accepted(line: str) -> None:
    load(sampling(line))


def test_values_that_rows_may_replace_are_accepted() -> None:
    load(sampling("n: 2\n  temperature: 0").replace("question}", "question, sampling: own}"))


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("temperature: 0", 0.0),
        ("temperature: 1e-5", 0.00001),
        ("top_p: 1e0", 1.0),
        ("seed: 0", 0),
        ("seed: 0777", 777),
        ("max_tokens: null", None),
        ("stop: END", ("END",)),
        ('stop: [no, "b;"]', ("no", "b;")),
        ("stop: []", ()),
        ("stop:", ()),
        ('stop: "\\n"', ("\n",)),
        ("stop: 2024-01-01", ("2024-01-01",)),
    ],
)
def test_value_is_used_as_yaml_1_2_reads_it(line: str, value: object) -> None:
    assert getattr(load(sampling(line)).spec.sampling, line.split(":")[0]) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD.replace("{path: out}", "out"), "job.yaml:3: output: expected a section of keys, got out"),
        (GOOD.replace("in.parquet", "[]"), "job.yaml:2: input.path: expected at least one entry, got an empty list"),
        (GOOD.replace("in.parquet", "[a, 1]"), "job.yaml:2: input.path[1]: expected text, got 1"),
        (GOOD.replace("in.parquet", "{a: b}"), "job.yaml:2: input.path: expected text, got a section"),
        (GOOD.replace(": out", ": "), "job.yaml:3: output.path: expected text, got nothing"),
        (GOOD + "on_error: go", "job.yaml:4: on_error: expected 'continue' or 'stop', got go"),
        (GOOD + "engine: {device: gpu}", "job.yaml:4: engine.device: expected auto, cpu, cuda or cuda:1, got gpu"),
        (
            GOOD.replace("question", "a, text: b"),
            "job.yaml:2: input: expected exactly one of prompt, messages, text, token_ids, template; "
            "got prompt and text",
        ),
        (
            GOOD.replace("question", "a, system: b, system_template: c"),
            "job.yaml:2: input: expected at most one of system and system_template; got both",
        ),
        (
            GOOD.replace("prompt: question", "text: a, tools: b"),
            "job.yaml:2: input: tools can be used with prompt or messages or template, not with text",
        ),
        (
            GOOD.replace("question", "a, continue_final_message: true"),
            "job.yaml:2: input: continue_final_message can be used with messages, not with prompt",
        ),
    ],
)
def test_wrong_section_or_path_is_named(text: str, problem: str) -> None:
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("tools: calls", "calls"),
        ("tools: [{type: function, strict: true}]", ({"type": "function", "strict": True},)),
        ("documents: []", ()),
        ("chat_template_kwargs: arguments", "arguments"),
        ("chat_template_kwargs: {enable_thinking: false, n: [1, null]}", {"enable_thinking": False, "n": [1, None]}),
    ],
)
def test_value_for_the_chat_template_is_a_column_or_written_in_the_file(line: str, value: object) -> None:
    assert getattr(load(chat(line)).spec.input, line.split(":")[0]) == value


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tools: {a: 1}", "tools: expected a list, got a section"),
        ("tools: [{}, x]", "tools[1]: expected keys with values, got x"),
        ("chat_template_kwargs: [1]", "chat_template_kwargs: expected keys with values, got a list"),
        ("chat_template_kwargs: {tools: []}", "chat_template_kwargs: tools cannot be set here; use input.tools"),
        ("chat_template: ./no.jinja", "chat_template: no such file: {folder}/no.jinja"),
        ("chat_template: plain.txt", "chat_template: {folder}/plain.txt is not a Jinja template"),
        ("chat_template: latin.jinja", "chat_template: {folder}/latin.jinja is not UTF-8 text; save it as UTF-8"),
        ("chat_template: ./", "chat_template: {folder} cannot be read: Is a directory"),
    ],
)
def test_wrong_value_for_the_chat_template_is_named(tmp_path: Path, line: str, problem: str) -> None:
    Path("plain.txt").write_text("no markup")
    Path("latin.jinja").write_bytes(b"\xff {{ a }}")
    (found,) = problems(chat(line))
    assert found.startswith(f"job.yaml:5: input.{problem.format(folder=tmp_path.resolve())}")


def test_chat_template_file_is_read_and_a_name_is_kept(tmp_path: Path) -> None:
    """The text of the file is what counts later: a resumed run compares it, and a verification renders it."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "mine.jinja").write_bytes(b"\xef\xbb\xbf{{ messages }}\n")
    (folder / "without_suffix").write_text("{% x %}")
    for value, template in {
        "mine.jinja": "{{ messages }}\n",
        "../jobs/mine.jinja": "{{ messages }}\n",
        "without_suffix": "{% x %}",
        "tool_use": "tool_use",
        '"{{ a }}"': "{{ a }}",
    }.items():
        (folder / "job.yaml").write_text(chat(f"chat_template: {value}"))
        assert load_job("jobs/job.yaml").spec.input.chat_template == template


def test_literal_backslash_n_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "batchgen"):
        assert load(sampling(r"stop: [END, '\n']")).spec.sampling.stop == ("END", "\\n")
    [message] = caplog.messages
    assert message.startswith(r"job.yaml:5: sampling.stop[1]: \n has a backslash")
    assert "double quotes" in message


def test_real_line_break_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    load(sampling(r'stop: "\n"'))
    assert caplog.messages == []


def test_override_wins_and_is_recorded_as_the_source() -> None:
    job = load(sampling("seed: 1"), "sampling.seed=2", "engine.block_size=8", "on_error=stop", "sampling.stop=[a, no]")
    assert (job.spec.sampling.seed, job.spec.engine.block_size, job.spec.on_error) == (2, 8, "stop")
    assert job.spec.sampling.stop == ("a", "no")
    assert {key for key, source in job.sources.items() if source == "--set"} == {
        "sampling.seed", "engine.block_size", "on_error", "sampling.stop",
    }  # fmt: skip


def test_last_override_of_a_key_wins() -> None:
    assert load(GOOD, "sampling.seed=1", "sampling.seed=0").spec.sampling.seed == 0


def test_override_without_a_value_is_null() -> None:
    assert load(sampling("seed: 1"), "sampling.seed=").spec.sampling.seed is None


def test_override_may_contain_an_equals_sign() -> None:
    assert load(GOOD, "sampling.stop=a=b").spec.sampling.stop == ("a=b",)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("sampling.seed", "expected key=value, for example --set sampling.seed=1"),
        ("=1", "expected key=value, for example --set sampling.seed=1"),
        ("sampling..seed=1", "expected key=value, for example --set sampling.seed=1"),
        ("sampling.sead=1", "sampling.sead: unknown key; did you mean seed?"),
        ("sampling.seed=x", "sampling.seed: expected a whole number, got x"),
        ("sampling.stop=[a, 1]", "sampling.stop[1]: expected text, got 1"),
        ("sampling.stop=[a", "not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("sampling.stop=a #b", "a # after a space starts a comment in YAML; put the value in quotes"),
        ("sampling={seed: 1}", "expected one value or a list"),
        ("sampling=1", "sampling: expected a section of keys, got 1"),
        ("model.path.x=1", "model.path: expected text, got a section"),
        ("output.path=${NOPE_X}/o", "output.path: the environment variable NOPE_X is not set"),
    ],
)
def test_wrong_override_is_named_by_its_text(override: str, problem: str) -> None:
    [found] = problems(GOOD, override)
    assert found.startswith(f"--set {override}: {problem}")


def test_overrides_are_reported_after_the_file_and_all_together() -> None:
    found = problems(sampling("seed: x"), "input.limit=-1", "nonsense", "sampling.top_k=-1")
    assert [problem.split(": ")[0] for problem in found] == [
        "job.yaml:5", "--set input.limit=-1", "--set sampling.top_k=-1", "--set nonsense",
    ]  # fmt: skip


def test_override_does_not_hide_a_repeated_key() -> None:
    found = problems(GOOD + "sampling:\n  seed: 1\n  seed: 2\n", "sampling.seed=3")
    assert found == ["job.yaml:6: sampling.seed: given twice, on lines 5 and 6; keep one"]


def test_unset_variables_are_all_named_and_no_folder_is_made(tmp_path: Path) -> None:
    found = problems("model: {path: ./m}\ninput: {path: ['${NOPE_X}/a'], text: t}\noutput: {path: '${NOPE_Y}/o'}\n")
    assert found == [
        "job.yaml:2: input.path[0]: the environment variable NOPE_X is not set",
        "job.yaml:3: output.path: the environment variable NOPE_Y is not set",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_variables_are_filled_in_paths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/data")
    text = "model: {path: '${DATA}/m'}\ninput: {path: '${DATA}/a', template: '${DATA}'}\noutput: {path: '${DATA}/o'}"
    spec = load(text).spec
    assert (spec.model.path, spec.input.path, spec.output.path) == ("/data/m", "/data/a", "/data/o")
    assert spec.input.template == "${DATA}"


def test_paths_start_at_the_job_files_folder(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "job.yaml").write_text(GOOD.replace("in.parquet", "[../in.parquet, ./x/*.jsonl]"))
    spec = load_job("jobs/job.yaml", ["output.path=../out"]).spec
    assert spec.input.path == (f"{tmp_path}/in.parquet", f"{folder}/x/*.jsonl")
    assert spec.output.path == f"{tmp_path}/out"


@pytest.mark.parametrize("path", ["in.parquet", "./x/../in.parquet", "link.parquet", "link_folder/in.parquet", "."])
def test_output_over_the_input_is_refused(tmp_path: Path, path: str) -> None:
    source = tmp_path / "in.parquet"
    source.write_bytes(b"rows")
    (tmp_path / "link.parquet").symlink_to(source)
    (tmp_path / "link_folder").symlink_to(tmp_path, target_is_directory=True)
    before = hashlib.sha256(source.read_bytes()).digest()
    found = problems(GOOD.replace("path: out", f"path: {path}"))
    assert found[0] == f"job.yaml:3: output.path: would mix with the input {source}; choose another folder"
    assert hashlib.sha256(source.read_bytes()).digest() == before


def test_frozen_job_cannot_be_changed() -> None:
    job = load(GOOD)
    with pytest.raises(AttributeError):
        job.path = Path("other")  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        job.spec.engine.block_size = 1  # type: ignore[misc]
