"The site: built without a warning, with links that lead somewhere and every public name; opened without a network"
import html.parser, importlib.util, inspect, json, os, re, subprocess, sys, urllib.parse
from pathlib import Path
import pytest
import browser

root = Path(__file__).parents[1]
sys.path.insert(0, str(root/'docs'))
import api, pages

lost = [o for o in ('material','latex2mathml') if not importlib.util.find_spec(o)]
needs_mkdocs = pytest.mark.skipif(bool(lost), reason=f"{lost} missing: pip install '.[docs]'")

# Pages from notebooks

def test_split_tests():
    "Tests that end a cell are told from its code; a test in the middle stays"
    assert pages.split_tests('x = 1\ntest_eq(x, 1)\nassert x')==('x = 1', 'test_eq(x, 1)\nassert x')
    assert pages.split_tests('for o in a: test_eq(o, 1)')==('', 'for o in a: test_eq(o, 1)')
    assert pages.split_tests('test_eq(x, 1)\nx')==('test_eq(x, 1)\nx', '')
    assert pages.split_tests('%time x')==('%time x', '')

def test_cell():
    "Directives go, hidden cells too; output follows code, tests are folded behind one line"
    out = dict(output_type='stream', text='hello')
    c = dict(id='a', source='#| export\ndef f(): return 1\ntest_eq(f(), 1)', outputs=[out])
    txt = pages.code_cell(c, Path('.'), 'p')
    assert '#|' not in txt and txt.index('def f()') < txt.index('hello') < txt.index('<summary>test</summary>') < txt.index('test_eq')
    assert pages.code_cell(dict(id='a', source='#| hide\nx', outputs=[]), Path('.'), 'p')==''

def test_link_citations():
    "A known citation becomes a link; one in code, in a link, in a heading or unknown does not"
    known = {'vaswani2017','press2017'}
    def link(s): return pages.link_citations(s, 'b.md', known)
    assert link('(Vaswani et al. 2017, eq. 1)')=='([Vaswani et al. 2017](b.md#vaswani2017), eq. 1)'
    assert link('Press and Wolf (2017) say')=='[Press and Wolf (2017)](b.md#press2017) say'
    plain = '`Vaswani et al. 2017`', '[Vaswani et al. 2017](x)', '# Vaswani et al. 2017', 'Unknown et al. 2017', '4 July 1976'
    assert [link(s) for s in plain]==[*plain]

def sources():
    "The text of every page and of every docstring, with its name"
    for o in [*root.glob('nbs/**/*.ipynb'), *root.glob('**/*.md')]:
        if {'.venv','_proc','_docs','.venv-lowest'} & set(o.relative_to(root).parts): continue
        if o.suffix=='.md': yield o, o.read_text(encoding='utf-8')
        else: yield o, '\n'.join(pages.joined(c['source']) for c in json.loads(o.read_text(encoding='utf-8'))['cells'])

def test_citations():
    "Each citation of two authors or of one et al. is in the bibliography, and each of its papers has an address"
    known = pages.entries()
    cited = {(o.name, *c) for o,page in sources() if o.name != 'bibliography.md' for c in pages.citations(page)}
    assert not [(page, txt) for page,txt,k,several in cited if several and k not in known]
    lines = [l for l in (root/'docs'/'bibliography.md').read_text(encoding='utf-8').splitlines() if l.startswith('- ')]
    assert len(lines) > 40 and all('](http' in l and '<a id=' in l for l in lines)

# The API

def public():
    import fastai_txf.all as every
    return [n for m in api.rooms() for n in m.__all__]

def test_every_name():
    "Each name of `fastai_txf.all` has a section in the API"
    txt = '\n'.join(api.page(m, 'x.md') for m in api.rooms())
    assert len(public()) > 150
    missing = [n for n in public() if not re.search(rf'^## {re.escape(n)} \{{ #{n.lower()}\b|^## \w+\.{n} ', txt, re.M)]
    assert not missing

def test_parameters():
    "A table says of each parameter what it means; those that torch, fastai and dataclasses bring along are theirs"
    bare = {}
    for m in api.rooms():
        for n in api.names(m):
            o = getattr(m, n)
            if callable(o) and (rows := [r[0] for r in api.parameters(o) if not r[3]]): bare[n] = rows
    own = {n:[p for p in ps if p.lstrip('*') in own_parameters(n)] for n,ps in bare.items()}
    assert not {n:ps for n,ps in own.items() if ps}

def own_parameters(name):
    "What the definition of a public name itself lists"
    import fastai_txf.all as every
    o = getattr(every, name)
    f = vars(o).get('__init__') if inspect.isclass(o) else inspect.unwrap(o)
    if not inspect.isfunction(f): return ()
    c = inspect.unwrap(f).__code__
    return c.co_varnames[:c.co_argcount+c.co_kwonlyargcount]

