"The scripts of the benchmarks run at the present library: they import, take the commands that the pages show, and give rows on small data"
import sys; sys.modules.setdefault('torchvision', None) # `transformers` would import it
import argparse, ast, gzip, importlib, io, itertools, re, shlex, shutil, subprocess
from contextlib import nullcontext, redirect_stdout
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest, torch, torch.nn as nn, torch.nn.functional as F
from fastai.data import external
from fastai.learner import Learner
from fastai.optimizer import SGD
from fastai.torch_core import set_seed
from fastai_txf.learn.lm import transformer_lm_learner
from fastai_txf.recipes.best import _Towers
from fastai_txf.text.target import labelled_ids
from fixtures import *

root = Path(__file__).parents[1]
bench = root/'benchmarks'
NAMES = sorted(f.stem for f in bench.glob('*.py'))
RUN = [n for n in NAMES if n not in ('common','peers','page','plot')] # what has options
NEEDS = {'multi30k':['sacrebleu']} | dict.fromkeys(['peers','train','epoch','generate'], ['transformers','x_transformers'])

# A small data folder, and the scripts in a folder of their own

WORDS = [a+b+c for a in 'bdfglm' for b in 'aeiou' for c in 'nprstk']

def review(rng, label):
    words = dict(neg=['dull','bad'], pos=['warm','good'])[label]
    return ' '.join(rng.permutation([*words*3, *rng.choice(WORDS, 40)])) + ' .'

def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding='utf-8')

def make_data(folder):
    "What `untar_data` and the scripts look for, in little"
    rng = np.random.default_rng(0)
    for part,labels in dict(train='neg pos', test='neg pos', unsup='').items():
        for label in labels.split() or ['']:
            for i in range(150): write(folder/'imdb'/part/label/f'{i}_1.txt', review(rng, label or ('neg','pos')[i%2]))
    labels = ['neg','pos']*50
    (folder/'imdb_sample').mkdir()
    pd.DataFrame(dict(label=labels, text=[review(rng, l) for l in labels], is_valid=np.arange(100) >= 70)).to_csv(folder/'imdb_sample'/'texts.csv', index=False)
    for part in ('train','val','test'):
        pairs = [(a,b) for a,b in zip('ein Hund läuft schnell über den Weg'.split()*8, 'one dog runs fast across the way'.split()*8)]
        rows = [[pairs[j] for j in rng.permutation(len(pairs))[:8]] for _ in range(60)]
        for i,lang in enumerate(('de','en')): write(folder/'multi30k'/f'{part}.{lang}', '\n'.join(' '.join(p[i] for p in r) for r in rows))
    write(folder/'tinyshakespeare'/'input.txt', '\n\n'.join(f"{('FIRST','SECOND')[i%2]}:\n{review(rng, ('neg','pos')[i%2])}" for i in range(150)))
    write(folder/'conll2003'/'train.txt', ''.join(f'John{i} I-PER\nsaw O\nRome{i} I-LOC\n. O\n\n' for i in range(40)))
    (folder/'sentences').mkdir()
    for name in ('trec.train','trec.test','custrev','mpqa','subj'):
        with gzip.open(folder/'sentences'/f'{name}.txt.gz', 'wt') as f:
            for i in range(100): f.write(f"{('neg','pos')[i%2]}:x {name[:2]}{i} {review(rng, ('neg','pos')[i%2])}\n")

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "A copy of the scripts, whose results are thrown away, and fastai's folders beside it"
    home = tmp_path_factory.mktemp('bench')
    for f in bench.glob('*.py'): shutil.copy(f, home)
    make_data(home/'data')
    names = set(sys.modules)
    with pytest.MonkeyPatch.context() as m:
        m.setenv('FASTAI_HOME', str(home))
        external.fastai_cfg.cache_clear()
        external.fastai_cfg()                                                # writes config.ini
        m.syspath_prepend(str(home))
        for k in NAMES: m.delitem(sys.modules, k, raising=False)             # another test's would write beside the originals
        yield home
    external.fastai_cfg.cache_clear()
    for k in ({*sys.modules} - names) & {*NAMES}: del sys.modules[k]

