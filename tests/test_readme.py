"The README's Python blocks run as written, in order, in one namespace"
import json, re, sys
from pathlib import Path
from types import ModuleType
import pytest

readme = Path(__file__).parents[1]/'README.md'
_block = re.compile(r'^```python[^\n]*\n(.*?)^```', re.M | re.S)
_not_run = re.compile(r'<!-- not run: \S.*-->\s*\Z')

def blocks(txt):
    "The `(first line, code)` of each Python block of `txt` that has no `<!-- not run: reason -->` above it"
    return [(txt.count('\n', 0, o.start(1)), o[1]) for o in _block.finditer(txt) if not _not_run.search(txt[:o.start()])]

def test_blocks():
    "Blocks are found with their place; those excused, and other languages, are left out"
    txt = 'a\n```python\nx = 1\n```\n```sh\nmake\n```\n<!-- not run: needs a GPU -->\n\n```python\ny\n```\n\n```python\nz = 2\n```\n'
    assert blocks(txt)==[(2,'x = 1\n'), (14,'z = 2\n')]

def outputs(txt): return [o for language,o in re.findall(r'^```(\w*)\n(.*?)^```', txt, re.M | re.S) if not language]

def test_readme(tmp_path, monkeypatch, capsys):
    "All blocks, in an empty folder; a failure names the README's line. What the README shows comes out, up to processors"
    found = blocks(readme.read_text(encoding='utf-8'))
    if not found: pytest.fail('README.md shows no Python')
    monkeypatch.chdir(tmp_path)
    ns = ModuleType('readme')
    monkeypatch.setitem(sys.modules, 'readme', ns)  # what the README defines can be pickled
    for line,code in found: exec(compile('\n'*line + code, str(readme), 'exec'), vars(ns))
    [shown] = outputs(readme.read_text(encoding='utf-8'))
    label,prob = shown.split(': ')
    said = re.search(rf'^{label}: (.*)$', capsys.readouterr().out, re.M)
    assert said and abs(float(said[1])-float(prob)) < 0.03

def test_output():
    "The output that the README shows is kept in the index"
    cells = json.loads((readme.parent/'nbs'/'index.ipynb').read_text(encoding='utf-8'))['cells']
    kept = '\n'.join(''.join(o.get('text', [])) for c in cells for o in c.get('outputs', []))
    shown = outputs(readme.read_text(encoding='utf-8'))
    assert shown and all(o in kept for o in shown)

@pytest.mark.slow
def test_picture(tmp_path, monkeypatch):
    "The README's picture is made by `docs/picture.py`"
    monkeypatch.syspath_prepend(str(readme.parent/'docs'))
    import picture
    monkeypatch.chdir(tmp_path)
    picture.main(tmp_path/'a.png', dict(epochs=1), dict(n=500, epochs=1))
    shown = re.findall(r'<img src="([^"]+)"', readme.read_text(encoding='utf-8'))
    assert shown==['nbs/images/overview.png'] and (readme.parent/shown[0]).exists()
    assert (tmp_path/'a.png').stat().st_size > 20_000
