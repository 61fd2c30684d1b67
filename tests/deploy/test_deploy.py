"""The deployment files parse, name only flags, settings and metrics that exist, and give a drain enough time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import kubernetes_validate
import msgspec
import pytest

from deploy.files import (
    DEPLOY,
    ROOT,
    UNITS,
    Document,
    Process,
    commands_in_prose,
    compose,
    documents,
    manifests,
    objects,
    parse,
    pods,
    processes,
    settings_example,
    unit,
    unknown_settings,
)
from headrace.model.duration import parse as parse_duration
from headrace.server import ServerSettings
from headrace.server.api.autoscale import ENDPOINTS as AUTOSCALE
from headrace.server.api.health import ENDPOINTS as HEALTH
from headrace.server.api.metrics import Shown, exposition
from headrace.settings import Settings
from headrace.supervisor.health import WorkerHealth
from headrace.supervisor.process_table import ProcessTable

AFTER_DRAIN = 15.0 + 5.0
"""Seconds beyond `drain` and `kill_grace`: the supervisor then kills its processes, and hands their jobs back."""
OLDEST_KUBERNETES = "1.27"
CUSTOM = {"ScaledObject", "TriggerAuthentication"}
"""Kinds of KEDA, for which the schemas of Kubernetes have nothing."""
METRIC = re.compile(r"\bheadrace_\w+")

CALLS = list(processes())


def kinds(text: str) -> dict[str, str]:
    """The series of a page of metrics, and what they are. A histogram has buckets, a sum and a count."""
    series: dict[str, str] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        parts = (f"{name}{end}" for end in ("_bucket", "_sum", "_count"))
        series |= dict.fromkeys(parts if kind == "histogram" else [name], kind)
    return series


SERVER = kinds(exposition(Shown()))
WORKER = kinds(WorkerHealth(ProcessTable()).exposition().decode())


def families(names: set[str]) -> set[str]:
    """The names without the part of a histogram."""
    return {
        re.sub("_(bucket|sum|count)$", "", name) if (SERVER | WORKER).get(name) == "histogram" else name
        for name in names
    }


def schemas() -> list[str]:
    """The oldest Kubernetes that the files are for, and the newest that the package knows."""
    return [OLDEST_KUBERNETES, kubernetes_validate.latest_version()]


# ── what every file starts ───────────────────────────────────────────────────


def test_all_kinds_of_files_start_something() -> None:
    places = {call.place.partition(":")[0] for call in CALLS}
    assert places == {
        "headrace-worker@.service", "headrace-server.service", "compose.yaml", "migrate.yaml", "server.yaml", "worker.yaml"
    }  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_every_flag_exists(call: Process) -> None:
    command, _ = parse(call.words)
    assert command in {"worker", "serve", "migrate"}


def test_every_command_that_is_shown_exists() -> None:
    shown = list(commands_in_prose())
    assert {"deploy.md", "compose.yaml", "server.yaml"} <= {place for place, _ in shown}
    assert {parse(words)[0] for _, words in shown} >= {"migrate", "doctor", "tokens create"}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_every_setting_exists_and_can_be_read(call: Process, tmp_path: Path) -> None:
    assert unknown_settings(call.variables) == []
    # Compose fills in ${…}, which headrace never sees.
    own = {name: value for name, value in call.variables.items() if value and "${" not in value}
    Settings.load(start=tmp_path, environ=own)


def test_the_example_for_systemd_has_settings_that_exist(tmp_path: Path) -> None:
    variables = settings_example()
    assert {"HEADRACE_APP", "HEADRACE_URL"} <= variables.keys()
    Settings.load(start=tmp_path, environ=variables)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_a_stop_has_time_to_drain(call: Process, tmp_path: Path) -> None:
    command, flags = parse(call.words)
    own = {name: value for name, value in call.variables.items() if value and "${" not in value}
    at = Settings.load(start=tmp_path, environ=own, drain=flags.get("drain"))
    needed = {
        "worker": (at.drain + at.kill_grace).total_seconds() + AFTER_DRAIN,
        "serve": ServerSettings().drain,
        "migrate": 0.0,
    }
    assert call.seconds_to_stop > needed[command]


def test_a_server_that_others_reach_listens_on_all_addresses_inside_its_container() -> None:
    hosts = {call.place: parse(call.words)[1]["host"] for call in CALLS if call.words[0] == "serve"}
    assert hosts == {
        "headrace-server.service": "127.0.0.1",
        "compose.yaml:server": "0.0.0.0",
        "server.yaml:Deployment/headrace-server": "0.0.0.0",
    }


# ── Kubernetes ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", schemas())
@pytest.mark.parametrize(("name", "manifest"), manifests(), ids=lambda each: each if isinstance(each, str) else "")
def test_manifests_fit_the_schema(name: str, manifest: Document, version: str) -> None:
    if manifest["kind"] in CUSTOM:
        assert manifest["apiVersion"] == "keda.sh/v1alpha1"
        return
    kubernetes_validate.validate(manifest, version, strict=True)


def test_kustomize_names_every_manifest() -> None:
    [page] = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    # KEDA is optional, and a finished Job cannot be changed. Both are applied on their own.
    assert set(page["resources"]) == there - {"keda.yaml", "migrate.yaml"}


@pytest.mark.parametrize(("name", "pod"), pods(), ids=lambda each: each if isinstance(each, str) else "")
def test_pods_get_no_variables_of_services(name: str, pod: Document) -> None:
    """Kubernetes would set HEADRACE_SERVER_PORT for the Service, and headrace refuses a setting that it does not know."""
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize(("name", "pod"), pods(), ids=lambda each: each if isinstance(each, str) else "")
def test_pods_run_without_rights(name: str, pod: Document) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}


def test_probes_ask_paths_that_need_no_token() -> None:
    known = {each.path for each in HEALTH if each.scope is None}
    [(_, pod)] = [(name, pod) for name, pod in pods() if "server" in name]
    [container] = pod["containers"]
    probes = {kind: container[kind]["httpGet"]["path"] for kind in container if kind.endswith("Probe")}
    assert probes == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert set(probes.values()) <= known
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": parse(tuple(container["args"]))[1]["port"]}


def test_selectors_choose_the_pods() -> None:
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in objects("Deployment")
    }
    chosen = [
        each["spec"]["selector"]["matchLabels"]
        for kind in ("Deployment", "PodDisruptionBudget")
        for each in objects(kind)
    ]
    chosen += [each["spec"]["selector"] for each in objects("Service")]
    assert all(any(want.items() <= have.items() for have in labels.values()) for want in chosen)
    assert len(objects("PodDisruptionBudget")) == len(labels) == 2


def test_keda_scales_the_workers_by_an_answer_that_the_server_gives() -> None:
    [scaled] = objects("ScaledObject")
    [workers] = [each for each in objects("Deployment") if each["metadata"]["name"] == "headrace-worker"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == "headrace-worker"
    # Only workers fire schedules, so no figure would ask for the first pod.
    assert scaled["spec"]["minReplicaCount"] >= 1
    [trigger] = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "AverageValue")
    metadata = trigger["metadata"]
    url = urlsplit(metadata["url"])
    [service] = objects("Service")
    assert (url.hostname, url.port) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    [endpoint] = AUTOSCALE
    assert url.path == endpoint.path
    query = msgspec.convert(dict(parse_qsl(url.query, strict_parsing=True)), endpoint.query, strict=False)
    parse_duration(query.within)
    assert metadata["valueLocation"] in {field.name for field in msgspec.structs.fields(endpoint.answers[200])}
    [container] = workers["spec"]["template"]["spec"]["containers"]
    assert int(metadata["targetValue"]) == parse(tuple(container["args"]))[1]["processes"]


def test_keda_sends_the_token_of_a_secret() -> None:
    [scaled] = objects("ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    [authentication] = objects("TriggerAuthentication")
    assert trigger["metadata"]["authMode"] == "bearer"
    assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
    [secret] = authentication["spec"]["secretTargetRef"]
    assert secret["parameter"] == "token"
    text = (ROOT / "docs" / "operate" / "autoscaling.md").read_text(encoding="utf-8")
    assert f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}=" in text


# ── Prometheus ───────────────────────────────────────────────────────────────


def test_alerts_use_metrics_that_exist() -> None:
    [page] = documents(DEPLOY / "grafana" / "alerts.yaml")
    rules: list[dict[str, Any]] = [rule for group in page["groups"] for rule in group["rules"]]
    assert all(set(rule) >= {"alert", "expr", "for", "annotations"} for rule in rules)
    assert set(METRIC.findall(" ".join(rule["expr"] for rule in rules))) <= set(SERVER | WORKER)
    text = (ROOT / "docs" / "operate" / "deploy.md").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in rules if f"`{rule['alert']}`" not in text] == []


def test_the_page_names_metrics_that_exist() -> None:
    known = families(set(SERVER | WORKER))
    for name in ("operate/deploy.md", "operate/server.md", "operate/health.md", "guide/observe.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert families(set(METRIC.findall(text))) <= known
    pages = {"server.md": SERVER, "health.md": WORKER}
    for name, series in pages.items():
        text = (ROOT / "docs" / "operate" / name).read_text(encoding="utf-8")
        # A row may name several metrics that begin alike, as `headrace_jobs_ready`, `…_scheduled`.
        parts = {f"headrace_jobs{end}" for end in re.findall(r"`…(_\w+)`", text)}
        assert families(set(series)) <= set(METRIC.findall(text)) | parts


# ── Grafana ──────────────────────────────────────────────────────────────────


def test_the_dashboard_of_grafana_uses_every_metric_and_no_other() -> None:
    board = json.loads((DEPLOY / "grafana" / "headrace.json").read_text(encoding="utf-8"))
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [variable["query"] for variable in board["templating"]["list"]]
    used = families(set(METRIC.findall(" ".join(texts))))
    assert families(set(SERVER)) <= used <= families(set(SERVER | WORKER))
    variables = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$(\w+)", " ".join(texts))) <= variables


def test_rates_on_the_dashboard_of_grafana_are_of_counters() -> None:
    counters = {name for name, kind in (SERVER | WORKER).items() if kind in {"counter", "histogram"}}
    board = json.loads((DEPLOY / "grafana" / "headrace.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            [name] = METRIC.findall(target["expr"])
            assert ("rate(" in target["expr"]) == (name in counters), panel["title"]


def test_panels_of_grafana_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana" / "headrace.json").read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (place["x"] + column, place["y"] + row)
        for place in places
        for column in range(place["w"])
        for row in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


# ── systemd, Compose, Dockerfile ─────────────────────────────────────────────


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_drain_and_do_not_restart_in_vain(path: Path) -> None:
    service = unit(path)["Service"]
    # TERM goes to the supervisor alone, which drains its processes. A TERM to all of them would stop child processes of tasks.
    assert service["KillMode"] == "mixed"
    assert service["KillSignal"] == "SIGTERM"
    assert service["RestartPreventExitStatus"].split() == ["74", "78"]
    assert service["User"] != "root"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    """Checks the structure everywhere, and asks systemd itself where it is installed."""
    assert {"Unit", "Service", "Install"} == set(unit(path).sections())
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    copy = tmp_path / path.name.replace("@", "@mail")
    # systemd checks that the program and the user exist, so the copy names those of this machine.
    text = re.sub(r"ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text(encoding="utf-8"))
    copy.write_text(re.sub(r"(?m)^(User|Group)=.*\n", "", text), encoding="utf-8")
    done = subprocess.run([program, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if copy.name in line]
    assert (said, done.returncode) == ([], 0)


def test_compose_migrates_before_anything_works() -> None:
    services = compose()
    assert set(services) == {"postgres", "migrate", "server", "worker"}
    for name in ("server", "worker"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")


def test_the_image_runs_as_a_user_without_rights() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith(("#", " "))]
    assert [line[0] for line in words].count("FROM") == 2
    [user] = [line[1] for line in words if line[0] == "USER"]
    ids = {pod["securityContext"]["runAsUser"] for _, pod in pods()}
    assert user.split(":")[0] == str(*ids)
    assert ["ENTRYPOINT", '["headrace"]'] in words
    copied = [line[1:-1] for line in words if line[0] == "COPY" and not line[1].startswith("--from")]
    assert all((ROOT / source).exists() for sources in copied for source in sources)
