"""Settings: the resolved value of every setting with its source, and the resolved job.yaml that records them.

--set > job file > the model's generation_config > built-in. No length limit is taken from a generation_config: a limit
that the user did not set would truncate completions silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

from batchgen.errors import ModelError, RowError, SpecError
from batchgen.prompts.sampling_encoder import SamplingEncoder
from batchgen.sampling_params import SamplingParams
from batchgen.spec.job_spec import SamplingSpec, StructuredSpec
from batchgen.spec.load import Job

_FROM_SAMPLING_MODEL = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True, slots=True)
class Setting:
    """One resolved value."""

    key: str  # dotted, as in the job file: "sampling.temperature"
    value: Any
    source: str  # "--set" | "job" | "model" | "default"


def resolve_sampling(
    job: Job, generation_config: Mapping[str, Any], sampling_encoder: SamplingEncoder
) -> tuple[SamplingParams, list[Setting]]:
    """Resolve the sampling values of a job, each with its source.

    Raises ModelError if the model's file has an unusable value that the job file does not override, SpecError if the
    job file names something that is not a token of the model, or if values contradict each other.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    defaults["logit_bias"] = {}  # as a job file has it
    chosen = {name: getattr(job.spec.sampling, name) for name in defaults if f"sampling.{name}" in job.sources}
    given = {name: value for name, value in chosen.items() if value is not None}  # null: the next source decides
    model = _model_values(generation_config, given)
    settings = []
    for name, default in defaults.items():
        key = f"sampling.{name}"
        if name in given:
            settings.append(Setting(key, given[name], job.sources[key]))
        elif name in model:
            settings.append(Setting(key, model[name], "model"))
        else:
            settings.append(Setting(key, default, "default"))
    values = {setting.key.removeprefix("sampling."): setting.value for setting in settings}
    try:
        params = SamplingParams(**sampling_encoder.encode(values))
    except RowError as error:
        raise SpecError([f"{job.path}: sampling.{error}"]) from None
    if params.contradiction is not None and job.spec.input.sampling is None:  # else the rows' own values decide
        raise SpecError([f"{job.path}: sampling.{params.contradiction}"])
    return params, settings


def resolved_document(job: Job, settings: Sequence[Setting], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Make the content of `job.yaml` in the output folder: `job`, `sources` (dotted key -> source) and `extra`.

    The part under `job` is itself a job file that resolves to the same values.
    """
    assert not extra.keys() & {"job", "sources"}
    document = job.spec.model_dump(mode="json")
    sources = {key: job.sources.get(key, "default") for key in _leaves(document)}
    for setting in settings:
        section, _, name = setting.key.rpartition(".")
        (document[section] if section else document)[name] = plain(setting.value)
        sources[setting.key] = setting.source
    return {"job": document, "sources": sources, **extra}


def dump_yaml(document: Mapping[str, Any]) -> str:
    """Write YAML 1.2, keeping the order of the document."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _ExactText
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel annotates it as None; None sorts
    yaml.width = 10_000  # one value, one line
    stream = StringIO()
    yaml.dump(dict(document), stream)
    return stream.getvalue()


class _ExactText(SafeRepresenter):
    """Escapes the Unicode line breaks that ruamel.yaml would write literally and read back as a space."""

    def represent_str(self, data: str) -> Any:
        style = '"' if any(mark in data for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", str(data), style=style)


_ExactText.add_representer(str, _ExactText.represent_str)
_ExactText.add_multi_representer(str, _ExactText.represent_str)  # enums, torch's version


def _model_values(generation_config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values that the model's file gives and the job file does not; those of sampling only with do_sample: true."""
    defaults, names = {}, ["repetition_penalty"]
    if generation_config.get("do_sample") is True:
        # A file with do_sample and no temperature samples at 1.0; it is not greedy.
        defaults, names = {"temperature": 1.0}, [*_FROM_SAMPLING_MODEL, *names]
    found = {name: value for name in names if (value := generation_config.get(name)) is not None}
    values = {name: value for name, value in (defaults | found).items() if name not in given}
    try:
        checked = SamplingSpec.model_validate(values)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise ModelError(
            f"the model's generation_config has {name}: {values[name]!r}, which cannot be used; "
            f"set sampling.{name} in the job file"
        ) from None
    return {name: getattr(checked, name) for name in values}


def _leaves(document: Mapping[str, Any]) -> list[str]:
    return [
        key
        for name, value in document.items()
        for key in ([f"{name}.{inner}" for inner in value] if isinstance(value, dict) else [name])
    ]


def plain(value: Any) -> Any:
    """Convert a setting's value to plain YAML and JSON types."""
    if isinstance(value, StructuredSpec):
        return {name: plain(form) for name, form in value.given.items()}
    return sorted(value) if isinstance(value, frozenset) else list(value) if isinstance(value, tuple) else value