@pytest.fixture
def script(folder):
    "A script as a module; a test that needs what is not installed is skipped"
    def load(name):
        missing = [o for o in NEEDS.get(name, ()) if not find_spec(o)]
        if missing: pytest.skip(f'needs {missing[0]}')
        return importlib.import_module(name)
    return load

# Imports and commands

@pytest.mark.parametrize('name', NAMES)
def test_import(name, folder, script, capsys):
    "A script that is imported does nothing: it says nothing, and leaves no file"
    def there(): return {f for f in folder.rglob('*') if '__pycache__' not in f.parts}
    before = there()
    script(name)
    assert capsys.readouterr() == ('','') and there() == before

class Found(Exception): pass

def parser(mod, monkeypatch):
    "What a script reads its options with; a wrong one is a ValueError"
    def found(self, *args): raise Found(self)
    def error(message): raise ValueError(message)
    with monkeypatch.context() as m:
        m.setattr(argparse.ArgumentParser, 'parse_args', found)
        with pytest.raises(Found) as e: mod.main()
    res = e.value.args[0]
    res.error = error
    return res

def read(f): return f.read_text(encoding='utf-8')

def shown():
    "Commands `(script, options, page)` of pages and docstrings, and options alone where their script is clear"
    pages = [root/'README.md', root/'CONTRIBUTING.md', bench/'README.md', *sorted((root/'docs').rglob('*.md')), *sorted((bench/'results').glob('*.md'))]
    texts = {str(f.relative_to(root)):read(f) for f in pages} | {f'{k}.py':ast.get_docstring(ast.parse(read(bench/f'{k}.py'))) for k in RUN}
    for page,text in texts.items():
        for a,b,c,d in re.findall(r'`(?:\S*python )?(?:benchmarks/)?(\w+)\.py ([^`<|\n]+)`|^\S*python benchmarks/(\w+)\.py(.*)$', text, re.M): yield a or c, b or d, page
        for line in text.splitlines():
            row = re.match(r'\| `\S*python benchmarks/(\w+)\.py', line)
            for options in re.findall(r'`(--[^`]+)`', line): yield row[1] if row else Path(page).stem, options, page

SHOWN = sorted({(name, options.strip(), page) for name,options,page in shown() if name in RUN})

@pytest.mark.parametrize('name', sorted({n for n,*_ in SHOWN}))
def test_commands(name, script, monkeypatch):
    "A script takes the commands that are shown, with all that it requires, and has the options that are named"
    p = parser(script(name), monkeypatch)
    required = [a for a in p._actions if a.required]
    for _,options,page in [o for o in SHOWN if o[0] == name]:
        words,part = shlex.split(options), options.startswith('--')          # a part of a command may leave out what is required
        for a in required: a.required = not part or '--data FOLDER' in options
        if part and len(words) == 1: assert options in p._option_string_actions, f'{page}: {options}'
        else:
            try: p.parse_args(words)
            except ValueError as e: pytest.fail(f'{page} shows {name}.py {options}: {e}')

def test_shown():
    "Commands are found on pages, in tables and docstrings"
    assert len(SHOWN) > 80
    for o in [('imdb','--only bigram','README.md'), ('sets','--sets speakers names packages','sets.py'), ('serving','--only onnx --n 5000','benchmarks/README.md'),
              ('experiments','heads','benchmarks/results/experiments.md'), ('unlabelled','--alone --faster','benchmarks/results/unlabelled.md')]: assert o in SHOWN

# What the scripts take from the inside of the library, or put in its place

def lm(dls, **kw): return quiet(transformer_lm_learner(dls, 'default', d_model=16, n_heads=2, n_layers=1, max_len=16, p=0., emb_p=0., opt_func=SGD, lr=0.1, **kw))

