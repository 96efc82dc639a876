# SPDX-License-Identifier: Apache-2.0
"""Just enough reading of C++ to find where functions begin and end, by matching braces."""

import dataclasses
import re

TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'',
    re.S,
)
CONTAINER = re.compile(
    r"^(?:template\s*<.*>\s*|\[\[.*?\]\]\s*|inline\s+|export\s+|typedef\s+)*"
    r'(?:namespace|class|struct|union|enum|extern\s*"?\s*"?)(?:\W|$)',
    re.S,
)
CONTROL = re.compile(r"\b(if|for|while|switch|do|try|else|catch)\b")


@dataclasses.dataclass
class Function:
    name: str
    line: int
    lines: int
    parameters: int
    nesting: int


def blank_comments_and_strings(text):
    """The same text, with the inside of comments and literals turned to spaces; lines stay where they are."""

    def blank(match):
        token = match[0]
        inside = re.sub(r"[^\n]", " ", token)
        return inside if token.startswith("/") else '"' + inside[1:-1] + '"'

    return TOKENS.sub(blank, text)


def count_parameters(header):
    """How many parameters the first parameter list of a function's header has."""
    header = re.sub(r"\boperator\s*\(\s*\)", "operator", header)
    header = re.sub(r"\b(?:decltype|alignas|noexcept|explicit|requires)\s*\([^()]*\)", "", header)
    start = header.find("(")
    depth, commas, inside = 0, 0, ""
    for char in header[start:]:
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
            if depth == 0:
                break
        elif char == "," and depth == 1:
            commas += 1
        inside += char
    return commas + 1 if inside[1:].strip() not in ("", "void") else 0


def function_name(header):
    found = re.search(r"([\w:~]+|operator\W{1,3})\s*\(", header)
    return found[1] if found else "lambda"


def is_lambda_header(header):
    return bool(re.search(r"\[[^\[\]]*\]\s*(\([^;]*)?$", header, re.S))


class _Scanner:
    """One pass over blanked code that keeps a stack of open braces: (kind, open parentheses before it)."""

    def __init__(self, code):
        # Preprocessor lines, with their continuations, are no code.
        self.code = re.sub(
            r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), code, flags=re.M
        )
        self.found = []
        self.opened = []
        self.parens = 0
        self.header_start = 0
        self.function = None  # (where its header starts, the header) while inside one.
        self.nesting = 0
        self.nesting_most = 0

    def line(self, offset):
        return self.code.count("\n", 0, offset) + 1

    def kind_of(self, header):
        if self.function is not None:
            return "control" if CONTROL.search(header) and not is_lambda_header(header) else "block"
        if CONTAINER.match(header.strip()):
            return "container"
        inside_initialiser = bool(self.opened) and self.opened[-1][0] == "initialiser"
        if is_lambda_header(header) or ("(" in header and not inside_initialiser):
            return "function"
        return "initialiser"

    def open(self, at):
        header = self.code[self.header_start : at]
        kind = self.kind_of(header)
        self.opened.append((kind, self.parens))
        self.parens = 0
        if kind == "function":
            self.function = (self.header_start, header)
            self.nesting = self.nesting_most = 0
        elif kind == "control":
            self.nesting += 1
            self.nesting_most = max(self.nesting_most, self.nesting)
        if kind != "initialiser":
            self.header_start = at + 1

    def close(self, at):
        kind, self.parens = self.opened.pop() if self.opened else ("container", 0)
        if kind == "control":
            self.nesting -= 1
        if kind == "function":
            self.end_function(at)
        elif kind != "initialiser" and self.parens == 0:
            self.header_start = at + 1

    def end_function(self, at):
        start, header = self.function
        self.function = None
        # A brace that a comma or another brace follows was a member's initialiser: the body is still to come.
        if re.match(r"\s*[,{]", self.code[at + 1 :]) and not is_lambda_header(header):
            self.header_start = start
            return
        self.header_start = at + 1
        first = self.line(start + len(header) - len(header.lstrip()))
        self.found.append(
            Function(
                function_name(header),
                first,
                self.line(at) - first + 1,
                count_parameters(header),
                self.nesting_most,
            )
        )

    def run(self):
        for match in re.finditer(r"[{}();]|(?:public|private|protected)\s*:", self.code):
            token, at = match[0], match.start()
            if token in "()":
                self.parens += 1 if token == "(" else -1
            elif token == "{":
                self.open(at)
            elif token == "}":
                self.close(at)
            elif self.parens == 0:  # The semicolons inside for (…) end no statement.
                self.header_start = match.end()
        return self.found


def functions(code):
    """Every function and namespace-level lambda defined in `code`, which must have been blanked."""
    return _Scanner(code).run()
