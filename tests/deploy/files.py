"""The deployment files as the tests read them: documents of YAML, units of systemd, calls of `headrace`."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import click
import yaml  # noqa: TID251 - the files of Kubernetes, Compose and Prometheus are YAML
from prometheus_client.samples import Sample

from headrace.cli.root import root
from headrace.settings import NAMES, PREFIX

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))

Document = dict[str, Any]


@dataclass(frozen=True)
class Process:
    """A process that a file starts: the words after `headrace`, its variables, and the seconds it has to stop."""

    place: str
    words: tuple[str, ...]
    variables: dict[str, str]
    seconds_to_stop: float


def documents(path: Path) -> list[Document]:
    """The documents of a YAML file."""
    return [cast("Document", each) for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


@cache
def manifests() -> list[tuple[str, Document]]:
    """Each Kubernetes object with a name for messages. `kustomization.yaml` is no object of a cluster."""
    return [
        (f"{path.name}:{each['kind']}/{each['metadata']['name']}", each)
        for path in MANIFESTS
        if path.name != "kustomization.yaml"
        for each in documents(path)
    ]


def objects(kind: str) -> list[Document]:
    return [each for _, each in manifests() if each["kind"] == kind]


def pods() -> list[tuple[str, Document]]:
    """The pod specification of each Deployment and Job."""
    return [
        (name, each["spec"]["template"]["spec"]) for name, each in manifests() if "template" in each.get("spec", {})
    ]


def unit(path: Path) -> configparser.RawConfigParser:
    """A unit of systemd. A key that stands several times keeps its last value."""
    found = configparser.RawConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    found.read_string(path.read_text(encoding="utf-8"))
    return found


def compose() -> dict[str, Document]:
    [document] = documents(DEPLOY / "compose.yaml")
    return cast("dict[str, Document]", document["services"])


def settings_example() -> dict[str, str]:
    """The variables of the example for systemd, those that are commented out included."""
    lines = (DEPLOY / "systemd" / "headrace.env.example").read_text(encoding="utf-8").splitlines()
    pairs = [line.removeprefix("#").partition("=") for line in lines if line.removeprefix("#").startswith(PREFIX)]
    return {name: value for name, _, value in pairs}


def processes() -> Iterator[Process]:
    """Every call of `headrace` in the files."""
    for path in UNITS:
        service = unit(path)["Service"]
        words = tuple(shlex.split(service["ExecStart"])[1:])
        yield Process(path.name, words, {}, _seconds(service["TimeoutStopSec"]))
    for name, service in compose().items():
        if "command" in service and name != "postgres":
            variables = {key: str(value) for key, value in service.get("environment", {}).items()}
            stop = _seconds(service.get("stop_grace_period", "10s"))
            yield Process(f"compose.yaml:{name}", tuple(service["command"]), variables, stop)
    shared = {key: str(value) for each in objects("ConfigMap") for key, value in each["data"].items()}
    for name, pod in pods():
        for container in pod["containers"]:
            own = {each["name"]: str(each.get("value", "")) for each in container.get("env", ())}
            stop = float(pod.get("terminationGracePeriodSeconds", 30))
            yield Process(name, tuple(container["args"]), {**shared, **own}, stop)


def _seconds(text: str) -> float:
    assert text.endswith("s"), f"{text} is not in seconds"
    return float(text.removesuffix("s"))


def commands_in_prose() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The calls of `headrace` that the page and the comments of the files show, each with its place."""
    page = ROOT / "docs" / "operate" / "deploy.md"
    shown = [
        (page, block)
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    shown += [(path, path.read_text(encoding="utf-8")) for path in DEPLOY.rglob("*") if path.is_file()]
    for path, text in shown:
        for call in re.findall(r"(?:bin/|-- |run --rm )(?:headrace|migrate) (.+)$", text, re.MULTILINE):
            if not call.startswith(":"):
                yield path.name, tuple(shlex.split(call))


def parse(words: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The command and its parameters, read by the command line itself. Raises what a user would see."""
    command: click.Command = root
    context = click.Context(root)
    rest = list(words)
    path: list[str] = []
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
        path.append(name)
    context = command.make_context("headrace", rest)
    return " ".join(path), context.params


def unknown_settings(variables: dict[str, str]) -> list[str]:
    """The variables that headrace would refuse."""
    return [name for name in variables if name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() not in NAMES]


@dataclass(frozen=True)
class Expression:
    """What a panel or a rule asks Prometheus."""

    place: str
    metrics: frozenset[str]
    labels: frozenset[str]
    """Those by which it groups and chooses, and those in its texts."""


def expressions() -> list[Expression]:
    """Every question in the files for Grafana and Prometheus."""
    board = json.loads((DEPLOY / "grafana" / "headrace.json").read_text(encoding="utf-8"))
    asked = [
        (panel["title"], target["expr"], target.get("legendFormat", ""))
        for panel in board["panels"]
        for target in panel["targets"]
    ]
    asked += [(variable["name"], variable["query"], "") for variable in board["templating"]["list"]]
    [page] = documents(DEPLOY / "grafana" / "alerts.yaml")
    rules = [rule for group in page["groups"] for rule in group["rules"]]
    asked += [(rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in rules]
    return [_expression(place, query, text) for place, query, text in asked]


def _expression(place: str, query: str, text: str) -> Expression:
    labels = {label for group in re.findall(r"\bby ?\(([^)]*)\)", query) for label in re.split(r"\s*,\s*", group)}
    labels |= set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query))
    labels |= set(re.findall(r"\blabel_values\(\w+,\s*(\w+)\)", query))
    labels |= set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
    return Expression(place, frozenset(re.findall(r"\bheadrace_\w+", query)), frozenset(labels))


def unanswered(samples: Iterable[Sample], *, of_worker: bool) -> list[str]:
    """What these expressions ask of a page of metrics that it does not have. `of_worker`: the page of a worker."""
    pages: dict[str, set[str]] = {}
    for sample in samples:
        pages.setdefault(sample.name, {"instance"}).update(sample.labels)
    missing: list[str] = []
    for asked in expressions():
        metrics = [name for name in sorted(asked.metrics) if name.startswith("headrace_worker_") == of_worker]
        missing += [f"{asked.place}: {name}" for name in metrics if name not in pages]
        known = {label for name in metrics for label in pages.get(name, ())}
        missing += [f"{asked.place}: {label} of {metrics}" for label in sorted(asked.labels - known) if metrics]
    return missing