@pytest.mark.parametrize('n', [6, 1000])
def test_guessed(n, script, df):
    "A fit with `Guessed` is one of plain cross-entropy over the `n` most frequent tokens, with rarer targets as unknown; so is the loss it says"
    guessed = script('imdb').Guessed(n)
    guessed.chunk = 5
    dls = [make_dls(df, is_lm=True, seq_len=16) for _ in range(2)]
    def loss(logits, targ): return F.cross_entropy(logits[...,:n].flatten(0, 1), targ.where(targ < n, torch.zeros_like(targ)).flatten())
    ours = lm(dls[0], cbs=guessed, metrics=[guessed.loss, loss, guessed.accuracy])
    plain = quiet(Learner(dls[1], deepcopy(ours.model), loss, opt_func=SGD))
    before = weights(ours)
    for o in (ours,plain):
        set_seed(0)                                                         # the same batches
        o.fit(1, 0.1, wd=0.)
    close(weights(ours), weights(plain))
    assert changed(ours, before)
    close(*ours.recorder.values[-1][2:4])

def test_core_minutes(script, dls_lm, monkeypatch):
    "A fit in core-minutes ends by the process's own time, with the schedule at its end"
    common,ticks = script('common'),itertools.count()
    monkeypatch.setattr(common.time, 'process_time', lambda: next(ticks))    # a second for each look at it
    learn = lm(dls_lm)
    learn.fit_one_cycle(100, 0.1, cbs=common.core_minutes(1.))
    rates = learn.recorder.lrs
    assert 30 < len(rates) < 60 and max(rates) > 0.09 and rates[-1] < 0.01

def test_fit_steps(script, dls_lm):
    "So many steps, in a rise and a fall, without validation"
    learn = lm(dls_lm)
    n = len(dls_lm.train) + 3
    script('common').fit_steps(learn, n, 0.1)
    rates = learn.recorder.lrs
    assert len(rates) == n and max(rates) > 0.09 and rates[0] < 0.05 and rates[-1] < 0.01
    assert learn.recorder.values == [] or len(learn.recorder.values[0]) < 2

def test_chunked_steps(script):
    "The steps whose memory `scale.py` measures are those of the loss with all logits, and nothing is validated"
    scale,res = script('scale'), []
    for cbs in ([], [scale.ChunkedLoss(3)]):
        set_seed(0)
        learn = scale.learner(3, 2, 8, 20, cbs=cbs, d_model=8, n_heads=2, n_layers=1, max_len=8)
        learn._do_epoch_validate = lambda *args, **kwargs: pytest.fail('validated')
        with pytest.raises(pytest.fail.Exception): learn.fit(1)
        learn._do_epoch_validate = lambda *args, **kwargs: None
        learn.fit(1)
        res.append(weights(learn))
    close(*res)

def test_token_losses(script):
    "The losses of disjoint windows, token by token"
    ids,model = torch.randint(0, 9, (50,)), nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    close(script('common').token_losses(model, ids, 7).flatten(), F.cross_entropy(model(ids[:49]), ids[1:], reduction='none'))

@pytest.mark.parametrize('way', ['plain','no_noise','adversarial','pairs'])
def test_trial(way, script, folder, monkeypatch):
    "A trial trains the transformer of `best_classifier`, or what is made of it, without the texts that it scores"
    pytest.importorskip('tokenizers')
    trials = script('trials')
    for k,v in dict(PASSES=1, N_TRAIN=40, N_HELD=30).items(): monkeypatch.setattr(trials, k, v)
    text,held,counted = trials.prepare(SimpleNamespace(data=folder/'data'/'sentences', seed=0, n=None), 'custrev')
    assert len(held) == len(counted) == 30 and len(text.ids) == 70
    learn = trials.train(text, way, 0, None)
    ids = labelled_ids(learn.dls.train_ds)[0]
    assert {*map(bytes, ids)} == {bytes(text.ids[i].numpy()) for i in range(70) if i not in held}
    best = _Towers(text, None, 0, None, print).config
    assert replace(learn.model.config, vocab_sz=None) == (replace(best, token_p=0., word_p=0.) if way == 'no_noise' else best)
    row,_ = trials.measured(text, learn, held, counted)
    assert 0 <= row['accuracy'] <= 100 and row['joined loss'] <= row['loss'] < 1

