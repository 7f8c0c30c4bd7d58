"""The contract of templates/: what they may read, how they are written; the same inputs give the same bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import jinja2
import pytest
from jinja2 import meta, nodes

from flashgen.assets import templates_dir
from flashgen.codegen.environment import make_environment
from flashgen.codegen.module import ModuleView
from flashgen.families import FAMILIES
from flashgen.spec import FEATURES, AttentionSpec

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted(path.relative_to(templates_dir()).as_posix() for path in templates_dir().rglob("*.jinja"))
SKELETONS = [name for name in TEMPLATES if name.endswith(".py.jinja")]
# m and n say how rows of queries and of keys broadcast, may_mask which blocks hold masked pairs; names are by role;
# has_bias whether any kernel of the module adds one, sums_dq whether kernels add dq up in fp32, as_held whether
# the sum lies as registers hold it, pads_dq whether that of any does.
KERNEL_NAMES = {
    "spec",
    "config",
    "name",
    "names",
    "tl",
    "tanh",
    "m",
    "n",
    "may_mask",
    "has_bias",
    "sums_dq",
    "as_held",
    "pads_dq",
}
# What the skeletons in Gluon call their tuples; which blocks of keys a consumer skips, for how many rows,
# and in whose turn; whose dQ is added, of which head and from which query on.
KERNEL_NAMES |= {"off_h", "start_m"}
KERNEL_NAMES |= {"bounds", "apart", "rings", "sizes", "skips", "shrinks", "blocks", "rows", "turns", "highest"}
# Of a softmax; where the output is rescaled, and where PV is; by which barriers K is released, and dS.
KERNEL_NAMES |= {"exponent", "rescales", "pv", "k_empty", "ds_empty"}
# For how many queries; where its tile lies, and in which shape, in the tensors of queries.
KERNEL_NAMES |= {"own_queries", "rows_at", "as_packed"}
MODULE_NAMES = {"module"}


def source(name: str) -> str:
    return (templates_dir() / name).read_text()


@pytest.fixture(scope="module")
def environment() -> jinja2.Environment:
    return make_environment(templates_dir())


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_read_only_the_names_of_their_contract(name: str, environment: jinja2.Environment) -> None:
    allowed = MODULE_NAMES if name.startswith("module/") else KERNEL_NAMES
    assert meta.find_undeclared_variables(environment.parse(source(name))) <= allowed


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_attribute_that_a_template_reads_exists(name: str, environment: jinja2.Environment) -> None:
    known = {
        "spec": {f.name for f in fields(AttentionSpec)} | set(dir(AttentionSpec)),
        "config": {attribute for family in FAMILIES.values() for attribute in dir(family.config_type)},
        "module": set(re.findall(r"self\.(\w+)", (ROOT / "flashgen/codegen/module.py").read_text()))
        | {f"has_{feature}" for feature in FEATURES}
        | set(dir(ModuleView)),
    }
    for read in environment.parse(source(name)).find_all(nodes.Getattr):
        if isinstance(read.node, nodes.Name) and read.node.name in known:
            assert read.attr in known[read.node.name], f"{name} reads {read.node.name}.{read.attr}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_fights_whitespace(name: str) -> None:
    assert not re.search(r"\{[%{]-|-[%}]\}", source(name))


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_says_what_it_is(name: str) -> None:
    assert source(name).startswith("{#")


def test_every_fragment_is_included_somewhere() -> None:
    included = {found for name in TEMPLATES for found in re.findall(r'include "([^"]+)"', source(name))}
    assert set(TEMPLATES) - included == set(SKELETONS)


@pytest.mark.parametrize("name", [*SKELETONS, "kernel/forward_tl_tile.jinja"])
def test_skeletons_read_as_code(name: str) -> None:
    """At most a quarter of a skeleton's lines choose between lines; an include only names what stands there."""
    lines = [line for line in source(name).splitlines() if line.strip()]
    choices = [line for line in lines if re.search(r"\{% (if|elif|else|endif|for|endfor)\b", line)]
    assert len(choices) <= len(lines) / 4 + 3


def _emit(seed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flashgen.cli", "emit", "--gpu", "h200", *arguments]
    env = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=120, check=False)


def test_the_same_configs_give_the_same_bytes_whatever_the_hash_seed() -> None:
    first, second = _emit("1"), _emit("2")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert "def flash_attention(" in first.stdout


def test_the_committed_example_is_what_the_committed_configs_emit() -> None:
    """The golden module: a change of template or config shows as a diff of a file that reviewers read.

    To accept one: flashgen emit --gpu h200 --out examples/flash_attention_h200.py
    """
    check = _emit("0", "--check", "--out", "examples/flash_attention_h200.py")
    assert check.returncode == 0, check.stdout + check.stderr
