"""The list of bad inputs, S1 to S80, and the tests that show the answer to each; what has no test yet says why."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
HERE = "server/security"

CASES: dict[str, tuple[str, ...]] = {
    "S1": ("domain/test_poison.py: s1",),
    "S2": ("domain/test_poison.py: s2",),
    "S3": (f"{HERE}/test_bodies.py: s3", "domain/test_poison.py: s3"),
    "S4": (f"{HERE}/test_bodies.py: s4",),
    "S5": (f"{HERE}/test_requests.py: s5", f"{HERE}/test_bodies.py: s5"),
    "S6": (f"{HERE}/test_bodies.py: s6",),
    "S7": (f"{HERE}/test_requests.py: s7",),
    "S8": (f"{HERE}/test_bodies.py: s8",),
    "S9": (f"{HERE}/test_bodies.py: s9",),
    "S10": (f"{HERE}/test_bodies.py: s10",),
    "S11": (f"{HERE}/test_bodies.py: s11", f"{HERE}/test_load.py: s11"),
    "S12": ("domain/test_refused_values.py: s12", "domain/test_codec.py: what_cannot_be_stored"),
    "S13": (f"{HERE}/test_bodies.py: s13", "domain/test_refused_values.py: s13"),
    "S14": (f"{HERE}/test_bodies.py: s14", f"{HERE}/test_load.py: s14"),
    "S15": (f"{HERE}/test_bodies.py: s15",),
    "S16": (f"{HERE}/test_bodies.py: s16",),
    "S17": (f"{HERE}/test_names.py: s17", "cli/test_errors.py: bad_queue_name"),
    "S19": (f"{HERE}/test_names.py: s19",),
    "S20": (f"{HERE}/test_names.py: s20",),
    "S21": (f"{HERE}/test_names.py: s21",),
    "S22": (f"{HERE}/test_names.py: s22", f"{HERE}/test_stores.py: s22"),
    "S23": (f"{HERE}/test_names.py: s23", "server/dashboard/test_dashboard.py: s23"),
    "S24": (f"{HERE}/test_names.py: s24",),
    "S25": (
        "stores/sqlite/test_files.py: name_no_file",
        "stores/sqlite/test_files.py: a_link",
        "stores/sqlite/test_files.py: network_file_system",
        "stores/sqlite/test_files.py: owners_alone",
    ),
    "S26": ("cli/test_errors.py: bad_queue_name", "domain/test_poison.py: s26"),
    "S28": (f"{HERE}/test_whose.py: s28", "server/test_matrix.py: unknown_paths"),
    "S29": (f"{HERE}/test_whose.py: s29", "server/test_auth_http.py: s29", f"{HERE}/test_load.py: s29"),
    "S30": (f"{HERE}/test_whose.py: s30", f"{HERE}/test_measured.py: s30", "server/test_auth.py: constant_time"),
    "S31": ("server/test_matrix.py: scope_at_an_endpoint", "server/test_auth_http.py: cannot_be_claimed"),
    "S32": (f"{HERE}/test_whose.py: s32", "server/test_matrix.py: another_ones_job", f"{HERE}/test_measured.py: s32"),
    "S33": ("server/test_auth_http.py: lease_is_worth_nothing",),
    "S34": (f"{HERE}/test_whose.py: s34", "server/test_matrix.py: nothing_of_others_is_moved"),
    "S35": ("server/test_work.py: s35",),
    "S36": ("server/test_auth_http.py: lease_is_worth_nothing",),
    "S37": (f"{HERE}/test_whose.py: s37",),
    "S38": (f"{HERE}/test_whose.py: s38",),
    "S39": (
        f"{HERE}/test_whose.py: s39",
        "server/test_tokens.py: kept_as_its_hash",
        "server/test_auth_http.py: in_the_url",
    ),
    "S41": (
        "server/dashboard/test_dashboard_browser.py: s41",
        "server/dashboard/test_dashboard_hostile.py: s41",
        "server/dashboard/test_dashboard_workflows.py: s41",
    ),
    "S42": (f"{HERE}/test_answers.py: s42",),
    "S43": (f"{HERE}/test_answers.py: s43",),
    "S44": (f"{HERE}/test_answers.py: s44", "server/dashboard/test_dashboard.py: s44"),
    "S45": (f"{HERE}/test_answers.py: s45", f"{HERE}/test_sessions.py: s45", "server/test_auth.py: origins"),
    "S46": (f"{HERE}/test_answers.py: s46", "server/test_events.py: other_sites"),
    "S47": (f"{HERE}/test_requests.py: s47", "server/test_auth.py: s47"),
    "S49": (f"{HERE}/test_sessions.py: s49",),
    "S51": (f"{HERE}/test_answers.py: s51",),
    "S52": (f"{HERE}/test_names.py: s52",),
    "S53": ("server/test_polls.py: s53", f"{HERE}/test_measured.py: s53"),
    "S55": ("server/test_webhooks.py: s55", "webhooks/test_declare.py: s55"),
    "S58": ("webhooks/test_http_post.py: s58", "webhooks/test_delivery.py: s58"),
    "S59": ("server/test_webhooks.py: s59", "webhooks/test_declare.py: s59", "webhooks/test_http_post.py: s59"),
    "S60": ("webhooks/test_http_post.py: s60", "webhooks/test_declare.py: s60", "webhooks/test_delivery.py: s60"),
    "S61": (f"{HERE}/test_load.py: s61", "server/test_faults.py: s61"),
    "S63": (f"{HERE}/test_load.py: s63",),
    "S64": (f"{HERE}/test_load.py: s64",),
    "S65": (f"{HERE}/test_load.py: s65",),
    "S66": ("server/test_store_rules.py: s66",),
    "S67": (f"{HERE}/test_names.py: s67",),
    "S68": (f"{HERE}/test_requests.py: s68",),
    "S69": (f"{HERE}/test_names.py: s69",),
    "S70": (f"{HERE}/test_names.py: s70", f"{HERE}/test_answers.py: s70"),
    "S71": ("cli/test_output.py: s71",),
    "S72": (
        f"{HERE}/test_secrets.py: s72",
        f"{HERE}/test_answers.py: s72",
        "server/dashboard/test_dashboard_hostile.py: s72",
        "domain/test_redact.py: secrets",
    ),
    "S73": ("server/test_faults.py: s73",),
    "S74": (f"{HERE}/test_secrets.py: s74", "domain/test_settings.py: bad_values"),
    "S75": ("server/test_tls.py: s75", f"{HERE}/test_stores.py: s75", "stores/redis/test_tls.py: falls_back"),
    "S76": ("stores/redis/test_health.py: s76", "stores/sqlite/test_files.py: check_looks_at_everything"),
    "S77": (f"{HERE}/test_stores.py: s77",),
    "S78": (f"{HERE}/test_package.py: s78",),
    "S80": (f"{HERE}/test_package.py: s80",),
}

LATER = {
    "S50": "there are no rules that match addresses of people",
    "S79": "nothing was released yet",
}


@functools.cache
def names(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("case", CASES)
def test_there_is_a_test(case: str) -> None:
    for each in CASES[case]:
        file, _, part = each.partition(": ")
        found = [name for name in names(file) if f"_{part}_" in f"{name}_"]
        assert found, f"{case}: nothing in {file} has {part} in its name"


def test_no_case_is_forgotten() -> None:
    assert not CASES.keys() & LATER.keys()
    # Every test that bears a number of the list stands in it.
    for path in TESTS.rglob("test_*.py"):
        file = str(path.relative_to(TESTS))
        for name in names(file):
            for part in name.split("_"):
                if part[:1] == "s" and part[1:].isdigit():
                    case = part.upper()
                    assert case in CASES, (file, name)
                    assert any(each.startswith(f"{file}: ") for each in CASES[case]), (file, name)