# Small runs

@pytest.fixture
def start(folder, script, monkeypatch):
    "Run a command; what a script would start in a process of its own runs here"
    def main(name, options):
        with monkeypatch.context() as m:
            m.setattr(sys, 'argv', [str(folder/f'{name}.py'), *shlex.split(options)])
            script(name).main()
    really = subprocess.run
    def run(cmd, capture_output=False, **kw):
        if cmd[0] != sys.executable or Path(cmd[1]).parent != folder: return really(cmd, capture_output=capture_output, **kw)
        out = io.StringIO()
        with redirect_stdout(out) if capture_output else nullcontext(): main(Path(cmd[1]).stem, shlex.join(cmd[2:]))
        return SimpleNamespace(stdout=out.getvalue())
    monkeypatch.setattr(subprocess, 'run', run)
    return main

@pytest.mark.parametrize('name', ['many','sets'])
def test_only_tried(name, folder, script, start, monkeypatch):
    "With `--n` a script is only tried: it keeps rows where `--out` asks for it"
    mod = script(name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(mod, 'run', lambda *args: dict(candidate='', set='', seed=0))
    monkeypatch.setattr(mod, 'render', lambda rows: f'{len(rows)} rows')
    start(name, '--data data/sentences --n 9')
    assert not (folder/'results'/f'{name}.jsonl').exists()
    start(name, '--data data/sentences --n 9 --only default best --out tried')
    assert int(read(folder/'tried'/f'{name}.md').split()[0]) >= 2

MACHINE = dict(machine='m', versions='v', commit='c', date='d')
def told(*args): return '# '
def some(*names): return lambda args: [dict(candidate=k, seconds=1., ratio=1., ratio_compiled=1., **MACHINE) for k in names or args.only]

TRIALS = [ # what is in the place of measuring, a command that only tries, and one that is recorded
    ('serving', dict(PARTS=dict(single=lambda args: [dict(part='single', candidate='bare')])), '--only single --texts 5', '--only single'),
    ('train', dict(race=some(), memory=lambda *args: 1, tables=told), '--rounds 1', '--rounds 9'),
    ('epoch', dict(race=some()), '--rounds 1', '--rounds 5'),
    ('packing', dict(lengths=lambda *args: [torch.tensor([1,2])], race=lambda *args: []), '--rounds 1', '--clock processor'),
    ('shakespeare', dict(make_dls=lambda: SimpleNamespace(valid=SimpleNamespace(flat=SimpleNamespace(ids=np.arange(9)))), txf=lambda *args: (None,1.), plain=lambda *args: (None,1.),
                         token_losses=lambda *args: torch.ones(1), n_params=lambda m: 1), '--seeds 0', '--steps 2000'),
    ('speedrun', dict(run=lambda name, seed, clock: dict(candidate=name, seed=seed)), '--only plain quarter', '--seeds 0 1 2'),
    ('modern', dict(DATA=dict(chars=lambda: ((None,None), 9)), train=lambda *args: (None,1.), token_losses=lambda *args: torch.ones(1), n_params=lambda m: 1), '--only base --steps 20', '--only base'),
    ('deeper', dict(run=lambda *args: {}), '--minutes 0.1', '--minutes 20'),
    ('defaults', dict(run=lambda row: dict(**row, loss=1., tokens=1)), '--minutes 0.05 --sets captions', '--sets captions'),
    ('gpu', dict(step=lambda args: [dict(kind='step', candidate='nano', **MACHINE)]), 'step --rounds 1', 'step'),
]

@pytest.mark.parametrize('name,small,trial,options', TRIALS, ids=[n for n,*_ in TRIALS])
def test_trial_is_not_recorded(name, small, trial, options, folder, script, start, monkeypatch):
    "Smaller numbers than the usual ones, or a part of the candidates, leave the results as they are"
    mod = script(name)
    for k,v in (small | dict(render=told, about=lambda *args: MACHINE)).items(): monkeypatch.setattr(mod, k, v)
    shutil.rmtree(folder/'results', ignore_errors=True)
    start(name, trial)
    assert not (folder/'results').exists()
    start(name, options)
    rows = script('common').read_rows(folder/'results'/f'{name}.jsonl')
    start(name, trial)
    assert rows and script('common').read_rows(folder/'results'/f'{name}.jsonl') == rows
    if name in ('deeper','serving'): return
    start(name, options)
    assert script('common').read_rows(folder/'results'/f'{name}.jsonl') == rows # in the place of the former ones

def test_done_before(folder, script, start, monkeypatch):
    "What `unlabelled.py` has in its results is not run again; with other labels or students it is"
    mod,ran = script('unlabelled'), []
    monkeypatch.setattr(mod, 'run', lambda n, seed, members, students, valid: ran.append(n) or mod.ask(n, seed, students))
    monkeypatch.setattr(mod, 'render', told)
    monkeypatch.setattr(mod, 'read_tokens', lambda part: [None]*300)
    shutil.rmtree(folder/'results', ignore_errors=True)
    for options in ('--labels 300 200 --students 0', '--labels 300 --students 0', '--labels 300 --students 1', '--labels 200 --seeds 0 1 --students 0', '--labels 300 --students 0 --valid'): start('unlabelled', options)
    assert ran == [300, 200, 300, 200, 300]

def test_few_texts(folder, script, monkeypatch):
    "`many.py --n` leaves texts to train on, and some to score"
    many,seen = script('many'), []
    learn = SimpleNamespace(predict=lambda texts: (['trec']*len(texts),))
    monkeypatch.setitem(many.CANDIDATES, 'default', lambda df, minutes: seen.append(len(df)) or learn)
    row = many.run('default', SimpleNamespace(data=folder/'data'/'sentences', n=40, minutes=1., threads=1))
    assert seen == [36] == [row['rows']] and 0 <= row['accuracy'] <= 100

def test_plain_first(folder, script, start, monkeypatch):
    "A way that has the time of the plain one is not run without it"
    pytest.importorskip('tokenizers')
    monkeypatch.setattr(script('trials'), 'prepare', lambda *args: (None, None, None))
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit, match='run plain on custrev, seed 3, first'): start('trials', '--data data/sentences --only mixup --sets custrev --seed 3 --out tried')

