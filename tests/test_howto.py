"The how-to pages: each is linked from their index, is short, and its Python blocks run as written, in order, in an empty folder"
import sys
from pathlib import Path
from types import ModuleType
import matplotlib, numpy as np, pytest
from test_readme import blocks

root = Path(__file__).parents[1]
folder = root/'docs'/'howto'
pages = sorted(o for o in folder.glob('*.md') if o.stem != 'index')

def test_index():
    "Every page is in the index"
    index = (folder/'index.md').read_text(encoding='utf-8')
    assert len(pages) >= 12 and all(f']({o.name})' in index for o in pages)

@pytest.mark.parametrize('page', pages, ids=lambda o: o.stem)
def test_short(page):
    "A question is answered within a page, and no line of code is cut"
    txt = page.read_text(encoding='utf-8')
    assert len(txt.split()) < 500
    assert not [l for _,code in blocks(txt) for l in code.splitlines() if len(l) > 96]

@pytest.mark.slow
@pytest.mark.parametrize('page', pages, ids=lambda o: o.stem)
def test_runs(page, tmp_path, monkeypatch):
    "All blocks of a page; a failure names the page's line"
    found = blocks(page.read_text(encoding='utf-8'))
    if not found and page.stem != 'several_gpus': pytest.fail(f'{page.name} shows no Python that runs')
    monkeypatch.chdir(tmp_path)
    matplotlib.use('Agg')
    ns = ModuleType('howto')
    monkeypatch.setitem(sys.modules, 'howto', ns)   # what a page defines can be pickled
    for line,code in found: exec(compile('\n'*line + code, str(page), 'exec'), vars(ns))

@pytest.mark.slow
def test_kfold_any_index(tmp_path, monkeypatch):
    "A fold's validation rows are those that scikit-learn chose, whatever the frame's index says"
    from fastai_txf import all as library
    def shuffled(*args, **kwargs):
        df = docstrings_df(*args, **kwargs)
        return df.set_index(np.random.RandomState(0).permutation(len(df)))
    docstrings_df = library.docstrings_df
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(library, 'docstrings_df', shuffled)
    ns = {}
    for _,code in blocks((folder/'kfold.md').read_text(encoding='utf-8')): exec(code, ns)
    assert not ns['df'].index.is_monotonic_increasing
    assert sorted(ns['dls'].valid.items.index) == sorted(ns['df'].index[ns['valid']])
