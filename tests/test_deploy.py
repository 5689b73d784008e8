"""Deployment files and project files agree with the code."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

import ttamer
from support.commands import parse
from support.programs import require_program
from ttamer.serve.records import Metrics

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
YAML = [
    *ROOT.glob(".github/**/*.yml"),
    *DEPLOY.rglob("*.y*ml"),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]


def dashboard() -> dict:
    return json.loads((DEPLOY / "grafana" / "dashboards" / "ttamer.json").read_text("utf-8"))


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_a_yaml_file_can_be_read(path):
    assert yaml.safe_load(path.read_text("utf-8"))


def test_the_dashboard_shows_metrics_that_the_server_has():
    metrics = Metrics()
    for name in ("running", "waiting", "log_rows_lost", "policies_refused"):
        metrics.gauge(f"ttamer_{name}", name, lambda: 0.0)
    text = generate_latest(metrics.registry).decode()
    known = set(re.findall(r"^(ttamer_\w+)", text, re.MULTILINE))
    known |= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    known |= {f"{name}_bucket" for name in known}
    shown = set(re.findall(r"ttamer_\w+", " ".join(expressions())))
    assert len(shown) > 10
    assert shown <= known


def test_every_panel_has_a_place_of_its_own():
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in dashboard()["panels"]]
    assert len(set(places)) == len(places)


def test_prometheus_understands_every_expression(tmp_path):
    promtool = require_program("promtool", package="prometheus", purpose="checking the dashboard")
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "1m")}
        for number, expr in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_container_starts_a_command_that_exists():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    [entry] = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    [rest] = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    program, *arguments = json.loads(entry)
    assert program.endswith("/ttamer")
    parsed = parse([*arguments, *json.loads(rest)])
    assert (parsed["host"], parsed["port"], parsed["policy"]) == ("0.0.0.0", 8080, "policy.ttamer")  # noqa: S104
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    assert "HEALTHCHECK" in text


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == ttamer.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[?{re.escape(ttamer.__version__)}", changelog, re.MULTILINE)


def test_workflows_run_targets_and_tests_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    used = set()
    tests = []
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text("utf-8"))["jobs"].values():
            for step in job["steps"]:
                words = shlex.split(step.get("run", ""))
                if words[:1] == ["make"]:
                    used.add(words[1])
                tests += [word for word in words if word.startswith("tests/")]
    assert {"test", "docs", "release-check", "explore"} <= used
    assert used <= targets
    assert tests
    assert all((ROOT / path).exists() for path in tests), tests


def test_the_lowest_versions_are_those_that_the_project_states():
    """A requirement without a bound would be the first version ever released."""
    test = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8"))
    (command,) = [
        step["run"] for step in test["jobs"]["lowest"]["steps"] if "lowest" in step.get("run", "")
    ]
    _, own, *named = shlex.split(command.partition("lowest-direct")[2])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(re.findall(r"[\w]+", own)) <= set(extras)
    assert named
    assert set(named) <= set(extras["dev"])