def test_table():
    "Name, type, default and meaning, those of a delegate too"
    import fastai_txf.all as every
    rows = {r[0]:r for r in api.parameters(every.transformer_classifier_learner)}
    assert rows['dls'][3] and rows['d_model'][2]=='`128`' or rows['d_model'][3]
    assert '| name | type | default | meaning |' in api.params_table(every.attend)

# The site

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "The built site: that of `TXF_SITE`, or a new one"
    if given := os.environ.get('TXF_SITE'): return Path(given)
    d = tmp_path_factory.mktemp('site')
    code = 'import sys; from pathlib import Path; sys.path.insert(0, "docs"); import build; build.build(*map(Path, sys.argv[1:]))'
    res = subprocess.run([sys.executable, '-c', code, d/'proc', d/'site'], cwd=root, capture_output=True, text=True)
    assert res.returncode==0 and 'WARNING' not in res.stderr, res.stderr[-3000:]
    return d/'site'

class Links(html.parser.HTMLParser):
    "The addresses of a page, those that it loads, and its anchors"
    def __init__(self, txt):
        super().__init__()
        self.links,self.loads,self.ids = [], [], set()
        self.feed(txt)
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if a.get('id'): self.ids.add(a['id'])
        if tag=='a' and a.get('name'): self.ids.add(a['name'])
        if tag=='a' and a.get('href'): self.links.append(a['href'])
        if tag in ('img','script','iframe') and a.get('src'): self.loads.append(a['src'])
        if tag=='link' and a.get('rel') not in ('canonical','next','prev') and a.get('href'): self.loads.append(a['href'])

def leads_nowhere(page, link, found):
    "What is wrong with a link of a page; nothing if it leads somewhere."
    path,_,mark = link.partition('#')
    target = (page.parent/urllib.parse.unquote(path.split('?')[0])).resolve() if path else page
    if target.is_dir(): target = target/'index.html'
    if not target.exists(): return 'missing'
    if mark and mark != '__search' and target in found and urllib.parse.unquote(mark) not in found[target].ids: return 'no such anchor'

@pytest.mark.slow
@needs_mkdocs
def test_links(site):
    "Every address inside the site exists, with its anchor; nothing is loaded from elsewhere"
    found = {o:Links(o.read_text(encoding='utf-8')) for o in site.rglob('*.html')}
    assert len(found) > 100
    wrong = [(o.name, l, 'from elsewhere') for o,p in found.items() for l in p.loads if re.match('https?:|//', l)]
    for o,p in found.items():
        inside = [l for l in p.links + p.loads if not re.match(r'[a-z]+:', l) and o.name != '404.html']
        wrong += [(str(o.relative_to(site)), l, what) for l in inside if (what := leads_nowhere(o, l, found))]
    assert not wrong, wrong[:20]

@pytest.mark.slow
@needs_mkdocs
def test_search(site):
    "Each public name is found by the search, at its place in the API"
    docs = json.loads((site/'search'/'search_index.json').read_text(encoding='utf-8'))['docs']
    at = {d['location'] for d in docs if d['location'].startswith('api/')}
    lost = [n for n in public() if not any(l.endswith((f'#{n.lower()}', f'-{n.lower()}')) for l in at)]
    assert not lost

OPENED = ['index.html', 'nbs/workshop/index.html', 'nbs/1_model/00_attention.html', 'nbs/tutorials/own_csv.html',
          'nbs/tutorials/explanations.html', 'docs/howto/index.html', 'api/index.html', 'api/learn_classifier.html',
          'benchmarks/index.html', 'gallery.html']
WIDE = """const code = [...document.querySelectorAll('.md-content .highlight pre > code')]
const cut = code.filter(o => o.scrollWidth > o.clientWidth + 1 && !o.closest('details:not([open])') && !o.closest('.output'))
return [document.documentElement.scrollWidth, window.innerWidth, cut.length]"""

@pytest.mark.slow
@needs_mkdocs
@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_browser(site, tmp_path):
    "Ten pages at two widths, light and dark: a silent console, nothing wider than the window, on the screen no code cut"
    shots = Path(os.environ.get('TXF_SHOTS', tmp_path))
    with browser.served(site) as url:
        b,wrong = browser.Browser(), []
        try:
            for width in (1440, 390):
                for page in OPENED:
                    b.open(f'{url}/{page}', width)
                    page_w,win_w,cut = b.run(WIDE)
                    if page_w > win_w: wrong.append((page, width, f'{page_w} wide'))
                    if width > 1000 and cut: wrong.append((page, width, f'{cut} blocks of code cut'))
                    wrong += [(page, width, o) for o in b.console()]
                    (shots/f"{page.replace('/', '_').removesuffix('.html')}_{width}.png").write_bytes(b.screenshot())
            b.open(f'{url}/{OPENED[2]}', 1440)
            b.run("document.getElementById('__palette_1').click()")
            assert b.run("return getComputedStyle(document.body).backgroundColor") != 'rgb(255, 255, 255)'
            (shots/'dark.png').write_bytes(b.screenshot())
        finally: b.close()
    assert not wrong, wrong
