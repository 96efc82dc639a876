#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks src/layers.toml against the includes of src/: no undeclared component, wrong arrow, cycle or stray library."""

import argparse
import pathlib
import re
import sys
import tomllib

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SUFFIXES = {".h", ".cc"}


def component_of(path, components):
    """The declared component whose folder holds `path` (relative to src), the longest name first."""
    for name in sorted(components, key=len, reverse=True):
        if path.startswith(name + "/"):
            return name
    return None


def find_cycle(components):
    """A list of component names that include each other in a ring, or None."""
    state, trail = {}, []

    def visit(name):
        if state.get(name) == "done":
            return None
        if name in trail:
            return trail[trail.index(name) :] + [name]
        trail.append(name)
        for used in components[name].get("may_use", []):
            cycle = visit(used) if used in components else None
            if cycle:
                return cycle
        trail.pop()
        state[name] = "done"
        return None

    for name in components:
        cycle = visit(name)
        if cycle:
            return cycle
    return None


def check_declarations(components, libraries):
    for name, rule in components.items():
        for used in rule.get("may_use", []) + rule.get("test_may_use", []):
            if used not in components:
                yield f"layers.toml: {name} may use {used}, which is no declared component"
    for library, users in libraries.items():
        for user in users:
            if user not in components:
                yield f"layers.toml: library {library} names {user}, which is no declared component"
    cycle = find_cycle(components)
    if cycle:
        yield "layers.toml: cycle " + " -> ".join(cycle)


def check_project_include(where, owner, included, is_test, src, components):
    target = component_of(included, components)
    # Generated message headers lie in the build directory.
    if target is None and included.endswith(".pb.h"):
        if owner != "wire":
            yield f"{where}: only wire may include message headers; use its public headers"
        return
    # CMake makes x.h from x.h.in.
    if not (src / included).is_file() and not (src / f"{included}.in").is_file():
        yield f'{where}: "{included}" does not exist under src/; includes are written from src/'
        return
    if target is None:
        yield f'{where}: "{included}" belongs to no component of layers.toml'
        return
    rule = components[owner]
    allowed = {owner, *rule.get("may_use", [])}
    if is_test:
        allowed.update(rule.get("test_may_use", []))
    if target not in allowed:
        yield f'{where}: {owner} may not include "{included}": layers.toml does not let it use {target}'


def check_library_include(where, owner, included, libraries):
    for library, users in libraries.items():
        if included.startswith(library) and owner not in users:
            yield f"{where}: <{included}> is for {', '.join(users)} only; use that component's header"


def check_file(path, src, components, libraries):
    name = path.relative_to(src).as_posix()
    owner = component_of(name, components)
    if owner is None:
        yield f"src/{name}: its folder is not declared in layers.toml"
        return
    is_test = path.stem.endswith("_test")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        where, included = f"src/{name}:{number}", match[2]
        # Highway's own manner of use wants its headers in quotes.
        if match[1] == '"' and not included.startswith(tuple(libraries)):
            yield from check_project_include(where, owner, included, is_test, src, components)
        else:
            yield from check_library_include(where, owner, included, libraries)


def check_tree(src):
    """All findings for the tree at `src`, as lines of text."""
    rules = tomllib.loads((src / "layers.toml").read_text(encoding="utf-8"))
    components, libraries = rules["components"], rules.get("libraries", {})
    yield from check_declarations(components, libraries)
    for path in sorted(src.rglob("*")):
        if path.suffix in SUFFIXES:
            yield from check_file(path, src, components, libraries)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src", nargs="?", type=pathlib.Path, default=root / "src")
    findings = list(check_tree(parser.parse_args().src))
    for finding in findings:
        print(finding)
    print(f"layers: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