def test_presets_apart(script):
    "Runs of other presets, optimizers and rates are no line of the batches that grow"
    defaults = script('defaults')
    row = dict(set='captions', shape='modern', opt='muon', lr=0.01, seed=0, minutes=1., batches='full', loss=3., **MACHINE)
    shown = defaults.render([row])
    assert '| 1 | full from the start | – | – | – | 3.000 |' in shown
    assert defaults.render([row, row | dict(shape='default', loss=4.), row | dict(opt='adamw', loss=5.), row | dict(minutes=0.75, batches='short')]) == shown

@pytest.mark.parametrize('name', [n for n in RUN if n != 'scale'])
def test_tables(name, script):
    "The tables under `results` are what their scripts make of the rows there"
    rows = script('common').read_rows(bench/'results'/f'{name}.jsonl')
    assert read(bench/'results'/f'{name}.md') == script(name).render(rows), f'write what render of {name}.py gives'

READING = dict(SHAPE=dict(d_model=32), TEXT=dict(minutes=0.005, seq_len=16), VECTORS=dict(d=8, passes=1), STUDENT=dict(texts=30), held_out=lambda n=0: np.r_[:5, 295:300])
CASES = [ # what is smaller, and a command
    ('imdb', {}, '--n 100 --minutes 0.005 --only pretrained txf awd bigram --seeds 0 --out results'),
    ('imdb', {}, '--n 100 --minutes 0.005 --seeds 0 --valid --only txf --out results'),
    ('unlabelled', READING, '--labels 300 --students 0'),
    ('unlabelled', READING, '--labels 200 --students 0 --valid'),
    ('unlabelled', READING, '--labels 300 --alone --faster --reader 1'),
    ('lm_sample', {}, '--n 40 --minutes 0.005 --out results'),
    ('lm_sample', {}, '--n 40 --epochs 1 --only txf --out results'),
    ('multi30k', {}, '--n 32 --set epochs=1 bs=16 vocab_sz=300 num_beams=1 d_model=32 n_heads=2 n_layers=1 d_ff=32 --valid --only muon --out results'),
    ('shakespeare', {}, '--steps 3 --seeds 0'),
    ('modern', {}, '--steps 2 --opts muon --only base +relu2 +bigshort +warm all-cap'),
    ('modern', {}, '--steps 2 --only base --opts adam --data bpe'),
    ('deeper', {}, '--minutes 0.01 --seed 1 --out results'),
    ('speedrun', dict(STEPS=dict(plain=6, quarter=2, whole=6)), '--clock processor'),
    ('defaults', {}, '--minutes 0.003 --shapes modern bigrams --opts muon --lrs 0.01 --sets characters captions --out results'),
    ('defaults', {}, '--minutes 0.003 --shapes modern --opts muon --lrs 0.01 --sets captions --batches full short half few --out results'),
    ('experiments', dict(step_ms=lambda experiment: {}, TASKS=dict(depth=['characters'])), 'depth positions --steps 1 --seeds 0'),
    ('packing', {}, '--n 64 --rounds 1'),
    ('scale', {}, '--rounds 1 --vocab 100 --layers 1 --sl 16 --only full chunked twice both'),
    ('epoch', {}, '--bs 2 --batches 1 --rounds 1 --max_len 16 --only torch ours'),
    ('transfer', dict(held_out=READING['held_out']), '--n 100 --only counted bigram --seeds 0 --out results'),
    ('tokenizing', {}, '--n 20 --only fastai spacy bpe_trained short_chars stream_1 lm_1M flat_1M --seeds 0 --out results'),
    ('sets', {}, '--data data/sentences --n 90 --only bigrams words --sets trec custrev/10 speakers --seeds 0 --out results'),
    ('many', {}, '--data data/sentences --n 90 --minutes 0.005 --out results'),
    ('gpu', dict(MODEL=dict(d_model=32, n_heads=4, n_layers=1, max_len=32), READ=dict(minutes=0.005, bs=4, seq_len=16), LABELS=dict(epochs=1)), 'imdb --seeds 0'),
]

@pytest.mark.slow
@pytest.mark.parametrize('name,small,options', CASES, ids=[f'{n} {o[:40]}' for n,_,o in CASES])
def test_run(name, small, options, folder, script, start, monkeypatch):
    "A command goes through, and keeps rows with a table if it shall"
    mod = script(name)
    for k,v in small.items():
        if not isinstance(v, dict): monkeypatch.setattr(mod, k, v)
        else:
            for a,b in v.items(): monkeypatch.setitem(getattr(mod, k), a, b)
    monkeypatch.chdir(folder)
    shutil.rmtree(folder/'results', ignore_errors=True)
    start(name, options)
    kept = folder/'results'/f'{name}.jsonl'
    assert kept.exists() == ('--out' in options or name in ('speedrun','gpu') or name == 'unlabelled' and '--valid' not in options)
    if kept.exists(): assert script('common').read_rows(kept) and read(kept.with_suffix('.md')).startswith('# ')
