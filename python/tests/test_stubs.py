"""The stubs that type checkers read, beside what the extension has."""

import ast
import pathlib
import textwrap

import gradwire
from gradwire import _gradwire

STUB = ast.parse((pathlib.Path(gradwire.__file__).parent / "_gradwire.pyi").read_text())


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_every_name_has_a_stub():
    classes = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}
    # The protocol of a group is for type checkers alone.
    protocol = classes.pop("Group")
    assert public(dir(_gradwire)) == set(classes) | functions
    for name, node in classes.items():
        methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        assert public(dir(getattr(_gradwire, name))) == public(methods), name
    assert public(part.name for part in protocol.body if isinstance(part, ast.FunctionDef)) == {
        "rank", "ranks", "all_gather", "all_to_all", "all_reduce_sum", "exchange", "broadcast",
    }  # fmt: skip


def test_every_argument_has_a_stub():
    for node in STUB.body:
        for part in node.body if isinstance(node, ast.ClassDef) and node.name != "Group" else []:
            found = getattr(getattr(_gradwire, node.name), part.name, None) if isinstance(part, ast.FunctionDef) else None
            text = getattr(found, "__text_signature__", None)
            if text is None or part.name.startswith("__"):
                continue
            arguments = [word.strip(" ()$/*").partition("=")[0] for word in text.split(",")]
            arguments = [word for word in arguments if word and word != "self"]
            stub = [argument.arg for argument in part.args.args + part.args.kwonlyargs if argument.arg != "self"]
            assert arguments == stub, (node.name, part.name, text)


def test_the_page_s_code_is_code():
    page = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    fences = [line.strip() for line in page.splitlines() if "```" in line]
    assert fences[::2] == ["```python" if "python" in fence else "```sh" for fence in fences[::2]], fences
    assert set(fences[1::2]) == {"```"}
    blocks = page.split("```python\n")[1:]
    assert len(blocks) == fences.count("```python") > 3
    for block in blocks:
        ast.parse(textwrap.dedent(block.partition("```")[0]))
