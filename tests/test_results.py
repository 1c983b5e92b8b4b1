"The figures of the README and of the results page are those of the recorded rows, and each has its command"
import importlib.util, json, re, statistics
from pathlib import Path
import pytest

root = Path(__file__).parents[1]
results = root/'benchmarks'/'results'

def script(name):
    "A script of the benchmarks as a module"
    spec = importlib.util.spec_from_file_location(f'results_{name}', root/'benchmarks'/f'{name}.py')
    mod = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mod)
    return mod

@pytest.fixture(scope='module')
def page(): return script('page')

def read(f): return f.read_text(encoding='utf-8')
def rows(name): return [json.loads(l) for l in read(results/f'{name}.jsonl').splitlines()]

def test_up_to_date(page):
    "`benchmarks/page.py` would write the page and the README as they are"
    assert read(page.PAGE)==page.page() and read(page.README)==page.readme(), 'run benchmarks/page.py and commit'

def test_filled_in(page):
    "Every figure that the page's text names has been put in"
    assert not re.findall(r'\{[^{}]*\}', prose(page.page()))

def prose(txt):
    "What a reader sees of a markdown page as text: no code blocks, no addresses, no generated table"
    for o in (r'<!-- results -->.*?<!-- /results -->', r'```.*?```', r'<!--.*?-->', r'<img[^>]*>'): txt = re.sub(o, ' ', txt, flags=re.S)
    return re.sub(r'\]\([^)]*\)', '] ', txt)

KNOWN = {'3.11','1e-5','2','6','2.0','1,000','25,000','32'} # a version, a bound of the tests, GB of disk, versions, the set-up of two measurements

def test_readme_figures(page):
    "Each number in the README's prose is a recorded figure, or one of the few that are none"
    numbers = set(re.findall(r'(?<![\w.,-])\d[\d,.]*(?:e-?\d+)?(?<![.,])', prose(read(page.README))))
    allowed = {o for o in page.figures().values()} | KNOWN
    assert not numbers - allowed, 'a new figure belongs into figures() of benchmarks/page.py'
    assert not [k for k,v in page.figures().items() if v not in numbers]

def test_by_hand(page):
    "Some figures, worked out without `page.py`"
    txt,full = read(page.README),read(page.PAGE)
    few = [r['vectors, taught'] for r in rows('unlabelled') if r['labels']==1000 and 'vectors' in r['recipe']]
    assert len(few) == 3
    few = sum(few)/3
    assert f'**{few:.1f} %**' in txt and f'**{few:.1f}** (' in full
    single = [r for r in rows('generate') if r.get('bs')==1]
    speed = {r['candidate']:r['tokens_per_s'] for r in single if r['machine']==single[0]['machine']}
    assert f"**{speed['ours']:,} tokens a second**, {speed['ours']/speed['hf']:.1f} times" in txt
    bleu = statistics.fmean(r['bleu'] for r in rows('multi30k') if r['candidate']=='muon' and r['split']=='test')
    assert f'| {bleu:.1f} (' in txt and f'| {bleu:.1f} (' in full
    loss = [r['loss'] for r in rows('shakespeare') if r['candidate']=='plain']
    assert f'{statistics.fmean(loss):.2f} ({", ".join(f"{o:.2f}" for o in loss)})' in full

    nano = [r for r in rows('train') if r['candidate']=='nano'][-1]
    words = {5:'five', 7:'seven', 9:'nine'}.get(nano['rounds'], nano['rounds'])
    assert f'the median of the ratios of {words} rounds' in full
    small = [r for r in rows('serving') if r['part']=='int8' and r['candidate']=='int8']
    assert ' | '.join(f"{r['processor_tokens_per_s']:,} ({r['processor_ratio']:.2f})" for r in small) in full

OTHERS = dict(
    defaults=[dict(set='characters', shape=s, opt='muon', lr=0.01, seed=0, minutes=m, batches=b, loss=9.) for s,m,b in (('default',1.0,'full'), ('modern',0.75,'short'))],
    tokenizing=[dict(candidate='fastai', seed=0, asked=5000, n=None, texts_per_s=9)],
    lm_sample=[dict(candidate='txf', split='valid', seed=0, asked=5, n=None, loss=9.)],
    imdb=[dict(candidate='awd', split='test', seed=0, asked=1, n=None, epochs=9.)],
    gpu=[dict(candidate='write', bs=32, tokens_per_s=9)])

@pytest.mark.parametrize('name', OTHERS)
def test_other_options(page, name, monkeypatch):
    "Rows of runs with other options than the page shows leave it as it is"
    before,read_rows = page.page(), page.rows
    def more(file, **want): return read_rows(file, **want) + [r for r in OTHERS[name] if file==name and all(r.get(k)==v for k,v in want.items())]
    monkeypatch.setattr(page, 'rows', more)
    assert page.page()==before

def test_one_recipe(page, monkeypatch):
    "Runs of another recipe are not in the mean: they are named"
    read_rows = page.rows
    monkeypatch.setattr(page, 'rows', lambda file, **want: (rs := read_rows(file, **want)) + ([rs[0] | dict(recipe={})] if file=='transfer' else []))
    with pytest.raises(ValueError, match='2 recipes of labels'): page.few_labels('labels')

def sections(txt): return re.split(r'^## ', txt, flags=re.M)[1:]

def test_questions(page):
    "A section has one picture, its commands, machine, versions and date; what it runs exists"
    parts = [o for o in sections(page.page()) if re.search(r'!\[[^\]]+\]\(results/pictures/', o)]
    assert len(parts) >= len(page.QUESTIONS) > 10
    for o in parts:
        title = o.splitlines()[0]
        pictures = re.findall(r'!\[[^\]]+\]\((results/pictures/\w+\.png)\)', o)
        assert len(pictures)==1 and (root/'benchmarks'/pictures[0]).stat().st_size > 5000, title
        assert re.search(r'Measured on .*cores.*\(Python 3\.\d+\.\d+, torch [\d.]+\S*, fastai [\d.]+.*; 20\d\d-\d\d-\d\d.*commits? ', o), title
        scripts = re.findall(r'\.venv/bin/python (benchmarks/\w+\.py)', o)
        assert scripts and all((root/s).exists() for s in scripts), title

def test_labels_stand_apart(monkeypatch):
    "In the picture of all peers, no label touches the next"
    monkeypatch.syspath_prepend(str(root/'benchmarks'))
    plot,figs = script('plot'), []
    monkeypatch.setattr('matplotlib.figure.Figure.savefig', lambda fig, *a, **kw: figs.append(fig))
    plot.main()
    fig, = figs
    fig.canvas.draw()
    for ax in fig.axes:
        ys = sorted((o.y0, o.y1) for o in (l.get_window_extent() for l in ax.get_yticklabels() if l.get_text()))
        assert all(top + 2 < bottom for (_,top),(bottom,_) in zip(ys, ys[1:])), ax.get_title()
    plot.plt.close(fig)

def test_published(page):
    "A published figure has an address"
    txt = page.page()
    for line in re.findall(r'^.*[Pp]ublished.*$', '\n'.join(sections(txt)), re.M):
        if 'hatched' in line or line.startswith('|'): continue
        assert 'https://' in line, line
    assert all('](https://' in source for *_,source in page.PUBLISHED_IMDB)

def test_length(page):
    "The README is read in minutes: at most 800 words"
    words = re.findall(r'\S*\w\S*', re.sub(r'[|#*`\[\]]|---+', ' ', prose(read(page.README)) + page.summary()))
    assert 400 < len(words) <= 800
